"""Panels of a picture, drawn with matplotlib from values; nothing is fitted or decided here.

curve_panel        points and fitted lines of a chart       residual_panel   what the fits leave over
ladder_panels      each recipe at the budget, best first    straight_panel   gain won to gain left: slope B
explain_params     what A, B and C_mid are, on one curve    (the last four: arXiv 2510.13786, Figures 1 to 5)
"""

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise, product
from typing import Any

import numpy as np

from scalerl.curves import Comparison, Fit, Value
from scalerl.report.document import Curves, Drawn, Line
from scalerl.report.figures import MOST_BANDS, ODDS
from scalerl.report.numbers import short_compute_text

# Okabe and Ito's colours without the yellow that white swallows, then Paul Tol's muted ones.
COLOURS = (
    "#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9",
    "#332288", "#882255", "#999933", "#44AA99", "#661100", "#555555",
)  # fmt: skip
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "p")
GREY = "#666666"
DASHED = (0, (4, 2.2))
SMALL = 8.5  # font of the titles at the side
MOST_RIMMED = 100  # points of one run that stand apart with a white rim; the rims of more would hide the curve


def colour(curve: int) -> str:
    return COLOURS[curve % len(COLOURS)]


def marker(curve: int, run: int = 0) -> str:
    """Return a marker that differs between runs, and between curves of the same colour."""
    return MARKERS[(curve // len(COLOURS) + run) % len(MARKERS)]


# Curves ---------------------------------------------------------------------------------------------------------------


def curve_panel(axes: Any, chart: Curves) -> None:
    """Draw points and lines; the budget, if there is one, and where a single curve is a forecast."""
    low, high = compute_range(chart)
    compute_axis(axes, low, high, chart.x_label)
    axes.set_ylim(*reward_range(chart))
    axes.set_ylabel(chart.y_label)
    if len(chart.drawn) == 1 and chart.drawn[0].line is not None:
        axes.axvspan(chart.drawn[0].line.last, high, color="black", alpha=0.035, linewidth=0)
    if chart.at is not None:
        axes.axvline(chart.at, color=GREY, linewidth=0.8, linestyle=(0, (1, 2)))
        axes.text(chart.at, 0.01, "budget ", transform=axes.get_xaxis_transform(), ha="right", fontsize=7, color=GREY)
    few = len(chart.drawn) <= MOST_BANDS
    for each in chart.drawn:
        if each.line is not None:
            _draw_line(axes, each.line, colour(each.colour), few)
        draw_points(axes, each, each.dots.reward, few)
        if each.marks:
            axes.plot(*zip(*each.marks, strict=True), linestyle="", marker="*", color=colour(each.colour), markersize=9,
                      markeredgecolor="white", markeredgewidth=0.6, zorder=6)  # fmt: skip


def compute_range(chart: Curves) -> tuple[float, float]:
    """Return the range of compute to show: all points and lines."""
    lines = [each.line.compute for each in chart.drawn if each.line is not None]
    places = np.concatenate([[], *lines, *(each.dots.compute for each in chart.drawn)])
    low, high = (places.min(), places.max()) if len(places) else (1.0, 10.0)
    pad = max(high / low, 1.5) ** 0.025
    return float(low / pad), float(high * pad)


def reward_range(chart: Curves) -> tuple[float, float]:
    """Return the range of rewards to show: all points, and lines unless far above; no bands."""
    points = np.concatenate([[], *(each.dots.reward for each in chart.drawn)])
    low, top = (float(points.min()), float(points.max())) if len(points) else (0.0, 1.0)
    span = max(top - low, 0.02 * abs(top), 1e-9)
    tips = [float(each.line.reward[-1]) for each in chart.drawn if each.line is not None]
    high = max(tip for tip in (top, *tips) if tip <= top + 1.5 * span)
    pad = 0.05 * (high - low) if high > low else span
    return low - pad, high + pad


def _draw_line(axes: Any, line: Line, shade: str, few: bool) -> None:
    for band, alpha in ((line.new_band, 0.07), (line.band, 0.17)):
        if band is not None:
            axes.fill_between(line.compute, *band, color=shade, alpha=alpha, linewidth=0)
    within = (line.compute >= line.first) & (line.compute <= line.last)
    parts = ((line.compute <= line.first, DASHED, 0.8), (within, "-", 1.0), (line.compute >= line.last, DASHED, 0.8))
    width = 1.7 if few else 1.1
    for mask, style, alpha in parts:
        axes.plot(line.compute[mask], line.reward[mask], color=shade, linestyle=style, linewidth=width, alpha=alpha,
                  zorder=4)  # fmt: skip


def draw_points(axes: Any, each: Drawn, heights: Any, few: bool, size: float = 4.6) -> None:
    """Draw the points of a curve at these heights; runs differ by their markers, roles by their style."""
    points, shade = each.dots, colour(each.colour)
    size *= 1.0 if few else 0.65
    usual = {"linestyle": "", "markersize": size, "color": shade, "zorder": 5, "markeredgecolor": "white",
             "markeredgewidth": 0.4, "alpha": 0.9 if few else 0.55}  # fmt: skip
    if len(points.reward) > MOST_RIMMED:
        # Many points lie behind the curve, and have no rims.
        usual |= {"markeredgewidth": 0.0, "markersize": 0.7 * size, "alpha": 0.5, "zorder": 3.5}
    styles = {
        "left out": usual | {"alpha": 0.28, "zorder": 3},
        "fitted": usual,
        "held out": {**usual, "markersize": size, "markerfacecolor": "white", "markeredgecolor": shade,
                     "markeredgewidth": 1.0, "alpha": 1.0, "zorder": 5},
    }  # fmt: skip
    for run, (role, style) in product(range(len(points.runs)), styles.items()):
        which = (points.run == run) & (points.role == role)
        axes.plot(points.compute[which], heights[which], marker=marker(each.colour, run), **style)
        means = which & np.isfinite(points.error)
        ends = heights[means] - points.error[means], heights[means] + points.error[means]
        axes.vlines(points.compute[means], *ends, color=shade, linewidth=0.7, alpha=0.2 if role == "left out" else 0.5)


def residual_panel(axes: Any, chart: Curves, residuals: Sequence[Any]) -> None:
    """Draw what the fits leave over, on the same compute."""
    compute_axis(axes, *compute_range(chart), label=chart.x_label)
    pairs = list(zip(chart.drawn, residuals, strict=True))
    of_role = {
        role: np.concatenate([[], *(left[(each.dots.role == role) & np.isfinite(left)] for each, left in pairs)])
        for role in ("fitted", "held out")
    }
    noise = float(of_role["fitted"].std()) if len(of_role["fitted"]) else 0.0
    fitted, held_out = (float(np.abs(left).max(initial=0.0)) for left in of_role.values())
    limit = 1.15 * max(3 * noise, fitted, min(held_out, 8 * noise)) or 0.01
    axes.set_ylim(-limit, limit)
    axes.set_ylabel("residual")
    axes.axhspan(-2 * noise, 2 * noise, color="black", alpha=0.05, linewidth=0)
    axes.axhline(0, color=GREY, linewidth=0.8)
    for each, left in pairs:
        if each.line is not None:
            shown = np.clip(left, -0.93 * limit, 0.93 * limit)
            shown[each.dots.role == "left out"] = np.nan
            draw_points(axes, each, shown, len(pairs) <= MOST_BANDS, size=3.6)


# The pictures of the paper --------------------------------------------------------------------------------------------


def explain_params(axes: Any, fit: Fit, shade: str) -> None:
    """Mark what A, B and C_mid are on one curve."""
    low, high = axes.get_ylim()
    if fit.form != "sigmoid" or (ceiling := fit.params["ceiling"]) > 2 * high - low:
        return
    start, exponent, midpoint = (fit.params[each] for each in ("start", "exponent", "midpoint"))
    half, first = 0.5 * (start + ceiling), float(fit.compute.min())
    axes.set_ylim(low, max(high, ceiling + 0.05 * (ceiling - low)))
    behind = {"facecolor": "white", "alpha": 0.8, "edgecolor": "none", "pad": 1.0}
    text = {"fontsize": 8, "color": shade, "zorder": 7, "bbox": behind}
    axes.axhline(ceiling, color=shade, linewidth=0.9, linestyle=":")
    axes.text(first, ceiling, " A: how high", va="bottom", ha="left", **text)
    if not first < midpoint < axes.get_xlim()[1]:
        return
    axes.plot([midpoint, midpoint], [start, half], color=shade, linewidth=0.9, linestyle=":")
    axes.text(midpoint, start, " C_mid: when half is won", va="bottom", ha="left", **text)
    # The tangent at the midpoint: in units of log compute its slope is B / 4 of the gain.
    reach = min(1.0 / exponent, 1.2)
    places = midpoint * np.exp(np.array([-reach, reach]))
    axes.plot(places, half + 0.25 * exponent * (ceiling - start) * np.log(places / midpoint), color=shade,
              linewidth=3.4, alpha=0.35, solid_capstyle="round", zorder=6)  # fmt: skip
    axes.annotate("B: how fast", (midpoint, half), xytext=(14, -12), textcoords="offset points", va="top", **text)


def ladder_panels(
    picture: Any, place: Any, comparison: Comparison, labels: Mapping[str, str], shades: Mapping[str, str], unit: str
) -> None:
    """Draw the recipes by expected loss, the best on top: the reward at the budget, and B at the shared ceiling."""
    standings, exponents = comparison.standings, comparison.shared_exponents
    inner = place.subgridspec(1, 2 if exponents else 1, width_ratios=(1.6, 1.0) if exponents else None, wspace=0.05)
    left = picture.add_subplot(inner[0])
    leader = standings[0].reward.value
    left.axvspan(leader - comparison.worth, leader + comparison.worth, color="black", alpha=0.07, linewidth=0)
    _ladder(left, [(each.name, each.reward) for each in standings], shades)
    left.set_yticks(range(len(standings)), [labels[each.name] for each in standings], fontsize=7.5)
    left.set_ylim(len(standings) - 0.4, -0.6)
    budget = f"{short_compute_text(comparison.at)} {unit}"
    left.set_title(f"Reward at {budget}\n(grey: not worth a choice)", fontsize=SMALL)
    if exponents:
        right = picture.add_subplot(inner[1], sharey=left)
        _ladder(right, [(each.name, exponents.get(each.name)) for each in standings], shades)
        right.tick_params(labelleft=False, length=0)
        right.set_title(f"B at one ceiling\nof {comparison.shared_ceiling:.3g}", fontsize=SMALL)


def _ladder(axes: Any, rungs: Sequence[tuple[str, Value | None]], shades: Mapping[str, str]) -> None:
    from matplotlib.ticker import MaxNLocator

    axes.xaxis.set_major_locator(MaxNLocator(4))
    axes.grid(axis="x")
    for row, (name, value) in enumerate(rungs):
        if value is not None:
            axes.plot([value.low, value.high], [row, row], color=shades[name], linewidth=2.4, alpha=0.5,
                      solid_capstyle="butt")  # fmt: skip
            axes.plot([value.value], [row], marker="o", color=shades[name], markersize=4.5)


def straight_panel(axes: Any, chart: Curves, ceiling: float) -> None:
    """Draw won over left gain at the shared ceiling; half is won at C_mid, and the slope is B."""
    curve_panel(axes, chart)
    axes.axhline(0.0, color=GREY, linewidth=0.7, linestyle=(0, (4, 3)))
    axes.set_ylim(*np.log10(ODDS))
    axes.set_yticks([-1.0, 0.0, 1.0], ["1 : 10", "1 : 1", "10 : 1"])
    axes.set_ylabel("")
    title = f"Gain won to gain left, at a ceiling of {ceiling:.3g}\n(slope B; half is won at 1 : 1)"
    axes.set_title(title, fontsize=SMALL)


# Axes -----------------------------------------------------------------------------------------------------------------


def compute_axis(axes: Any, low: float, high: float, label: str = "") -> None:
    """Make the axis of compute logarithmic, with ticks at round numbers."""
    ticks = compute_ticks(low, high, 12)
    axes.set_xscale("log")
    axes.set_xlim(low, high)
    axes.xaxis.set_ticks(ticks, [short_compute_text(tick) for tick in ticks])
    axes.xaxis.set_ticks([], minor=True)
    axes.set_xlabel(label)
    axes.grid(True)


def compute_ticks(low: float, high: float, most: int = 10) -> list[float]:
    """Return round numbers as ticks, each at least 1 / `most` of the axis from the next."""
    apart = math.log(high / low) / most
    decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    ticks: Sequence[float] = ()
    for digits in ((1, 1.5, 2, 3, 4, 5, 6, 8), (1, 1.5, 2, 3, 5, 7), (1, 2, 3, 5), (1, 2, 5), (1, 3), (1,)):
        ticks = [float(f"{digit}e{decade}") for decade in decades for digit in digits]
        ticks = [tick for tick in ticks if low <= tick <= high]
        if all(math.log(after / tick) >= apart for tick, after in pairwise(ticks)):
            break
    return list(ticks[:: math.ceil(len(ticks) / most)]) if len(ticks) > 1 else [low, high]
