"""Two fits side by side: paired draws, the correlation of their noise, one ceiling for both, and where they cross."""

from dataclasses import dataclass
from functools import cache, lru_cache

import numpy as np

from scalerl.curves.fitted import Fit
from scalerl.curves.forms import Array
from scalerl.curves.pairs.measured import Measured, measure
from scalerl.curves.special import ndtri

LEAST_DRAWS = 400  # effective draws that a probability at a shared ceiling must rest on
LIKELY = 0.9  # probability from which a ceiling is probably higher: no verdict, and no shared ceiling either
KNOWN = 0.5  # posterior sd over the prior's from which on it is the data that know a parameter
SHUFFLES = 4  # pairings of the two fits' draws


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """What the joint draws of two fits say. Probabilities are those of `name_a`."""

    name_a: str
    name_b: str
    a: Fit
    b: Fit
    p_higher: float
    p_steeper: float
    p_sooner: float
    p_alike: float
    """Probability that the ceilings differ by less than the margin of the fits."""
    gap: float
    """Median difference of the ceilings."""
    probably_higher: str | None
    """The curve whose ceiling is probably higher by more than the margin."""
    shared: bool
    """Whether `p_steeper` and `p_sooner` hold at one ceiling for both."""
    exponents_known: bool
    """Whether the data, and not the prior, tell the exponents of both."""
    midpoints_known: bool
    measured: Measured | None
    """What both measured at the same compute; None where they did not."""

    def ordered(self, probability_of_a: float) -> tuple[str, str]:
        """Return both names, the more probable first."""
        return (self.name_a, self.name_b) if probability_of_a > 0.5 else (self.name_b, self.name_a)

    @property
    def lower(self) -> tuple[str, Fit]:
        """The curve that probably has the lower ceiling."""
        return (self.name_b, self.b) if self.p_higher > 0.5 else (self.name_a, self.a)


def gather_evidence(
    name_a: str, name_b: str, a: Fit, b: Fit, margin: float, run_sd: float, correlation: float
) -> Evidence:
    """Compare two fits draw by draw; `margin` and `run_sd` are in units of the reward."""
    draws_a, draws_b = coupled_draws(a, b, correlation)
    spread = np.sqrt(spread_sd(a, run_sd) ** 2 + spread_sd(b, run_sd) ** 2)
    difference = draws_a["ceiling"] - draws_b["ceiling"]
    noisy = difference + spread * normal_numbers(len(difference), 1)
    p_higher = float(np.mean(noisy > 0))
    weight, shared = shared_ceiling_weights(difference, spread, margin)
    p_steeper = p_sooner = 0.5
    if a.form == b.form and "exponent" in draws_a and "exponent" in draws_b:
        p_steeper = _weighted_share(weight, draws_a["exponent"] > draws_b["exponent"])
    if a.form == b.form and "midpoint" in draws_a and "midpoint" in draws_b:
        p_sooner = _weighted_share(weight, draws_a["midpoint"] < draws_b["midpoint"])
    known = [_known(param, weight, a, b, draws_a, draws_b) for param in ("exponent", "midpoint")]
    gap = float(np.median(difference))
    likely = max(p_higher, 1 - p_higher) >= LIKELY and abs(gap) > margin
    span = max(a.bounds[1] - a.bounds[0], b.bounds[1] - b.bounds[0])
    return Evidence(
        name_a=name_a,
        name_b=name_b,
        a=a,
        b=b,
        p_higher=p_higher,
        p_steeper=p_steeper,
        p_sooner=p_sooner,
        p_alike=float(np.mean(np.abs(noisy) <= max(a.margin, b.margin) * span)),
        gap=gap,
        probably_higher=(name_a if p_higher > 0.5 else name_b) if likely else None,
        shared=shared,
        exponents_known=known[0],
        midpoints_known=known[1],
        measured=measure(a, b),
    )


def _known(param: str, weight: Array, a: Fit, b: Fit, draws_a: dict[str, Array], draws_b: dict[str, Array]) -> bool:
    """Return whether both posteriors of a shape parameter, at a shared ceiling, are much narrower than its prior."""
    for curve, draws in ((a, draws_a), (b, draws_b)):
        prior = {shape.name: shape.prior_sd for shape in curve.own_form.shape_params}
        if param not in draws or param not in prior:
            return False
        log = np.log(draws[param])
        mean = float(weight @ log)
        if float(weight @ (log - mean) ** 2) > (KNOWN * prior[param]) ** 2:
            return False
    return True


def _weighted_share(weight: Array, which: np.ndarray) -> float:
    """Return the total weight where `which` holds; rounding must not push it above 1."""
    return min(float(weight @ which), 1.0)


def spread_sd(curve: Fit, run_sd: float) -> float:
    """Return the spread between runs to add to the draws; fits of several seeds include it already."""
    return run_sd if curve.num_runs == 1 else 0.0


def paired_correlation(a: Fit, b: Fit) -> float:
    """Return the correlation of the two runs' residuals where both were evaluated on the same prompts at the same step.

    Common prompts and common sampling noise move both runs together and cancel in their difference. Shrunk towards 0
    for few pairs, and 0 where it may be chance.
    """
    if a.evaluation is None or b.evaluation is None or a.num_runs > 1 or b.num_runs > 1:
        return 0.0
    common, in_a, in_b = np.intersect1d(a.evaluation, b.evaluation, return_indices=True)
    if len(common) < 6:
        return 0.0
    left = (a.reward - a.predict(a.compute))[in_a]
    right = (b.reward - b.predict(b.compute))[in_b]
    size = float(np.sqrt((left @ left) * (right @ right)))
    raw = float(left @ right) / size if size > 0 else 0.0
    if raw < 2.0 / np.sqrt(len(common)):  # independent noise correlates as much by chance
        return 0.0
    return float(min(raw * len(common) / (len(common) + 6.0), 0.95))


def coupled_draws(a: Fit, b: Fit, correlation: float) -> tuple[dict[str, Array], dict[str, Array]]:
    """Return joint draws of both fits: independent, or with ceilings correlated as the noise is (a Gaussian copula)."""
    assert a.draws is not None
    num = len(a.draws.noise_sd)
    return _by_rank(a, _ranks(num, 0.0, 2)), _by_rank(b, _ranks(num, correlation, 3))


def _by_rank(curve: Fit, rank: np.ndarray) -> dict[str, Array]:
    """Return the draws in the order of their ceilings, picked by rank."""
    assert curve.draws is not None
    if curve.parts or curve.past_peak:
        # Several ways of fitting share the ceiling and no other parameter; past a peak there is no efficiency.
        return {"ceiling": np.sort(curve.best_draws)[rank]}
    order = np.argsort(curve.draws.params["ceiling"], kind="stable")[rank]
    return {name: values[order] for name, values in curve.draws.params.items()}


@lru_cache(maxsize=8)
def _ranks(num: int, correlation: float, stream: int) -> np.ndarray:
    """Ranks of the draws to pair up, ordered as normal numbers that correlate with those of stream 2."""
    first, own = normal_numbers(num * SHUFFLES, 2), normal_numbers(num * SHUFFLES, stream)
    normal = correlation * first + np.sqrt(1 - correlation**2) * own
    rank = np.empty(len(normal), dtype=int)
    rank[np.argsort(normal, kind="stable")] = np.arange(len(normal)) * num // len(normal)
    return rank


@cache
def normal_numbers(num: int, stream: int) -> Array:
    """Return fixed normal numbers, so that the same comparison gives the same answer."""
    return ndtri(np.random.default_rng(stream).permutation((np.arange(num) + 0.5) / num))


def shared_ceiling_weights(difference: Array, spread: float, margin: float) -> tuple[Array, bool]:
    """Return weights of the draws under which both curves share a ceiling, up to the spread between runs of one recipe.

    The flag is False where the ceilings are too far apart: the weights then hold them as close as the draws allow.
    """
    first = width = max(spread, margin / 4)
    while True:
        log_weight = -0.5 * (difference / width) ** 2
        weight = np.exp(log_weight - log_weight.max())
        weight /= weight.sum()
        if 1.0 / np.sum(weight**2) >= LEAST_DRAWS:
            return weight, bool(width <= 2 * first and log_weight.max() > -8.0)
        width *= 1.5


def crossing_compute(a: Fit, b: Fit, span: float) -> float | None:
    """Return the compute at which the curves cross, from the first point to 30 times the last; None if they do not."""
    low = max(a.compute.min(), b.compute.min())
    grid = np.geomspace(low, 30 * max(a.scale, b.scale), 2000)
    gap = a.predict(grid) - b.predict(grid)
    change = np.flatnonzero(np.sign(gap[1:]) * np.sign(gap[:-1]) < 0)
    # Two curves that hardly differ cross by accident; a crossing counts when they part by more than noise.
    least = 0.005 * span
    if not len(change) or np.abs(gap[: change[0] + 1]).max() < least or np.abs(gap[change[0] :]).max() < least:
        return None
    return float(grid[change[0]])
