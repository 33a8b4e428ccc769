"""What charts show, as numbers: points, lines, limits and ticks. Pure: the picture and the page only draw it."""

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import pairwise, product

import numpy as np

from scalerl.forecast.curves import Fit, Value, tails
from scalerl.forecast.curves.data import block_means
from scalerl.forecast.curves.decide import course
from scalerl.forecast.logs.names import num_shared
from scalerl.forecast.logs.series import Series
from scalerl.forecast.report.document import Curves, Dots, Drawn, Line, Say, Stroke, say
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
Range = tuple[float, float]
ROLES = ("fitted", "left out", "held out")


def dots_of(series: Series, fit: Fit) -> Dots:
    """Return the points of a series: those outside the range of the fit are left out, and others may be held out."""
    compute = np.concatenate([series.compute, series.holdout_compute])
    reward = np.concatenate([series.reward, series.holdout_reward])
    num_not_held_out = len(series.compute)
    run_names = np.array([""])
    # Points that are held out have no run of their own; they go with the first.
    run = np.zeros(len(compute), dtype=int)
    if series.run is not None:
        run_names, run_of_points = np.unique(series.run, return_inverse=True)
        run[:num_not_held_out] = run_of_points
    # With a tolerance for rounding.
    first = fit.compute.min(initial=np.inf) * (1 - 1e-9)
    last = fit.scale * (1 + 1e-9)
    fitted, left_out, held_out = ROLES
    role = np.where((compute >= first) & (compute <= last), fitted, left_out)
    role[num_not_held_out:] = held_out
    error = np.full(len(compute), np.nan)
    dots = Dots(compute=compute, reward=reward, error=error, run=run, role=role, runs=tuple(map(str, run_names)))
    thinned = Dots.joined([_thinned(part) for part in _by_role_and_run(dots)])
    return thinned.take(np.lexsort((thinned.run, thinned.compute)))


def _by_role_and_run(dots: Dots) -> Iterator[Dots]:
    """Yield the points of each role and run, some of which may have none."""
    for role, run in product(ROLES, range(len(dots.runs))):
        yield dots.take((dots.role == role) & (dots.run == run))


def _thinned(dots: Dots) -> Dots:
    """Return the points of one role and run; of very many, means of neighbours."""
    num = len(dots.reward)
    is_quantised = len(np.unique(dots.reward)) < FEW_VALUES * num
    most = MOST_QUANTISED if is_quantised else MOST_DOTS
    if num <= most:
        return dots
    compute, means, error, _ = block_means(dots.compute, dots.reward)
    # Role and run are the same at all points, so those of any points will do.
    some = dots.take(np.arange(len(means)))
    return replace(some, compute=compute, reward=means, error=error)


def line_of(curve: CurveResult, end: float, *, has_bands: bool, num: int) -> Line:
    """Return the curve of a fit from its first point to a compute, on a grid that holds the ends of its data.

    Of a run past its peak, return where it was at its points, drift included and without a forecast.
    """
    fit = curve.fit
    first = float(fit.compute.min())
    last = fit.scale
    if curve.fall is not None:
        grid, places = np.unique(np.sort(fit.drawn.blocks.compute), return_index=True)
        draws = course(fit)[:, places]
    else:
        begin = _computes_of_points(curve).min()
        spread = np.geomspace(begin, end, num)
        grid = np.unique(np.concatenate([spread, [first, last]]))
        if fit.has_intervals:
            draws = fit.curve_draws(grid)
        else:
            draws = fit.predict(grid)[np.newaxis]
    below, above = tails(fit.level)
    low, middle, high = np.quantile(draws, [below, 0.5, above], axis=0)
    band = None
    new_band = None
    if has_bands and fit.has_intervals:
        band = (low, high)
        if curve.fall is None:
            new_band = fit.new_interval(grid)
    return Line(compute=grid, reward=middle, first=first, last=last, band=band, new_band=new_band)


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
        line = None
        ceiling = None
        if curve.usable:
            line = line_of(curve, max(shared_end, end_of(curve)), has_bands=has_bands, num=num)
            ceiling = curve.ceiling if has_bands else None
        dots = dots_of(curve.series, curve.fit)
        drawn.append(Drawn(name=curve.name, dots=dots, line=line, colour=place, marks=marks_of(curve), ceiling=ceiling))
    unnoted = Curves(
        key=key,
        drawn=tuple(with_bars(drawn)),
        x_label=units[0] if len(units) == 1 else DIFFERENT_UNITS,
        y_label=labels[0] if len(labels) == 1 else "reward",
        at=at,
    )
    # Which signs there are depends on the limits of the chart, so the note comes last.
    return replace(unnoted, note=_note_of(unnoted, curves[0].fit.level, has_bands=has_bands))


def _note_of(chart: Curves, level: float, *, has_bands: bool) -> Say:
    """Return what the signs that a chart has mean."""
    _, rewards = limits_of(chart)
    has_cut_bands = False
    for each in chart.drawn:
        if each.line is not None and each.line.band is not None:
            has_cut_bands |= num_inside(each.line.band, rewards) < len(each.line.band[0])
    return say(
        "chart_note",
        level=level,
        has_bands=has_bands,
        has_cut_bands=has_cut_bands,
        has_bars=any(each.ceiling is not None for each in chart.drawn),
        has_marks=any(each.marks for each in chart.drawn),
    )


def strokes(each: Drawn, rewards: Range) -> Iterator[Stroke]:
    """Yield what is drawn of a curve, from back to front, on an axis of rewards with these ends.

    Nothing is cut off flat at an end of the axis: a band stops where it leaves, and a bar goes on as an arrow.
    """
    line = each.line
    if line is not None:
        for kind, band in (("new-band", line.new_band), ("band", line.band)):
            num = num_inside(band, rewards)
            if band is not None and num > 1:
                low = band[0][:num]
                high = band[1][:num]
                compute = line.compute[:num]
                there_and_back = np.concatenate([compute, compute[::-1]])
                edge = np.concatenate([low, high[::-1]])
                yield Stroke(kind=kind, shape="area", compute=there_and_back, reward=edge)
        for compute, reward, is_solid in line.parts():
            yield Stroke(kind="line" if is_solid else "forecast", shape="line", compute=compute, reward=reward)
    # The axis of compute is logarithmic.
    for part in _by_role_and_run(each.dots.take(each.dots.compute > 0)):
        if len(part.compute):
            run = int(part.run[0])
            yield Stroke(
                kind=str(part.role[0]).replace(" ", "-"),
                shape="points",
                compute=part.compute,
                reward=part.reward,
                error=part.error,
                run=run,
                name=part.runs[run] or each.name,
            )
    if each.ceiling is not None:
        yield from _bar(each, each.ceiling, rewards)
    if each.marks:
        compute, reward = np.array(each.marks).T
        yield Stroke(kind="mark", shape="points", compute=compute, reward=reward, name=each.name)


def num_inside(band: tuple[np.ndarray, np.ndarray] | None, rewards: Range) -> int:
    """Return how many places from the first a band stays within these rewards."""
    if band is None:
        return 0
    low, high = band
    is_inside = (low >= rewards[0]) & (high <= rewards[1])
    if is_inside.all():
        return len(low)
    # The first that is not inside.
    return int(is_inside.argmin())


def _bar(each: Drawn, ceiling: Value, rewards: Range) -> Iterator[Stroke]:
    """Yield the bar of a ceiling: its interval, its value, and an arrow where the interval goes beyond the axis."""
    at = np.array([each.ceiling_at])
    ends = np.clip([ceiling.low, ceiling.high], *rewards)
    yield Stroke(kind="ceiling", shape="line", compute=at.repeat(2), reward=ends, name=each.name)
    if rewards[0] <= ceiling.value <= rewards[1]:
        yield Stroke(kind="level", shape="points", compute=at, reward=np.array([ceiling.value]), name=each.name)
    if ceiling.high > rewards[1]:
        yield Stroke(kind="above", shape="points", compute=at, reward=ends[1:], name=each.name)
    if ceiling.low < rewards[0]:
        yield Stroke(kind="below", shape="points", compute=at, reward=ends[:1], name=each.name)


def with_bars(drawn: Sequence[Drawn]) -> list[Drawn]:
    """Place the bars of ceilings side by side, beyond the end of every curve."""
    first, last = _ends_of_computes(drawn)
    apart = (last / first) ** BAR_APART
    at = last
    placed: list[Drawn] = []
    for each in drawn:
        if each.ceiling is None:
            placed.append(each)
        else:
            at *= apart
            placed.append(replace(each, ceiling_at=at))
    return placed


def _ends_of_computes(drawn: Sequence[Drawn]) -> Range:
    """Return the smallest and the largest compute of points, lines and bars."""
    parts = [np.array([each.ceiling_at for each in drawn])]
    for each in drawn:
        parts.append(each.dots.compute)
        if each.line is not None:
            parts.append(each.line.compute)
    computes = np.concatenate(parts)
    computes = computes[computes > 0]
    if not len(computes):
        return 1.0, 10.0
    return float(computes.min()), float(computes.max())


def marks_of(curve: CurveResult) -> tuple[tuple[float, float], ...]:
    """Return (compute, reward) of the forecasts that were asked for, and of the last evaluation before a fall."""
    marks = [(each.compute, each.reward.value) for each in curve.at]
    marks += [(each.compute.value, each.reward) for each in curve.reach if each.compute is not None]
    if curve.fall is not None:
        marks.append((curve.fall.last_good, curve.fall.peak))
    furthest = MOST_REACH * curve.fit.scale
    return tuple(mark for mark in marks if 0 < mark[0] <= furthest)


def limits_of(chart: Curves) -> tuple[Range, Range]:
    """Return the ends of both axes: all compute and all points, and lines, bands and ceilings unless far outside."""
    return _limits_of_computes(chart.drawn), _limits_of_rewards(chart.drawn)


def _limits_of_computes(drawn: Sequence[Drawn]) -> Range:
    first, last = _ends_of_computes(drawn)
    room = max(last / first, 1.1) ** MARGIN
    return first / room, last * room


def _limits_of_rewards(drawn: Sequence[Drawn]) -> Range:
    lines = [each.line for each in drawn if each.line is not None]
    seen = [each.dots.reward for each in drawn if len(each.dots.reward)]
    if not seen:
        seen = [line.reward for line in lines]
    if not seen:
        seen = [np.array([0.0, 1.0])]
    rewards = np.concatenate(seen)
    low = float(rewards.min())
    high = float(rewards.max())
    span = max(high - low, 0.02 * abs(high), 1e-9)
    far_above = high + FAR_ABOVE * span
    lowest = low - FAR_BAND * span
    highest = high + FAR_BAND * span
    for line in lines:
        tip = float(line.reward[-1])
        if tip <= far_above:
            high = max(high, tip)
    for end in _ends_of_bands(drawn):
        low = min(low, max(end, lowest))
        high = max(high, min(end, highest))
    room = span
    if high > low:
        room = 2 * MARGIN * (high - low)
    return low - room, high + room


def _ends_of_bands(drawn: Sequence[Drawn]) -> list[float]:
    """Return how low and how high bands and the intervals of ceilings reach, where that is known."""
    ends: list[float] = []
    for each in drawn:
        if each.line is not None:
            for band in (each.line.band, each.line.new_band):
                if band is not None:
                    ends += [float(band[0].min()), float(band[1].max())]
        if each.ceiling is not None:
            ends += [each.ceiling.low, each.ceiling.high]
    return [end for end in ends if math.isfinite(end)]


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
