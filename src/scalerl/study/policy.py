"""Policies that decide which arm gets the next stage, `halving` and `forecast`, as pure functions of measurements.

Compute is measured as a share of each run's budget: 0 before training, 1 at the end.
"""

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from scalerl.forecast.curves import Fit, fit
from scalerl.forecast.report.document import picked, plain
from scalerl.forecast.several.plan import Candidate, Planned, Reason, plan
from scalerl.forecast.several.pool import pool

EPSILON = 1e-6

StageKind = Literal["first_stage", "round", "continue", "finish", "decided", "open", "budget_spent"]
"""Why an arm gets compute (the first four), or how a study ends (the last three)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ArmProgress:
    """What the runs of one arm have measured so far."""

    name: str
    share: float
    """Share of the budget that all of its runs have spent at least."""
    num_runs: int
    points: tuple[tuple[float, float, int, int | None], ...] = ()
    """Share of the budget, reward, number of the run, and number of answers if known, of each evaluation."""
    start: float | None = None
    failed: bool = False

    @property
    def latest(self) -> float:
        """Mean over runs of the latest reward; the reward at the start if nothing else was measured."""
        last = {run: reward for _, reward, run, _ in self.points}
        return float(np.mean([*last.values()])) if last else (self.start if self.start is not None else -np.inf)


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """A decision: train `arm` until a share of its budget. Without an arm, the study ends, and `kind` says how."""

    kind: StageKind
    arm: str | None = None
    until: float | None = None
    known: Mapping[str, Any] = field(default_factory=dict)
    """The data that the decision rests on, as plain values for decisions.jsonl."""


def first_stage(arms: Sequence[ArmProgress], stages: int) -> Stage | None:
    """Return the first stage of an arm that has not had it; None if all have."""
    for arm in arms:
        if arm.share < 1 / stages - EPSILON and not arm.failed:
            return Stage(kind="first_stage", arm=arm.name, until=1 / stages)
    return None


# Successive halving ---------------------------------------------------------------------------------------------------


def halving(arms: Sequence[ArmProgress], stages: int, share: float, busy: frozenset[str]) -> Stage | None:
    """Continue the better half of the arms after each round of equal compute. None means: wait for running arms."""
    alive = [arm for arm in arms if not arm.failed]
    rounds = max(int(np.ceil(np.log2(len(arms)))), 1)
    reached = 0.0
    for _ in range(rounds):
        reached = min(reached + share * len(arms) / rounds / max(len(alive), 1), 1.0)
        short = [arm for arm in alive if arm.share < reached - EPSILON]
        free = [arm for arm in short if arm.name not in busy]
        if free:
            return Stage(kind="round", arm=free[0].name, until=reached, known=_rewards(arms))
        if short:
            return None
        alive = sorted(alive, key=lambda arm: -arm.latest)[: max(len(alive) // 2, 1)]
    return Stage(kind="decided", known=_rewards(arms) | {"favourite": alive[0].name if alive else None})


def _rewards(arms: Sequence[ArmProgress]) -> dict[str, Any]:
    return {"arms": plain([{"name": arm.name, "spent": arm.share, "reward": arm.latest} for arm in arms])}


# The planner ----------------------------------------------------------------------------------------------------------


def forecast(arms: Sequence[ArmProgress], stages: int, share: float, busy: frozenset[str]) -> Stage | None:
    """Continue the arm with the largest expected gain per compute, until an arm is chosen or the share is spent.

    None means: wait for running arms.
    """
    if (first := first_stage([arm for arm in arms if arm.name not in busy], stages)) is not None:
        return first
    if any(arm.share < 1 / stages - EPSILON and not arm.failed for arm in arms):
        return None
    planned = make_plan(arms, stages, share)
    known = plan_known(planned)
    going = [arm for arm in planned.arms if arm.action == "continue" and arm.name not in busy]
    if busy and (planned.kind == "decided" or not going):
        return None
    if planned.kind == "decided":
        # Train the chosen arm to the end, if the share allows.
        until = max((arm.until or 0.0 for arm in going), default=0.0)
        if going and until >= 1 - EPSILON:
            return Stage(kind="finish", arm=going[0].name, until=1.0, known=known)
        return Stage(kind="decided", known=known)
    if not going:
        is_spent = planned.is_budget_spent or any(arm.reason == Reason.BUDGET for arm in planned.arms)
        return Stage(kind="budget_spent" if is_spent else "open", known=known)
    best = max(going, key=lambda arm: (arm.rate, -arm.spent))
    until = min(np.floor(best.spent * stages + EPSILON) + 1, stages) / stages
    return Stage(kind="continue", arm=best.name, until=float(until), known=known)


def make_plan(arms: Sequence[ArmProgress], stages: int, share: float) -> Planned:
    """Return the plan to the end of the budget, over pooled fits."""
    fits = pool({arm.name: curve for arm in arms if (curve := fit_arm(arm)) is not None})
    candidates = [
        Candidate(
            name=arm.name,
            spent=arm.share,
            fit=fits.get(arm.name),
            can_continue=not arm.failed,
            num_runs=arm.num_runs,
        )
        for arm in arms
    ]
    budget = share * sum(arm.num_runs for arm in arms)
    return plan(candidates, 1.0, stage=1 / stages, budget=budget)


@functools.lru_cache(maxsize=64)
def fit_arm(arm: ArmProgress) -> Fit | None:
    """Fit the arm's curve; None if nothing was measured after the start. Cached until the arm has new evaluations."""
    if not arm.points:
        return None
    compute, reward, run, num_samples = zip(*arm.points, strict=True)
    return fit(
        compute,
        reward,
        start=arm.start,
        start_sd=None if arm.start is not None else 0.0,
        run=run if len(set(run)) > 1 else None,
        num_samples=num_samples if all(num_samples) else None,
    )


ARM_KEYS = ("name", "spent", "p_best", "reward_at_target", "loss", "action", "reason", "value")


def plan_known(planned: Planned) -> dict[str, Any]:
    """Return the data of a plan as plain values for decisions.jsonl."""
    favourite = planned.arm(planned.chosen[0]) if planned.chosen else None
    rows = [picked(ARM_KEYS, arm) for arm in planned.arms]
    best = {"favourite": favourite and favourite.name, "loss": favourite and favourite.loss}
    return {"arms": rows, **picked(("answer", "favourite", "loss", "worth"), best, planned)}


POLICIES = {"halving": halving, "forecast": forecast}
