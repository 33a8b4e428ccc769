"""Fit a curve again with a prior that was learnt from other runs."""

from dataclasses import replace

import numpy as np

from scalerl.curves.fitted import Fit
from scalerl.curves.grid import middles
from scalerl.curves.intervals import Draws
from scalerl.curves.notes import WideCeiling
from scalerl.curves.points import make_points, noise_guess, thin
from scalerl.curves.priors.prior import Prior, coordinates, weak_log_density
from scalerl.curves.verdicts import FALLEN
from scalerl.curves.ways.solving import pose

LEAST_DRAWS = 300  # effective draws from which weighting is as good as a new grid
# Verdicts of curves that do not follow a sigmoid: other runs say nothing of them.
NOT_POOLED = (*FALLEN, "lack of fit", "no rise seen", "too few points")


def can_be_pooled(curve: Fit) -> bool:
    """Return whether a fit can be pooled: a free sigmoid with draws whose verdict is not in NOT_POOLED."""
    known = curve.known
    is_free = known is not None and known.ceiling is None and not known.log_shape
    has_draws = curve.draws is not None and not curve.parts
    return curve.form == "sigmoid" and is_free and has_draws and curve.verdict not in NOT_POOLED


def with_prior(curve: Fit, prior: Prior) -> Fit:
    """Return the fit of the same points under this prior, with the original fit as `unpooled`.

    A fit that cannot be pooled is returned unchanged.
    """
    if not can_be_pooled(curve):
        return curve
    own = curve.unpooled or curve
    draws = _weighted(own, prior) or _drawn_again(own, prior)
    params = {name: float(np.median(values)) for name, values in draws.params.items()}
    pooled = replace(
        own,
        params=params,
        draws=draws,
        noise_sd=float(np.median(draws.noise_sd)),
        run_sd=float(np.median(draws.run_sd)) if own.num_runs > 1 else None,
        prior=prior,
        unpooled=own,
    )
    return _judged(pooled)


def _weighted(own: Fit, prior: Prior) -> Draws | None:
    """Resample the draws by importance weights, the prior relative to the weak prior; None if too few are effective."""
    draws = own.draws
    assert draws is not None
    log_weight = np.zeros(len(draws.noise_sd))
    for param, values in coordinates(draws.params, own.bounds[1]).items():
        if param in prior.densities:
            log_weight += prior.densities[param].at(values) - weak_log_density(param, values, float(np.log(own.scale)))
    weight = np.exp(log_weight - log_weight.max())
    weight /= weight.sum()
    if 1 / np.sum(weight**2) < LEAST_DRAWS:
        return None
    # In their order, which is that of the ceiling: its quantiles stay smooth.
    pick = np.minimum(np.searchsorted(np.cumsum(weight), middles(len(weight))), len(weight) - 1)
    params = {name: values[pick] for name, values in draws.params.items()}
    return replace(draws, params=params, noise_sd=draws.noise_sd[pick], run_sd=draws.run_sd[pick])


def _drawn_again(own: Fit, prior: Prior) -> Draws:
    """Draw from the posterior under the prior on a new grid: slower than weighting, but always possible."""
    points = make_points(
        own.compute,
        own.reward,
        num_samples=own.num_samples,
        run=own.run,
        bounds=own.bounds,
        evaluation=own.evaluation,
        error=own.error,
    )
    assert own.known is not None
    few = thin(points)
    problem = pose(few, own.own_form, replace(own.known, prior=prior), own.start_sd)
    draws = problem.draws(noise_guess(points), problem.slow_noise(problem.solve()))
    if few is not points:
        # As in the fit without the prior: blocks of autocorrelated points overstate the noise of one evaluation.
        draws = replace(draws, noise_sd=draws.noise_sd * (own.noise_sd / float(np.median(draws.noise_sd))))
    return draws


def _judged(pooled: Fit) -> Fit:
    """Judge again a fit whose only fault was too wide an interval of the ceiling: ok if it is narrow now."""
    if pooled.verdict != "ceiling not identifiable yet":
        return pooled
    low, high = pooled.interval("ceiling")
    if high - low > pooled.margin * (pooled.bounds[1] - pooled.bounds[0]):
        width = float(high - low)
        notes = (replace(note, width=width) if isinstance(note, WideCeiling) else note for note in pooled.notes)
        return replace(pooled, notes=tuple(notes))
    notes = tuple(note for note in pooled.notes if not isinstance(note, WideCeiling))
    return replace(pooled, verdict="ok", notes=notes)
