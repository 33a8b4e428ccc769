"""Several ways to fit a run that does not follow its form, averaged by how well each forecast the run's own past.

Each way is fitted to what lies before a share of the compute and scored on what lies between that and the next share:
the log density of averages of neighbouring points there. Sums of these scores, exponentiated, are the weights.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np

from scalerl.curves.forms import Array
from scalerl.curves.grid import COARSE, MIXED, NUM_DRAWS
from scalerl.curves.intervals import Draws
from scalerl.curves.points import Known, Points
from scalerl.curves.residuals.drift import SlowNoise
from scalerl.curves.ways.solving import Choice, pose, rescale

CUTS = (0.5, 0.71, 1.0)  # shares of the largest compute
BLOCKS = 3  # averages a stretch is scored by
WANDER = 1.0  # noise variances that a run may stray from its own curve with each doubling beyond the data
LEAST_SHARE = 0.02  # weight below which a way is left out


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """One way to fit the run under one kind of noise, its weight, and draws in proportion to it."""

    choice: Choice
    weight: float
    draws: Draws


def average(
    points: Points,
    known: Known,
    start_sd: float | None,
    guess: float | None,
    ways: Sequence[Choice],
    autocorrelation: float,
    slow: SlowNoise | None,
    kept: tuple[Choice, Draws],
) -> tuple[Part, ...]:
    """Return the ways that can be fitted, with weights by predictive score; none where nothing can be scored.

    `kept` is the way that was chosen, with its draws under the `slow` noise. Where there is such noise, each way is
    tried without it, too: a curve of the wrong shape leaves residuals that look like a drift, and where a drift is
    allowed it may lie above all late points.
    """
    # With several runs the grid over their spread is coarse enough.
    resolution = MIXED if points.num_runs == 1 else None
    noises = (None,) if slow is None else (slow, None)
    scores, fitted = [], []
    for way in ways:
        few, less = way.of(points, known)
        if few.num < less.num_free(way.form) + 2:
            continue
        problem = pose(few, way.form, less, start_sd)
        for noise in noises:
            scores.append(predictive_scores(points, known, start_sd, guess, way, autocorrelation, noise))
            fitted.append((way, problem, noise))
    if not fitted:
        return ()
    weights = _weights(np.array(scores))
    heavy = weights >= LEAST_SHARE
    weights = np.where(heavy, weights, 0.0) / weights[heavy].sum()
    # Rounded as sums, so that the parts have as many draws together as any other fit.
    counts = np.diff(np.round(np.cumsum(weights) * NUM_DRAWS), prepend=0.0).astype(int)
    parts = []
    for (way, problem, noise), weight, num in zip(fitted, weights, counts, strict=True):
        if num > 0:
            is_kept = way == kept[0] and noise is slow
            draws = kept[1] if is_kept else problem.draws(guess, noise, resolution)
            parts.append(Part(choice=way, weight=float(weight), draws=_some(draws, num)))
    return tuple(parts)


def _weights(scores: Array) -> Array:
    """Return the weight of each way from its scores (one row per way, one column per stretch).

    A missing score counts as the worst score of that stretch.
    """
    worst = np.nanmin(np.where(np.isnan(scores), np.inf, scores), axis=0)
    scores = np.where(np.isnan(scores), np.where(np.isfinite(worst), worst, 0.0), scores)
    total = scores.sum(axis=1)
    weights = np.exp(total - total.max())
    return weights / weights.sum()


def predictive_scores(
    points: Points,
    known: Known,
    start_sd: float | None,
    guess: float | None,
    way: Choice,
    autocorrelation: float,
    slow: SlowNoise | None,
) -> list[float]:
    """Return the log density of each stretch given what lies before it; NaN where too little does."""
    together = (1 + autocorrelation) / (1 - autocorrelation)
    scores = []
    for cut, end in pairwise(CUTS):
        few, less = way.of(points.take(points.log_compute <= np.log(cut)), known)
        later = points.take((points.log_compute > np.log(cut)) & (points.log_compute <= np.log(end) + 1e-12))
        if few.num < less.num_free(way.form) + 2 or not later.num or few.num_runs < points.num_runs:
            scores.append(np.nan)
            continue
        few, less = rescale(few, less, way.form)
        draws = pose(few, way.form, less, start_sd).draws(guess, slow, COARSE if points.num_runs == 1 else None)
        scores.append(_log_density(draws, way, few.scale, later, together))
    return scores


def _log_density(draws: Draws, way: Choice, scale: float, later: Points, together: float) -> float:
    """Return the joint log density of averages of neighbouring later points; `scale` is the largest compute fitted."""
    order = np.argsort(later.log_compute)
    total = np.zeros(len(draws.noise_sd))
    params = {name: values[:, None] for name, values in draws.params.items()}
    for block in np.array_split(order, min(BLOCKS, later.num)):
        compute = later.scale * np.exp(later.log_compute[block])
        expected = way.form.curve(compute, params, scale).mean(axis=1)
        doublings = max(float(np.log2(compute.mean() / scale)), 0.0)
        noise = np.mean(later.noise[block] ** 2) * min(together / len(block), 1.0)
        variance = draws.noise_sd**2 * (noise + WANDER * draws.drift_share * doublings) + draws.run_sd**2
        error = later.reward[block].mean() - expected
        total += -0.5 * error**2 / variance - 0.5 * np.log(variance)
    return float(np.logaddexp.reduce(total) - np.log(len(total)))


def _some(draws: Draws, num: int) -> Draws:
    """Return a number of the draws, evenly spaced in their order, which is by ceiling."""
    pick = ((np.arange(num) + 0.5) * len(draws.noise_sd) / num).astype(int)
    params = {name: values[pick] for name, values in draws.params.items()}
    return replace(draws, params=params, noise_sd=draws.noise_sd[pick], run_sd=draws.run_sd[pick])


def pooled_ceilings(draws: Draws, parts: Sequence[Part]) -> Array:
    """Return draws of the ceiling over all parts; of `draws` where there are none."""
    return np.concatenate([part.draws.params["ceiling"] for part in parts]) if parts else draws.params["ceiling"]
