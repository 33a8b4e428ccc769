"""The arms of a plan from analysed curves, and the plan as sentences, a table and a figure."""

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from rich.text import Text

from scalerl.curves import Fit, Value, Verdict
from scalerl.errors import InputError
from scalerl.joint.plan import Candidate, Planned
from scalerl.joint.pool import pool
from scalerl.report.figures import figure_data
from scalerl.report.numbers import compute_text, interval_text, probability_text, short_compute_text
from scalerl.report.picture import draw_figure
from scalerl.report.results import Analysis, CurveResult, check_one_axis
from scalerl.report.tables import Table

STYLES = {"continue": "green", "stop": "yellow", "done": "dim"}
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


# In words


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
    lost, most = f"{max(planned.regret.value, 0.001):.2g}", f"{max(planned.regret.high, 0.001):.2g}"
    amount = "less than 0.001" if lost == most == "0.001" else f"{lost}, up to {most} within its 90% interval,"
    loss = f"taking it now is expected to lose {amount} of reward"
    odds = f"with probability {probability_text(arm.p_best)}"
    if planned.kind == "decided":
        return f"Take {arm.name}: best at {target} {odds}, and {loss}."
    if planned.kind == "not_separable":
        return f"Not separable at {target}: {arm.name} leads {odds}, and {loss}."
    return f"{arm.name} leads at {target} {odds}; {loss}."


def plan_table(planned: Planned, candidates: Sequence[Candidate]) -> Any:
    """Return the plan as a table for the terminal."""
    fits = {arm.name: arm.fit for arm in candidates}
    target = f"reward at {compute_text(planned.target)}"
    heads = ("arm", "spent", "P(best)", target, "alone", "action", "until", "value")
    rows = [
        (
            arm.name,
            compute_text(arm.spent),
            "-" if math.isnan(arm.p_best) else f"{arm.p_best:.2f}",
            interval_text(arm.reward_at_target),
            interval_text(_alone(fits.get(arm.name), planned.target)),
            Text(arm.action, style=STYLES[arm.action]),
            "" if arm.until is None else compute_text(arm.until),
            f"{arm.value:.4f}" if math.isfinite(arm.value) and arm.action == "continue" else "",
        )
        for arm in planned.arms
    ]
    return Table(heads=heads, rows=rows, left=("arm", "action")).rich(plan_messages(planned))


def _alone(curve: Fit | None, target: float) -> Value | None:
    own = curve.unpooled or curve if curve is not None else None
    if own is None or not own.has_intervals:
        return None
    low, high = own.curve_interval([target])
    return Value(value=float(own.predict(target)), low=float(low[0]), high=float(high[0]))


def draw_plan(planned: Planned, candidates: Sequence[Candidate], curves: Sequence[CurveResult], path: Path) -> None:
    """Draw the pooled curves of all arms up to the target; the legend has their probabilities and actions."""
    fits = {arm.name: arm.fit for arm in candidates}
    pooled = tuple(replace(curve, fit=fits[curve.name]) for curve in curves)
    data = figure_data(Analysis(command="compare", curves=pooled, at=planned.target))
    arms = [planned.arm(curve.result.name) for curve in data.curves]
    shown = tuple(
        replace(curve, label=f"{curve.label} ({arm.action})", p_best=None if math.isnan(arm.p_best) else arm.p_best)
        for curve, arm in zip(data.curves, arms, strict=True)
    )
    draw_figure(replace(data, curves=shown, title=f"to the target {short_compute_text(planned.target)}"), path)
