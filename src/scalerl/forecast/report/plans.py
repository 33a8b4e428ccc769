"""`scalerl plan`, from analysed curves: which arms to continue, and which to stop."""

import math
from collections.abc import Iterator, Sequence
from typing import Any

from scalerl.errors import InputError
from scalerl.forecast.curves import Answer
from scalerl.forecast.report.axes import check_one_axis
from scalerl.forecast.report.document import Document, Say, say, sections, table
from scalerl.forecast.report.results import CurveResult
from scalerl.forecast.report.wording import compute_text
from scalerl.forecast.several.plan import Candidate, Planned, Reason

REASONS = {
    Reason.TELLS_MOST: "most informative",
    Reason.TELLS_LITTLE: "unlikely to change the choice",
}
"""Words for reasons that their names do not explain."""
TOLERANCE = 1.01
"""Times the target that an arm may have spent: the last evaluation often lies a little beyond."""


def make_candidates(curves: Sequence[CurveResult], target: float) -> list[Candidate]:
    """Return the arms of a plan; InputError if they cannot be planned together."""
    check_one_axis([curve.series for curve in curves], "arms must be on one axis of compute to be planned")
    if len(curves) < 2:
        raise InputError(f"only one arm ({curves[0].name}) was found and two or more are needed to plan")
    spent = {curve.name: float(curve.series.compute.max(initial=0.0)) for curve in curves}
    for name, amount in spent.items():
        if amount > TOLERANCE * target:
            raise InputError(
                f"--target {target:g} lies below what {name} has spent already ({amount:g}): name a larger target"
            )
    return [
        Candidate(name=curve.name, spent=spent[curve.name], fit=curve.fit, num_runs=curve.fit.num_runs)
        for curve in curves
    ]


def plan_document(planned: Planned, curves: Sequence[CurveResult]) -> Document:
    """Return the plan: the decision first, then a line for each arm."""
    rows: list[tuple[Any, ...]] = []
    for arm in planned.arms:
        value = None
        if arm.action == "continue" and math.isfinite(arm.value):
            value = arm.value
        advice = str(arm.action)
        if arm.reason is not None:
            advice = f"{advice} ({REASONS.get(arm.reason, arm.reason)})"
        rows.append(({"value": value, "advice": advice}, arm))
    unit = curves[0].unit
    target = compute_text(planned.target)
    columns = {head.format(unit=unit, target=target): template for head, template in PLAN_COLUMNS.items()}
    return sections(("plan", "Plan", [*plan_says(planned, curves[0]), table("plan", columns, rows, right=1)]))


PLAN_COLUMNS = {
    "arm": "{name}",
    "spent per run ({unit})": "{spent:c}",
    "P(best)": "{p_best:p}",
    "reward at {target} {unit}": "{reward_at_target:a}",
    "until, per run ({unit})": "{until:c}",
    "one stage is worth": "{value:.2g}",
    "action": "{advice}",
}


def plan_says(planned: Planned, first: CurveResult) -> Iterator[Say]:
    """Yield the decision, what to continue, and what to stop and why."""
    if planned.answer is None or not planned.chosen:
        yield say("plan_no_curve_yet")
    else:
        leader = planned.arm(planned.chosen[0])
        given = {"names": planned.chosen, "at": planned.target}
        if planned.answer == Answer.EITHER:
            kind = "plan_either"
        else:
            kind = planned.answer.name.lower()
        yield say(kind, leader, planned, first, **given)
    going = [arm for arm in planned.arms if arm.action == "continue"]
    if going:
        price = first.price
        arms = tuple(f"{arm.name} to {compute_text(arm.until or 0.0)}" for arm in going)
        yield say("plan_continue", planned, first, arms=arms, money=None if price is None else price * planned.cost)
        best = max(going, key=lambda arm: arm.rate)
        if math.isfinite(best.value) and planned.kind != "decided":
            yield say("plan_worth_most", best)
    for reason in Reason:
        names = tuple(arm.name for arm in planned.arms if arm.action != "continue" and arm.reason == reason)
        if names:
            yield say(f"plan_{reason.name.lower()}", names=names)
