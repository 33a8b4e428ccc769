"""Draw an Analysis: .png and .svg by matplotlib, .html by plotly. What is drawn is decided in figures.py.

    rewards | ceilings | linearised     compute is shared downwards, reward sideways; the two right-hand
    residuals          | who is best    panels are there for a comparison; in .html they follow below
"""

import os
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from scalerl.study.analysis import Analysis
from scalerl.study.figures import (
    MOST_BANDS,
    CurveData,
    Dots,
    FigureData,
    compute_text,
    compute_ticks,
    figure_data,
    interval_text,
    legend_text,
)
from scalerl.study.series import InputError

# Okabe and Ito's colours without the yellow that white swallows, then Paul Tol's muted ones.
COLOURS = (
    "#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9",
    "#332288", "#882255", "#999933", "#44AA99", "#661100", "#555555",
)  # fmt: skip
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "p")
PLOTLY_MARKERS = ("circle", "square", "triangle-up", "diamond", "triangle-down", "cross", "x", "pentagon")
WARNING = "#B00020"
GREY = "#666666"
DPI = 160
MOST_NAMED = 60  # curves in the legend
MOST_RANKED = 8
MOST_SLOPES = 8


def draw(analysis: Analysis, path: Path) -> None:
    """Write the figure of an analysis; the suffix of `path` chooses the kind."""
    path = Path(path)
    if path.suffix.lower() not in SUFFIXES:
        raise InputError(f"--plot {path} ends in {path.suffix or 'nothing'!r}: choose one of {', '.join(SUFFIXES)}.")
    if not path.parent.is_dir():
        raise InputError(f"cannot write {path}: there is no folder {path.parent}.")
    data = figure_data(analysis)
    # Beside its goal and renamed when complete, so that nothing half written is ever found there.
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        SUFFIXES[path.suffix.lower()](data, part)
        part.replace(path)
    except ModuleNotFoundError as fault:
        raise InputError('--plot needs the report extra: pip install "scalerl[report]".') from fault
    except OSError as fault:
        raise InputError(f"cannot write {path}: {fault.strerror or fault}.") from None
    finally:
        part.unlink(missing_ok=True)


def colour(curve: int) -> str:
    return COLOURS[curve % len(COLOURS)]


def _marker(curve: int, dots: Dots) -> int:
    """Runs differ by marker, and so do curves that share a colour."""
    return (curve // len(COLOURS) + dots.run) % len(MARKERS)


def _clipped(residual: np.ndarray, limit: float) -> tuple[np.ndarray, np.ndarray]:
    """Residuals held to the panel, and which of them lie outside it."""
    return np.clip(residual, -0.93 * limit, 0.93 * limit), np.abs(residual) > limit


# matplotlib -----------------------------------------------------------------------------------------------------------

STYLE = {
    "text.parse_math": False,  # a name may hold dollars
    "svg.hashsalt": "scalerl",  # the same figure is the same file
    "font.size": 9,
    "axes.titlesize": 9,
    "axes.titlelocation": "left",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": GREY,
    "axes.axisbelow": True,
    "grid.color": "#E4E4E4",
    "grid.linewidth": 0.6,
    "hatch.linewidth": 0.6,
}


def _draw_png(data: FigureData, path: Path) -> None:
    _draw_matplotlib(data, path, "png", {})


def _draw_svg(data: FigureData, path: Path) -> None:
    _draw_matplotlib(data, path, "svg", {"Date": None})


def _draw_matplotlib(data: FigureData, path: Path, kind: str, metadata: dict[str, Any]) -> None:
    import matplotlib

    with matplotlib.rc_context(STYLE), warnings.catch_warnings():
        # Names may be in any script; what the font lacks shows as boxes and is not worth a warning.
        warnings.filterwarnings("ignore", message="Glyph .* missing")
        _figure(data).savefig(path, format=kind, dpi=DPI, facecolor="white", metadata=metadata)


def _figure(data: FigureData) -> Any:
    from matplotlib.figure import Figure

    num = len(data.curves)
    widths = [6.6, min(0.55 + 0.13 * num, 2.4)]
    if data.ranking:
        widths.append(3.9)
    key, names = _handles(data)
    longest = max(len(text) for text in names.values())
    columns = max(1, min(4, int(sum(widths) / (0.062 * longest + 0.45))))
    legend_height = 0.17 * -(-len(names) // columns) + 0.62
    heights = [3.9, 1.25, legend_height]
    figure = Figure(figsize=(sum(widths) + 0.4, sum(heights) + 0.7), layout="constrained")
    grid = figure.add_gridspec(3, len(widths), width_ratios=widths, height_ratios=heights)
    main = figure.add_subplot(grid[0, 0])
    strip = figure.add_subplot(grid[0, 1], sharey=main)
    below = figure.add_subplot(grid[1, 0], sharex=main)
    _main_panel(main, data)
    _ceiling_panel(strip, data)
    _residual_panel(below, data)
    if data.straights:
        _straight_panel(figure.add_subplot(grid[0, 2]), data)
        _ranking_panel(figure.add_subplot(grid[1, 2]), data)
    elif data.ranking:
        _ranking_panel(figure.add_subplot(grid[0, 2]), data)
    _legends(figure.add_subplot(grid[2, :]), data, key, names, columns)
    return figure


def _compute_axis(axes: Any, data: FigureData, low: float, high: float) -> None:
    from matplotlib.ticker import FixedFormatter, FixedLocator, NullLocator

    ticks = compute_ticks(low, high)
    axes.set_xscale("log")
    axes.set_xlim(low, high)
    axes.xaxis.set_major_locator(FixedLocator(ticks))
    axes.xaxis.set_major_formatter(FixedFormatter([compute_text(tick) for tick in ticks]))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.set_xlabel(data.x_label)
    axes.grid(True)


def _main_panel(axes: Any, data: FigureData) -> None:
    _compute_axis(axes, data, *data.x_range)
    axes.set_ylim(*data.y_range)
    axes.set_ylabel(data.y_label)
    axes.set_xlabel("")
    axes.tick_params(labelbottom=False)
    axes.set_title(data.title, fontsize=11, fontweight="bold")
    few = len(data.curves) <= MOST_BANDS
    if len(data.curves) == 1 and data.curves[0].line is not None:
        axes.axvspan(data.curves[0].line.last, data.x_range[1], color="black", alpha=0.035, linewidth=0)
    if data.target is not None:
        axes.axvline(data.target, color=GREY, linewidth=0.8, linestyle=(0, (4, 3)))
    for place, curve in enumerate(data.curves):
        if curve.line is not None:
            _draw_line(axes, curve, colour(place), few)
        for dots in curve.dots:
            axes.plot(dots.compute, dots.reward, **_dot_style(place, dots, few))
        for mark in curve.marks:
            axes.errorbar(
                mark.compute.value, mark.reward.value, fmt="*", color=colour(place), markersize=9,
                xerr=_error(mark.compute), yerr=_error(mark.reward), capsize=3, linewidth=1.2,
                markeredgecolor="white", markeredgewidth=0.6, zorder=6,
            )  # fmt: skip
    if few and data.crossings:
        where = [[one.compute for one in data.crossings], [one.reward for one in data.crossings]]
        axes.plot(*where, linestyle="", marker="x", color="black", markersize=6, markeredgewidth=1.1, zorder=7)


def _draw_line(axes: Any, curve: CurveData, shade: str, few: bool) -> None:
    line = curve.line
    assert line is not None
    if few and line.band is not None and line.new_band is not None:
        axes.fill_between(line.compute, *line.new_band, color=shade, alpha=0.07, linewidth=0)
        axes.fill_between(line.compute, *line.band, color=shade, alpha=0.17, linewidth=0)
    if few and curve.ceiling is not None:
        axes.axhline(curve.ceiling.value, color=shade, linewidth=0.9, linestyle=":", alpha=1 if curve.is_ok else 0.45)
    for within, mask in line.pieces:
        dashes = "-" if within else (0, (4, 2.2))
        axes.plot(
            line.compute[mask], line.reward[mask], color=shade, linestyle=dashes, linewidth=1.7 if few else 1.1,
            alpha=1.0 if within else 0.8, zorder=4,
        )  # fmt: skip


def _dot_style(place: int, dots: Dots, few: bool) -> dict[str, Any]:
    size = 4.6 if few else 3.0
    style: dict[str, Any] = {
        "linestyle": "", "marker": MARKERS[_marker(place, dots)], "markersize": size, "color": colour(place),
        "markeredgecolor": "white", "markeredgewidth": 0.4, "alpha": 0.9 if few else 0.55, "zorder": 5,
    }  # fmt: skip
    if dots.role == "left out":
        style.update(alpha=0.28, zorder=3)
    if dots.role == "held out":
        style.update(markerfacecolor="white", markeredgecolor=colour(place), markeredgewidth=1.0, alpha=1.0)
    return style


def _error(value: Any) -> list[list[float]] | None:
    """Lengths of the error bar; an end that is not finite has none."""
    lengths = [abs(value.value - value.low), abs(value.high - value.value)]
    return [[length if np.isfinite(length) else 0.0] for length in lengths]


def _ceiling_panel(axes: Any, data: FigureData) -> None:
    axes.tick_params(left=False, labelleft=False, bottom=False, labelbottom=False)
    axes.set_title("ceiling")
    axes.spines["left"].set_visible(False)
    axes.spines["bottom"].set_visible(False)
    axes.set_xlim(-0.8, len(data.curves) - 0.2)
    low, high = data.y_range
    for place, curve in enumerate(data.curves):
        if curve.ceiling is None:
            continue
        shade, ceiling = colour(place), curve.ceiling
        if np.isfinite(ceiling.low):
            look = {"alpha": 0.45} if curve.is_ok else {"alpha": 0.3, "hatch": "/////", "fill": False}
            axes.bar(
                place, ceiling.high - ceiling.low, bottom=ceiling.low, width=0.62, color=shade, edgecolor=shade,
                linewidth=0.0 if curve.is_ok else 0.8, **look,
            )  # fmt: skip
        value = float(np.clip(ceiling.value, low + 0.015 * (high - low), high - 0.015 * (high - low)))
        marker = "_" if value == ceiling.value else ("^" if ceiling.value > value else "v")
        axes.plot(place, value, marker=marker, markersize=8, color=shade, markeredgewidth=1.8)


def _residual_panel(axes: Any, data: FigureData) -> None:
    _compute_axis(axes, data, *data.x_range)
    axes.set_ylim(-data.residual_limit, data.residual_limit)
    axes.set_ylabel("residual")
    axes.axhspan(-2 * data.noise_sd, 2 * data.noise_sd, color="black", alpha=0.05, linewidth=0)
    axes.axhline(0, color=GREY, linewidth=0.8)
    few = len(data.curves) <= MOST_BANDS
    for place, curve in enumerate(data.curves):
        for dots in curve.dots:
            if curve.line is None or dots.role == "left out":
                continue
            shown, outside = _clipped(dots.residual, data.residual_limit)
            style = _dot_style(place, dots, few) | {"markersize": 3.6 if few else 2.4}
            axes.plot(dots.compute[~outside], shown[~outside], **style)
            for sign, arrow in ((-1, "v"), (1, "^")):
                off = outside & (np.sign(dots.residual) == sign)
                axes.plot(dots.compute[off], shown[off], **(style | {"marker": arrow}))


def _straight_panel(axes: Any, data: FigureData) -> None:
    ends = np.concatenate([one.line_compute for one in data.straights])
    _compute_axis(axes, data, ends.min() / 1.06, ends.max() * 1.06)
    low, high = data.straight_range
    named = data.straights[:MOST_SLOPES]
    # The legend stands in the upper left; lines rise to the upper right, so it needs room of its own only there.
    axes.set_ylim(low, high + 0.05 * len(named) * (high - low))
    axes.set_ylabel("log10 F(reward)")
    axes.set_title(f"linearised at the ceiling {data.shared_ceiling:.3f}: slope = exponent")
    few = len(data.curves) <= MOST_BANDS
    for one in data.straights:
        curve = data.curves[one.curve]
        style = _dot_style(one.curve, curve.dots[-1], few)
        style |= {"markerfacecolor": colour(one.curve), "markeredgecolor": "white", "alpha": 0.7}
        axes.plot(one.compute, one.log_f, **style)
        axes.plot(one.line_compute, one.line_log_f, color=colour(one.curve), linewidth=1.5)
    handles = [_handle(colour(one.curve), "-", "") for one in named]
    texts = [f"{data.curves[one.curve].label}  {_short(one.exponent)}" for one in named]
    axes.legend(handles, texts, loc="upper left", fontsize=7.5, frameon=False, borderaxespad=0.1, labelspacing=0.25)


def _short(value: Any) -> str:
    return interval_text(value) if value.value < 0.1 else f"{value.value:.2f} [{value.low:.2f}, {value.high:.2f}]"


def _ranking_title(data: FigureData) -> str:
    what = "the highest ceiling" if data.target is None else f"the best at {compute_text(data.target)}"
    return f"probability to be {what}" if data.target is not None else f"probability of {what}"


def _ranking_panel(axes: Any, data: FigureData) -> None:
    rows = data.ranking[:MOST_RANKED]
    places = np.arange(len(rows))
    axes.barh(places, [p for _, p in rows], color=[colour(curve) for curve, _ in rows], height=0.65, alpha=0.75)
    axes.set_yticks(places, [_cut(data.curves[curve].label, 26) for curve, _ in rows], fontsize=7.5)
    axes.set_ylim(max(len(rows), 3) - 0.4, -0.6)
    axes.set_xlim(0, 1.12)
    axes.set_xticks([0, 0.5, 1])
    axes.tick_params(left=False)
    for place, (_, p_best) in zip(places, rows, strict=True):
        axes.text(p_best + 0.015, place, f"{p_best:.2f}", va="center", fontsize=7.5)
    axes.set_title(_ranking_title(data))


def _cut(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[: most // 2 - 1]}...{text[-(most // 2 - 2) :]}"


def _handle(shade: str, line: str, marker: str, **more: Any) -> Any:
    from matplotlib.lines import Line2D

    return Line2D([], [], color=shade, linestyle=line, marker=marker, markersize=4.6, linewidth=1.6, **more)


def _handles(data: FigureData) -> tuple[list[tuple[Any, str]], dict[int, str]]:
    """The key of signs used in this figure, and the text of each curve that is named."""
    from matplotlib.patches import Patch

    roles = {dots.role for curve in data.curves for dots in curve.dots}
    level = f"{100 * data.level:g} %"
    key = [(_handle(GREY, "", "o", markeredgecolor="white"), "fitted")]
    if "left out" in roles:
        key.append((_handle(GREY, "", "o", alpha=0.3), "left out of the fit"))
    if "held out" in roles:
        key.append((_handle(GREY, "", "o", markerfacecolor="white"), "held out"))
    if any(curve.line is not None for curve in data.curves):
        key.append((_handle(GREY, "--", ""), "beyond what was fitted"))
    if any(curve.line is not None and curve.line.band is not None for curve in data.curves):
        key.append((Patch(color=GREY, alpha=0.35, linewidth=0), f"{level} of the curve"))
        key.append((Patch(color=GREY, alpha=0.13, linewidth=0), f"{level} of a new evaluation"))
    if any(curve.marks for curve in data.curves):
        key.append((_handle(GREY, "", "*"), "asked for"))
    if data.crossings and len(data.curves) <= MOST_BANDS:
        key.append((_handle("black", "", "x"), "curves cross"))
    names = {place: _cut(legend_text(curve), 110) for place, curve in enumerate(data.curves[:MOST_NAMED])}
    return key, names


def _legends(axes: Any, data: FigureData, key: list[tuple[Any, str]], names: dict[int, str], columns: int) -> None:
    axes.axis("off")
    above = axes.legend(
        *zip(*key, strict=True), loc="upper left", ncols=len(key), fontsize=8, frameon=False, borderaxespad=0,
        columnspacing=1.3, handletextpad=0.5, handlelength=1.6,
    )  # fmt: skip
    axes.add_artist(above)
    marker = {place: data.curves[place].dots[-1] if data.curves[place].dots else None for place in names}
    handles = [
        _handle(colour(place), "-", MARKERS[_marker(place, dots)] if dots is not None else "")
        for place, dots in marker.items()
    ]
    more = len(data.curves) - len(names)
    below = axes.legend(
        handles, list(names.values()), loc="upper left", ncols=columns, fontsize=8, frameon=False, borderaxespad=0,
        bbox_to_anchor=(0, 1 - 0.22 / (0.17 * -(-len(names) // columns) + 0.62)), labelspacing=0.3,
        title=f"ceiling [{100 * data.level:g} % interval], verdict" + (f"; {more} more not named" if more else ""),
        title_fontproperties={"size": 8}, alignment="left", columnspacing=1.6,
    )  # fmt: skip
    for place, text in zip(names, below.get_texts(), strict=True):
        if not data.curves[place].is_ok:
            text.set_color(WARNING)
    for legend in (above, below):
        legend.set_in_layout(False)


# plotly ---------------------------------------------------------------------------------------------------------------

PAGE = """<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title>
<style>body {{ font-family: sans-serif; margin: 12px auto; max-width: 1100px; padding: 0 8px; color: #222 }}
h1 {{ font-size: 1.2em; margin: 0 }} p {{ color: #555; font-size: 0.85em; margin: 4px 0 }}</style></head>
<body><h1>{title}</h1><p>{key}</p>
{figure}
</body></html>
"""
# The legend takes as many rows as the screen asks for; the panels keep their height.
GROW = """
const plot = document.getElementById("{plot_id}");
const grow = () => {
  const legend = plot.querySelector(".legend");
  const height = BASE + (legend ? legend.getBBox().height : 0);
  if (Math.abs(plot.layout.height - height) > 3) Plotly.relayout(plot, {height: height});
};
plot.on("plotly_afterplot", grow); grow();
"""


def _draw_html(data: FigureData, path: Path) -> None:
    from plotly.io import to_html

    heights = {"y": 430, "y2": 130}
    if data.straights:
        heights["y3"] = 330
    if data.ranking:
        heights["y4"] = 30 + 26 * min(len(data.ranking), MOST_RANKED)
    layout, height = _html_layout(data, heights)
    figure = {"data": [*_html_curves(data), *_html_comparison(data)], "layout": layout}
    body = to_html(
        figure, full_html=False, include_plotlyjs=True, div_id="scalerl", default_height=f"{height}px",
        config={"responsive": True, "displaylogo": False}, post_script=GROW.replace("BASE", str(height)),
    )  # fmt: skip
    level = f"{100 * data.level:g} %"
    key = (
        "Filled points were fitted, faint ones left out of the fit, open ones held out; the curve is dashed outside what was "
        f"fitted. The dark band holds the curve at {level}, the light one a new evaluation. The legend gives each "
        f"ceiling [{level} interval] and verdict: click a name to hide it, double-click to see it alone."
    )
    path.write_text(PAGE.format(title=escape(data.title), key=key, figure=body), encoding="utf-8")


def _html_layout(data: FigureData, heights: dict[str, int]) -> tuple[dict[str, Any], int]:
    """Panels below each other, which a telephone can show too; x2 is the strip of ceilings beside the first."""
    gaps = {"y": 0, "y2": 16, "y3": 90, "y4": 90}
    total = sum(heights.values()) + sum(gaps[panel] for panel in heights)
    num, many = len(data.curves), len(data.curves) > MOST_BANDS
    strip = min(0.06 + 0.012 * num, 0.22)
    grid = {"gridcolor": "#E4E4E4", "linecolor": GREY, "zeroline": False, "ticks": "outside", "tickcolor": GREY}
    layout: dict[str, Any] = {
        "template": "none", "font": {"size": 12}, "hovermode": "closest", "bargap": 0.35,
        "margin": {"l": 62, "r": 12, "t": 30, "b": 60}, "height": total + 90,
        "legend": {
            "orientation": "h", "x": 0, "xanchor": "left", "y": -55 / total if many else 1 + 24 / total,
            "yanchor": "top" if many else "bottom", "maxheight": 5000, "font": {"size": 11}, "tracegroupgap": 0,
        },
        "xaxis": _html_compute(data, *data.x_range) | grid | {"domain": [0, 1 - strip - 0.015], "anchor": "y2"},
        "xaxis2": {
            "domain": [1 - strip, 1], "anchor": "y", "range": [-0.7, num - 0.3], "visible": False, "fixedrange": True,
        },
        "annotations": [_html_title("ceiling", 1 - strip / 2, 1, "center")],
    }  # fmt: skip
    titles = {"y": data.y_label, "y2": "residual", "y3": "log10 F(reward)", "y4": ""}
    ranges = {"y": list(data.y_range), "y2": [-data.residual_limit, data.residual_limit], "y3": list(data.straight_range)}
    top = 1.0
    for panel, height in heights.items():
        top -= gaps[panel] / total
        name = panel.replace("y", "yaxis")
        layout[name] = grid | {"domain": [max(top - height / total, 0), top], "title": {"text": escape(titles[panel])}}
        layout[name] |= {"range": ranges[panel]} if panel in ranges else {"autorange": "reversed", "automargin": True}
        if panel == "y3":
            ends = np.concatenate([one.line_compute for one in data.straights])
            layout["xaxis3"] = _html_compute(data, ends.min() / 1.06, ends.max() * 1.06) | grid | {"anchor": "y3"}
            layout["annotations"].append(_html_title(_straight_title(data), 0, top))
        if panel == "y4":
            layout["xaxis4"] = grid | {"range": [0, 1.1], "anchor": "y4", "tickvals": [0, 0.5, 1]}
            layout["annotations"].append(_html_title(_ranking_title(data), 0, top))
        top -= height / total
    return layout, total + 90


def _html_title(text: str, x: float, y: float, anchor: str = "left") -> dict[str, Any]:
    return {
        "text": text, "x": x, "y": y, "xref": "paper", "yref": "paper", "xanchor": anchor, "yanchor": "bottom",
        "showarrow": False, "font": {"size": 12},
    }  # fmt: skip


def _html_compute(data: FigureData, low: float, high: float) -> dict[str, Any]:
    ticks = compute_ticks(low, high, most=6)
    return {
        "type": "log", "range": [math.log10(low), math.log10(high)], "tickvals": ticks,
        "ticktext": [compute_text(tick) for tick in ticks], "title": {"text": escape(data.x_label)},
    }  # fmt: skip


def _trace(place: int, x: Any, y: Any, axes: str = "x y", **more: Any) -> dict[str, Any]:
    """One piece of a curve; pieces of one group are hidden together."""
    x_axis, y_axis = axes.split()
    return {
        "type": "scatter", "x": x, "y": y, "xaxis": x_axis, "yaxis": y_axis, "legendgroup": str(place),
        "showlegend": False, "hoverinfo": "skip", "mode": "lines", **more,
    }  # fmt: skip


def _html_curves(data: FigureData) -> list[dict[str, Any]]:
    few, traces = len(data.curves) <= MOST_BANDS, []
    for place, curve in enumerate(data.curves):
        line, shade = curve.line, colour(place)
        text = escape(legend_text(curve))
        text = text if curve.is_ok else f'<span style="color:{WARNING}">{text}</span>'
        traces.append(
            _trace(place, [None], [None], mode="lines+markers", name=text, showlegend=True, line={"color": shade})
        )
        for band, alpha in ((line.new_band, 0.08), (line.band, 0.18)) if line is not None else ():
            if band is not None and line is not None:
                around = np.concatenate([line.compute, line.compute[::-1]])
                edge = np.concatenate([band[0], band[1][::-1]])
                traces.append(_trace(place, around, edge, fill="toself", fillcolor=_tint(shade, alpha), line={"width": 0}))
        for within, mask in line.pieces if line is not None else ():
            style = {"color": shade, "width": 2.2 if few else 1.4, "dash": "solid" if within else "dash"}
            hover = {"hoverinfo": None, "hovertemplate": _hover(data, curve, "curve")}
            traces.append(_trace(place, line.compute[mask], line.reward[mask], line=style, **hover))
        for dots in curve.dots:
            traces += _html_dots(data, place, curve, dots)
        for mark in curve.marks:
            bars = {f"error_{axis}": _html_error(value) for axis, value in (("x", mark.compute), ("y", mark.reward))}
            traces.append(
                _trace(
                    place, [mark.compute.value], [mark.reward.value], mode="markers", **bars, hoverinfo=None,
                    marker={"symbol": "star", "size": 11, "color": shade},
                    hovertemplate=_hover(data, curve, "asked for"),
                )  # fmt: skip
            )
        if curve.ceiling is not None:
            traces += _html_ceiling(data, place, curve)
    return traces
