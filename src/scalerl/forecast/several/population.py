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
from scalerl.forecast.curves.normal import normal_quantile
from scalerl.forecast.curves.priors import Prior
from scalerl.forecast.curves.problem import gain_unit
from scalerl.forecast.curves.sample import even_points, pick_by_mass

SCATTERS = np.geomspace(0.125, 16.0, 15)
"""Grid of scatters, in units of the typical scatter."""
NUM_DRAWS = 8192
DIMS = 3
"""Draws of a law, and the coordinates of each."""
T_QUANTILE = 1.6377
"""Half-width of the central 80 % interval of a Student-t with three degrees of freedom."""
WEAK_SHARE = (np.log(0.2), 1.2)
"""Approximate weak prior of the gain's logarithm, in units of the possible gain."""
WEAK_SPAN = (0.0, 1.6)
"""The same for unbounded rewards, in units of the observed range."""
UNINFORMATIVE = 0.9
"""A run whose variance is at least this share of the weak prior's tells nothing of its own."""

Estimate = tuple[float, float]
"""Location and error of a logarithm."""


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
    values: Mapping[str, Estimate]


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
    log_unit = _log_unit_of_shares(own)
    log_scale = np.log(own.scale)
    log_share = np.log(np.maximum(draws.gain, 1e-12)) - log_unit
    weak_location, weak_error = WEAK_SPAN if own.bounds is None else WEAK_SHARE
    weak_share = (np.log(gain_unit(own.drawn.blocks)) - log_unit + weak_location, weak_error)
    weak_location, weak_error = priors.LOG_MIDPOINT
    weak_midpoint = (weak_location + log_scale, weak_error)
    found = {
        "share": _without_prior(log_share, weak_share),
        "exponent": _without_prior(draws.log_exponent, priors.LOG_EXPONENT),
        "midpoint": _without_prior(draws.log_midpoint + log_scale, weak_midpoint),
    }
    return Member(name=name, values={param: value for param, value in found.items() if value is not None})


def _log_unit_of_shares(curve: Fit) -> float:
    """Return the log of the unit of gains: the possible gain, or the reward's own unit if it is unbounded."""
    return 0.0 if curve.bounds is None else float(np.log(gain_unit(curve.drawn.blocks)))


def _without_prior(draws: Array, prior: Estimate) -> Estimate | None:
    """Return location and error of draws with a normal prior divided out; None if only the prior remains."""
    prior_location, prior_error = prior
    # Use quantiles, since another kind of curve with little mass may be far away.
    low, location, high = np.quantile(draws, [0.16, 0.5, 0.84])
    variance = max(float(high - low) / 2, 1e-4) ** 2
    if variance >= UNINFORMATIVE * prior_error**2:
        return None
    # Of a product of normals, precisions add up, and so do locations in units of their variance.
    prior_precision = prior_error**-2.0
    precision = 1.0 / variance - prior_precision
    return float(location / variance - prior_location * prior_precision) / precision, precision**-0.5


def learn_prior(members: Sequence[Member], curve: Fit | None = None) -> Prior:
    """Return the prior for one more run, in the units of its fit under the weak prior if that is given."""
    learned: dict[str, Estimate] = {}
    for param, law_prior in POOLED.items():
        values = [own.values[param] for own in members if param in own.values]
        if not values:
            continue
        if param == "midpoint":
            around = float(np.mean([location for location, _ in values]))
            law_prior = replace(law_prior, mean=(around,))
        learned[param] = _of_one_more(values, law_prior)
    midpoint = learned.get("midpoint")
    share = learned.get("share")
    if curve is not None and curve.posterior is not None and share is not None:
        log_share, error = share
        log_gain = log_share + _log_unit_of_shares(curve)
        # The prior of a fit is in the unit of its own gains.
        share = (log_gain - float(np.log(gain_unit(curve.posterior.blocks))), error)
    return Prior(
        log_exponent=learned.get("exponent", priors.LOG_EXPONENT),
        log_midpoint=priors.LOG_MIDPOINT if midpoint is None else midpoint,
        log_share=share,
        has_heavy_tails=True,
        # A learned midpoint is in the unit of the log; the weak one is relative to the largest compute.
        scale=None if midpoint is None else 1.0,
        sources=tuple(own.name for own in members),
    )


def _of_one_more(values: Sequence[Estimate], prior: LawPrior) -> Estimate:
    """Return location and scale of a parameter of one more run, as a Student-t."""
    only_a_centre = np.ones((len(values), 1))
    draws, _ = law(values, only_a_centre, prior, even_points(NUM_DRAWS, DIMS))
    low, middle, high = np.quantile(draws, [0.1, 0.5, 0.9])
    return float(middle), float(high - low) / 2 / T_QUANTILE


def law(
    members: Sequence[Estimate],
    features: Array,
    prior: LawPrior,
    points: Array,
    *,
    stretch: Array | None = None,
    is_curve: bool = False,
) -> tuple[Array, Array]:
    """Return draws of the law at the target, where all features but the first are 0, and of the scatter around it.

    `members` are (value, error). `points` are DIMS rows of evenly spread points: the draws are at these quantiles of
    the scatter, the law and the distance from it, so they are a function of the data. The coefficients integrate out in
    closed form for each scatter, which is half-Cauchy. `stretch` multiplies the scatter at each member. With `is_curve`
    the draws do not include the scatter: the caller adds it in other units.
    """
    value, error = np.array(members).T
    if stretch is None:
        stretch = np.ones(len(value))
    prior_mean = np.array(prior.mean)
    prior_precision = np.diag(np.array(prior.sd) ** -2.0)
    residual = value - features @ prior_mean
    scatters = prior.scatter * SCATTERS
    log_masses: list[float] = []
    centres: list[float] = []
    sds: list[float] = []
    for scatter in scatters:
        # Given the scatter, this is a linear regression with known variances and a normal prior.
        variance = error**2 + (scatter * stretch) ** 2
        weighted = features.T / variance
        precision = prior_precision + weighted @ features
        shift = np.linalg.solve(precision, weighted @ residual)
        covariance = np.linalg.inv(precision)
        centres.append(prior_mean[0] + shift[0])
        sds.append(np.sqrt(covariance[0, 0]))
        log_likelihood = -0.5 * (
            np.log(variance).sum()
            + residual**2 @ (1 / variance)
            - shift @ precision @ shift
            + np.linalg.slogdet(precision)[1]
        )
        ratio = scatter / prior.scatter
        log_half_cauchy = np.log(ratio) - np.log1p(ratio**2)  # on logarithmically spaced nodes
        log_masses.append(log_half_cauchy + log_likelihood)
    of_scatter, of_law, of_distance = points
    node = pick_by_mass(np.array(log_masses), of_scatter)
    centre = np.array(centres)[node] + np.array(sds)[node] * normal_quantile(of_law)
    drawn_scatter = scatters[node]
    if is_curve:
        return centre, drawn_scatter
    return centre + drawn_scatter * normal_quantile(of_distance), drawn_scatter
