"""Compare recipes: which to take at a budget, and the paper's own measures beside every answer.

The paper (arXiv 2510.13786, 1.1 and A.5) compares ceilings first and efficiency second: the compute that a reward
takes, and the exponent at one shared ceiling. Here each of these is a difference with its probability, from draws of
both posteriors, and none decides by itself: `decide.pick` decides by what the recipes reach at a budget.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations, pairwise

import numpy as np

from scalerl.curves.decide import (
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
from scalerl.curves.draws import Value, p_above, stream_of, summary
from scalerl.curves.fit import Fit, fit, refit
from scalerl.curves.forecast import reach_draws, wide_curve
from scalerl.curves.forms import Array
from scalerl.curves.paper import Grid

HORIZON = 4.0
"""Times the largest compute measured: the budget at which recipes are compared unless one is given."""
RUN_SPREAD = 0.03
"""Spread of the ceiling between runs of a recipe that was run once, as a share of the gain. It lies between that of
the paper's three repeats (0.01 at a gain of 0.2) and of our own seeds (0.01 at 0.6)."""
SHARES = (0.5, 0.8, 0.95)
"""Targets at which the compute of two recipes is compared, as shares of the way to the lower ceiling."""
LEAST_PAIRED = 8
"""Evaluations on the same prompts from which their correlation is known."""
MOST_PAIRED = 8
"""Of more recipes than these only the leader is paired with each of the others."""
LATE = 0.5
"""Share of the common compute after which measured rewards are compared."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """Compute that a needs for a reward, over that of b."""

    reward: float
    ratio: Value
    p_less: float
    """Probability that a needs less."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """How far a was measured above b, over the late evaluations that both have."""

    difference: float
    error: float
    num: int
    until: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """Two recipes at the budget. Everything is that of `a` against `b`."""

    a: str
    b: str
    answer: Answer | None
    """None where the two cannot be compared."""
    winner: str | None
    """The one to take; None for every other answer."""
    p_ahead: float
    """Probability that a is higher at the budget ..."""
    p_close: float
    """... and that the two differ by less than the worth."""
    lead: Value
    losses: tuple[float, float]
    """Reward that is lost on average by taking a, and by taking b."""
    settling: Settling | None
    """What should settle an open choice."""
    p_higher_ceiling: float
    ceiling_difference: Value
    targets: tuple[Target, ...]
    p_larger_exponent: float
    """Probability that a's exponent is larger at one ceiling for both; NaN where they share none."""
    measured: Measured | None
    crossing: float | None
    """The last compute at which the two curves cross, up to the budget."""
    is_same_run: bool = False
    """Both hold the same evaluations: one is the other, or a part of it."""

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
    """Reward that is lost on average if this one is taken."""
    reward: Value
    uses_best_checkpoint: bool
    """The run is past its peak, and competes with its best checkpoint."""
    assumed_spread: float | None
    """Standard deviation between runs that is assumed since there is one run; None with several."""


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
    """By expected loss, the smallest first."""
    pairs: tuple[Pair, ...]
    correlation: float
    """Of the residuals at evaluations on the same prompts; 0 where there are too few."""
    shared_ceiling: float | None
    """Mean ceiling of the recipes whose ceiling may be the best one's."""
    shared_fits: Mapping[str, Fit]
    """The same recipes fitted with that ceiling."""

    @property
    def winner(self) -> str | None:
        """The recipe to take; None unless that is the answer."""
        taken = self.pick is not None and self.pick.answer == Answer.TAKE
        return self.names[self.pick.chosen[0]] if self.pick is not None and taken else None

    @property
    def chosen(self) -> tuple[str, ...]:
        """The recipe to take, those of which any will do, or the leader of an open choice."""
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
    """Compare fits two by two and all together, by what they reach at the compute `at`.

    `run_sd` is the spread between runs of a recipe that was run once, in units of the reward; by default a share of its
    gain.
    """
    usable = {name: curve for name, curve in fits.items() if curve.has_intervals}
    worth = default_worth([*usable.values()]) if worth is None else worth
    budget = HORIZON * max((curve.scale for curve in usable.values()), default=1.0) if at is None else at
    recipes = [_recipe(name, curve, budget, worth, run_sd) for name, curve in usable.items()]
    correlation = shared_correlation(recipes)
    # What all evaluations share does not tell recipes apart; two that are one run have one value.
    values = {each.name: narrowed(whole_of(each, recipes).value, correlation) for each in recipes}
    shared_ceiling, shared = _shared(recipes)
    by_name = {each.name: each for each in recipes}
    chosen = pick(np.stack([*values.values()]), worth) if len(recipes) > 1 else None
    named = combinations(fits, 2)
    if chosen is not None and len(fits) > MOST_PAIRED:
        leader = recipes[chosen.order[0]].name
        named = ((leader, name) for name in fits if name != leader)
    pairs = tuple(
        _pair(by_name[a], by_name[b], values, correlation, shared, budget, worth)
        if a in by_name and b in by_name
        else no_pair(a, b)
        for a, b in named
    )
    standings = []
    if chosen is not None:
        for index in chosen.order:
            each, option = recipes[index], chosen.options[index]
            standings.append(
                Standing(
                    name=each.name,
                    p_best=option.p_best,
                    loss=option.loss,
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


def no_pair(a: str, b: str) -> Pair:
    """Return a pair that cannot be compared."""
    nan = float("nan")
    nothing = Value(value=nan, low=nan, high=nan)
    return Pair(
        a=a,
        b=b,
        answer=None,
        winner=None,
        p_ahead=nan,
        p_close=nan,
        lead=nothing,
        losses=(nan, nan),
        settling=None,
        p_higher_ceiling=nan,
        ceiling_difference=nothing,
        targets=(),
        p_larger_exponent=nan,
        measured=None,
        crossing=None,
    )


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """One of the recipes that are compared, with all that its pairs ask of its curve: it is in many of them."""

    name: str
    fit: Fit
    is_past_peak: bool
    first: float
    """Reward before training, or at its first evaluation."""
    spread: float
    """How far the mean of its runs lies from the recipe itself: assumed where there is one run ..."""
    added: float
    """... and then added to what its curve says; the curve of several runs has it."""
    top: Array
    """Draws of the ceiling; of a run past its peak, of the peak ..."""
    value: Array
    """... and of what it reaches at the budget: all with the spread between runs, in an order of its own."""
    evaluations: frozenset[tuple[float, float]]
    """(Compute, reward) of each ..."""
    residual: Array
    """... and how far it lies from the curve."""
    places: Array
    draws: Array
    """Its `wide_curve` ..."""
    luck: Array
    """... how many of the added spreads each of these is to be moved up ..."""
    middle: Array
    """... and the median."""
    _left: dict[float, list[float]] = field(default_factory=dict)

    def left_at(self, budget: float) -> list[float]:
        """Return the `left_sds` of the curve at the budget: of each recipe once, whatever pairs it is in."""
        if budget not in self._left:
            self._left[budget] = left_sds(self.fit, budget)
        return self._left[budget]


def _recipe(name: str, curve: Fit, budget: float, worth: float, run_sd: float | None) -> Recipe:
    rng = stream_of(name)
    if curve.run_sd is not None:
        spread = curve.run_sd / np.sqrt(curve.num_runs)
    else:
        spread = RUN_SPREAD * max(curve.gain, 0.0) if run_sd is None else run_sd
    at_budget, is_past_peak = value_draws(curve, budget, worth)
    top = at_budget if is_past_peak else curve.drawn.ceiling
    added = spread if curve.run_sd is None else 0.0
    order, off = rng.permutation(len(top)), added * rng.standard_normal(len(top))
    on_curve = curve.predict(curve.compute)
    places, draws = wide_curve(curve)
    return Recipe(
        name=name,
        fit=curve,
        is_past_peak=is_past_peak,
        first=float(on_curve[np.argmin(curve.compute)]) if curve.start is None else curve.start,
        spread=float(spread),
        added=float(added),
        top=curve.drawn.clipped(top[order] + off),
        value=curve.drawn.clipped(at_budget[order] + off),
        evaluations=frozenset(zip(curve.compute.tolist(), curve.reward.tolist(), strict=True)),
        residual=curve.reward - on_curve,
        places=places,
        draws=rng.permutation(draws),
        luck=rng.standard_normal(len(draws)),
        middle=np.median(draws, axis=0),
    )


def whole_of(recipe: Recipe, recipes: Sequence[Recipe]) -> Recipe:
    """Return the recipe that holds all points of this one: itself, unless it is a part of another."""
    holders = (each for each in recipes if recipe.evaluations <= each.evaluations)
    return max(holders, key=lambda each: (len(each.evaluations), each.name))


def narrowed(draws: Array, correlation: float) -> Array:
    """Return draws with the share of their spread that others have in common taken away."""
    middle = float(np.median(draws))
    return middle + (draws - middle) * np.sqrt(1.0 - correlation)


def shared_correlation(recipes: Sequence[Recipe]) -> float:
    """Return the mean correlation of the residuals of two recipes at evaluations on the same prompts."""
    known = [value for one, other in combinations(recipes, 2) if (value := paired_correlation(one, other)) is not None]
    return float(np.mean(known)) if known else 0.0


def paired_correlation(one: Recipe, other: Recipe) -> float | None:
    """Return the correlation of the residuals at evaluations on the same prompts; None with too few."""
    a, b = one.fit.evaluation, other.fit.evaluation
    if a is None or b is None:
        return None
    _, mine, theirs = np.intersect1d(a, b, return_indices=True)
    left, right = one.residual[mine], other.residual[theirs]
    if len(mine) < LEAST_PAIRED or min(np.std(left), np.std(right)) <= 0:
        return None
    return float(np.clip(np.corrcoef(left, right)[0, 1], 0.0, 0.95))


def _shared(recipes: Sequence[Recipe]) -> tuple[float | None, dict[str, Fit]]:
    """Fit the recipes whose ceiling may be the best one's again, with one ceiling for all."""
    rising = [
        each
        for each in recipes
        if each.fit.form == "sigmoid" and not each.is_past_peak and np.mean(each.fit.drawn.draws.seen) >= LIKELIER
    ]
    best = max(rising, key=lambda each: float(np.median(each.top)), default=None)
    members = [each for each in rising if best is each or (best and np.mean(each.top > best.top) > UNLIKELY / 2)]
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
    budget: float,
    worth: float,
) -> Pair:
    level = one.fit.level
    mine, theirs = values[one.name], values[other.name]
    is_same_run = one.evaluations <= other.evaluations or other.evaluations <= one.evaluations
    chosen = pick(np.stack([mine, theirs]), worth)
    tops = narrowed(one.top, correlation) - narrowed(other.top, correlation)
    p_larger = float("nan")
    if one.name in shared and other.name in shared:
        exponents = (
            stream_of(each).permutation(shared[each].param_draws("exponent")) for each in (one.name, other.name)
        )
        p_larger = p_above(*exponents)
    settling = None
    if chosen.answer == Answer.OPEN:
        between = float(np.hypot(one.spread, other.spread) * np.sqrt(1.0 - correlation))
        left = one.left_at(budget), other.left_at(budget)
        settling = settle((one.fit, other.fit), (mine, theirs), left, between, worth)
    answer = None if is_same_run else chosen.answer
    return Pair(
        a=one.name,
        b=other.name,
        answer=answer,
        winner=(one.name, other.name)[chosen.chosen[0]] if answer == Answer.TAKE else None,
        p_ahead=p_above(mine, theirs),
        p_close=float(np.mean(np.abs(mine - theirs) < worth)),
        lead=summary(mine - theirs, level),
        losses=(chosen.options[0].loss, chosen.options[1].loss),
        settling=settling,
        p_higher_ceiling=p_above(tops, np.zeros(len(tops))),
        ceiling_difference=summary(tops, level),
        targets=_targets(one, other),
        p_larger_exponent=p_larger,
        measured=measured(one, other),
        crossing=crossing_compute(one, other, budget, worth),
        is_same_run=is_same_run,
    )


def _targets(one: Recipe, other: Recipe) -> tuple[Target, ...]:
    """Return the compute ratio at targets on the way from the higher start to the lower ceiling.

    Another run of the recipe would be higher or lower by a share of the spread, and so reach it sooner or later.
    """
    low = max(each.first for each in (one, other))
    high = min(float(np.median(each.top)) for each in (one, other))
    if high <= low:
        return ()
    rewards = [low + share * (high - low) for share in SHARES]
    mine, theirs = (
        reach_draws(each.places, each.draws, np.array(rewards) - np.outer(each.luck * each.added, SHARES))
        for each in (one, other)
    )
    rows = []
    for index, reward in enumerate(rewards):
        with np.errstate(invalid="ignore", divide="ignore"):
            ratio = mine[:, index] / theirs[:, index]
        # Where neither ever reaches it, or both had it before training, nothing is said for either.
        ratio = np.where(np.isnan(ratio), 1.0, ratio)
        p_less = p_above(np.ones(len(ratio)), ratio)
        rows.append(Target(reward=reward, ratio=summary(ratio, one.fit.level), p_less=p_less))
    return tuple(rows)


def measured(one: Recipe, other: Recipe) -> Measured | None:
    """Return how far one was measured above the other, over the last half of the compute that both have."""
    end = min(one.fit.scale, other.fit.scale)
    means, errors, num = [], [], []
    for each in (one.fit, other.fit):
        late = (each.compute > LATE * end) & (each.compute <= end * (1.0 + 1e-9))
        if not late.any():
            return None
        means.append(float(each.reward[late].mean()))
        errors.append(each.noise_sd / np.sqrt(late.sum()))
        num.append(int(late.sum()))
    return Measured(difference=means[0] - means[1], error=float(np.hypot(*errors)), num=min(num), until=float(end))


def crossing_compute(one: Recipe, other: Recipe, budget: float, worth: float) -> float | None:
    """Return the last compute at which the curves cross, between the first point and the budget.

    None where one is never ahead of the other by the worth, and the other of it.
    """
    a, b = one.fit, other.fit
    places = np.geomspace(max(a.compute.min(), b.compute.min()), max(budget, a.scale, b.scale), 80)
    mine, theirs = (np.interp(np.log(places), np.log(each.places), each.middle) for each in (one, other))
    gap = mine - theirs
    clear = np.flatnonzero(np.abs(gap) > worth)
    turns = [(i, j) for i, j in pairwise(clear) if np.sign(gap[i]) != np.sign(gap[j])]
    return float(np.sqrt(places[turns[-1][0]] * places[turns[-1][1]])) if turns else None


def linearise(curve: Fit) -> tuple[Array, Array]:
    """log C and log F, a straight line of slope B where the sigmoid holds (arXiv 2510.13786, fig. 5).

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
    """At the mean of both ceilings; None where the ceilings decide."""
    margin: float


@dataclass(frozen=True, slots=True, kw_only=True)
class PaperComparison:
    pairs: tuple[PaperPair, ...]
    shared_ceiling: float | None
    """Mean ceiling of the recipes within the margin of the best."""
    shared_fits: Mapping[str, Fit]


def compare_by_paper(fits: Mapping[str, Fit], *, margin: float = PAPER_MARGIN) -> PaperComparison:
    """Compare fits of method="paper" two by two; share a ceiling among those within the margin of the best."""
    usable = {name: curve for name, curve in fits.items() if curve.usable}
    pairs = tuple(_paper_pair(a, b, usable, margin) for a, b in combinations(usable, 2))
    ceilings = {name: curve.params["ceiling"] for name, curve in usable.items()}
    near = [name for name, ceiling in ceilings.items() if ceiling >= max(ceilings.values()) - margin - 1e-9]
    if len(near) < 2:
        return PaperComparison(pairs=pairs, shared_ceiling=None, shared_fits={})
    shared = float(np.mean([ceilings[name] for name in near]))
    refits = {name: _paper_refit(usable[name], shared) for name in near}
    return PaperComparison(pairs=pairs, shared_ceiling=shared, shared_fits=refits)


def _paper_pair(name_a: str, name_b: str, fits: Mapping[str, Fit], margin: float) -> PaperPair:
    a, b = fits[name_a], fits[name_b]
    difference = a.params["ceiling"] - b.params["ceiling"]
    by_ceiling, exponents, lead = True, None, difference
    if abs(difference) <= margin + 1e-9:
        ceiling = (a.params["ceiling"] + b.params["ceiling"]) / 2
        first, second = (_paper_refit(curve, ceiling).params["exponent"] for curve in (a, b))
        by_ceiling, exponents, lead = False, (first, second), first - second
    return PaperPair(
        a=name_a,
        b=name_b,
        winner=None if not lead else name_a if lead > 0 else name_b,
        by_ceiling=by_ceiling,
        ceiling_difference=difference,
        exponents=exponents,
        margin=margin,
    )


def _paper_refit(curve: Fit, ceiling: float) -> Fit:
    """Fit exponent and midpoint again with this ceiling, by the paper's grid."""
    grid = Grid(ceilings=np.array([ceiling]))
    return fit(curve.compute, curve.reward, start=curve.start, bounds=curve.bounds, method="paper", grid=grid)
