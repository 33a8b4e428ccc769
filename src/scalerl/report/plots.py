"""Draw an Analysis with matplotlib, as .png or .svg. What is drawn is decided in figures.py.

rewards | ceilings | linearised     compute is shared downwards, reward sideways; the two right-hand
residuals          | who is best    panels are there for a comparison
"""

import textwrap
import warnings
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from scalerl.atomic_files import new_file
from scalerl.errors import InputError, StoreError
from scalerl.report.drawing.dots import Dots
from scalerl.report.drawing.legends import MARKERS, Legends, handle
from scalerl.report.drawing.style import (
    GREY,
    MOST_RANKED,
    MOST_RIMMED,
    MOST_SLOPES,
    clipped,
    colour,
    compute_ticks,
    cut,
    headroom,
    marker,
    ranking_title,
    straight_title,
)  # fmt: skip
from scalerl.report.figures import MOST_BANDS, CurveData, FigureData, figure_data
from scalerl.report.numbers import interval_text, short_compute_text, two_decimals
from scalerl.report.results import Analysis

DPI = 160
LETTERS, NARROW_LETTERS = 76, 40  # of a line of a title above the main panel, and above those at the right


def check_plot_path(path: Path) -> None:
    """Refuse, before any fit, a figure that could not be drawn."""
    if path.suffix.lower() not in SUFFIXES:
        raise InputError(f"--plot {path} ends in {path.suffix or 'nothing'!r}: choose one of {', '.join(SUFFIXES)}.")
    if not path.parent.is_dir():
        raise InputError(f"cannot write {path}: there is no folder {path.parent}.")
    check_installed()


def check_installed() -> None:
    try:
        import_module("matplotlib")
    except ModuleNotFoundError:
        raise InputError('--plot needs the report extra: pip install "scalerl[report]".') from None


def draw(analysis: Analysis, path: Path) -> None:
    """Write the figure of an analysis; the suffix of `path` chooses the kind."""
    check_plot_path(Path(path))
    draw_figure(figure_data(analysis), path)


def picture(analysis: Analysis) -> Any:
    """Return the figure of an analysis, to show in a notebook."""
    check_installed()
    import matplotlib

    with matplotlib.rc_context(STYLE):
        return _figure(figure_data(analysis))


def draw_figure(data: FigureData, path: Path) -> None:
    """Write a figure; the suffix of `path` chooses the kind."""
    path = Path(path)
    check_plot_path(path)
    try:
        with new_file(path) as unfinished:
            SUFFIXES[path.suffix.lower()](data, unfinished)
    except StoreError as error:
        raise InputError(f"{error}.") from None


# matplotlib -----------------------------------------------------------------------------------------------------------

STYLE: dict[Any, Any] = {
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
        figure = _figure(data)
        if kind == "png":
            # Laid out here, since a figure that has yet to be is drawn twice to be saved once.
            figure.get_layout_engine().execute(figure)
            figure.set_layout_engine(None)
        figure.savefig(path, format=kind, dpi=DPI, facecolor="white", metadata=metadata)


def _figure(data: FigureData) -> Any:
    from matplotlib.figure import Figure

    main_width = 7.0 if len(data.curves) <= MOST_BANDS else 7.8
    strip_width = min(0.2 + 0.14 * len(data.curves), 2.2)
    # The right-hand column is for the straight lines; a few bars alone would be lost in it.
    left, right = main_width + strip_width, 4.6 if data.straights else 0.0
    legends = Legends(data, left + right)
    upper = 5.6
    figure = Figure(figsize=(left + right, upper + legends.height), dpi=DPI, layout="constrained")
    outer = figure.add_gridspec(
        2, 2 if right else 1, height_ratios=[upper, legends.height], width_ratios=[left, right] if right else None
    )
    part: Any = figure.add_subfigure(outer[0, 0])
    grid = part.add_gridspec(2, 2, width_ratios=[main_width - 0.6, strip_width], height_ratios=[3.2, 1.0])
    main = part.add_subplot(grid[0, 0])
    _main_panel(main, data)
    _ceiling_panel(part.add_subplot(grid[0, 1], sharey=main), data)
    _residual_panel(part.add_subplot(grid[1, 0], sharex=main), data)
    if right:
        part = figure.add_subfigure(outer[0, 1])
        rows = min(len(data.ranking), MOST_RANKED)
        panels = part.subplots(2, 1, height_ratios=[4.6 - 0.2 * rows, 0.4 + 0.2 * rows])
        _straight_panel(panels[0], data)
        _ranking_panel(panels[1], data)
    legends.draw(figure.add_subfigure(outer[1, :]))
    return figure


def _compute_axis(axes: Any, data: FigureData, low: float, high: float, most: int = 12) -> None:
    from matplotlib.ticker import FixedFormatter, FixedLocator, NullLocator

    ticks = compute_ticks(low, high, most)
    axes.set_xscale("log")
    axes.set_xlim(low, high)
    axes.xaxis.set_major_locator(FixedLocator(ticks))
    axes.xaxis.set_major_formatter(FixedFormatter([short_compute_text(tick) for tick in ticks]))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.set_xlabel(data.x_label)
    axes.grid(True)


def _main_panel(axes: Any, data: FigureData) -> None:
    _compute_axis(axes, data, *data.x_range)
    axes.set_ylim(*data.y_range)
    axes.set_ylabel(data.y_label)
    axes.set_xlabel("")
    axes.tick_params(labelbottom=False)
    axes.set_title(textwrap.fill(data.title, LETTERS), fontsize=11, fontweight="bold")
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
            _error_bars(axes, place, dots, dots.reward)
        if curve.peak is not None:
            # Just above the points, so that it hides none.
            axes.annotate(
                "", (curve.peak[0], curve.peak[1] + 2 * curve.noise_sd), xytext=(0, 14),
                textcoords="offset points", zorder=7,
                arrowprops={"arrowstyle": "-|>", "color": colour(place), "linewidth": 1.2},
            )  # fmt: skip
        for mark in curve.marks:
            axes.errorbar(
                mark.compute.value, mark.reward.value, fmt="*", color=colour(place), markersize=9,
                xerr=_error(mark.compute), yerr=_error(mark.reward), capsize=3, linewidth=1.2,
                markeredgecolor="white", markeredgewidth=0.6, zorder=6,
            )  # fmt: skip
    if few and data.crossings:
        where = zip(*data.crossings, strict=True)
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
        "linestyle": "", "marker": marker(MARKERS, place, dots.run), "markersize": size, "color": colour(place),
        "markeredgecolor": "white", "markeredgewidth": 0.4, "alpha": 0.9 if few else 0.55, "zorder": 5,
    }  # fmt: skip
    if len(dots.reward) > MOST_RIMMED:
        # Behind the curve, and without rims.
        style.update(markeredgewidth=0.0, markersize=0.7 * size, alpha=0.5, zorder=3.5)
    if dots.role == "left out":
        style.update(alpha=0.28, zorder=3)
    if dots.role == "held out":
        style.update(markerfacecolor="white", markeredgecolor=colour(place), markeredgewidth=1.0, alpha=1.0)
    return style


def _error_bars(axes: Any, place: int, dots: Dots, at: Any) -> None:
    if dots.error is not None:
        faint = 0.2 if dots.role == "left out" else 0.5
        axes.vlines(dots.compute, at - dots.error, at + dots.error, color=colour(place), linewidth=0.7, alpha=faint)


def _error(value: Any) -> list[list[float]] | None:
    """Return the lengths of the error bar; 0 for an end that is not finite."""
    lengths = [abs(value.value - value.low), abs(value.high - value.value)]
    return [[length if np.isfinite(length) else 0.0] for length in lengths]


def _ceiling_panel(axes: Any, data: FigureData) -> None:
    axes.tick_params(left=False, labelleft=False, bottom=False, labelbottom=False)
    axes.grid(True, axis="y")
    axes.set_title("ceiling", loc="center", fontsize=8)
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
        if low <= ceiling.value <= high:
            axes.plot(place, ceiling.value, marker="_", markersize=8, color=shade, markeredgewidth=1.8)
        if max(ceiling.value, np.nan_to_num(ceiling.high)) > high:
            axes.plot(place, high, marker="^", markersize=5, color=shade, clip_on=False)


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
            shown, outside = clipped(dots.residual, data.residual_limit)
            style = _dot_style(place, dots, few) | {"markersize": 3.6 if few else 2.4}
            axes.plot(dots.compute[~outside], shown[~outside], **style)
            _error_bars(axes, place, dots, shown)
            for sign, arrow in ((-1, "v"), (1, "^")):
                off = outside & (np.sign(dots.residual) == sign)
                axes.plot(dots.compute[off], shown[off], **(style | {"marker": arrow}))


def _straight_panel(axes: Any, data: FigureData) -> None:
    ends = np.concatenate([straight.line_compute for straight in data.straights])
    _compute_axis(axes, data, ends.min() / 1.06, ends.max() * 1.06, most=8)
    axes.set_ylim(data.straight_range[0], headroom(data))
    axes.set_ylabel("log10 F(reward)")
    axes.set_title(textwrap.fill(straight_title(data), NARROW_LETTERS + 12))
    few = len(data.curves) <= MOST_BANDS
    for straight in data.straights:
        curve = data.curves[straight.curve]
        style = _dot_style(straight.curve, curve.dots[0], few)
        style |= {"alpha": 0.7}
        axes.plot(straight.compute, straight.log_f, **style)
        axes.plot(straight.line_compute, straight.line_log_f, color=colour(straight.curve), linewidth=1.5)
    named, more = data.straights[:MOST_SLOPES], len(data.straights[MOST_SLOPES:])
    handles = [handle(colour(straight.curve), "-", "") for straight in named] + [handle(GREY, "", "")] * (more > 0)
    labels = [cut(data.curves[straight.curve].label, 30) for straight in named]
    slopes = [interval_text(straight.exponent, two_decimals) for straight in named]
    texts = [f"{label}  {slope}" for label, slope in zip(labels, slopes, strict=True)]
    texts += [f"and {more} more"] * (more > 0)
    axes.legend(handles, texts, loc="upper left", fontsize=7.5, frameon=False, borderaxespad=0.1, labelspacing=0.25)


def _ranking_panel(axes: Any, data: FigureData) -> None:
    rows = data.ranking[:MOST_RANKED]
    places = np.arange(len(rows))
    axes.barh(places, [p for _, p in rows], color=[colour(curve) for curve, _ in rows], height=0.65, alpha=0.75)
    axes.set_yticks(places, [cut(data.curves[curve].label, 26) for curve, _ in rows], fontsize=7.5)
    axes.set_ylim(max(len(rows), 3 if data.straights else 12) - 0.4, -0.6)
    axes.set_xlim(0, 1.12)
    axes.set_xticks([0, 0.5, 1])
    axes.tick_params(left=False)
    for place, (_, p_best) in zip(places, rows, strict=True):
        axes.text(p_best + 0.015, place, f"{p_best:.2f}", va="center", fontsize=7.5)
    axes.set_title(textwrap.fill(ranking_title(data), NARROW_LETTERS))


SUFFIXES: dict[str, Callable[[FigureData, Path], None]] = {".png": _draw_png, ".svg": _draw_svg}
