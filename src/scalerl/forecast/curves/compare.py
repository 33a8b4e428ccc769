"""Compare recipes: choose one at a budget, and report the paper's own measures with every answer.

The paper (arXiv 2510.13786, 1.1 and A.5) compares ceilings first and efficiency second: the compute that a reward
takes, and the exponent at one shared ceiling. Here each measure is a difference with its probability, from draws of
both posteriors. None of them decides: `decide.pick` chooses by the rewards that the recipes reach at a budget.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import combinations, pairwise

import numpy as np

from scalerl.forecast.curves.decide import (
    LIKELIER,
    UNLIKELY,
    Answer,
    Pick,
    Settling,
    default_worth,
    left_sds,
    pick,
    settle,
    value_draws,
)
from scalerl.forecast.curves.draws import Value, all_pairs, p_above, summary
from scalerl.forecast.curves.fit import Fit, fit, refit
from scalerl.forecast.curves.forecast import reach_draws, wide_curve
from scalerl.forecast.curves.forms import Array
from scalerl.forecast.curves.paper import Grid

HORIZON = 4.0
"""Default budget of a comparison, as a multiple of the largest compute measured."""
RUN_SPREAD = 0.03
"""Spread of the ceiling between runs of a recipe that was run once, as a share of the gain. It lies between that of
the paper's three repeats (0.01 at a gain of 0.2) and of our own seeds (0.01 at 0.6)."""
SHARES = (0.5, 0.8, 0.95)
"""Targets at which the compute of two recipes is compared, as shares of the way to the lower ceiling."""
LEAST_PAIRED = 8
"""Least number of evaluations on the same prompts from which to estimate their correlation."""
MOST_PAIRED = 8
"""With more recipes than this, only the leader is paired with each of the others."""
MEASURED_FROM = 0.5
"""Measured rewards are compared after this share of the common compute."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """Ratio of the computes that a and b need for a reward."""

    reward: float
    ratio: Value
    p_less: float
    """Probability that a needs less."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """Measured difference of rewards, a minus b, over the late evaluations that both have."""

    difference: float
    error: float
    num: int
    until: float


NAN = float("nan")
UNKNOWN = Value(value=NAN, low=NAN, high=NAN)


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """Comparison of two recipes at the budget; differences and ratios are of `a` relative to `b`."""

    a: str
    b: str
    answer: Answer | None = None
    """None where the two cannot be compared."""
    winner: str | None = None
    """The recipe to take; None for any other answer."""
    p_ahead: float = NAN
    """Probability that a is higher at the budget."""
    p_close: float = NAN
    """Probability that the two differ by less than the worth."""
    lead: Value = UNKNOWN
    losses: tuple[float, float] = (NAN, NAN)
    """Expected loss of reward from taking a, and from taking b."""
    settling: Settling | None = None
    """The additional compute or seeds that should settle an open choice."""
    p_higher_ceiling: float = NAN
    ceiling_difference: Value = UNKNOWN
    targets: tuple[Target, ...] = ()
    p_larger_exponent: float = NAN
    """Probability that a's exponent is larger at a shared ceiling; NaN if they share none."""
    measured: Measured | None = None
    crossing: float | None = None
    """The last compute at which the two curves cross, up to the budget."""
    is_same_run: bool = False
    """Whether one recipe's evaluations are the other's, or a part of them."""

    @property
    def target(self) -> Target | None:
        """The middle target: past the midpoint, and not so near the ceiling that noise decides."""
        return self.targets[1] if self.targets else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """One of several recipes at the budget."""

    name: str
    p_best: float
    loss: float
    """Expected loss of reward from taking this recipe."""
    reward: Value
    uses_best_checkpoint: bool
    """Whether the run is past its peak, so that its best checkpoint is compared."""
    assumed_spread: float | None
    """Assumed standard deviation between runs if there is only one run; None with several."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    at: float
    """The budget: a compute."""
    is_default_budget: bool
    worth: float
    pick: Pick | None
    """Indices are those of `names`; None with fewer than two recipes, and for the paper's procedure."""
    names: tuple[str, ...]
    """The recipes that have a curve."""
    standings: tuple[Standing, ...]
    """Sorted by expected loss, smallest first."""
    pairs: tuple[Pair, ...]
    correlation: float
    """Correlation of the residuals at evaluations on the same prompts; 0 if there are too few."""
    shared_ceiling: float | None
    """Mean ceiling of the recipes that may share the best recipe's ceiling."""
    shared_fits: Mapping[str, Fit]
    """The same recipes fitted with that ceiling."""

    @property
    def winner(self) -> str | None:
        """The recipe to take; None if the answer is not to take one."""
        taken = self.pick is not None and self.pick.answer == Answer.TAKE
        return self.names[self.pick.chosen[0]] if self.pick is not None and taken else None

    @property
    def chosen(self) -> tuple[str, ...]:
        """The recipe to take, the recipes that are equally good, or the leader of an open choice."""
        return () if self.pick is None else tuple(self.names[index] for index in self.pick.chosen)

    @property
    def shared_exponents(self) -> dict[str, Value]:
        """The paper's efficiency: each exponent at the shared ceiling."""
        values = {}
        for name, refitted in self.shared_fits.items():
            low, high = refitted.interval("exponent")
            values[name] = Value(value=refitted.params["exponent"], low=low, high=high)
        return values


def compare(
    fits: Mapping[str, Fit], *, at: float | None = None, worth: float | None = None, run_sd: float | None = None
) -> Comparison:
    """Compare fits in pairs and all together, by the rewards that they reach at the compute `at`.

    `run_sd` is the spread between runs to assume for a recipe that was run once, in units of the reward; by default a
    share of its gain.
    """
    usable = {name: curve for name, curve in fits.items() if curve.has_intervals}
    worth = default_worth([*usable.values()]) if worth is None else worth
    budget = HORIZON * max((curve.scale for curve in usable.values()), default=1.0) if at is None else at
    recipes = [_recipe(name, curve, budget, worth, run_sd) for name, curve in usable.items()]
    correlation = shared_correlation(recipes)
    # Noise that all evaluations share does not tell recipes apart; two parts of one run have one value.
    wholes = [whole_of(each, recipes) for each in recipes]
    values = {each.name: narrowed(whole.value, correlation) for each, whole in zip(recipes, wholes, strict=True)}
    shared_ceiling, shared = _shared(recipes)
    by_name = {each.name: each for each in recipes}
    chosen = None
    if len(recipes) > 1:
        chosen = pick(np.stack([*values.values()]), worth, [recipes.index(whole) for whole in wholes])
    named = combinations(fits, 2)
    if chosen is not None and len(fits) > MOST_PAIRED:
        leader = recipes[chosen.order[0]].name
        named = ((leader, name) for name in fits if name != leader)
    pairs = tuple(
        _pair(by_name[a], by_name[b], values, correlation, shared, worth)
        if a in by_name and b in by_name
        else Pair(a=a, b=b)
        for a, b in named
    )
    standings = []
    if chosen is not None:
        for index in chosen.order:
            each = recipes[index]
            standings.append(
                Standing(
                    name=each.name,
                    p_best=chosen.p_best[index],
                    loss=chosen.losses[index],
                    reward=summary(each.value, each.fit.level),
                    uses_best_checkpoint=each.is_past_peak,
                    assumed_spread=each.spread if each.fit.run_sd is None else None,
                )
            )
    return Comparison(
        at=budget,
        is_default_budget=at is None,
        worth=worth,
        pick=chosen,
        names=tuple(values),
        standings=tuple(standings),
        pairs=pairs,
        correlation=correlation,
        shared_ceiling=shared_ceiling,
        shared_fits=shared,
    )


@dataclass(frozen=True, kw_only=True, eq=False)
class Recipe:
    """A recipe of a comparison. Its draws are computed once, because it is in many pairs."""

    name: str
    fit: Fit
    is_past_peak: bool
    first: float
    """Reward before training, or at its first evaluation."""
    spread: float
    """Standard deviation of the mean of its runs around the recipe; assumed if there is one run."""
    top: Array
    """Draws of the ceiling, or of the peak for a run past its peak, with the spread between runs."""
    value: Array
    """Draws of the reward at the budget, with the spread between runs."""
    evaluations: frozenset[tuple[float, float]]
    """(Compute, reward) of each evaluation."""
    residual: Array
    """Distance of each evaluation from the curve."""
    places: Array
    draws: Array
    """Draws of the curve at `places`, as `wide_curve` returns them, with the spread between runs."""
    budget: float

    @cached_property
    def left(self) -> list[float]:
        """The `left_sds` of the curve at the budget."""
        return left_sds(self.fit, self.budget)


def _recipe(name: str, curve: Fit, budget: float, worth: float, run_sd: float | None) -> Recipe:
    if curve.run_sd is not None:
        spread = curve.run_sd / np.sqrt(curve.num_runs)
    else:
        spread = RUN_SPREAD * max(curve.gain, 0.0) if run_sd is None else run_sd
    # Several runs show their spread.
    assumed = float(spread) if curve.run_sd is None else 0.0
    value, is_past_peak = value_draws(curve, budget, worth, assumed)
    recipe = replace(curve, posterior=replace(curve.drawn, assumed_spread=assumed))
    on_curve = curve.predict(curve.compute)
    places, draws = wide_curve(recipe)
    return Recipe(
        name=name,
        fit=curve,
        is_past_peak=is_past_peak,
        first=float(on_curve[np.argmin(curve.compute)]) if curve.start is None else curve.start,
        spread=float(spread),
        top=value if is_past_peak else recipe.drawn.ceiling,
        value=value,
        evaluations=frozenset(zip(curve.compute.tolist(), curve.reward.tolist(), strict=True)),
        residual=curve.reward - on_curve,
        places=places,
        draws=draws,
        budget=budget,
    )


def whole_of(recipe: Recipe, recipes: Sequence[Recipe]) -> Recipe:
    """Return the recipe that contains all points of this one: itself, unless it is a part of another."""
    holders = (each for each in recipes if recipe.evaluations <= each.evaluations)
    return max(holders, key=lambda each: (len(each.evaluations), each.name))


def narrowed(draws: Array, correlation: float) -> Array:
    """Return draws without the share of their spread that the recipes have in common."""
    middle = float(np.median(draws))
    return middle + (draws - middle) * np.sqrt(1.0 - correlation)


def shared_correlation(recipes: Sequence[Recipe]) -> float:
    """Return the mean correlation of the residuals of two recipes at evaluations on the same prompts."""
    known = [value for one, other in combinations(recipes, 2) if (value := paired_correlation(one, other)) is not None]
    return float(np.mean(known)) if known else 0.0


def paired_correlation(one: Recipe, other: Recipe) -> float | None:
    """Return the correlation of the residuals at evaluations on the same prompts; None if there are too few."""
    a, b = one.fit.evaluation, other.fit.evaluation
    if a is None or b is None:
        return None
    _, mine, theirs = np.intersect1d(a, b, return_indices=True)
    left, right = one.residual[mine], other.residual[theirs]
    if len(mine) < LEAST_PAIRED or min(np.std(left), np.std(right)) <= 0:
        return None
    return float(np.clip(np.corrcoef(left, right)[0, 1], 0.0, 0.95))


def _shared(recipes: Sequence[Recipe]) -> tuple[float | None, dict[str, Fit]]:
    """Refit the recipes that may share the best recipe's ceiling, with one ceiling for all."""
    rising = [
        each
        for each in recipes
        if each.fit.form == "sigmoid" and not each.is_past_peak and np.mean(each.fit.drawn.draws.seen) >= LIKELIER
    ]
    best = max(rising, key=lambda each: float(np.median(each.top)), default=None)
    members = [each for each in rising if best is each or (best and p_above(each.top, best.top) > UNLIKELY / 2)]
    if len(members) < 2:
        return None, {}
    precision = [1.0 / max(float(np.var(each.top)), 1e-12) for each in members]
    ceiling = float(np.average([each.fit.params["ceiling"] for each in members], weights=precision))
    return ceiling, {each.name: refit(each.fit, ceiling=ceiling) for each in members}


def _pair(
    one: Recipe,
    other: Recipe,
    values: Mapping[str, Array],
    correlation: float,
    shared: Mapping[str, Fit],
    worth: float,
) -> Pair:
    level = one.fit.level
    mine, theirs = values[one.name], values[other.name]
    is_same_run = one.evaluations <= other.evaluations or other.evaluations <= one.evaluations
    chosen = pick(np.stack([mine, theirs]), worth, (0, 0) if is_same_run else (0, 1))
    tops = narrowed(one.top, correlation), narrowed(other.top, correlation)
    p_larger = NAN
    if one.name in shared and other.name in shared:
        p_larger = p_above(*(shared[each].param_draws("exponent") for each in (one.name, other.name)))
    settling = None
    if chosen.answer == Answer.OPEN:
        between = float(np.hypot(one.spread, other.spread) * np.sqrt(1.0 - correlation))
        settling = settle((one.fit, other.fit), (mine, theirs), (one.left, other.left), between, worth)
    answer = None if is_same_run else chosen.answer
    return Pair(
        a=one.name,
        b=other.name,
        answer=answer,
        winner=(one.name, other.name)[chosen.chosen[0]] if answer == Answer.TAKE else None,
        p_ahead=chosen.p_best[0],
        p_close=chosen.p_close,
        lead=summary(np.subtract(*all_pairs(mine, theirs)), level),
        losses=(chosen.losses[0], chosen.losses[1]),
        settling=settling,
        p_higher_ceiling=p_above(*tops),
        ceiling_difference=summary(np.subtract(*all_pairs(*tops)), level),
        targets=_targets(one, other),
        p_larger_exponent=p_larger,
        measured=measured(one, other),
        crossing=crossing_compute(one, other, worth),
        is_same_run=is_same_run,
    )


def _targets(one: Recipe, other: Recipe) -> tuple[Target, ...]:
    """Return the compute ratio at targets on the way from the higher start to the lower ceiling."""
    low = max(each.first for each in (one, other))
    high = min(float(np.median(each.top)) for each in (one, other))
    if high <= low:
        return ()
    rewards = [low + share * (high - low) for share in SHARES]
    mine, theirs = (reach_draws(each.places, each.draws, rewards) for each in (one, other))
    rows = []
    for index, reward in enumerate(rewards):
        with np.errstate(invalid="ignore", divide="ignore"):
            ratio = np.divide(*all_pairs(mine[:, index], theirs[:, index]))
        # A draw in which neither reaches it, or both had it before training, counts for neither.
        ratio = np.where(np.isnan(ratio), 1.0, ratio)
        p_less = p_above(theirs[:, index], mine[:, index])
        rows.append(Target(reward=reward, ratio=summary(ratio, one.fit.level), p_less=p_less))
    return tuple(rows)


def measured(one: Recipe, other: Recipe) -> Measured | None:
    """Return the measured difference of two recipes over the last half of the compute that both have."""
    end = min(one.fit.scale, other.fit.scale)
    means, errors, num = [], [], []
    for each in (one.fit, other.fit):
        is_compared = (each.compute > MEASURED_FROM * end) & (each.compute <= end * (1.0 + 1e-9))
        if not is_compared.any():
            return None
        means.append(float(each.reward[is_compared].mean()))
        errors.append(each.noise_sd / np.sqrt(is_compared.sum()))
        num.append(int(is_compared.sum()))
    return Measured(difference=means[0] - means[1], error=float(np.hypot(*errors)), num=min(num), until=float(end))


def crossing_compute(one: Recipe, other: Recipe, worth: float) -> float | None:
    """Return the last compute at which the curves cross, between the first point and the budget.

    None unless each is ahead of the other by the worth somewhere.
    """
    a, b = one.fit, other.fit
    places = np.geomspace(max(a.compute.min(), b.compute.min()), max(one.budget, a.scale, b.scale), 80)
    mine, theirs = (
        np.interp(np.log(places), np.log(each.places), np.median(each.draws, axis=0)) for each in (one, other)
    )
    gap = mine - theirs
    clear = np.flatnonzero(np.abs(gap) > worth)
    turns = [(i, j) for i, j in pairwise(clear) if np.sign(gap[i]) != np.sign(gap[j])]
    return float(np.sqrt(places[turns[-1][0]] * places[turns[-1][1]])) if turns else None


def linearise(curve: Fit) -> tuple[Array, Array]:
    """Return log C and log F, a straight line of slope B where the sigmoid holds (arXiv 2510.13786, fig. 5).

        F(R) = C_mid^B / ((A - R0) / (R - R0) - 1) = C^B

    Points at or beyond the start or the ceiling have no F and are left out.
    """
    if curve.form != "sigmoid":
        raise ValueError(f"only a sigmoid can be linearised, not {curve.form}")
    ceiling, start = curve.params["ceiling"], curve.params["start"]
    inside = (curve.reward > start) & (curve.reward < ceiling)
    odds = (ceiling - start) / (curve.reward[inside] - start) - 1.0
    return np.log(curve.compute[inside]), curve.params["exponent"] * np.log(curve.params["midpoint"]) - np.log(odds)


# The paper's own comparison, by point estimates -----------------------------------------------------------------------

PAPER_MARGIN = 0.02


@dataclass(frozen=True, slots=True, kw_only=True)
class PaperPair:
    """The paper's rule for two recipes: the higher ceiling, or within the margin the larger exponent at one ceiling."""

    a: str
    b: str
    winner: str | None
    by_ceiling: bool
    ceiling_difference: float
    exponents: tuple[float, float] | None
    """Exponents at the mean of both ceilings; None if the ceilings decide."""
    margin: float


@dataclass(frozen=True, slots=True, kw_only=True)
class PaperComparison:
    pairs: tuple[PaperPair, ...]
    shared_ceiling: float | None
    """Mean ceiling of the recipes within the margin of the best; None for a single one."""


def compare_by_paper(fits: Mapping[str, Fit], *, margin: float = PAPER_MARGIN) -> PaperComparison:
    """Compare fits of method="paper" in pairs; those within the margin of the best share a ceiling."""
    usable = {name: curve for name, curve in fits.items() if curve.usable}
    pairs = tuple(_paper_pair(a, b, usable, margin) for a, b in combinations(usable, 2))
    ceilings = [curve.params["ceiling"] for curve in usable.values()]
    near = [ceiling for ceiling in ceilings if ceiling >= max(ceilings) - margin - 1e-9]
    return PaperComparison(pairs=pairs, shared_ceiling=float(np.mean(near)) if len(near) > 1 else None)


def _paper_pair(name_a: str, name_b: str, fits: Mapping[str, Fit], margin: float) -> PaperPair:
    a, b = fits[name_a], fits[name_b]
    difference = a.params["ceiling"] - b.params["ceiling"]
    by_ceiling, exponents, lead = True, None, difference
    if abs(difference) <= margin + 1e-9:
        # Exponent and midpoint are fitted again with one ceiling, by the paper's grid.
        grid = Grid(ceilings=np.array([(a.params["ceiling"] + b.params["ceiling"]) / 2]))
        first, second = (
            fit(each.compute, each.reward, start=each.start, bounds=each.bounds, method="paper", grid=grid)
            for each in (a, b)
        )
        exponents = first.params["exponent"], second.params["exponent"]
        by_ceiling, lead = False, exponents[0] - exponents[1]
    return PaperPair(
        a=name_a,
        b=name_b,
        winner=None if not lead else name_a if lead > 0 else name_b,
        by_ceiling=by_ceiling,
        ceiling_difference=difference,
        exponents=exponents,
        margin=margin,
    )
