"""Charts of curves as strokes: points, lines, bands and bars, with the ends of both axes.

`chart` makes them in the units of the axes; `svg.py` draws them for a page and `picture.py` with matplotlib.
"""

import math
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import pairwise

import numpy as np

from scalerl.forecast.curves import tails
from scalerl.forecast.curves.data import block_means
from scalerl.forecast.curves.decide import course
from scalerl.forecast.logs.names import num_shared
from scalerl.forecast.report.document import Curves, Drawn, Range, Stroke, say, strokes_of
from scalerl.forecast.report.results import CurveResult

MOST_DOTS = 300  # points of one run that are drawn one by one
MOST_QUANTISED = 100  # and of rewards that take few values: rows of points that hide each other
FEW_VALUES = 0.25  # distinct rewards over points, below which rewards count as quantised
MOST_BANDS = 8  # bands of more curves than this hide each other
REACH = 4.0  # how far beyond the data a curve is drawn, in multiples of the data
MOST_REACH = 100.0  # a mark further out than this would squeeze the data into a corner
NUM_PLACES = 60
FAR_ABOVE = 1.5  # times the range of the points: a line that ends further above them is cut
FAR_BAND = 4.0  # the same of bands and intervals, which are wide early in a run
BAR_APART = 0.02  # between the bars of ceilings, as a share of the axis
MARGIN = 1 / 40  # room beside the data, as a share of the axis
DIFFERENT_UNITS = "compute (different units)"
LINES = ("line", "forecast")
BANDS = ("new-band", "band")
POINTS = ("fitted", "left-out", "held-out")


def chart(curves: Sequence[CurveResult], key: str, *, at: float | None = None, num: int = NUM_PLACES) -> Curves:
    """Return the chart of curves; those on one axis are drawn to one end, since they differ by their curves."""
    units = sorted({curve.unit for curve in curves})
    labels = sorted({curve.y for curve in curves})
    shared_end = 0.0
    if len(units) == 1:
        shared_end = max(at or 0.0, *map(end_of, curves))
    has_bands = len(curves) <= MOST_BANDS
    drawn: list[Drawn] = []
    for place, curve in enumerate(curves):
        strokes = list(point_strokes(curve))
        if curve.usable:
            end = max(shared_end, end_of(curve))
            strokes = [*line_strokes(curve, end, has_bands=has_bands, num=num), *strokes]
        drawn.append(Drawn(name=curve.name, colour=place, strokes=tuple(strokes)))
    if has_bands:
        drawn = with_bars(drawn, curves)
    drawn = [replace(each, strokes=(*each.strokes, *_marks(curve))) for each, curve in zip(drawn, curves, strict=True)]
    limits = limits_of(drawn)
    inside = [replace(each, strokes=tuple(_inside(each.strokes, limits[1]))) for each in drawn]
    kinds = {stroke.kind for stroke in strokes_of(inside)}
    note = say(
        "chart_note",
        level=curves[0].fit.level,
        has_bands=has_bands,
        has_cut_bands=_num_on_bands(inside) < _num_on_bands(drawn),
        has_bars="ceiling" in kinds,
        has_marks="mark" in kinds,
    )
    return Curves(
        key=key,
        drawn=tuple(inside),
        x_label=units[0] if len(units) == 1 else DIFFERENT_UNITS,
        y_label=labels[0] if len(labels) == 1 else "reward",
        limits=limits,
        at=at,
        note=note,
    )


# Points and lines -----------------------------------------------------------------------------------------------------


def point_strokes(curve: CurveResult) -> Iterator[Stroke]:
    """Yield the points of each run: those that were fitted, those left out of the fit, and those held out."""
    series = curve.series
    names = np.array([curve.name])
    runs = np.zeros(len(series.compute), dtype=int)
    if series.run is not None:
        names, runs = np.unique(series.run, return_inverse=True)
    # With a tolerance for rounding.
    first = curve.fit.compute.min(initial=np.inf) * (1 - 1e-9)
    is_fitted = (series.compute >= first) & (series.compute <= curve.fit.scale * (1 + 1e-9))
    for kind, which in (("fitted", is_fitted), ("left-out", ~is_fitted)):
        for run, name in enumerate(names):
            own = which & (runs == run)
            yield from _points(kind, series.compute[own], series.reward[own], run, str(name))
    # Points that are held out have no run of their own.
    yield from _points("held-out", series.holdout_compute, series.holdout_reward, 0, str(names[0]))


def _points(kind: str, compute: np.ndarray, reward: np.ndarray, run: int, name: str) -> Iterator[Stroke]:
    """Yield the points of one run, if there are any; of very many, means of neighbours."""
    # The axis of compute is logarithmic.
    reward = reward[compute > 0]
    compute = compute[compute > 0]
    is_quantised = len(np.unique(reward)) < FEW_VALUES * len(reward)
    error = None
    if len(reward) > (MOST_QUANTISED if is_quantised else MOST_DOTS):
        compute, reward, error, _ = block_means(compute, reward)
    if len(reward):
        yield Stroke(kind=kind, shape="points", compute=compute, reward=reward, error=error, run=run, name=name)


def line_strokes(curve: CurveResult, end: float, *, has_bands: bool, num: int) -> Iterator[Stroke]:
    """Yield the curve of a fit from its first point to a compute, on a grid that holds the ends of its data.

    Of a run past its peak, yield where it was at its points, drift included and without a forecast.
    """
    fit = curve.fit
    first = float(fit.compute.min())
    last = fit.scale
    if curve.fall is not None:
        grid, places = np.unique(np.sort(fit.drawn.blocks.compute), return_index=True)
        draws = course(fit)[:, places]
    else:
        spread = np.geomspace(_computes_of_points(curve).min(), end, num)
        grid = np.unique(np.concatenate([spread, [first, last]]))
        if fit.has_intervals:
            draws = fit.curve_draws(grid)
        else:
            draws = fit.predict(grid)[np.newaxis]
    below, above = tails(fit.level)
    low, middle, high = np.quantile(draws, [below, 0.5, above], axis=0)
    if has_bands and fit.has_intervals:
        if curve.fall is None:
            yield _band("new-band", grid, *fit.new_interval(grid))
        yield _band("band", grid, low, high)
    parts = (("forecast", grid <= first), ("line", (grid >= first) & (grid <= last)), ("forecast", grid >= last))
    for kind, part in parts:
        if part.sum() > 1:
            yield Stroke(kind=kind, shape="line", compute=grid[part], reward=middle[part], name=curve.name)


def _band(kind: str, compute: np.ndarray, low: np.ndarray, high: np.ndarray) -> Stroke:
    """Return the area between two lines: along the lower one, and back along the upper one."""
    there_and_back = np.concatenate([compute, compute[::-1]])
    return Stroke(kind=kind, shape="area", compute=there_and_back, reward=np.concatenate([low, high[::-1]]))


def _computes_of_points(curve: CurveResult) -> np.ndarray:
    """Return the compute of the points of a curve, those held out included."""
    return np.concatenate([curve.series.compute, curve.series.holdout_compute])


def end_of(curve: CurveResult) -> float:
    """Return the compute up to which a curve is drawn: beyond the data, and to any point held out or asked for."""
    end = float(_computes_of_points(curve).max(initial=0.0))
    if curve.fall is not None:
        return end
    asked_for = [compute for compute, _ in marks_of(curve)]
    return max(end, REACH * curve.fit.scale, *asked_for)


# Marks and bars -------------------------------------------------------------------------------------------------------


def marks_of(curve: CurveResult) -> tuple[tuple[float, float], ...]:
    """Return (compute, reward) of the forecasts that were asked for, and of the last evaluation before a fall."""
    marks = [(each.compute, each.reward.value) for each in curve.at]
    marks += [(each.compute.value, each.reward) for each in curve.reach if each.compute is not None]
    if curve.fall is not None:
        marks.append((curve.fall.last_good, curve.fall.peak))
    furthest = MOST_REACH * curve.fit.scale
    return tuple(mark for mark in marks if 0 < mark[0] <= furthest)


def _marks(curve: CurveResult) -> Iterator[Stroke]:
    marks = marks_of(curve)
    if marks:
        compute, reward = np.array(marks).T
        yield Stroke(kind="mark", shape="points", compute=compute, reward=reward, name=curve.name)


def with_bars(drawn: Sequence[Drawn], curves: Sequence[CurveResult]) -> list[Drawn]:
    """Add the ceilings with their intervals, as bars side by side beyond the end of every curve."""
    first, last = _ends_of_computes(drawn)
    apart = (last / first) ** BAR_APART
    at = last
    done: list[Drawn] = []
    for each, curve in zip(drawn, curves, strict=True):
        ceiling = curve.ceiling
        if ceiling is not None:
            at *= apart
            ends = np.array([ceiling.low, ceiling.high])
            place = np.array([at])
            bar = Stroke(kind="ceiling", shape="line", compute=place.repeat(2), reward=ends, name=each.name)
            value = np.array([ceiling.value])
            level = Stroke(kind="level", shape="points", compute=place, reward=value, name=each.name)
            each = replace(each, strokes=(*each.strokes, bar, level))
        done.append(each)
    return done


# Limits ---------------------------------------------------------------------------------------------------------------


def limits_of(drawn: Sequence[Drawn]) -> tuple[Range, Range]:
    """Return the ends of both axes: all compute and all points, and lines, bands and ceilings unless far outside."""
    first, last = _ends_of_computes(drawn)
    room = max(last / first, 1.1) ** MARGIN
    return (first / room, last * room), _limits_of_rewards(drawn)


def _ends_of_computes(drawn: Sequence[Drawn]) -> Range:
    """Return the smallest and the largest compute that is drawn."""
    computes = [stroke.compute for stroke in strokes_of(drawn) if stroke.kind != "mark"]
    if not computes:
        return 1.0, 10.0
    together = np.concatenate(computes)
    return float(together.min()), float(together.max())


def _limits_of_rewards(drawn: Sequence[Drawn]) -> Range:
    rewards = _rewards(drawn, *POINTS)
    if not len(rewards):
        rewards = _rewards(drawn, *LINES)
    if not len(rewards):
        rewards = np.array([0.0, 1.0])
    low = float(rewards.min())
    high = float(rewards.max())
    span = max(high - low, 0.02 * abs(high), 1e-9)
    far_above = high + FAR_ABOVE * span
    lowest = low - FAR_BAND * span
    highest = high + FAR_BAND * span
    for each in drawn:
        tips = [stroke.reward[-1] for stroke in each.strokes if stroke.kind in LINES]
        if tips and tips[-1] <= far_above:
            high = max(high, float(tips[-1]))
    wide = _rewards(drawn, *BANDS, "ceiling")
    wide = wide[np.isfinite(wide)]
    low = min(low, max(wide.min(initial=low), lowest))
    high = max(high, min(wide.max(initial=high), highest))
    room = span
    if high > low:
        room = 2 * MARGIN * (high - low)
    return float(low - room), float(high + room)


def _rewards(drawn: Iterable[Drawn], *kinds: str) -> np.ndarray:
    """Return the rewards of all strokes of these kinds."""
    parts = [stroke.reward for stroke in strokes_of(drawn) if stroke.kind in kinds]
    if parts:
        return np.concatenate(parts)
    return np.empty(0)


def _inside(strokes: Iterable[Stroke], rewards: Range) -> Iterator[Stroke]:
    """Yield strokes as they show on an axis of rewards with these ends, where nothing is cut off flat.

    A band stops where it leaves, and a bar goes on as an arrow.
    """
    low, high = rewards
    for stroke in strokes:
        y = stroke.reward
        if stroke.kind in BANDS:
            num = len(y) // 2
            is_outside = (y[:num] < low) | (y[num:][::-1] > high)
            kept = num
            if is_outside.any():
                kept = int(is_outside.argmax())
            if kept > 1:
                along = np.concatenate([np.arange(kept), np.arange(2 * num - kept, 2 * num)])
                yield replace(stroke, compute=stroke.compute[along], reward=y[along])
        elif stroke.kind == "ceiling":
            yield replace(stroke, reward=np.clip(y, low, high))
            for kind, end, is_beyond in (("above", high, y[1] > high), ("below", low, y[0] < low)):
                if is_beyond:
                    yield replace(stroke, kind=kind, shape="points", compute=stroke.compute[:1], reward=np.array([end]))
        elif stroke.kind != "level" or low <= y[0] <= high:
            yield stroke


def _num_on_bands(drawn: Iterable[Drawn]) -> int:
    return len(_rewards(drawn, "band"))


# Ticks and names ------------------------------------------------------------------------------------------------------

DIGITS = (
    [tenth / 10 for tenth in range(10, 100)],
    (1, 1.5, 2, 3, 4, 5, 6, 8),
    (1, 1.5, 2, 3, 5, 7),
    (1, 2, 3, 5),
    (1, 2, 5),
    (1, 3),
    (1,),
)
"""The first digits of ticks on an axis of compute, from many ticks to few."""


def compute_ticks(low: float, high: float, most: int = 12) -> list[float]:
    """Return round numbers as ticks, each at least 1 / `most` of the axis from the next."""
    least_ratio = (high / low) ** (1 / most)
    ticks: list[float] = []
    for digits in DIGITS:
        ticks = _ticks_with(digits, low, high)
        if all(after >= least_ratio * tick for tick, after in pairwise(ticks)):
            break
    if len(ticks) < 2:
        return [low, high]
    # On an axis of many decades one tick for each may still be too many.
    every = math.ceil(len(ticks) / most)
    return ticks[::every]


def _ticks_with(digits: Sequence[float], low: float, high: float) -> list[float]:
    """Return the numbers between two ends that begin with these digits."""
    ticks: list[float] = []
    for decade in range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1):
        for digit in digits:
            tick = float(f"{digit}e{decade}")
            if low <= tick <= high:
                ticks.append(tick)
    return ticks


def even_ticks(low: float, high: float, most: int) -> list[float]:
    """Return at most `most` round numbers, evenly spaced."""
    least = (high - low) / most
    power = 10.0 ** math.floor(math.log10(least))
    step = next(times * power for times in (1, 2, 2.5, 5, 10) if times * power >= least)
    first = math.ceil(low / step)
    last = math.floor(high / step)
    return [float(f"{step * place:.12g}") for place in range(first, last + 1)]


def short_names(names: Sequence[str]) -> tuple[str, list[str]]:
    """Return the folders in which all names begin, and the names without what all begin and end with.

    >>> short_names(["fig2/a-1", "fig2/b-1"])
    ('fig2', ['a-1', 'b-1'])
    """
    if len(names) < 2:
        return "", [*names]
    split = [re.findall(r"[^/]+|/", name) for name in names]
    backwards = [parts[::-1] for parts in split]
    # Each name keeps one part at least.
    most_left_out = min(len(parts) for parts in split) - 1
    num_first = min(num_shared(split), most_left_out)
    num_last = min(num_shared(backwards), most_left_out - num_first)
    short: list[str] = []
    for parts in split:
        own = parts[num_first : len(parts) - num_last]
        short.append("".join(own).strip("/"))
    folders = "".join(split[0][:num_first]).strip("/")
    return folders, short
