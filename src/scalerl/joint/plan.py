"""Decide which arms of a study to continue: the probability of each to be the best at a target compute, the expected
loss of choosing the favourite now, and the value of each arm's next evaluations.

Every arm has joint draws of its curve. The value of continuing arm i is the expected increase, due to its new
evaluations, of the reward of the arm that is then chosen (the knowledge gradient). With m the posterior means at the
target and s_i the part of arm i's spread there that the new evaluations will explain,

    value_i = s_i * phi(d) - |m_i - max_j m_j| * Phi(-d),   d = |m_i - max_j m_j| / s_i   (j other than i)

The first evaluations of a long stage may explain little, so an arm is judged by its best horizon: the compute to
continue to that has the largest value per unit of compute.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from scipy.special import ndtr

from scalerl.curves.draws import Value, explained_share, tails, who_is_best
from scalerl.curves.fit import Fit
from scalerl.curves.forms import Array

Action = Literal["continue", "stop", "done"]
PlanKind = Literal["decided", "continue", "not_separable"]

NUM_HORIZONS = 6
GROUPS = 3  # averages that new evaluations are summed up by
LEAST_KNOWN = 3  # curves that say what an arm without one may be like
FIRST_STAGE = 0.7  # share of the spread of such an arm that its first curve explains
WORTH = 1e-3  # of the largest gain: what continuing an arm must be expected to add
SURE = 0.95  # probability of being the best from which the choice is made
LOSS = 1e-2  # of the largest gain: an expected loss below which the choice is made
DONE = 1 - 1e-6  # share of the target from which an arm is there


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """An arm at the time of planning. `fit` is None, or has no intervals, while there are too few points to fit."""

    name: str
    spent: float
    fit: Fit | None
    can_continue: bool = True
    num_runs: int = 1
    """Number of seeds, which are continued together: the cost of continuing is multiplied by it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ArmPlan:
    """The state of an arm, and the action that the plan proposes for it."""

    name: str
    spent: float
    p_best: float
    reward_at_target: Value | None
    action: Action
    until: float | None
    """Compute to continue to; None for an arm that is not continued."""
    value: float
    """Expected gain of one more stage; 0 for an arm that is not worth continuing."""
    rate: float
    """Expected gain per unit of compute at the best horizon; infinite for an arm without a curve."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Planned:
    """A plan for all arms, in the order in which they were given."""

    target: float
    arms: tuple[ArmPlan, ...]
    favourite: str | None
    regret: Value | None
    """Expected loss of reward at the target if the favourite is chosen now."""
    kind: PlanKind
    cost: float
    """Compute that all proposed continuations cost together."""

    def arm(self, name: str) -> ArmPlan:
        return next(arm for arm in self.arms if arm.name == name)


def plan(
    arms: Sequence[Candidate],
    target: float,
    *,
    stage: float | None = None,
    budget: float | None = None,
    level: float = 0.9,
) -> Planned:
    """Return what to do with each arm.

    `stage` is the least compute to continue by, an eighth of the target if None. `budget` limits the compute of all
    arms together, including what they have spent already.
    """
    stage = stage or target / 8
    known = {arm.name: arm.fit for arm in arms if arm.fit is not None and arm.fit.has_intervals}
    at_target = {name: draws_at(curve, target, stream) for stream, (name, curve) in enumerate(known.items())}
    if len(known) >= LEAST_KNOWN:
        # An arm without a curve of its own may be like any of the others.
        mixture = np.concatenate(list(at_target.values()))
        num = len(mixture) // len(known)
        for stream, arm in enumerate(arms):
            if arm.name not in known:
                at_target[arm.name] = np.random.default_rng(200 + stream).permutation(mixture)[:num]
    p_best, regret, favourite = _standing(at_target, level)
    gain = max((curve.gain for curve in known.values()), default=1.0)
    means = {name: float(draws.mean()) for name, draws in at_target.items()}
    rows = [_arm(arm, known.get(arm.name), means, target, stage, gain, p_best, level, at_target) for arm in arms]
    is_decided = (
        favourite is not None
        and len(known) == len(arms)
        and (p_best[favourite] >= SURE or (regret is not None and regret.value <= LOSS * gain))
    )
    runs = {arm.name: arm.num_runs for arm in arms}
    can_go_on = {arm.name for arm in arms if arm.can_continue}
    rows = _finish(rows, favourite, target, can_go_on) if is_decided else rows
    rows = _within(rows, runs, budget)
    cost = sum((row.until - row.spent) * runs[row.name] for row in rows if row.until is not None)
    kind: PlanKind = "decided" if is_decided else "continue" if cost > 0 else "not_separable"
    return Planned(target=target, arms=tuple(rows), favourite=favourite, regret=regret, kind=kind, cost=cost)


def draws_at(curve: Fit, compute: float, stream: int) -> Array:
    """Return draws of the curve at a compute, shuffled by `stream` so that draws of two arms are independent."""
    draws = curve.curve_draws([compute])[:, 0]
    return np.random.default_rng(100 + stream).permutation(draws)


def _standing(at_target: Mapping[str, Array], level: float) -> tuple[dict[str, float], Value | None, str | None]:
    """Return each arm's probability of being the best, the expected loss of choosing the favourite, and its name."""
    if not at_target:
        return {}, None, None
    table = table_of([*at_target.values()])
    shares, losses = who_is_best(table)
    # The choice that loses least is the one with the highest mean, not always the one most often the best.
    favourite = int(table.mean(axis=1).argmax())
    names = list(at_target)
    return dict(zip(names, shares.tolist(), strict=True)), _mean(losses[favourite], level), names[favourite]


def table_of(draws: Sequence[Array]) -> Array:
    """Return draws of several arms as rows; where one has fewer, as many of each."""
    return np.stack([own[: min(map(len, draws))] for own in draws])


def _mean(draws: Array, level: float) -> Value:
    low, high = np.quantile(draws, tails(level))
    return Value(value=float(draws.mean()), low=float(low), high=float(high))


def _arm(
    arm: Candidate,
    curve: Fit | None,
    means: Mapping[str, float],
    target: float,
    stage: float,
    gain: float,
    p_best: Mapping[str, float],
    level: float,
    at_target: Mapping[str, Array],
) -> ArmPlan:
    is_there = arm.spent >= DONE * target
    value_at = _mean(at_target[arm.name], level) if arm.name in at_target else None
    action: Action = "done" if is_there else "continue"
    until, rate, value = None, 0.0, 0.0
    if not is_there and not arm.can_continue:
        action = "stop"
    elif not is_there and arm.name not in at_target:
        until, rate, value = min(arm.spent + stage, target), np.inf, np.inf
    elif not is_there:
        if curve is not None:
            horizons, spread = horizons_of(arm, curve, target, stage)
        else:
            horizons = np.array([min(arm.spent + stage, target)])
            spread = np.array([FIRST_STAGE * float(at_target[arm.name].std())])
        values = knowledge_gradient(_gap(arm.name, means), spread)
        rates = values / (horizons - arm.spent) / arm.num_runs
        best = int(np.argmax(rates))
        until, rate, value = float(horizons[best]), float(rates[best]), float(values[0])
        if values[best] < WORTH * gain:
            action, until = "stop", None
    return ArmPlan(
        name=arm.name,
        spent=arm.spent,
        p_best=p_best.get(arm.name, float("nan")),
        reward_at_target=value_at,
        action=action,
        until=until,
        value=value,
        rate=rate,
    )


def horizons_of(arm: Candidate, curve: Fit, target: float, stage: float) -> tuple[Array, Array]:
    """Return the computes to continue to, from one stage to the target, and the `explained_sds` of each."""
    num = max(min(NUM_HORIZONS, round((target - arm.spent) / stage)), 1)
    horizons = np.linspace(min(arm.spent + stage, target), target, num)
    return horizons, explained_sds(curve, arm.spent, horizons, target)


def _gap(name: str, means: Mapping[str, float]) -> float:
    """Return the distance between the mean of an arm and the best mean of the others."""
    others = [mean for other, mean in means.items() if other != name]
    return abs(means[name] - max(others)) if others else 0.0


def knowledge_gradient(gap: float, spread: Array) -> Array:
    """Return the expected increase of the larger of two means `gap` apart if one moves by a normal of sd `spread`."""
    ratio = gap / np.maximum(spread, 1e-12)
    density = np.exp(-0.5 * ratio**2) / np.sqrt(2 * np.pi)
    return np.maximum(spread * density - gap * ndtr(-ratio), 0.0)


def explained_sds(curve: Fit, spent: float, horizons: Array, target: float) -> Array:
    """Return the sd of the reward at the target that evaluations between `spent` and each horizon will explain."""
    shares = (np.arange(GROUPS) + 0.5) / GROUPS
    places = spent + np.outer(horizons - spent, shares)
    draws = curve.curve_draws([*places.ravel(), target])
    wanted, later = draws[:, -1], draws[:, :-1].reshape(len(draws), *places.shape)
    # New evaluations come at the spacing of the old ones and are averaged in groups.
    num = np.maximum((horizons - spent) / _spacing(curve), 1.0)
    shares = [
        explained_share(wanted, later[:, index], curve.noise_sd**2 * GROUPS / own) for index, own in enumerate(num)
    ]
    return wanted.std() * np.sqrt(np.maximum(shares, 0.0))


def _spacing(curve: Fit) -> float:
    """Return the median compute between evaluations. Several runs are assumed to be evaluated at the same computes."""
    steps = np.diff(np.unique(curve.compute))
    return float(np.median(steps)) if len(steps) else float(curve.scale)


def _finish(rows: Sequence[ArmPlan], favourite: str | None, target: float, can_go_on: Collection[str]) -> list[ArmPlan]:
    """Continue only the favourite, to the target, if it can be, and stop all other arms: used once it is chosen."""
    done = []
    for row in rows:
        if row.name == favourite and row.action != "done" and favourite in can_go_on:
            row = replace(row, action="continue", until=target)
        elif row.action == "continue":
            row = replace(row, action="stop", until=None)
        done.append(row)
    return done


def _within(rows: Sequence[ArmPlan], runs: Mapping[str, int], budget: float | None) -> list[ArmPlan]:
    """Cut the continuations to the budget: serve the highest rates first and stop the arms that get nothing."""
    left = np.inf if budget is None else budget - sum(row.spent * runs[row.name] for row in rows)
    kept: dict[str, ArmPlan] = {}
    for row in sorted(rows, key=lambda row: (-row.rate, row.spent)):
        if row.action == "continue" and (left <= 1e-9 * row.spent or row.until is None):
            row = replace(row, action="stop", until=None)
        elif row.action == "continue":
            assert row.until is not None
            until = min(row.until, row.spent + left / runs[row.name])
            left -= (until - row.spent) * runs[row.name]
            row = replace(row, until=until)
        kept[row.name] = row
    return [kept[row.name] for row in rows]
