"""A late take-off: a sigmoid that begins only after some of the compute was spent.

A sigmoid in compute ties how it levels off to how it began. Of a run that is flat for a while and then rises, the flat
part makes the exponent large, and with it the ceiling is reached almost at once, at what was measured last. Counted
from where the rise begins the same points may level off far more slowly. Where the exponent is larger than the prior
expects, curve and intervals are averaged over both readings.
"""

from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from scalerl.curves.forms import EXPONENT, FORMS, Array, Form, sigmoid
from scalerl.curves.grid import MIXED, NUM_DRAWS
from scalerl.curves.intervals import Draws
from scalerl.curves.least_squares import Solution
from scalerl.curves.points import Known, Points
from scalerl.curves.ways.averaging import LEAST_SHARE, Part, some_draws
from scalerl.curves.ways.solving import Choice, Problem, pose

STEEP = float(np.exp(EXPONENT.prior_mean + 1.2816 * EXPONENT.prior_sd))
"""Nine tenths of the exponents that the prior expects are smaller: 3.8."""
DELAYS = (0.05, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8)  # shares of the largest compute
LEAST_BEFORE = 3  # points before the rise begins, without which nothing shows that it was delayed
LEAST_AFTER = 6  # points since then
MOST_DELAYS = 3  # that are averaged, those that fit best


@dataclass(frozen=True, slots=True, kw_only=True)
class _Way:
    """A way to fit the run, and how unlikely it is."""

    choice: Choice
    problem: Problem | None
    """None for the fit that was there before, whose draws are known."""
    best: Solution
    deviance: float


def delayed_sigmoid(delay: float) -> Form:
    """Return the sigmoid of the compute spent since `delay`, a share of the largest compute.

    R(C) = R0 + (A - R0) / (1 + (C_mid / (C - D))^B), flat up to D. Its midpoint is counted from D on, in units in which
    the compute since then is one.
    """
    return replace(FORMS["sigmoid"], shape=partial(_since, delay), delay=delay)


def _since(delay: float, log_compute: Array, log_exponent: Array, log_midpoint: Array) -> Array:
    with np.errstate(divide="ignore", over="ignore"):
        spent = np.maximum(np.exp(log_compute) - delay, 0.0) / (1.0 - delay)
        return sigmoid(np.log(spent), log_exponent, log_midpoint)


def late_take_off(
    problem: Problem, best: Solution, known: Known, start_sd: float | None, guess: float | None
) -> tuple[Draws, tuple[Part, ...]] | None:
    """Return the draws of the sigmoid, and it and delayed ones with their weights; None for any other run.

    The weights are those of the largest likelihood of each way; the delay, which is one more parameter, costs half a
    log of the number of points (Schwarz 1978).
    """
    is_plain = problem.form is FORMS["sigmoid"] and not known.log_shape and known.ceiling is None
    if not is_plain or np.exp(best.log_shape[0]) <= STEEP:
        return None
    draws = problem.draws(guess, problem.slow_noise(best))
    if float(np.median(draws.params["exponent"])) <= STEEP:
        return None
    points = problem.given
    delayed = [way for delay in DELAYS if (way := _delayed(points, known, start_sd, delay)) is not None]
    delayed = sorted(delayed, key=lambda way: way.deviance)[:MOST_DELAYS]
    sigmoid_alone = Choice(form=problem.form)
    ways = [_Way(choice=sigmoid_alone, problem=None, best=best, deviance=_deviance(points, best)), *delayed]
    weights = _weights(np.array([way.deviance for way in ways]))
    if weights[1:].sum() < LEAST_SHARE:
        return None
    counts = np.diff(np.round(np.cumsum(weights) * NUM_DRAWS), prepend=0.0).astype(int)
    resolution = MIXED if points.num_runs == 1 else None
    parts = []
    for way, weight, num in zip(ways, weights, counts, strict=True):
        if num > 0:
            own = draws
            if way.problem is not None:
                own = way.problem.draws(guess, way.problem.slow_noise(way.best), resolution)
            parts.append(Part(choice=way.choice, weight=float(weight), draws=some_draws(own, num)))
    return draws, tuple(parts)


def _weights(deviances: Array) -> Array:
    """Return the weights of the sigmoid and of delayed ones, which weigh as much together as the best of them."""
    weights = np.exp(-0.5 * (deviances - deviances.min()))
    weights[1:] *= weights[1:].max(initial=0.0) / max(weights[1:].sum(), 1e-300)
    weights = np.where(weights >= LEAST_SHARE * weights.sum(), weights, 0.0)
    return weights / weights.sum()


def _delayed(points: Points, known: Known, start_sd: float | None, delay: float) -> _Way | None:
    """Return the fit with a delay; None where too few points lie before or after it."""
    num_before = int(np.sum(points.log_compute <= np.log(delay)))
    if num_before < LEAST_BEFORE or points.num - num_before < LEAST_AFTER:
        return None
    form = delayed_sigmoid(delay)
    problem = pose(points, form, known, start_sd)
    best = problem.solve()
    deviance = _deviance(points, best) + float(np.log(points.num))
    return _Way(choice=Choice(form=form), problem=problem, best=best, deviance=deviance)


def _deviance(points: Points, best: Solution) -> float:
    """Return minus twice the log likelihood of a fit, up to a constant."""
    least = 1e-12 * (points.bounds[1] - points.bounds[0]) ** 2
    return points.num * float(np.log(max(best.squares, least)))
