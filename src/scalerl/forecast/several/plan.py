"""Decide which arms of a study to continue: the probability of each to be the best at a target compute, the expected
loss of choosing the favourite now, and the value of each arm's next evaluations.

Every arm has joint draws of its curve. The value of continuing arm i is the expected increase, due to its new
evaluations, of the reward of the arm that is then chosen (the knowledge gradient). With m the posterior means at the
target and s_i the part of arm i's spread there that the new evaluations will explain,

    value_i = s_i * phi(d) - |m_i - max_j m_j| * Phi(-d),   d = |m_i - max_j m_j| / s_i   (j other than i)

The first evaluations of a long stage may explain little, so an arm is judged by its best horizon: the compute to
continue to that has the largest value per unit of compute.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Literal

import numpy as np

from scalerl.forecast.curves.decide import Answer, Pick, default_worth, left_sd, pick, thinned, value_draws
from scalerl.forecast.curves.draws import Value, tails
from scalerl.forecast.curves.fit import Fit
from scalerl.forecast.curves.forms import Array
from scalerl.forecast.curves.normal import normal_cdf

NUM_HORIZONS = 6
LEAST_KNOWN = 3  # least number of curves from which to guess that of an arm without one
FIRST_STAGE = 0.7  # share of such an arm's spread that its first curve explains
LEAST_VALUE = 0.02  # share of the worth that continuing an arm must be expected to gain
DONE = 1 - 1e-6  # an arm with this share of the target has reached it


class Reason(StrEnum):
    """Why an arm is continued or not."""

    AT_TARGET = "at target"
    CHOSEN = "chosen"
    NOT_CHOSEN = "not chosen"
    TELLS_MOST = "tells most"
    """Its next evaluations are worth their compute."""
    TELLS_LITTLE = "tells little"
    NO_CURVE = "no curve"
    """It has too few evaluations to judge."""
    PAST_PEAK = "past its peak"
    """Its best checkpoint competes; more compute would not improve it."""
    BUDGET = "budget"
    """The budget is spent."""


Action = Literal["continue", "stop", "done"]
PlanKind = Literal["decided", "continue", "open"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """An arm at the time of planning. `fit` is None, or has no intervals, if there are too few points."""

    name: str
    spent: float
    fit: Fit | None
    num_runs: int = 1
    """Number of seeds. They are continued together, so the cost of continuing is multiplied by it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ArmPlan:
    """The state of an arm, and the proposed action."""

    name: str
    spent: float
    p_best: float
    loss: float
    """Expected loss of reward from taking this arm now; NaN if unknown."""
    reward_at_target: Value | None
    action: Action
    reason: Reason
    until: float | None = None
    """Compute to continue to; None for an arm that is not continued."""
    value: float = 0.0
    """Expected gain of one more stage; 0 for an arm that is not worth continuing."""
    rate: float = 0.0
    """Expected gain per unit of compute at the best horizon; infinite for an arm without a curve."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Planned:
    """A plan for all arms, in the order in which they were given."""

    target: float
    worth: float
    arms: tuple[ArmPlan, ...]
    kind: PlanKind
    """`open`: the arms cannot be told apart, and no continuation is worth it or within the budget."""
    chosen: tuple[str, ...]
    """The arm to take, the arms that are equally good, or the leader of an open choice."""
    answer: Answer | None
    """None if no arm has a curve."""
    is_budget_spent: bool
    cost: float
    """Total compute of the proposed continuations."""

    def arm(self, name: str) -> ArmPlan:
        return next(arm for arm in self.arms if arm.name == name)


def plan(
    arms: Sequence[Candidate],
    target: float,
    *,
    stage: float | None = None,
    budget: float | None = None,
    worth: float | None = None,
    level: float = 0.9,
) -> Planned:
    """Return what to do with each arm.

    `stage` is the smallest continuation, an eighth of the target if None. `budget` limits the compute of all arms
    together, including what they have already spent.
    """
    stage = stage or target / 8
    known = {arm.name: arm.fit for arm in arms if arm.fit is not None and arm.fit.has_intervals}
    worth = default_worth([*known.values()]) if worth is None else worth
    at_target, past_peak = {}, set()
    for name, curve in known.items():
        at_target[name], is_past_peak = value_draws(curve, target, worth)
        past_peak |= {name} if is_past_peak else set()
    if len(known) >= LEAST_KNOWN:
        # An arm without a curve may be like any of the others.
        mixture = thinned(np.concatenate([*at_target.values()]), len(at_target[next(iter(known))]))
        at_target |= {arm.name: mixture for arm in arms if arm.name not in known}
    choice = pick(np.stack([*at_target.values()]), worth) if at_target else None
    names = list(at_target)
    chosen = () if choice is None else tuple(names[index] for index in choice.chosen)
    is_decided = choice is not None and choice.answer != Answer.OPEN and len(known) == len(arms)
    means = {name: float(draws.mean()) for name, draws in at_target.items()}
    rows = []
    for arm in arms:
        row = _row(arm, names, choice, at_target, level)
        if arm.spent >= DONE * target:
            row = replace(row, action="done", reason=Reason.AT_TARGET)
        elif is_decided and arm.name not in chosen[:1]:
            pass
        elif arm.name in past_peak:
            row = replace(row, reason=Reason.PAST_PEAK)
        elif is_decided:
            row = replace(row, action="continue", reason=Reason.CHOSEN, until=target)
        else:
            row = _continued(arm, row, known.get(arm.name), means, target, stage, worth)
        rows.append(row)
    runs = {arm.name: arm.num_runs for arm in arms}
    rows, is_spent = _within(rows, runs, budget)
    cost = sum((row.until - row.spent) * runs[row.name] for row in rows if row.until is not None)
    return Planned(
        target=target,
        worth=worth,
        arms=tuple(rows),
        kind="decided" if is_decided else "continue" if cost > 0 else "open",
        chosen=chosen,
        answer=None if choice is None else choice.answer,
        is_budget_spent=is_spent,
        cost=cost,
    )


def _row(
    arm: Candidate, names: Sequence[str], choice: Pick | None, at_target: Mapping[str, Array], level: float
) -> ArmPlan:
    """Return the state of an arm, without a decision."""
    draws = at_target.get(arm.name)
    p_best, loss, value = float("nan"), float("nan"), None
    if draws is not None and choice is not None:
        place = names.index(arm.name)
        p_best, loss = choice.p_best[place], choice.losses[place]
        low, high = np.quantile(draws, tails(level))
        value = Value(value=float(draws.mean()), low=float(low), high=float(high))
    return ArmPlan(
        name=arm.name,
        spent=arm.spent,
        p_best=p_best,
        loss=loss,
        reward_at_target=value,
        action="stop",
        reason=Reason.NOT_CHOSEN,
    )


def _continued(
    arm: Candidate,
    row: ArmPlan,
    curve: Fit | None,
    means: Mapping[str, float],
    target: float,
    stage: float,
    worth: float,
) -> ArmPlan:
    """Continue an arm whose next evaluations are worth their compute: used while the choice is open."""
    value_at = row.reward_at_target
    until = min(arm.spent + stage, target)
    if value_at is None:
        return replace(row, action="continue", reason=Reason.NO_CURVE, until=until, value=np.inf, rate=np.inf)
    if curve is not None:
        # From one stage to the target.
        num = max(min(NUM_HORIZONS, round((target - arm.spent) / stage)), 1)
        horizons = np.linspace(until, target, num)
        spread = explained_sds(curve, horizons, target)
    else:
        horizons, spread = np.array([until]), np.array([FIRST_STAGE * (value_at.high - value_at.low) / 3.3])
    values = knowledge_gradient(_gap(arm.name, means), spread)
    rates = values / (horizons - arm.spent) / arm.num_runs
    best = int(np.argmax(rates))
    if values[best] < LEAST_VALUE * worth:
        return replace(row, reason=Reason.TELLS_LITTLE)
    return replace(
        row,
        action="continue",
        reason=Reason.TELLS_MOST,
        until=float(horizons[best]),
        value=float(values[0]),
        rate=float(rates[best]),
    )


def _gap(name: str, means: Mapping[str, float]) -> float:
    """Return the distance between an arm's mean and the best mean of the others."""
    others = [mean for other, mean in means.items() if other != name]
    return abs(means[name] - max(others)) if others else 0.0


def knowledge_gradient(gap: float, spread: Array) -> Array:
    """Return the expected increase of the larger of two means `gap` apart if one moves by a normal of sd `spread`."""
    ratio = gap / np.maximum(spread, 1e-12)
    density = np.exp(-0.5 * ratio**2) / np.sqrt(2 * np.pi)
    return np.maximum(spread * density - gap * normal_cdf(-ratio), 0.0)


def explained_sds(curve: Fit, horizons: Array, target: float) -> Array:
    """Return the sd of the reward at the target that evaluations from the last one to each horizon will explain."""
    wanted = curve.curve_draws([target])[:, 0]
    left = np.array([left_sd(curve, target, horizon / curve.scale) for horizon in horizons])
    return np.sqrt(np.maximum(wanted.var() - left**2, 0.0))


def _within(rows: Sequence[ArmPlan], runs: Mapping[str, int], budget: float | None) -> tuple[list[ArmPlan], bool]:
    """Limit the continuations to the budget, highest rates first; return the rows and whether the budget is spent."""
    left = np.inf if budget is None else budget - sum(row.spent * runs[row.name] for row in rows)
    is_spent = bool(left <= 1e-9 * max((row.spent for row in rows), default=1.0))
    kept: dict[str, ArmPlan] = {}
    for row in sorted(rows, key=lambda row: (-row.rate, row.spent)):
        if row.until is not None and left <= 1e-9 * row.spent:
            row = replace(row, action="stop", reason=Reason.BUDGET, until=None)
        elif row.until is not None:
            until = min(row.until, row.spent + left / runs[row.name])
            left -= (until - row.spent) * runs[row.name]
            row = replace(row, until=until)
        kept[row.name] = row
    return [kept[row.name] for row in rows], is_spent
