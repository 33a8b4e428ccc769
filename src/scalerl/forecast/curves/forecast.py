"""Forecast what more compute brings, and score forecasts on held-out points."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from scalerl.forecast.curves.draws import Value, summary
from scalerl.forecast.curves.fit import Fit
from scalerl.forecast.curves.forms import Array

MANY_PLACES = 40
"""With more computes than this, intervals are interpolated, since they are smooth."""
NUM_PLACES = 160
"""Number of computes in a `wide_curve`."""
EVERY = 4
"""A `wide_curve` uses every fourth draw, because its intervals are shown to two digits."""
MOST = 0.95
"""Share of the gain that counts as most of it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class At:
    """The reward forecast at a compute, with the interval of a new evaluation there."""

    compute: float
    reward: Value


@dataclass(frozen=True, slots=True, kw_only=True)
class Reach:
    """The compute at which the curve reaches a reward; None if it probably never does."""

    reward: float
    compute: Value | None
    p_never: float | None
    """Probability that no compute reaches it; None without intervals."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    """The score of a forecast on held-out points."""

    num_points: int
    rmse: float
    bias: float
    """Mean of forecast minus measured reward."""
    coverage: float | None
    """Share of the points within the interval of a new evaluation; None without intervals."""
    level: float


def reward_at(curve: Fit, computes: Sequence[float]) -> list[At]:
    """Return the reward forecast at each compute, with the interval of a new evaluation there."""
    compute = np.asarray(computes, dtype=float)
    if compute.size and not (compute > 0).all():
        raise ValueError(f"the compute to forecast at must be positive, but {compute.min():g} was given")
    low, high = curve.new_interval(compute) if curve.has_intervals else (np.full(compute.shape, np.nan),) * 2
    return [
        At(compute=float(place), reward=Value(value=float(value), low=float(below), high=float(above)))
        for place, value, below, above in zip(compute, curve.predict(compute), low, high, strict=True)
    ]


def wide_curve(curve: Fit) -> tuple[Array, Array]:
    """Return computes from long before the data to far beyond them, and draws (rows) of the curve there."""
    places = np.geomspace(1e-3 * float(curve.compute.min()), 1e4 * curve.scale, NUM_PLACES)
    drawn = curve.drawn
    return places, replace(drawn, draws=drawn.draws.take(slice(None, None, EVERY))).curve(places)


def reach_draws(places: Array, draws: Array, rewards: Sequence[float]) -> Array:
    """Return draws (rows) of the compute at which a `wide_curve` first reaches each reward; infinite if it never does.

    It is 0 for a reward that the curve has from the start.
    """
    heights = np.maximum.accumulate(draws, axis=1)
    columns = []
    for reward in rewards:
        after = (heights < reward).sum(axis=1)
        place = np.clip(after, 1, len(places) - 1)
        rows = np.arange(len(heights))
        below, above = heights[rows, place - 1], heights[rows, place]
        share = np.clip((reward - below) / np.maximum(above - below, 1e-300), 0.0, 1.0)
        compute = places[place - 1] * (places[place] / places[place - 1]) ** share
        columns.append(np.where(after == 0, 0.0, np.where(after == len(places), np.inf, compute)))
    return np.stack(columns, axis=1) if columns else np.empty((len(heights), 0))


def compute_for(curve: Fit, rewards: Sequence[float]) -> list[Reach]:
    """Return the compute needed for each reward; None if the reward is probably above the ceiling."""
    if not curve.has_intervals:
        return [_reach_without_intervals(curve, float(reward)) for reward in rewards]
    draws = reach_draws(*wide_curve(curve), rewards)
    return [_reach(curve, float(reward), column) for reward, column in zip(rewards, draws.T, strict=True)]


def _reach(curve: Fit, reward: float, computes: Array) -> Reach:
    never = float(np.mean(~np.isfinite(computes)))
    return Reach(reward=reward, compute=None if never > 0.5 else summary(computes, curve.level), p_never=never)


def _reach_without_intervals(curve: Fit, reward: float) -> Reach:
    """Invert the paper's curve, which has no draws."""
    p = curve.params
    share = (reward - p["start"]) / (p["ceiling"] - p["start"])
    if share >= 1.0:
        return Reach(reward=reward, compute=None, p_never=None)
    compute = p["midpoint"] * (share / (1.0 - share)) ** (1.0 / p["exponent"]) if share > 0 else 0.0
    return Reach(reward=reward, compute=Value(value=float(compute), low=np.nan, high=np.nan), p_never=None)


def most_of_gain(curve: Fit) -> Value:
    """Return the compute at which most of the gain is reached."""
    first = float(np.median(curve.curve_draws([float(curve.compute.min())])[:, 0]))
    first = first if curve.start is None else curve.start
    wanted = first + MOST * (curve.params["ceiling"] - first)
    return summary(reach_draws(*wide_curve(curve), [wanted])[:, 0], curve.level)


def score(curve: Fit, compute: Array, reward: Array) -> Score | None:
    """Score a fit on held-out points; None without points or without a curve."""
    if not len(compute) or not curve.usable:
        return None
    coverage = None
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
