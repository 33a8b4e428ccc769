"""`scalerl plan`, from analysed curves: which arms to continue, or which settings of a step are best at a compute."""

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from scalerl.curves import Answer, Fit, Value
from scalerl.errors import InputError
from scalerl.joint.allocate import Allocation, allocate
from scalerl.joint.plan import Candidate, Planned, Reason
from scalerl.joint.pool import pool
from scalerl.logs.frame import listed
from scalerl.report.document import Level, Say, Section, grid, plain, say, section
from scalerl.report.joint.transfers import parse_size
from scalerl.report.numbers import compute_text, decimals, interval_text, probability_text, short_compute_text
from scalerl.report.picture import draw
from scalerl.report.results import CurveResult, FitOptions, Result, check_one_axis, fits_of

NUM_COMPUTES = 5
FIRST = 1 / 16
"""Share of the target at which the first allocation is given, if the arms were measured there."""
TOLERANCE = 1.01
"""Times the target that an arm may have spent: the last evaluation often lies a little beyond."""


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
    fits = pool(fits_of(curves))
    return [
        Candidate(
            name=curve.name,
            spent=spent[curve.name],
            fit=fits[curve.name],
            num_runs=fits[curve.name].num_runs,
        )
        for curve in curves
    ]


def plan_document(planned: Planned, candidates: Sequence[Candidate], curves: Sequence[CurveResult]) -> list[Section]:
    """Return the plan: the decision first, then a line for each arm."""
    fits, price = {arm.name: arm.fit for arm in candidates}, curves[0].price
    unit = curves[0].unit
    heads = (
        "arm",
        f"spent ({unit})",
        "P(best)",
        f"reward at {compute_text(planned.target)} {unit}",
        "alone",
        f"until ({unit})",
        "value",
        "action",
    )
    rows = [
        (
            arm.name,
            compute_text(arm.spent),
            probability_text(arm.p_best),
            interval_text(arm.reward_at_target),
            interval_text(_alone(fits.get(arm.name), planned.target)),
            "" if arm.until is None else compute_text(arm.until),
            f"{arm.value:.2g}" if math.isfinite(arm.value) and arm.action == "continue" else "",
            arm.action if arm.reason is None else f"{arm.action}: {arm.reason}",
        )
        for arm in planned.arms
    ]
    made = section("plan", "Plan", *plan_says(planned, curves[0], price), grid("plan", heads, rows, right=1))
    return [] if made is None else [made]


def plan_says(planned: Planned, first: CurveResult, price: float | None) -> list[Say]:
    """Return the decision, what to continue, and what to stop and why."""
    found = [_answer(planned, first)]
    going = [arm for arm in planned.arms if arm.action == "continue"]
    if going:
        arms = tuple(f"{arm.name} to {compute_text(arm.until or 0.0)}" for arm in going)
        money = None if price is None else price * planned.cost
        found.append(say("plan_continue", arms=arms, cost=planned.cost, unit=first.unit, money=money))
        best = max(going, key=lambda arm: arm.rate)
        if math.isfinite(best.value) and planned.kind != "decided":
            found.append(say("plan_worth_most", name=best.name, value=best.value))
    for reason in Reason:
        names = tuple(arm.name for arm in planned.arms if arm.action != "continue" and arm.reason == reason)
        if names:
            found.append(say(f"plan_{reason.name.lower()}", names=names))
    return found


def _answer(planned: Planned, first: CurveResult) -> Say:
    if planned.answer is None or not planned.chosen:
        return say("plan_no_curve_yet", Level.ANSWER)
    arm = planned.arm(planned.chosen[0])
    kinds = {Answer.TAKE: "plan_take", Answer.EITHER: "plan_either", Answer.OPEN: "plan_open"}
    values = {"name": arm.name, "names": planned.chosen, "p_best": arm.p_best, "loss": arm.loss}
    values |= {"at": planned.target, "unit": first.unit, "worth": planned.worth, "decimals": decimals(first.fit)}
    return Say(kinds[planned.answer], values, Level.ANSWER)


def _alone(curve: Fit | None, target: float) -> Value | None:
    own = curve.alone or curve if curve is not None else None
    if own is None or not own.has_intervals:
        return None
    low, high = own.curve_interval([target])
    return Value(value=float(own.predict(target)), low=float(low[0]), high=float(high[0]))


def draw_plan(planned: Planned, candidates: Sequence[Candidate], curves: Sequence[CurveResult], path: Path) -> None:
    """Draw the pooled curves of all arms; their names have the actions."""
    fits = {arm.name: arm.fit for arm in candidates}
    named = {curve.name: f"{curve.name} ({planned.arm(curve.name).action})" for curve in curves}
    pooled = tuple(
        replace(curve, fit=fits[curve.name] or curve.fit, series=replace(curve.series, name=named[curve.name]))
        for curve in curves
    )
    result = Result(command="compare", curves=pooled, options=FitOptions())
    draw(result, path, title=f"to the target {short_compute_text(planned.target)}")


# What a step is spent on ----------------------------------------------------------------------------------------------


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


def allocation_document(found: Sequence[Allocation], names: Sequence[str]) -> list[Section]:
    """Return the best settings at each compute, and whether they move with it."""
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
    table = grid("allocation", heads, rows, left=0)
    made = section("allocation", "What to spend a step on", *allocation_says(found, names), table)
    return [] if made is None else [made]


def allocation_says(found: Sequence[Allocation], names: Sequence[str]) -> list[Say]:
    """Return what can be said of each setting: whether its best value moves with compute."""
    first, last, says = found[0], found[-1], []
    for name, early, late in zip(names, first.settings, last.settings, strict=True):
        values = {"name": name, "at": last.compute, "early": early.value, "late": late.value}
        if early.high < late.low or late.high < early.low:
            says.append(Say("allocation_grows" if late.value > early.value else "allocation_falls", values))
        elif late.low == late.high:
            says.append(Say("allocation_known", values))
        else:
            says.append(Say("allocation_open", {**values, "low": late.low, "high": late.high}))
    return says


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
