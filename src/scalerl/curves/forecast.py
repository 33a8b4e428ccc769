"""What more compute buys, when to stop, and how well such forecasts did on the run's own past."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass

import numpy as np

from scalerl.curves.draws import Value, summary, tails
from scalerl.curves.fit import Fit
from scalerl.curves.forms import Array
from scalerl.curves.notes import Note, NoteKind, Verdict, note

MOST = 0.95
"""Share of the gain that counts as most of it."""
MANY_PLACES = 40
"""Different computes from which an interval, which is smooth, is interpolated."""


@dataclass(frozen=True, slots=True, kw_only=True)
class At:
    """The reward forecast at a compute, with the interval in which a new evaluation there should fall."""

    compute: float
    reward: Value
    notes: tuple[Note, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Reach:
    """The compute at which the curve reaches a reward; None where it probably never does."""

    reward: float
    compute: Value | None
    notes: tuple[Note, ...] = ()
    p_above_ceiling: float | None = None
    """Probability that no compute reaches it; None without intervals."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    """How a forecast did on points it had not seen."""

    num_points: int
    rmse: float
    bias: float
    """Forecast minus what happened, on average."""
    coverage: float
    """Share of the points within the interval of a new evaluation."""
    level: float


def reward_at(curve: Fit, computes: Sequence[float]) -> list[At]:
    """Return the curve at each compute, with the interval in which a new evaluation there should fall."""
    compute = np.asarray(computes, dtype=float)
    if compute.size and not (compute > 0).all():
        raise ValueError(f"the compute to forecast at must be positive, but {compute.min():g} was given")
    low, high = curve.new_interval(compute) if curve.has_intervals else (np.full(compute.shape, np.nan),) * 2
    return [
        At(
            compute=float(place),
            reward=Value(value=float(value), low=float(below), high=float(above)),
            notes=_after_fall(curve) if place > curve.scale else (),
        )
        for place, value, below, above in zip(compute, curve.predict(compute), low, high, strict=True)
    ]


def _after_fall(curve: Fit) -> tuple[Note, ...]:
    fall = curve.fall
    return () if fall is None else (note(NoteKind.AFTER_FALL, compute=fall.compute, best=fall.best, now=fall.now),)


def doubling(curve: Fit) -> Value:
    """Return the gain of doubling the budget: the curve at twice the largest compute, less the curve there."""
    ends = curve.scale * np.array([1.0, 2.0])
    if not curve.has_intervals:
        now, later = curve.predict(ends)
        return Value(value=float(later - now), low=np.nan, high=np.nan)
    draws = curve.curve_draws(ends)
    return summary(draws[:, 1] - draws[:, 0], curve.level)


def wide_curve(curve: Fit) -> tuple[Array, Array]:
    """Return computes from long before the data to far beyond them, and draws (rows) of the curve there."""
    places = np.geomspace(1e-3 * float(curve.compute.min()), 1e4 * curve.scale, 240)
    return places, curve.curve_draws(places)


def reach_draws(places: Array, draws: Array, rewards: Sequence[float] | Array) -> Array:
    """Return draws (rows) of the compute at which a `wide_curve` first has each reward; infinite where it never does.

    It is 0 for what the curve has from the start. `rewards` are the same for all draws, or one row for each.
    """
    heights = np.maximum.accumulate(draws, axis=1)
    columns = []
    for reward in np.atleast_2d(np.asarray(rewards, dtype=float)).T if np.size(rewards) else ():
        after = (heights < reward[:, None]).sum(axis=1)
        inside = np.clip(after, 1, len(places) - 1)
        rows = np.arange(len(heights))
        below, above = heights[rows, inside - 1], heights[rows, inside]
        share = np.clip((reward - below) / np.maximum(above - below, 1e-300), 0.0, 1.0)
        compute = places[inside - 1] * (places[inside] / places[inside - 1]) ** share
        columns.append(np.where(after == 0, 0.0, np.where(after == len(places), np.inf, compute)))
    return np.stack(columns, axis=1) if columns else np.empty((len(heights), 0))


def compute_for(curve: Fit, rewards: Sequence[float]) -> list[Reach]:
    """Return the compute needed for each reward, or that it lies above the ceiling."""
    if not curve.has_intervals:
        return [_reach_without_intervals(curve, float(reward)) for reward in rewards]
    draws = reach_draws(*wide_curve(curve), rewards)
    return [_reach(curve, float(reward), column) for reward, column in zip(rewards, draws.T, strict=True)]


def _reach(curve: Fit, reward: float, computes: Array) -> Reach:
    never = float(np.mean(~np.isfinite(computes)))
    if never > 0.5:
        above = note(NoteKind.ABOVE_CEILING, reward=reward, ceiling=curve.params["ceiling"], probability=never)
        return Reach(reward=reward, compute=None, notes=(above, *_after_fall(curve)), p_above_ceiling=never)
    found = summary(computes, curve.level)
    notes = []
    if found.value <= curve.scale:
        notes.append(note(NoteKind.ALREADY_REACHED, by_first_point=bool(found.value <= curve.compute.min())))
    if never > tails(curve.level)[0]:
        notes.append(note(NoteKind.MAY_BE_ABOVE_CEILING, probability=never))
    return Reach(reward=reward, compute=found, notes=tuple(notes), p_above_ceiling=never)


def _reach_without_intervals(curve: Fit, reward: float) -> Reach:
    """The paper's curve has one inverse."""
    p = curve.params
    share = (reward - p["start"]) / (p["ceiling"] - p["start"])
    if share >= 1.0:
        above = note(NoteKind.ABOVE_CEILING, reward=reward, ceiling=p["ceiling"], probability=None)
        return Reach(reward=reward, compute=None, notes=(above,))
    compute = p["midpoint"] * (share / (1.0 - share)) ** (1.0 / p["exponent"]) if share > 0 else 0.0
    return Reach(reward=reward, compute=Value(value=float(compute), low=np.nan, high=np.nan))


# When to stop ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Stopping:
    """What to know before stopping a run, or going on."""

    most_of_gain: Value | None
    """Compute at which 95 % of the gain is reached; None where there is no gain."""
    reached: bool
    """Whether that lies within the data."""
    doubling: Value | None
    """Gain of one more doubling of compute; None where no rise is seen."""
    best_compute: float
    best_reward: float
    """The evaluation with the highest reward."""
    fell_after: float | None = None
    """Compute of the peak after which the reward fell; None where it did not."""


def stopping(curve: Fit) -> Stopping | None:
    """Return when to stop; None if there is no curve with intervals."""
    if not curve.usable or not curve.has_intervals:
        return None
    best = int(np.argmax(curve.reward))
    most = None
    if curve.verdict not in (Verdict.FLAT, Verdict.FALLEN):
        draws = curve.curve_draws([float(curve.compute.min())])[:, 0]
        first = float(np.median(draws)) if curve.start is None else curve.start
        wanted = first + MOST * (curve.params["ceiling"] - first)
        most = summary(reach_draws(*wide_curve(curve), [wanted])[:, 0], curve.level)
    return Stopping(
        most_of_gain=most,
        reached=most is not None and most.value <= curve.scale,
        doubling=None if curve.verdict == Verdict.FLAT else doubling(curve),
        best_compute=float(curve.compute[best]),
        best_reward=float(curve.reward[best]),
        fell_after=None if curve.fall is None else curve.fall.compute,
    )


def conclusions(curve: Fit) -> tuple[Note, ...]:
    """Return what to take away from a fit: where it levels off, the reasons of its verdict, and when to stop."""
    if not curve.usable:
        return curve.notes
    rows = []
    if (curve.verdict == Verdict.KNOWN or not curve.has_intervals) and curve.own_form.ceiling is None:
        low, high = curve.interval("ceiling")
        rows.append(note(NoteKind.LEVELS_OFF, value=curve.params["ceiling"], low=low, high=high, level=curve.level))
    rows += curve.notes
    when = stopping(curve)
    if when is None:
        return tuple(rows)
    if when.most_of_gain is not None:
        rows.append(note(NoteKind.MOST_OF_GAIN, share=MOST, reached=when.reached, **asdict(when.most_of_gain)))
    if when.doubling is not None and curve.fall is None:
        rows.append(note(NoteKind.DOUBLING, compute=curve.scale, **asdict(when.doubling)))
    return (*rows, note(NoteKind.BEST_EVALUATION, compute=when.best_compute, reward=when.best_reward))


# On points that it has not seen ---------------------------------------------------------------------------------------


def score(curve: Fit, compute: Array, reward: Array) -> Score | None:
    """Compare a fit with points it has not seen; None where there are none or there is no curve."""
    if not len(compute) or not curve.usable:
        return None
    coverage = np.nan
    places = np.unique(compute)
    if len(places) > MANY_PLACES:
        places = np.linspace(places[0], places[-1], MANY_PLACES)
    if curve.has_intervals:
        low, high = (np.interp(compute, places, edge) for edge in curve.new_interval(places))
        coverage = float(np.mean((reward >= low) & (reward <= high)))
    off = np.interp(compute, places, curve.predict(places)) - reward
    return Score(
        num_points=len(compute),
        rmse=float(np.sqrt(np.mean(off**2))),
        bias=float(np.mean(off)),
        coverage=coverage,
        level=curve.level,
    )
