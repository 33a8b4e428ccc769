"""Which recipe to scale: ceilings first, then efficiency at a shared ceiling, and "not separable" as an answer.

The paper's rule (arXiv 2510.13786, 1.1 and A.5): prefer the higher ceiling where ceilings differ by more than 0.02;
otherwise fit both with one ceiling, and the larger exponent is at least as efficient. Here each step is a probability
from the joint draws of both fits, with the spread between runs of one recipe included.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache, lru_cache
from itertools import combinations

import numpy as np

from scalerl.curves.fit import Fit, fit
from scalerl.curves.forecast import Value
from scalerl.curves.forms import FORMS, Array
from scalerl.curves.special import ndtri

CEILING_MARGIN = 0.02  # what the paper takes for a difference between ceilings
RUN_SD = 0.01  # spread of the ceiling between runs of one recipe, from the paper's three repeats
SURE = 0.985  # probability from which a difference is called one: 3 % for both directions together
LIKELY = 0.9  # from here on a ceiling is probably higher: no sure difference, and no shared ceiling either
ALIKE = 0.5  # probability from which two ceilings may be taken for one
BENT = 0.9  # probability that half the gain lies behind, from which the lower one of two ceilings may be called lower
LEANING = 0.2  # an exponent that probably points the other way speaks against the midpoint
LEAST_DRAWS = 400  # that must carry a probability at a shared ceiling
SHUFFLES = 4  # pairings of the two fits' draws


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    a: str
    b: str
    p_higher_ceiling: float
    """That a's ceiling is above b's."""
    p_more_efficient: float
    """That a's exponent is above b's, given one ceiling for both."""
    p_sooner: float
    """That a's midpoint lies before b's, given one ceiling for both."""
    verdict: str
    messages: tuple[str, ...]
    assumed_run_sd: float | None
    """The spread between runs that was assumed, where one side has a single run."""
    shared: bool
    """Whether the two efficiencies are of one ceiling; if not, the ceilings are too far apart for that."""
    probably_higher: str | None
    """Whose ceiling is, by more than the margin, whether or not that is sure."""
    crossing: float | None
    """The compute at which the two curves cross, where they do between the first point and 30 times the last."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    pairs: tuple[Pair, ...]
    ranking: tuple[tuple[str, float], ...]
    """Names with the probability to be the best (by ceiling, or at the target compute), most likely first."""
    shared_ceiling: float | None
    """The mean ceiling of the recipes that cannot be told from the best by their ceiling."""
    shared_fits: dict[str, Fit]
    """The same recipes refitted with that ceiling."""

    @property
    def shared_exponents(self) -> dict[str, Value]:
        values = {}
        for name, one in self.shared_fits.items():
            low, high = one.interval("exponent")
            values[name] = Value(value=one.params["exponent"], low=low, high=high)
        return values


def compare(
    fits: Mapping[str, Fit], *, at: float | None = None, margin: float = CEILING_MARGIN, run_sd: float = RUN_SD
) -> Comparison:
    """Compare fits two by two, and rank them all by ceiling or, with `at`, by the reward at that compute."""
    usable = {name: one for name, one in fits.items() if one.usable and one.draws is not None}
    pairs = tuple(
        _pair(a, b, usable[a], usable[b], margin, run_sd) if a in usable and b in usable else _no_pair(a, b, fits)
        for a, b in combinations(fits, 2)
    )
    ranking = _rank(usable, at, run_sd)
    shared, refits = _share(usable, pairs, ranking)
    return Comparison(pairs=pairs, ranking=ranking, shared_ceiling=shared, shared_fits=refits)


def _no_pair(a: str, b: str, fits: Mapping[str, Fit]) -> Pair:
    why = tuple(f"{name} has no curve to compare: {fits[name].verdict}." for name in (a, b) if not fits[name].usable)
    nan = float("nan")
    return Pair(
        a=a,
        b=b,
        p_higher_ceiling=nan,
        p_more_efficient=nan,
        p_sooner=nan,
        verdict="no curve",
        messages=why or ("No intervals were computed.",),
        assumed_run_sd=None,
        shared=False,
        probably_higher=None,
        crossing=None,
    )


def _pair(name_a: str, name_b: str, a: Fit, b: Fit, margin: float, run_sd: float) -> Pair:
    if name_b < name_a:
        # In one order only, so that the same comparison turned round says the same to the last digit.
        return _turned(_pair(name_b, name_a, b, a, margin, run_sd))
    span = max(a.bounds[1] - a.bounds[0], b.bounds[1] - b.bounds[0])
    correlation = paired_correlation(a, b)
    draws_a, draws_b = _coupled(a, b, correlation)
    spread = np.sqrt(_spread_sd(a, run_sd * span) ** 2 + _spread_sd(b, run_sd * span) ** 2)
    difference = draws_a["ceiling"] - draws_b["ceiling"]
    noisy = difference + spread * _normal(len(difference), 1)
    p_higher = float(np.mean(noisy > 0))
    weight, shared = _one_ceiling(difference, spread, margin * span)
    p_steeper = p_sooner = 0.5
    if "exponent" in draws_a and "exponent" in draws_b:
        p_steeper = _share_of(weight, draws_a["exponent"] > draws_b["exponent"])
    if "midpoint" in draws_a and "midpoint" in draws_b:
        p_sooner = _share_of(weight, draws_a["midpoint"] < draws_b["midpoint"])
    crossing = _crossing(a, b, span)
    gap = float(np.median(difference))
    likely = max(p_higher, 1 - p_higher) >= LIKELY and abs(gap) > margin * span
    probably_higher = (name_a if p_higher > 0.5 else name_b) if likely else None
    p_alike = float(np.mean(np.abs(noisy) <= max(a.margin, b.margin) * span))
    verdict, notes = _decide(name_a, name_b, p_higher, p_steeper, p_sooner, p_alike, gap, probably_higher, a, b)
    assumed = run_sd * span if min(a.num_runs, b.num_runs) == 1 and run_sd > 0 else None
    if assumed is not None:
        single = " and of ".join(name for name, one in ((name_a, a), (name_b, b)) if one.num_runs == 1)
        notes.append(f"One run of {single}: a spread of {assumed:g} between runs is assumed for the ceiling.")
    if correlation > 0:
        notes.append(f"Evaluated on the same prompts: paired, with residuals correlated at {correlation:.2f}.")
    if crossing is not None:
        notes.append(f"The two curves cross at compute {crossing:.4g}.")
    return Pair(
        a=name_a,
        b=name_b,
        p_higher_ceiling=p_higher,
        p_more_efficient=p_steeper,
        p_sooner=p_sooner,
        verdict=verdict,
        messages=tuple(notes),
        assumed_run_sd=assumed,
        shared=shared,
        probably_higher=probably_higher,
        crossing=crossing,
    )


def _share_of(weight: Array, which: np.ndarray) -> float:
    """Weights add up to 1 but for rounding, and a probability is not to pass it."""
    return min(float(weight @ which), 1.0)


def _turned(pair: Pair) -> Pair:
    return replace(
        pair,
        a=pair.b,
        b=pair.a,
        p_higher_ceiling=1 - pair.p_higher_ceiling,
        p_more_efficient=1 - pair.p_more_efficient,
        p_sooner=1 - pair.p_sooner,
    )


def _decide(
    name_a: str,
    name_b: str,
    p_higher: float,
    p_steeper: float,
    p_sooner: float,
    p_alike: float,
    gap: float,
    probably_higher: str | None,
    a: Fit,
    b: Fit,
) -> tuple[str, list[str]]:
    sure = max(p_higher, 1 - p_higher)
    lower, low = (name_b, b) if p_higher > 0.5 else (name_a, a)
    if probably_higher is not None and sure >= SURE and _has_bent(low):
        return f"{probably_higher} has the higher ceiling", [f"Its ceiling is {abs(gap):.3g} higher."]
    unstable = [f"{name} is unstable." for name, one in ((name_a, a), (name_b, b)) if one.verdict == "unstable"]
    if unstable:
        return "not separable", unstable
    verdict, notes = _by_efficiency(name_a, name_b, p_steeper, p_sooner, a, b)
    if probably_higher is None:
        if p_alike >= ALIKE or verdict == "not separable":
            return verdict, notes
        if_shared = f"At one ceiling for both, {verdict}; but it is not known yet whether their ceilings are alike."
        return "not separable", [if_shared]
    # Who is cheaper at a ceiling that is probably not shared matters only where it is the same one.
    higher = f"The ceiling of {probably_higher} is probably {abs(gap):.3g} higher (probability {sure:.2f})."
    if not _has_bent(low):
        higher += f" But {lower} may not be half-way up yet, so its own is a guess."
        return "not separable", [higher]
    return (verdict if verdict == f"{probably_higher} is more efficient" else "not separable"), [higher]


def _has_bent(one: Fit) -> bool:
    """Whether the run has passed its midpoint: before that, its ceiling is what the prior makes of it."""
    if one.draws is None or "midpoint" not in one.draws.params:
        return True
    return float(np.mean(one.draws.params["midpoint"] <= one.scale)) >= BENT


def _by_efficiency(
    name_a: str, name_b: str, p_steeper: float, p_sooner: float, a: Fit, b: Fit
) -> tuple[str, list[str]]:
    steeper, sooner = (max(p, 1 - p) >= SURE for p in (p_steeper, p_sooner))
    names = lambda p: (name_a, name_b) if p > 0.5 else (name_b, name_a)  # noqa: E731
    first, second = names(p_sooner)
    p_first_steeper = p_steeper if first == name_a else 1 - p_steeper
    if sooner and p_first_steeper < LEANING:
        mixed = (
            f"{first} reaches half its gain sooner, {second} rises more steeply: the cheaper one depends on the target."
        )
        return (f"{second} is more efficient" if steeper else "not separable"), [mixed]
    if steeper:
        larger = "Ceilings are within what runs differ by; its exponent is larger."
        return f"{names(p_steeper)[0]} is more efficient", [larger]
    if sooner:
        ratio = a.params["midpoint"] / b.params["midpoint"]
        ratio = ratio if first == name_a else 1 / ratio
        tie = f"Ceilings and exponents tie; it reaches half its gain with {ratio:.2f} times the compute."
        return f"{first} is more efficient", [tie]
    return "not separable", []


def _spread_sd(one: Fit, run_sd: float) -> float:
    """Spread of a run about its recipe that the draws do not hold already: seeds, where there are several, do."""
    return run_sd if one.num_runs == 1 else 0.0


def paired_correlation(a: Fit, b: Fit) -> float:
    """Correlation of the two runs' residuals where both were evaluated on the same prompts at the same step.

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


def _coupled(a: Fit, b: Fit, correlation: float) -> tuple[dict[str, Array], dict[str, Array]]:
    """Joint draws of both fits: independent, or with ceilings correlated as the noise is (a Gaussian copula)."""
    assert a.draws is not None
    num = len(a.draws.noise_sd)
    return _by_rank(a, _ranks(num, 0.0, 2)), _by_rank(b, _ranks(num, correlation, 3))


def _by_rank(one: Fit, rank: np.ndarray) -> dict[str, Array]:
    assert one.draws is not None
    order = np.argsort(one.draws.params["ceiling"], kind="stable")[rank]
    return {name: values[order] for name, values in one.draws.params.items()}


@lru_cache(maxsize=8)
def _ranks(num: int, correlation: float, stream: int) -> np.ndarray:
    """Which of so many draws each pairing takes: in the order of normal numbers correlated with those of stream 2."""
    normal = correlation * _normal(num * SHUFFLES, 2) + np.sqrt(1 - correlation**2) * _normal(num * SHUFFLES, stream)
    rank = np.empty(len(normal), dtype=int)
    rank[np.argsort(normal, kind="stable")] = np.arange(len(normal)) * num // len(normal)
    return rank


@cache
def _normal(num: int, stream: int) -> Array:
    """Fixed normal numbers: the same comparison gives the same answer."""
    return ndtri(np.random.default_rng(stream).permutation((np.arange(num) + 0.5) / num))


def _one_ceiling(difference: Array, spread: float, margin: float) -> tuple[Array, bool]:
    """Weights that hold the two ceilings to one, up to what runs of one recipe differ by, and whether that was to be
    had: where the ceilings are further apart, they are held as nearly as the draws allow."""
    first = width = max(spread, margin / 4)
    while True:
        log_weight = -0.5 * (difference / width) ** 2
        weight = np.exp(log_weight - log_weight.max())
        weight /= weight.sum()
        if 1.0 / np.sum(weight**2) >= LEAST_DRAWS:
            return weight, bool(width <= 2 * first and log_weight.max() > -8.0)
        width *= 1.5


def _crossing(a: Fit, b: Fit, span: float) -> float | None:
    low = max(a.compute.min(), b.compute.min())
    grid = np.geomspace(low, 30 * max(a.scale, b.scale), 2000)
    gap = a.predict(grid) - b.predict(grid)
    change = np.flatnonzero(np.sign(gap[1:]) * np.sign(gap[:-1]) < 0)
    # Two curves that hardly differ cross by accident; a crossing counts when they part by more than noise.
    least = 0.005 * span
    if not len(change) or np.abs(gap[: change[0] + 1]).max() < least or np.abs(gap[change[0] :]).max() < least:
        return None
    return float(grid[change[0]])


def _rank(fits: Mapping[str, Fit], at: float | None, run_sd: float) -> tuple[tuple[str, float], ...]:
    if not fits:
        return ()
    columns = []
    for stream, one in enumerate(fits.values(), start=10):
        assert one.draws is not None
        spread = _spread_sd(one, run_sd * (one.bounds[1] - one.bounds[0]))
        value = one.draws.params["ceiling"] if at is None else one.curve_draws([at])[:, 0]
        if at is not None and FORMS[one.form].rising:
            gain = one.params["ceiling"] - one.params["start"]
            spread *= (one.predict(at) - one.params["start"]) / gain if gain > 0 else 1.0
        value = np.random.default_rng(stream).permutation(value)
        columns.append(value + spread * _normal(len(value), stream + 1000))
    best = np.argmax(np.stack(columns), axis=0)
    shares = np.bincount(best, minlength=len(columns)) / len(best)
    return tuple(sorted(zip(fits, shares.tolist(), strict=True), key=lambda row: -row[1]))


def _share(
    fits: Mapping[str, Fit], pairs: tuple[Pair, ...], ranking: tuple[tuple[str, float], ...]
) -> tuple[float | None, dict[str, Fit]]:
    """Refit, with one ceiling, the recipes that cannot be told from the best by theirs."""
    if len(ranking) < 2:
        return None, {}
    best = max(fits, key=lambda name: (fits[name].verdict == "ok", fits[name].params["ceiling"]))
    apart = {name for pair in pairs for name in (pair.a, pair.b) if pair.probably_higher == best}
    members = [name for name in fits if name == best or name not in apart]
    members = [name for name in members if fits[name].form == "sigmoid" and fits[name].verdict == "ok"]
    if len(members) < 2:
        return None, {}
    # Each ceiling counts as much as it is known.
    precision = [np.diff(fits[name].interval("ceiling"))[0] ** -2 for name in members]
    ceiling = float(np.average([fits[name].params["ceiling"] for name in members], weights=precision))
    return ceiling, {name: refit(fits[name], ceiling) for name in members}


def refit(one: Fit, ceiling: float) -> Fit:
    """The same points with the ceiling held."""
    return fit(
        one.compute,
        one.reward,
        start=one.params["start"] if one.start_given else None,
        start_sd=one.start_sd,
        num_samples=one.num_samples,
        form=one.form,
        fixed={"ceiling": ceiling},
        run=one.run,
        level=one.level,
        margin=one.margin,
        bounds=one.bounds,
    )


def linearise(one: Fit) -> tuple[Array, Array]:
    """log C and log F, a straight line of slope B where the sigmoid holds (arXiv 2510.13786, fig. 5).

        F(R) = C_mid^B / ((A - R0) / (R - R0) - 1) = C^B

    Points at or beyond the start or the ceiling have no F and are left out.
    """
    if one.form != "sigmoid":
        raise ValueError(f"only a sigmoid can be linearised, not {one.form}")
    ceiling, start = one.params["ceiling"], one.params["start"]
    inside = (one.reward > start) & (one.reward < ceiling)
    odds = (ceiling - start) / (one.reward[inside] - start) - 1.0
    return np.log(one.compute[inside]), one.params["exponent"] * np.log(one.params["midpoint"]) - np.log(odds)
