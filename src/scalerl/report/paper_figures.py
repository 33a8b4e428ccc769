"""The pictures of arXiv 2510.13786 (Figures 1 to 5) for anyone's runs, drawn with matplotlib.

    figure(shown, comparison)     one picture of up to three panels:
        curves       each run with its fit; held-out points apart; one curve says what A, B and C_mid are
        ladder       what each recipe reaches at the budget, and its exponent at one shared ceiling, best first
        efficiency   won over left gain on logarithmic axes: a straight line of slope B for each recipe

Everything is given as fits and a `Comparison`; nothing is fitted or decided here.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from scalerl.curves import Comparison, Fit, Value
from scalerl.curves.data import block_means
from scalerl.curves.forms import Array

COLOURS = (
    "#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9",
    "#332288", "#882255", "#999933", "#44AA99", "#661100", "#555555",
)  # fmt: skip
GREY = "#666666"
REACH = 4.0
"""How far beyond the data a curve is drawn, in multiples of the data."""
MOST_DOTS = 120
"""Points of one curve that are drawn one by one; of more, means of neighbours."""
MOST_BANDS = 6
"""With more curves, their bands would hide each other."""
ODDS = (0.02, 50.0)
"""Range of won over left gain within which noise does not decide."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shown:
    """A curve to draw."""

    name: str
    fit: Fit
    held_out: tuple[Array, Array] = field(default_factory=lambda: (np.empty(0), np.empty(0)))
    """Compute and reward of points that the fit has not seen."""


def short_names(names: Sequence[str]) -> tuple[str, list[str]]:
    """Return what all names begin with, and the names without what all begin and end with, cut at the ends of words.

    >>> short_names(["textcraft__main-clip-gp1.csv", "textcraft__main-pos.csv"])
    ('textcraft main', ['clip-gp1', 'pos'])
    """
    if len(names) < 2:
        return "", [*names]
    words = [re.findall(r"[^\W_]+|[\W_]+", name) for name in names]
    most = min(map(len, words)) - 1
    begin = next((n for n in range(most) if len({each[n] for each in words}) > 1), most)
    end = next((n for n in range(most - begin) if len({each[-1 - n] for each in words}) > 1), most - begin)
    shared = " ".join(word for word in words[0][:begin] if word[0].isalnum())
    return shared, ["".join(each[begin : len(each) - end]).strip("_-/. ") for each in words]


def figure(
    shown: Sequence[Shown], comparison: Comparison | None = None, *, x_label: str, y_label: str, title: str = ""
) -> Any:
    """Return the picture of these curves: with a comparison of several, the ladder and the efficiency as well."""
    from matplotlib.figure import Figure

    shared, short = short_names([each.name for each in shown])
    labels = dict(zip((each.name for each in shown), short, strict=True))
    colours = {each.name: COLOURS[place % len(COLOURS)] for place, each in enumerate(shown)}
    drawn = [each for each in shown if each.fit.usable]
    standings = () if comparison is None else comparison.standings
    best = standings[0].name if standings else drawn[0].name if drawn else ""
    columns = 2 if len(drawn) > 3 and standings else 1
    height = max(4.6, 2.2 + 0.24 * len(standings)) + 0.17 * (1 + len(drawn) // columns)
    picture = Figure(figsize=(11.5 if standings else 7.0, height), dpi=150, layout="constrained")
    grid = picture.add_gridspec(2, 2 if standings else 1, width_ratios=(1.5, 1.0) if standings else None)
    main = picture.add_subplot(grid[:, 0])
    at = comparison.at if comparison is not None and standings else None
    handles = _curves(main, drawn, colours, best, at)
    main.set(xlabel=x_label, ylabel=y_label)
    main.set_title(title or shared or labels.get(best, ""), loc="left", fontweight="bold")
    if comparison is not None and standings:
        has_line = bool(comparison.shared_fits)
        _ladder(picture, grid[0, 1] if has_line else grid[:, 1], comparison, labels, colours, x_label)
        if has_line:
            _efficiency(picture.add_subplot(grid[1, 1]), comparison, colours, x_label)
    picture.legend(
        handles, [f"{labels[each.name]}: {_numbers(each.fit)}" for each in drawn], loc="outside lower left",
        ncols=columns, fontsize=7.5, frameon=False, alignment="left", title_fontsize=7.5,
        title="A [90 %] how high, B how fast, C_mid when" + _signs(shown),
    )  # fmt: skip
    return picture


# Curves ---------------------------------------------------------------------------------------------------------------


def _curves(axes: Any, shown: Sequence[Shown], colours: Mapping[str, str], best: str, at: float | None) -> list[Any]:
    """Draw points and fits, and return a line of each colour."""
    ends = [max(REACH * each.fit.scale, float(each.held_out[0].max(initial=0.0))) for each in shown]
    end, first = max([*ends, at or 0.0]), min((float(each.fit.compute.min()) for each in shown), default=1.0)
    handles, heights = [], []
    for each in shown:
        colour, fit = colours[each.name], each.fit
        places = np.geomspace(float(fit.compute.min()), end, 160)
        if fit.has_intervals and len(shown) <= MOST_BANDS:
            axes.fill_between(places, *fit.curve_interval(places), color=colour, alpha=0.13, linewidth=0)
        inside = places <= fit.scale
        handles += axes.plot(places[inside], fit.predict(places[inside]), color=colour, linewidth=1.8, zorder=4)
        axes.plot(places[~inside], fit.predict(places[~inside]), color=colour, linewidth=1.5, linestyle=(0, (4, 2)))
        filled = {"color": colour, "markeredgecolor": "white", "markeredgewidth": 0.4}
        hollow = {"color": colour, "markerfacecolor": "white", "markeredgewidth": 0.9}
        heights += [_dots(axes, fit.compute, fit.reward, filled), _dots(axes, *each.held_out, hollow)]
    if (leader := next((each for each in shown if each.name == best), None)) is not None:
        _annotate(axes, leader.fit, colours[best], end)
    if at is not None:
        axes.axvline(at, color=GREY, linewidth=0.8, linestyle=(0, (1, 2)))
        axes.text(at, 0.01, "budget ", transform=axes.get_xaxis_transform(), ha="right", fontsize=7, color=GREY)
    _log_axis(axes, first, end)
    if shown:
        rewards = np.concatenate(heights)
        low, high = float(rewards.min()), float(rewards.max())
        tops = [each.fit.params["ceiling"] for each in shown]
        high = max([high, *(top for top in tops if top < high + (high - low))])
        pad = 0.08 * max(high - low, 1e-9)
        axes.set_ylim(low - pad, high + pad)
    return handles


def _signs(shown: Sequence[Shown]) -> str:
    return "; hollow points are held out" if any(len(each.held_out[0]) for each in shown) else ""


def _dots(axes: Any, compute: Array, reward: Array, look: Mapping[str, Any]) -> Array:
    """Draw points, or means of neighbours where there are many, and return their heights."""
    if len(reward) > MOST_DOTS:
        compute, reward, *_ = block_means(compute, reward)
    axes.plot(compute, reward, linestyle="", marker="o", markersize=4.2, zorder=5, **look)
    return reward


def _numbers(fit: Fit) -> str:
    low, high = fit.interval("ceiling")
    ends = "" if np.isnan(low) else f" [{low:.3g}, {high:.3g}]"
    return f"A {fit.params['ceiling']:.3g}{ends}, B {fit.params['exponent']:.2f}, C_mid {short(fit.params['midpoint'])}"


def _annotate(axes: Any, fit: Fit, colour: str, end: float) -> None:
    """Mark what A, B and C_mid are on one curve."""
    if fit.form != "sigmoid":
        return
    ceiling, start, exponent, midpoint = (fit.params[each] for each in ("ceiling", "start", "exponent", "midpoint"))
    half = start + 0.5 * (ceiling - start)
    axes.axhline(ceiling, color=colour, linewidth=0.9, linestyle=":")
    behind = {"facecolor": "white", "alpha": 0.8, "edgecolor": "none", "pad": 1.0}
    text = {"fontsize": 8, "color": colour, "zorder": 7, "bbox": behind}
    first = float(fit.compute.min())
    axes.text(first, ceiling, " A: how high", va="bottom", ha="left", **text)
    if not first < midpoint < end:
        return
    axes.plot([midpoint, midpoint], [start, half], color=colour, linewidth=0.9, linestyle=":")
    axes.text(midpoint, start, " C_mid: when half is won", va="bottom", ha="left", **text)
    # The tangent at the midpoint: in units of log compute its slope is B / 4 of the gain.
    reach = min(1.0 / exponent, 1.2)
    places = midpoint * np.exp(np.array([-reach, reach]))
    axes.plot(places, half + 0.25 * exponent * (ceiling - start) * np.log(places / midpoint), color=colour,
              linewidth=3.4, alpha=0.35, solid_capstyle="round", zorder=6)  # fmt: skip
    axes.annotate("B: how fast", (midpoint, half), xytext=(14, -12), textcoords="offset points", va="top", **text)


# Ladder and efficiency ------------------------------------------------------------------------------------------------


def _ladder(
    picture: Any, place: Any, comparison: Comparison, labels: Mapping[str, str], colours: Mapping[str, str], unit: str
) -> None:
    """Draw the recipes by expected loss, the best on top: the reward at the budget and the exponent."""
    exponents = comparison.shared_exponents
    inner = place.subgridspec(1, 2, width_ratios=(1.6, 1.0), wspace=0.05) if exponents else place.subgridspec(1, 1)
    left = picture.add_subplot(inner[0])
    rows = range(len(comparison.standings))
    leader = comparison.standings[0].reward.value
    left.axvspan(leader - comparison.worth, leader + comparison.worth, color="black", alpha=0.07, linewidth=0)
    for row, standing in zip(rows, comparison.standings, strict=True):
        _bar(left, row, standing.reward, colours[standing.name])
    left.set_yticks([*rows], [labels[each.name] for each in comparison.standings], fontsize=7.5)
    left.set_ylim(len(comparison.standings) - 0.4, -0.6)
    left.set_title(f"Reward at {short(comparison.at)} {unit}\n(grey: not worth a choice)", loc="left", fontsize=8.5)
    _ladder_axes(left)
    if exponents:
        right = picture.add_subplot(inner[1], sharey=left)
        for row, standing in zip(rows, comparison.standings, strict=True):
            if standing.name in exponents:
                _bar(right, row, exponents[standing.name], colours[standing.name])
        right.tick_params(labelleft=False, length=0)
        right.set_title(f"B at one ceiling\nof {comparison.shared_ceiling:.3g}", loc="left", fontsize=8.5)
        _ladder_axes(right)


def _ladder_axes(axes: Any) -> None:
    from matplotlib.ticker import MaxNLocator

    axes.xaxis.set_major_locator(MaxNLocator(4))
    axes.grid(axis="x", color="#E4E4E4", linewidth=0.6)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)


def _bar(axes: Any, row: int, value: Value, colour: str) -> None:
    axes.plot([value.low, value.high], [row, row], color=colour, linewidth=2.4, alpha=0.5, solid_capstyle="butt")
    axes.plot([value.value], [row], marker="o", color=colour, markersize=4.5)


def _efficiency(axes: Any, comparison: Comparison, colours: Mapping[str, str], unit: str) -> None:
    """Draw won over left gain at the shared ceiling; won = left at C_mid, and the slope is B."""
    places, ceiling = [], comparison.shared_ceiling
    assert ceiling is not None
    for name, fit in comparison.shared_fits.items():
        start, exponent, midpoint = (fit.params[each] for each in ("start", "exponent", "midpoint"))
        compute, reward = fit.compute, fit.reward
        if len(reward) > MOST_DOTS:
            compute, reward, *_ = block_means(compute, reward)
        with np.errstate(divide="ignore", invalid="ignore"):
            odds = (reward - start) / (ceiling - reward)
        inside = (odds > ODDS[0]) & (odds < ODDS[1])
        axes.plot(compute[inside], odds[inside], ".", color=colours[name], markersize=4, alpha=0.6, markeredgewidth=0)
        ends = np.clip(midpoint * np.array(ODDS) ** (1.0 / exponent), fit.compute.min(), fit.scale)
        axes.plot(ends, (ends / midpoint) ** exponent, color=colours[name], linewidth=1.5)
        places += [*ends]
    axes.axhline(1.0, color=GREY, linewidth=0.7, linestyle=(0, (4, 3)))
    axes.set_yscale("log")
    axes.set_ylim(*ODDS)
    _log_axis(axes, min(places), max(places))
    axes.set_xlabel(unit)
    axes.set_yticks([0.1, 1.0, 10.0], ["1 : 10", "1 : 1", "10 : 1"])
    axes.yaxis.set_ticks([], minor=True)
    axes.set_title(
        f"Gain won to gain left, at a ceiling of {ceiling:.3g}\n(slope B; half is won at 1 : 1)",
        loc="left",
        fontsize=8.5,
    )


def _log_axis(axes: Any, low: float, high: float) -> None:
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    axes.set_xscale("log")
    pad = max(high / low, 1.5) ** 0.03
    axes.set_xlim(low / pad, high * pad)
    few = np.log10(high / low) < 2.2
    axes.xaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0) if few else (1.0,)))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: short(value)))
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.grid(axis="both", color="#E4E4E4", linewidth=0.6)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)


def short(value: float) -> str:
    """Return a compute in few characters: 850, 1.2k, 3.4e+15."""
    if 1e3 <= value < 1e6:
        return f"{value / 1e3:.3g}k"
    return f"{value:.2g}" if value >= 1e6 or value < 1e-2 else f"{value:.3g}"
