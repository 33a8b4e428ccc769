"""Draw the figure of a fit or comparison as one .html page with plotly. It works offline and on a telephone.

The panels, from top to bottom; the last two are drawn only for a comparison of curves:

    rewards against compute     with a narrow strip of ceilings to the right
    residuals of the fits
    linearised curves           log F(reward) against compute, whose slope is the exponent
    ranking                     probability of each curve to be the best
"""

import math
from html import escape
from pathlib import Path
from typing import Any

import numpy as np

from scalerl.analysis.drawing.dots import Dots
from scalerl.analysis.drawing.style import (
    GREY,
    MOST_RANKED,
    MOST_RIMMED,
    MOST_SLOPES,
    WARNING,
    clipped,
    colour,
    compute_ticks,
    cut,
    headroom,
    legend_parts,
    legend_text,
    marker,
    misfit_text,
    misfits,
    ranking_title,
    straight_title,
)  # fmt: skip
from scalerl.analysis.figures import MOST_BANDS, CurveData, FigureData, Line
from scalerl.analysis.numbers import interval_text, short_compute_text, two_decimals
from scalerl.curves import Value

MARKERS = ("circle", "square", "triangle-up", "diamond", "triangle-down", "cross", "x", "pentagon")
PAGE = """<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title>
<style>body {{ font-family: sans-serif; margin: 12px auto; max-width: 1100px; padding: 0 8px; color: #222 }}
h1 {{ font-size: 1.2em; margin: 0 }} p {{ color: #555; font-size: 0.85em; margin: 4px 0 }}</style></head>
<body><h1>{title}</h1><p>{key}</p>
{figure}
</body></html>
"""
AXIS = {"gridcolor": "#E4E4E4", "linecolor": GREY, "zeroline": False, "ticks": "outside", "tickcolor": GREY}
# The legend takes as many rows as the screen asks for; the panels keep their height.
GROW = """
const plot = document.getElementById("{plot_id}");
const grow = () => {
  const legend = plot.querySelector(".legend");
  const height = BASE + (legend ? legend.getBBox().height : 0);
  if (Math.abs(plot.layout.height - height) > 3) Plotly.relayout(plot, {height: height});
};
plot.on("plotly_afterplot", grow); grow();
// A finger on a figure scrolls the page.
if (matchMedia("(pointer: coarse)").matches) Plotly.relayout(plot, {dragmode: false});
"""


def draw_html(data: FigureData, path: Path) -> None:
    """Write the page to `path`."""
    from plotly.io import to_html

    layout = _html_layout(data)
    figure = {"data": [*_html_curves(data), *_html_comparison(data)], "layout": layout}
    body = to_html(
        figure, full_html=False, include_plotlyjs=True, div_id="scalerl", default_height=f"{layout['height']}px",
        config={"responsive": True, "displayModeBar": False}, post_script=GROW.replace("BASE", str(layout["height"])),
    )  # fmt: skip
    level = f"{100 * data.level:g}%"
    key = (
        "Filled points were fitted, faint ones left out of the fit, open ones held out; the curve is dashed outside "
        f"what was fitted. The dark band holds the curve at {level}, the light one a new evaluation. The legend has "
        f"each ceiling [{level} interval] and verdict: click a name to hide it, double-click to see it alone."
    )
    path.write_text(PAGE.format(title=escape(data.title), key=key, figure=body), encoding="utf-8")


def _html_layout(data: FigureData) -> dict[str, Any]:
    """Return plotly's layout. Axes: y rewards, x2 the strip of ceilings, y2 residuals, y3 linearised, y4 ranking."""
    domains, total = _domains(data)
    num, many = len(data.curves), len(data.curves) > MOST_BANDS
    strip = min(0.06 + 0.012 * num, 0.22)
    limit = data.residual_limit
    layout: dict[str, Any] = {
        "template": "none", "font": {"size": 12}, "hovermode": "closest", "height": total + 90,
        "margin": {"l": 70, "r": 12, "t": 30, "b": 60},
        "legend": {
            "orientation": "h", "x": 0, "xanchor": "left", "y": -66 / total if many else 1 + 24 / total,
            "yanchor": "top" if many else "bottom", "maxheight": 5000, "font": {"size": 11}, "tracegroupgap": 0,
        },
        "xaxis": _html_compute(data, *data.x_range) | {"domain": [0, 1 - strip - 0.015], "anchor": "y2"},
        "xaxis2": {"domain": [1 - strip, 1], "range": [-0.7, num - 0.3], "visible": False, "fixedrange": True},
        "yaxis": AXIS | {"domain": domains["y"], "range": list(data.y_range), "title": _title(escape(data.y_label))},
        "yaxis2": AXIS | {"domain": domains["y2"], "range": [-limit, limit], "title": _title("residual")},
        "annotations": [_html_title("ceiling", 1 - strip / 2, 1, "center"), *_html_misfits(data)],
        "shapes": _html_shapes(data),
    }  # fmt: skip
    layout["yaxis2"] |= {"zeroline": True, "zerolinecolor": GREY}
    if "y3" in domains:
        ends = np.concatenate([straight.line_compute for straight in data.straights])
        spread, top = [data.straight_range[0], headroom(data)], domains["y3"][1]
        layout["xaxis3"] = _html_compute(data, ends.min() / 1.06, ends.max() * 1.06) | {"anchor": "y3"}
        layout["yaxis3"] = AXIS | {"domain": domains["y3"], "range": spread, "title": _title("log10 F(reward)")}
        layout["legend2"] = {"x": 0.01, "y": top, "yanchor": "top", "bgcolor": "rgba(0,0,0,0)", "tracegroupgap": 0}
        layout["annotations"].append(_html_title(straight_title(data), 0, top))
    if "y4" in domains:
        rows = data.ranking[:MOST_RANKED]
        names = [f"{p_best:.2f}  {escape(cut(data.curves[place].label, 40))}" for place, p_best in rows]
        layout["xaxis4"] = AXIS | {"range": [0, 1], "anchor": "y4", "tickvals": [0, 0.5, 1]}
        layout["yaxis4"] = {"domain": domains["y4"], "range": [len(rows) - 0.4, -0.6], "ticklabelposition": "inside"}
        layout["yaxis4"] |= {"tickvals": list(range(len(rows))), "ticktext": names, "showgrid": False}
        layout["annotations"].append(_html_title(ranking_title(data), 0, domains["y4"][1]))
    return layout


def _title(text: str) -> dict[str, Any]:
    """Return the title of a vertical axis, clear of the longest number beside it."""
    return {"text": text, "standoff": 6}


def _domains(data: FigureData) -> tuple[dict[str, list[float]], int]:
    """Return the vertical domain of each panel, as shares of the height, and the height in pixels."""
    heights = {"y": (0, 430), "y2": (16, 130)}  # the gap above, the height
    if data.straights:
        heights["y3"] = (90, 330)
    if data.ranking:
        heights["y4"] = (90, 30 + 26 * min(len(data.ranking), MOST_RANKED))
    total = sum(gap + height for gap, height in heights.values())
    domains, used = {}, 0
    for panel, (gap, height) in heights.items():
        top = used + gap
        used = top + height
        domains[panel] = [max(1 - used / total, 0.0), 1 - top / total]
    return domains, total


def _html_title(text: str, x: float, y: float, anchor: str = "left") -> dict[str, Any]:
    return {
        "text": text, "x": x, "y": y, "xref": "paper", "yref": "paper", "xanchor": anchor, "yanchor": "bottom",
        "showarrow": False, "font": {"size": 12},
    }  # fmt: skip


def _html_misfits(data: FigureData) -> list[dict[str, Any]]:
    """Return a note in the residuals panel for each curve whose residuals show a misfit."""
    return [
        {
            "text": escape(misfit_text(data, place)),
            "x": math.log10(compute), "y": 1, "xref": "x", "yref": "y2 domain", "xanchor": "left", "yanchor": "top",
            "showarrow": False, "font": {"size": 11, "color": WARNING},
        }
        for place, compute in misfits(data)
    ]  # fmt: skip


def _html_shapes(data: FigureData) -> list[dict[str, Any]]:
    """Return the background shapes and marker lines.

    They are the band of +-2 noise sds in the residuals, the region beyond the data if there is a single curve, lines at
    misfits, and a line at the target of a comparison.
    """
    guide = 2 * data.noise_sd
    line = {"line": {"width": 0}, "fillcolor": "rgba(0,0,0,0.05)", "layer": "below", "type": "rect"}
    shapes = [line | {"xref": "x domain", "x0": 0, "x1": 1, "yref": "y2", "y0": -guide, "y1": guide}]
    if len(data.curves) == 1 and (only := data.curves[0].line) is not None:
        shapes.append(line | {"yref": "y domain", "y0": 0, "y1": 1, "x0": only.last, "x1": data.x_range[1]})
    for _, compute in misfits(data):
        dots = {"type": "line", "line": {"color": WARNING, "width": 1, "dash": "dot"}}
        shapes.append(dots | {"yref": "y2 domain", "y0": 0, "y1": 1, "x0": compute, "x1": compute})
    if data.target is not None:
        dashes = {"type": "line", "line": {"color": GREY, "width": 1, "dash": "dash"}}
        shapes.append(dashes | {"yref": "y domain", "y0": 0, "y1": 1, "x0": data.target, "x1": data.target})
    return shapes


def _html_compute(data: FigureData, low: float, high: float) -> dict[str, Any]:
    """Return a logarithmic axis of compute."""
    ticks = compute_ticks(low, high, most=6)
    labels = {"tickvals": ticks, "ticktext": [short_compute_text(tick) for tick in ticks], "tickangle": 0}
    ends = [math.log10(low), math.log10(high)]
    return AXIS | labels | {"type": "log", "range": ends, "title": {"text": escape(data.x_label)}}


def _trace(place: int, x: Any, y: Any, axes: str = "x y", **more: Any) -> dict[str, Any]:
    """Return one plotly trace of the curve with index `place`; the legend hides all traces of a curve together."""
    x_axis, y_axis = axes.split()
    return {
        "type": "scatter", "x": x, "y": y, "xaxis": x_axis, "yaxis": y_axis, "legendgroup": str(place),
        "showlegend": False, "hoverinfo": "skip", "mode": "lines", **more,
    }  # fmt: skip


def _html_curves(data: FigureData) -> list[dict[str, Any]]:
    traces: list[dict[str, Any]] = []
    for place, curve in enumerate(data.curves):
        line, shade = curve.line, colour(place)
        # A second line for what is too long for a telephone.
        text = ("  " if len(legend_text(curve)) < 56 else "<br>").join(map(escape, legend_parts(curve)))
        text = text if curve.is_ok else f'<span style="color:{WARNING}">{text}</span>'
        traces.append(
            _trace(place, [None], [None], mode="lines+markers", name=text, showlegend=True, line={"color": shade})
        )
        if line is not None:
            traces += _html_line(data, place, curve, line)
        for dots in curve.dots:
            traces += _html_dots(data, place, curve, dots)
        for mark in curve.peaks:
            arrow = {"symbol": "arrow-down", "size": 11, "color": shade}
            hover = {"hoverinfo": None, "hovertemplate": _hover(data, curve, "peak")}
            spec = _trace(place, [mark.compute.value], [mark.reward.high], mode="markers", marker=arrow)
            traces.append(spec | hover)
        for mark in curve.marks:
            star = {"symbol": "star", "size": 11, "color": shade}
            hover = {"hoverinfo": None, "hovertemplate": _hover(data, curve, "asked for")}
            bars = {"error_x": _html_error(mark.compute), "error_y": _html_error(mark.reward)}
            spec = _trace(place, [mark.compute.value], [mark.reward.value], mode="markers", marker=star)
            traces.append(spec | hover | bars)
        if curve.ceiling is not None:
            traces += _html_ceiling(data, place, curve)
    return traces


def _html_line(data: FigureData, place: int, curve: CurveData, line: Line) -> list[dict[str, Any]]:
    shade, traces = colour(place), []
    for band, alpha in ((line.new_band, 0.08), (line.band, 0.18)):
        if band is not None:
            around = np.concatenate([line.compute, line.compute[::-1]])
            edge = np.concatenate([band[0], band[1][::-1]])
            traces.append(_trace(place, around, edge, fill="toself", fillcolor=_tint(shade, alpha), line={"width": 0}))
    width = 2.2 if len(data.curves) <= MOST_BANDS else 1.4
    for within, mask in line.pieces:
        look = {"color": shade, "width": width, "dash": "solid" if within else "dash"}
        hover = {"hoverinfo": None, "hovertemplate": _hover(data, curve, "curve" if within else "forecast")}
        traces.append(_trace(place, line.compute[mask], line.reward[mask], line=look, **hover))
    return traces


def _tint(shade: str, alpha: float) -> str:
    red, green, blue = (int(shade[place : place + 2], 16) for place in (1, 3, 5))
    return f"rgba({red},{green},{blue},{alpha:g})"


def _hover(data: FigureData, curve: CurveData, what: str) -> str:
    # A percent sign before a brace would start a value of plotly's own.
    name, x_label, y_label = (escape(text).replace("%{", "% {") for text in (curve.label, data.x_label, data.y_label))
    return f"{name}<br>{x_label} %{{x:.4~g}}<br>{y_label} %{{y:.5~r}}<br>{escape(what)}<extra></extra>"


def _html_error(value: Value) -> dict[str, Any]:
    lengths = [
        length if math.isfinite(length) else 0.0 for length in (value.high - value.value, value.value - value.low)
    ]
    return {"type": "data", "symmetric": False, "array": [lengths[0]], "arrayminus": [lengths[1]], "thickness": 1.5}


def _html_dots(data: FigureData, place: int, curve: CurveData, dots: Dots) -> list[dict[str, Any]]:
    few, shade = len(data.curves) <= MOST_BANDS, colour(place)
    look: dict[str, Any] = {
        "symbol": marker(MARKERS, place, dots.run), "size": 7 if few else 5, "color": shade,
        "opacity": 0.3 if dots.role == "left out" else 0.9 if few else 0.6, "line": {"color": "white", "width": 0.6},
    }  # fmt: skip
    if len(dots.reward) > MOST_RIMMED:
        look |= {"size": look["size"] - 2, "line": {"width": 0}, "opacity": 0.45}
    if dots.role == "after the peak":
        look |= {"symbol": f"{look['symbol']}-open", "line": {"color": shade, "width": 1.2}, "opacity": 0.6}
    if dots.role == "held out":
        look |= {"color": "white", "line": {"color": shade, "width": 1.5}, "opacity": 1}
    what = f"{dots.role}, {dots.run_label}" if dots.run_label else dots.role
    if dots.error is not None:
        what += ", mean of a bin"
    hover = {"mode": "markers", "hoverinfo": None, "hovertemplate": _hover(data, curve, what)}
    if dots.error is not None:
        hover["error_y"] = {"type": "data", "array": dots.error, "thickness": 0.8, "width": 0}
    traces = [_trace(place, dots.compute, dots.reward, marker=look, **hover)]
    if curve.line is not None and dots.role not in ("left out", "after the peak"):
        shown, outside = clipped(dots.residual, data.residual_limit)
        arrows = np.where(dots.residual > 0, "triangle-up", "triangle-down")
        look = look | {"symbol": np.where(outside, arrows, look["symbol"]).tolist(), "size": look["size"] - 1}
        hover["hovertemplate"] = hover["hovertemplate"].replace("%{y:.5~r}", "%{customdata:+.3~r} off the curve")
        traces.append(_trace(place, dots.compute, shown, "x y2", marker=look, customdata=dots.residual, **hover))
    return traces


def _html_ceiling(data: FigureData, place: int, curve: CurveData) -> list[dict[str, Any]]:
    ceiling, shade = curve.ceiling, colour(place)
    assert ceiling is not None
    faint = 1.0 if curve.is_ok else 0.5
    text = f"{escape(legend_text(curve))}<extra></extra>"
    low, high = data.y_range
    level = min(max(ceiling.value, low), high)
    sign = "line-ew" if level == ceiling.value else "triangle-up" if ceiling.value > high else "triangle-down"
    traces = [
        _trace(
            place, [place], [level], "x2 y", mode="markers", hoverinfo=None, hovertemplate=text,
            marker={"symbol": sign, "size": 9, "color": shade, "line": {"color": shade, "width": 2}},
        )
    ]  # fmt: skip
    if len(data.curves) <= MOST_BANDS:
        ends, value = list(data.x_range), [ceiling.value] * 2
        traces.append(_trace(place, ends, value, line={"color": shade, "width": 1, "dash": "dot"}, opacity=faint))
    if math.isfinite(ceiling.low):
        look: dict[str, Any] = {"color": _tint(shade, 0.45)}
        if not curve.is_ok:
            hatch = {"shape": "/", "fgcolor": shade, "bgcolor": "white", "size": 6, "solidity": 0.25}
            look = {"pattern": hatch, "line": {"color": shade, "width": 1}, "opacity": faint}
        bar = {"type": "bar", "base": ceiling.low, "width": 0.62, "marker": look, "hovertemplate": text}
        spec = _trace(place, [place], [ceiling.high - ceiling.low], "x2 y", **bar)
        traces.insert(0, {key: value for key, value in spec.items() if key not in ("mode", "hoverinfo")})
    return traces


def _html_comparison(data: FigureData) -> list[dict[str, Any]]:
    """Return the traces that compare curves: their crossings, the linearised panel and the ranking."""
    traces: list[dict[str, Any]] = []
    for compute, reward in data.crossings if len(data.curves) <= MOST_BANDS else ():
        text = f"curves cross at {short_compute_text(compute)}<extra></extra>"
        cross = {"symbol": "x-thin", "size": 9, "line": {"width": 2, "color": "black"}}
        # A group of its own, as a crossing belongs to two curves.
        traces.append(_trace(-1, [compute], [reward], mode="markers", marker=cross, hovertemplate=text, hoverinfo=None))
    for rank, straight in enumerate(data.straights):
        shade = colour(straight.curve)
        text = f"{escape(cut(data.curves[straight.curve].label, 30))}  {interval_text(straight.exponent, two_decimals)}"
        hover = {"hoverinfo": None, "hovertemplate": f"{text}<extra></extra>"}
        look = {"color": shade, "size": 6, "opacity": 0.7}
        points = (straight.curve, straight.compute, straight.log_f)
        traces.append(_trace(*points, "x3 y3", mode="markers", marker=look, **hover))
        named = {"name": text, "showlegend": rank < MOST_SLOPES, "legend": "legend2", "line": {"color": shade}}
        traces.append(_trace(straight.curve, straight.line_compute, straight.line_log_f, "x3 y3", **named, **hover))
    for rank, (place, p_best) in enumerate(data.ranking[:MOST_RANKED]):
        spec = _trace(place, [p_best], [rank], "x4 y4", type="bar", orientation="h", width=0.7)
        spec["marker"] = {"color": _tint(colour(place), 0.5)}
        traces.append({key: value for key, value in spec.items() if key != "mode"})
    return traces
