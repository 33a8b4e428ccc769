"""Forecast the curve of a new run from runs of smaller models of the same family.

    ceiling    logit(A) = logit(R0) + b0 + b1 logit(R0) + b2 log N,   with scatter in units of the reward
    midpoint   log C_mid = m0 + m1 log N                              with scatter
    exponent   log B = e0 + e1 log N                                  with scatter

Ceilings depend mainly on the start R0 (priors keep b1 and b2 near 0); midpoints grow with the size N. The laws
are those of `population.py`. Logarithms are taken relative to the target, so that a law's intercept is its forecast.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from scalerl.forecast.curves.draws import Value, summary
from scalerl.forecast.curves.fit import Fit
from scalerl.forecast.curves.forms import Array, sigmoid
from scalerl.forecast.curves.normal import normal_quantile
from scalerl.forecast.curves.sample import even_points
from scalerl.forecast.several.population import DIMS, NUM_DRAWS, LawPrior, law

LEAST_SIBLINGS = 3
EXPONENTS = (np.log(0.3), np.log(14.0))  # range of exponents that have been observed
FAR = 10.0  # beyond this multiple of the largest sibling's size a forecast is a guess
EARLY = 0.02  # an evaluation before this share of the largest compute counts as one before training
EDGE = 1e-3  # least distance of a reward from 0 and 1 on the logit scale

TransferKind = Literal["ok", "far_size"]

CEILING = LawPrior(mean=(0.8, 0.0, 0.0), sd=(1.0, 0.25, 0.2), scatter=0.02)
EXPONENT = LawPrior(mean=(np.log(2.0), 0.0), sd=(0.7, 0.15), scatter=0.2)
MIDPOINT_SD, MIDPOINT_SCATTER = 0.5, 0.3


@dataclass(frozen=True, slots=True, kw_only=True)
class Sibling:
    """One smaller model of the family: (median, sd) of the posterior of each parameter of its curve."""

    name: str
    size: float
    start: float
    ceiling: tuple[float, float]
    log_exponent: tuple[float, float]
    log_midpoint: tuple[float, float]
    noise_sd: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Transfer:
    """The forecast for the target size, and its siblings."""

    size: float
    start: float
    ceiling: Value
    exponent: Value
    midpoint: Value
    at: tuple[tuple[float, Value], ...]
    kind: TransferKind
    siblings: tuple[Sibling, ...]
    scatter: float
    """Median scatter of ceilings around the law, in units of the reward."""


def first_reward(compute: Array, reward: Array) -> float | None:
    """Return the mean reward at the smallest compute, if that counts as before training; else None."""
    first = compute.min()
    return float(reward[compute == first].mean()) if first <= EARLY * compute.max() else None


def sibling(name: str, size: float, curve: Fit, *, start: float | None = None) -> Sibling:
    """Return a sibling from the fit of its curve. `start` is its measured reward before training, if there is one.

    A curve without its first points would have a fitted start far above that reward.
    """
    start = curve.params["start"] if start is None else start
    centre = lambda values: (float(np.median(values)), float(np.std(values)))  # noqa: E731
    return Sibling(
        name=name,
        size=size,
        start=start,
        ceiling=centre(curve.param_draws("ceiling")),
        log_exponent=centre(np.log(curve.param_draws("exponent"))),
        log_midpoint=centre(np.log(curve.param_draws("midpoint"))),
        noise_sd=curve.noise_sd,
    )


def transfer(
    siblings: Sequence[Sibling],
    size: float,
    start: float,
    at: Sequence[float],
    *,
    midpoint_slope: float = 1.0,
    level: float = 0.9,
) -> Transfer:
    """Forecast the curve of `size` from its siblings; `midpoint_slope` is the prior mean of m1."""
    points = even_points(NUM_DRAWS, 3 * DIMS + 1)
    of_ceiling, of_midpoint, of_exponent, of_noise = np.split(points, (DIMS, 2 * DIMS, 3 * DIMS))
    log_size = np.log(np.array([own.size for own in siblings]) / size)
    ceiling, scatter = ceiling_draws(siblings, log_size, start, of_ceiling)
    sized = np.stack([np.ones_like(log_size), log_size], axis=1)
    # A midpoint is within a few factors of the siblings', so its prior level is nearly flat.
    around = float(np.mean([own.log_midpoint[0] for own in siblings]))
    midpoint_prior = LawPrior(mean=(around, midpoint_slope), sd=(4.0, MIDPOINT_SD), scatter=MIDPOINT_SCATTER)
    log_midpoint, _ = law([own.log_midpoint for own in siblings], sized, midpoint_prior, of_midpoint)
    log_exponent, _ = law([own.log_exponent for own in siblings], sized, EXPONENT, of_exponent)
    log_exponent = np.clip(log_exponent, *EXPONENTS)
    noise = float(np.median([own.noise_sd for own in siblings])) * normal_quantile(of_noise[0])
    rewards = [start + (ceiling - start) * sigmoid(np.log(place), log_exponent, log_midpoint) for place in at]
    return Transfer(
        size=size,
        start=start,
        ceiling=summary(ceiling, level),
        exponent=summary(np.exp(log_exponent), level),
        midpoint=summary(np.exp(log_midpoint), level),
        at=tuple(
            (float(place), replace(summary(np.clip(reward + noise, 0.0, 1.0), level), value=float(np.median(reward))))
            for place, reward in zip(at, rewards, strict=True)
        ),
        kind="far_size" if size > FAR * max(own.size for own in siblings) else "ok",
        siblings=tuple(siblings),
        scatter=float(np.median(scatter)),
    )


def ceiling_draws(siblings: Sequence[Sibling], log_size: Array, start: float, points: Array) -> tuple[Array, Array]:
    """Return draws of the target's ceiling, and of the scatter of ceilings around the law."""
    starts = logit(np.array([own.start for own in siblings]))
    ceilings = np.array([own.ceiling[0] for own in siblings])
    gain = logit(ceilings) - starts
    # The scatter is in units of the reward; on the logit scale it is larger near 0 and 1.
    stretch = 1 / np.maximum(ceilings * (1 - ceilings), EDGE)
    own = [
        (value, sd * wide) for value, (_, sd), wide in zip(gain, (s.ceiling for s in siblings), stretch, strict=True)
    ]
    features = np.stack([np.ones_like(log_size), starts - logit(np.array(start)), log_size], axis=1)
    lift, scatter = law(own, features, CEILING, points, stretch=stretch, is_curve=True)
    centre = expit(logit(np.array(start)) + lift)
    ceiling = centre + scatter * normal_quantile(points[-1])
    return np.clip(ceiling, start, 1.0), scatter


def logit(reward: Array) -> Array:
    reward = np.clip(reward, EDGE, 1 - EDGE)
    return np.log(reward / (1 - reward))


def expit(value: Array) -> Array:
    return 1 / (1 + np.exp(-value))
