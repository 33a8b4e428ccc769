"""`scalerl plan`, from analysed curves: which arms to continue, or which settings of a step are best at a compute."""

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from rich.text import Text

from scalerl.curves import Fit, Value, Verdict
from scalerl.errors import InputError
from scalerl.joint.allocate import Allocation, allocate
from scalerl.joint.plan import Candidate, Planned
from scalerl.joint.pool import pool
from scalerl.logs.frame import listed
from scalerl.report.figures import figure_data
from scalerl.report.joint.transfers import parse_size
from scalerl.report.json import plain
from scalerl.report.numbers import compute_text, interval_text, probability_text, short_compute_text
from scalerl.report.picture import draw
from scalerl.report.results import Analysis, CurveResult, check_one_axis, fits_of
from scalerl.report.tables import Table

NUM_COMPUTES = 5
FIRST = 1 / 16
"""Share of the target at which the first allocation is given, if the arms were measured there."""
STYLES = {"continue": "green", "stop": "yellow", "done": "dim"}
TOLERANCE = 1.01  # times the target that an arm may have spent: the last evaluation often lies a little beyond


def make_candidates(curves: Sequence[CurveResult], target: float) -> list[Candidate]:
    """Return the arms of a plan with pooled fits; InputError if they cannot be planned together."""
    check_one_axis([curve.series for curve in curves], "arms must be on one axis of compute to be planned")
    if len(curves) < 2:
        raise InputError(f"only one arm ({curves[0].name}) was found and two or more are needed to plan")
    if faulty := next((curve for curve in curves if curve.series.problem), None):
        raise InputError(f"what {faulty.name} has spent is not known: {faulty.series.problem}")
    spent = {curve.name: float(curve.series.compute.max(initial=0.0)) for curve in curves}
    for name, amount in spent.items():
        if amount > TOLERANCE * target:
            raise InputError(
                f"--target {target:g} lies below what {name} has spent already ({amount:g}): name a larger target"
            )
    fits = pool(fits_of(curves))
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
            lines.append(f"One more stage is worth most on {best.name}: {best.value:.2g} of reward is expected of it.")
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
    pooled = tuple(replace(curve, fit=fits[curve.name] or curve.fit) for curve in curves)
    analysis = Analysis(command="compare", curves=pooled, at=planned.target)
    drawn = figure_data(analysis).curves
    arms = [planned.arm(curve.result.name) for curve in drawn]
    shown = tuple(
        replace(curve, label=f"{curve.label} ({arm.action})", p_best=None if math.isnan(arm.p_best) else arm.p_best)
        for curve, arm in zip(drawn, arms, strict=True)
    )
    draw(analysis, path, curves=shown, title=f"to the target {short_compute_text(planned.target)}")


# What a step is spent on


def make_allocations(
    curves: Sequence[CurveResult], names: Sequence[str], target: float, level: float
) -> list[Allocation]:
    """Return the best settings from a sixteenth of the target up to it."""
    check_one_axis([curve.series for curve in curves], "arms must be on one axis of compute to be compared")
    sets = {curve.series.evaluation_set for curve in curves}
    if len(sets) > 1:
        sets = listed(sorted(map(str, sets)))
        raise InputError(f"arms are compared on one evaluation set: keep one of {sets} with --where set=NAME")
    arms = {
        tuple(parse_size(dict(curve.series.key)[name], f"--allocate {name}") for name in names): curve.fit
        for curve in curves
        if curve.fit.has_intervals
    }
    if len(arms) < 2:
        raise InputError(f"{len(arms)} of {len(curves)} arms have a curve, and two or more are needed to compare")
    first = max(FIRST * target, *(float(curve.series.compute.min()) for curve in curves if len(curve.series.compute)))
    return allocate(arms, np.geomspace(min(first, target / 2), target, NUM_COMPUTES).tolist(), level)


def allocation_table(found: Sequence[Allocation], names: Sequence[str]) -> Any:
    rows = [
        (
            compute_text(row.compute),
            *(interval_text(value, "{:g}".format) for value in row.settings),
            " x ".join(f"{value:g}" for value in row.best),
            probability_text(row.p_best),
            interval_text(row.reward),
            interval_text(row.lost),
        )
        for row in found
    ]
    heads = ("compute", *names, "best arm", "P(best)", "its reward", "more than the last arm has")
    return Table(heads=heads, rows=rows).rich(allocation_messages(found, names))


def allocation_messages(found: Sequence[Allocation], names: Sequence[str]) -> list[str]:
    """Return what can be said of each setting: whether its best value moves with compute."""
    first, last = found[0], found[-1]
    lines, at = [], compute_text(last.compute)
    for name, early, late in zip(names, first.settings, last.settings, strict=True):
        if early.high < late.low or late.high < early.low:
            grows = "grows" if late.value > early.value else "falls"
            lines.append(f"The best {name} {grows} with compute: {early.value:g} to {late.value:g}.")
        elif late.low == late.high:
            lines.append(f"The best {name} is {late.value:g} at {at}.")
        else:
            lines.append(f"The best {name} at {at} may be {late.low:g} to {late.high:g}: more seeds or values tell.")
    return lines


def allocation_json(found: Sequence[Allocation], names: Sequence[str]) -> dict[str, Any]:
    return {
        "allocations": [
            {
                "compute": row.compute,
                "best": dict(zip(names, row.best, strict=True)),
                "p_best": row.p_best,
                "settings": {name: plain(value) for name, value in zip(names, row.settings, strict=True)},
                "reward": plain(row.reward),
                "lost_by_last": plain(row.lost),
            }
            for row in found
        ]
    }
