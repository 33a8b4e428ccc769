"""A population of runs: what runs of one kind have in common, and how much they differ.

Each run gives the logarithms of its gain's share, exponent and midpoint a location and an error: those of its
posterior, with the weak prior divided out so that an uninformative run adds nothing. A law predicts these values up to
a scatter, which is learned too:

    value_j = features_j . coefficients + scatter * t_j + error_j

A pool is the law with one coefficient, its centre; `transfer.py` has laws that depend on the size. The forecast for one
more run is a Student-t with few degrees of freedom, so that an arm may differ from all others.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from scalerl.forecast.curves import priors
from scalerl.forecast.curves.decide import LIKELIER
from scalerl.forecast.curves.fit import Fit
from scalerl.forecast.curves.forms import Array
from scalerl.forecast.curves.model import Kind
from scalerl.forecast.curves.priors import Prior
from scalerl.forecast.curves.problem import gain_unit

SCATTERS = np.geomspace(0.125, 16.0, 15)
"""Grid of scatters, in units of the typical scatter."""
T_QUANTILE = 1.6377
"""Half-width of the central 80 % interval of a Student-t with three degrees of freedom."""
WEAK_SHARE = (np.log(0.2), 1.2)
"""Approximate weak prior of the gain's logarithm, in units of the possible gain."""
WEAK_SPAN = (0.0, 1.6)
"""The same for unbounded rewards, in units of the observed range."""
NEW = 0.9
"""A run whose variance is at least this share of the weak prior's is uninformative."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LawPrior:
    """Means and sds of a law's coefficients, and the typical scatter around it."""

    mean: tuple[float, ...]
    sd: tuple[float, ...]
    scatter: float


POOLED = {
    "share": LawPrior(mean=(-2.0,), sd=(1.2,), scatter=0.2),
    "exponent": LawPrior(mean=(priors.LOG_EXPONENT[0],), sd=(priors.LOG_EXPONENT[1],), scatter=0.25),
    "midpoint": LawPrior(mean=(0.0,), sd=(4.0,), scatter=0.35),
}
"""How much related runs differ, from the ablations of arXiv 2510.13786 and our own studies. A share is log-uniform a
priori; a midpoint may lie anywhere, in any unit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """One run: (location, error) of each logarithm about which it is informative."""

    name: str
    values: Mapping[str, tuple[float, float]]


def can_be_pooled(curve: Fit) -> bool:
    """Return whether a fit is a rising sigmoid without fixed parameters."""
    if curve.posterior is None or curve.form != "sigmoid" or curve.fixed:
        return False
    draws = curve.posterior.draws
    return bool(np.mean(draws.seen & (draws.kind == Kind.rise)) > LIKELIER)


def member(name: str, curve: Fit) -> Member:
    """Return a run's own information, without that of a prior from other runs."""
    own = curve.alone or curve
    draws = own.drawn.draws.take(own.drawn.draws.kind == Kind.rise)
    share_unit, scale = _share_unit(own), np.log(own.scale)
    mean, sd = WEAK_SPAN if own.bounds is None else WEAK_SHARE
    found = {
        "share": (
            np.log(np.maximum(draws.gain, 1e-12)) - share_unit,
            (np.log(gain_unit(own.drawn.blocks)) - share_unit + mean, sd),
        ),
        "exponent": (draws.log_exponent, priors.LOG_EXPONENT),
        "midpoint": (draws.log_midpoint + scale, (priors.LOG_MIDPOINT[0] + scale, priors.LOG_MIDPOINT[1])),
    }
    said = {param: _without(values, weak) for param, (values, weak) in found.items()}
    return Member(name=name, values={param: value for param, value in said.items() if value is not None})


def _share_unit(curve: Fit) -> float:
    """Return the log of the unit of gains: the possible gain, or the reward's own unit if it is unbounded."""
    return 0.0 if curve.bounds is None else float(np.log(gain_unit(curve.drawn.blocks)))


def _without(draws: Array, weak: tuple[float, float]) -> tuple[float, float] | None:
    """Return location and error of draws with a normal prior divided out; None if only the prior remains."""
    # Use quantiles, since another kind of curve with little mass may be far away.
    low, mean, high = np.quantile(draws, [0.16, 0.5, 0.84])
    variance = max(float(high - low) / 2, 1e-4) ** 2
    if variance >= NEW * weak[1] ** 2:
        return None
    precision = 1.0 / variance - weak[1] ** -2.0
    return float(mean / variance - weak[0] * weak[1] ** -2.0) / precision, precision**-0.5


def learn_prior(members: Sequence[Member], curve: Fit | None = None) -> Prior:
    """Return the prior for one more run, in the units of its fit under the weak prior if that is given."""
    found: dict[str, tuple[float, float]] = {}
    for param, prior in POOLED.items():
        values = [own.values[param] for own in members if param in own.values]
        if values:
            if param == "midpoint":
                prior = replace(prior, mean=(float(np.mean([value for value, _ in values])),))
            draws, _ = law(values, np.ones((len(values), 1)), prior, np.random.default_rng(0))
            low, middle, high = np.quantile(draws, [0.1, 0.5, 0.9])
            found[param] = (float(middle), float(high - low) / 2 / T_QUANTILE)
    midpoint = found.get("midpoint")
    share = found.get("share")
    if curve is not None and curve.posterior is not None and share is not None:
        share = (share[0] + _share_unit(curve) - float(np.log(gain_unit(curve.posterior.blocks))), share[1])
    return Prior(
        log_exponent=found.get("exponent", priors.LOG_EXPONENT),
        log_midpoint=priors.LOG_MIDPOINT if midpoint is None else midpoint,
        log_share=share,
        has_heavy_tails=True,
        scale=None if midpoint is None else 1.0,
        sources=tuple(own.name for own in members),
    )


def law(
    members: Sequence[tuple[float, float]],
    features: Array,
    prior: LawPrior,
    rng: np.random.Generator,
    *,
    stretch: Array | None = None,
    is_curve: bool = False,
    num: int = 4096,
) -> tuple[Array, Array]:
    """Return draws of the law at the target, where all features but the first are 0, and of the scatter around it.

    `members` are (value, error). The coefficients integrate out in closed form for each scatter, which is half-Cauchy.
    `stretch` multiplies the scatter at each member. With `is_curve` the draws do not include the scatter: the caller
    adds it in other units.
    """
    value, own_sd = np.array(members).T
    wide = np.ones(len(value)) if stretch is None else stretch
    mean, precision = np.array(prior.mean), np.diag(np.array(prior.sd) ** -2.0)
    log_mass, centres, sds = [], [], []
    scatters = prior.scatter * SCATTERS
    for scatter in scatters:
        variance = own_sd**2 + (scatter * wide) ** 2
        residual = value - features @ mean
        total = precision + (features.T / variance) @ features
        towards = np.linalg.solve(total, (features.T / variance) @ residual)
        covariance = np.linalg.inv(total)
        ratio = scatter / prior.scatter
        log_width = np.log(ratio) - np.log1p(ratio**2)  # half-Cauchy, on logarithmically spaced nodes
        log_likelihood = -0.5 * (
            np.log(variance).sum()
            + residual**2 @ (1 / variance)
            - towards @ total @ towards
            + np.linalg.slogdet(total)[1]
        )
        log_mass.append(log_width + log_likelihood)
        centres.append(mean[0] + towards[0])
        sds.append(np.sqrt(covariance[0, 0]))
    mass = np.exp(np.array(log_mass) - max(log_mass))
    pick = np.searchsorted(np.cumsum(mass) / mass.sum(), (np.arange(num) + 0.5) / num)
    pick = rng.permutation(np.minimum(pick, len(mass) - 1))
    draws = np.array(centres)[pick] + np.array(sds)[pick] * rng.standard_normal(num)
    scatter = scatters[pick]
    return draws if is_curve else draws + scatter * rng.standard_normal(num), scatter
