"""The arms of a plan from analysed curves, and the plan as sentences, a table and JSON."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Group
from rich.table import Table
from rich.text import Text

from scalerl.curves import Fit, Value, Verdict
from scalerl.errors import InputError
from scalerl.joint.plan import Candidate, Planned
from scalerl.joint.pool import pool
from scalerl.report.json import value_json
from scalerl.report.numbers import compute_text, fixed, interval_text, probability_text
from scalerl.report.pooling import check_one_axis
from scalerl.report.results import CurveResult

TOLERANCE = 1.01  # times the target that an arm may have spent: the last evaluation often lies a little beyond


def make_candidates(curves: Sequence[CurveResult], target: float) -> list[Candidate]:
    """Return the arms of a plan with pooled fits; InputError if they cannot be planned together."""
    check_one_axis([curve.series for curve in curves], "arms must be on one axis of compute to be planned")
    if len(curves) < 2:
        raise InputError(f"only one arm ({curves[0].name}) was found and two or more are needed to plan")
    spent = {curve.name: float(curve.series.compute.max(initial=0.0)) for curve in curves}
    for name, amount in spent.items():
        if amount > TOLERANCE * target:
            raise InputError(
                f"--target {target:g} lies below what {name} has spent already ({amount:g}): name a larger target"
            )
    fits = pool({curve.name: curve.fit for curve in curves if curve.fit is not None})
    return [
        Candidate(
            name=curve.name,
            spent=spent[curve.name],
            fit=fits.get(curve.name),
            can_continue=curve.verdict != Verdict.FALLEN,
            num_runs=fits[curve.name].num_runs if curve.name in fits else 1,
        )
        for curve in curves
    ]


# In words -------------------------------------------------------------------------------------------------------------


def plan_messages(planned: Planned) -> list[str]:
    """Return the plan as sentences; the first states the decision."""
    going = [arm for arm in planned.arms if arm.action == "continue"]
    stopped = [arm.name for arm in planned.arms if arm.action == "stop"]
    lines = [_answer(planned)]
    if going:
        words = ", ".join(f"{arm.name} to {compute_text(arm.until or 0.0)}" for arm in going)
        lines.append(f"Continue {words}: {compute_text(planned.cost)} of compute in all.")
        best = max(going, key=lambda arm: arm.rate)
        if math.isfinite(best.value) and planned.kind != "decided":
            lines.append(f"One more rung is worth most on {best.name}: {best.value:.2g} of reward is expected of it.")
    if stopped:
        lines.append(
            f"Stop {', '.join(stopped)}: {'it is' if len(stopped) == 1 else 'they are'} not worth more compute."
        )
    return lines


def _answer(planned: Planned) -> str:
    target = compute_text(planned.target)
    if planned.favourite is None or planned.regret is None:
        return "No arm has a curve yet: continue all of them."
    arm = planned.arm(planned.favourite)
    loss = f"taking it now is expected to lose {planned.regret.value:.2g} (interval up to {planned.regret.high:.2g})"
    if planned.kind == "decided":
        return f"Take {arm.name}: best at {target} with probability {probability_text(arm.p_best)}, and {loss}."
    if planned.kind == "not_separable":
        return (
            f"Not separable at {target}: {arm.name} leads with probability {probability_text(arm.p_best)}, and {loss}."
        )
    return f"{arm.name} leads at {target} with probability {probability_text(arm.p_best)}; {loss}."


def plan_table(planned: Planned, alone: Mapping[str, Fit | None]) -> Group:
    """Return the plan as a table for the terminal; `alone` are the fits without pooling."""
    table = Table(title_justify="left", header_style="bold", pad_edge=False, box=None)
    for head in (
        "arm",
        "spent",
        "P(best)",
        f"reward at {compute_text(planned.target)}",
        "alone",
        "action",
        "until",
        "value",
    ):
        table.add_column(head, justify="left" if head in ("arm", "action") else "right")
    show = fixed(3)
    for arm in planned.arms:
        table.add_row(
            arm.name,
            compute_text(arm.spent),
            "-" if math.isnan(arm.p_best) else f"{arm.p_best:.2f}",
            interval_text(arm.reward_at_target, show),
            interval_text(_alone(alone.get(arm.name), planned.target), show),
            Text(arm.action, style={"continue": "green", "stop": "yellow"}.get(arm.action, "dim")),
            "" if arm.until is None else compute_text(arm.until),
            f"{arm.value:.4f}" if math.isfinite(arm.value) and arm.action == "continue" else "",
        )
    return Group(table, Text(), *(Text(line) for line in plan_messages(planned)))


def _alone(curve: Fit | None, target: float) -> Value | None:
    own = curve.unpooled or curve if curve is not None else None
    if own is None or not own.has_intervals:
        return None
    low, high = own.curve_interval([target])
    return Value(value=float(own.predict(target)), low=float(low[0]), high=float(high[0]))


# As JSON --------------------------------------------------------------------------------------------------------------


def plan_json(planned: Planned) -> dict[str, Any]:
    """Return the plan as JSON types."""
    return {
        "arms": [
            {
                "name": arm.name,
                "spent": arm.spent,
                "p_best": None if math.isnan(arm.p_best) else arm.p_best,
                "reward_at_target": value_json(arm.reward_at_target),
                "action": arm.action,
                "until": arm.until,
            }
            for arm in planned.arms
        ],
        "regret": value_json(planned.regret),
        "kind": planned.kind,
        "favourite": planned.favourite,
        "target": planned.target,
        "cost": planned.cost,
    }
