"""`scalerl plan`, from analysed curves: which arms to continue, or which settings of a step are best at a compute."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from scalerl.curves import Answer, Fit, Value
from scalerl.errors import InputError
from scalerl.joint.allocate import Allocation, allocate
from scalerl.joint.plan import Candidate, Planned, Reason
from scalerl.joint.pool import pool
from scalerl.logs.frame import listed
from scalerl.report.document import Document, Json, Level, Say, picked, say, sections, table
from scalerl.report.joint.transfers import parse_size
from scalerl.report.numbers import compute_text, short_compute_text
from scalerl.report.options import FitOptions, check_one_axis
from scalerl.report.picture import draw
from scalerl.report.results import CurveResult, Result, fits_of

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


def plan_document(planned: Planned, candidates: Sequence[Candidate], curves: Sequence[CurveResult]) -> Document:
    """Return the plan: the decision first, then a line for each arm."""
    fits = {arm.name: arm.fit for arm in candidates}
    rows = []
    for arm in planned.arms:
        value = arm.value if math.isfinite(arm.value) and arm.action == "continue" else None
        advice = arm.action if arm.reason is None else f"{arm.action}: {arm.reason}"
        rows.append(({"alone": _alone(fits.get(arm.name), planned.target), "value": value, "advice": advice}, arm))
    unit, target = curves[0].unit, compute_text(planned.target)
    columns = {head.format(unit=unit, target=target): template for head, template in PLAN_COLUMNS.items()}
    return sections(("plan", "Plan", [*plan_says(planned, curves[0]), table("plan", columns, rows, right=1)]))


PLAN_COLUMNS = {
    "arm": "{name}",
    "spent per run ({unit})": "{spent:c}",
    "P(best)": "{p_best:p}",
    "reward at {target} {unit}": "{reward_at_target:a}",
    "alone": "{alone:a}",
    "until, per run ({unit})": "{until:c}",
    "one stage is worth": "{value:.2g}",
    "action": "{advice}",
}


def plan_says(planned: Planned, first: CurveResult) -> Iterator[Say]:
    """Yield the decision, what to continue, and what to stop and why."""
    if planned.answer is None or not planned.chosen:
        yield say("plan_no_curve_yet", Level.ANSWER)
    else:
        leader, given = planned.arm(planned.chosen[0]), {"names": planned.chosen, "at": planned.target}
        kind = "plan_either" if planned.answer == Answer.EITHER else planned.answer.name.lower()
        yield say(kind, Level.ANSWER, leader, planned, first, **given)
    going = [arm for arm in planned.arms if arm.action == "continue"]
    if going:
        arms = tuple(f"{arm.name} to {compute_text(arm.until or 0.0)}" for arm in going)
        yield say("plan_continue", Level.WHY, planned, first, arms=arms, money=first.money(planned.cost))
        best = max(going, key=lambda arm: arm.rate)
        if math.isfinite(best.value) and planned.kind != "decided":
            yield say("plan_worth_most", Level.WHY, best)
    for reason in Reason:
        names = tuple(arm.name for arm in planned.arms if arm.action != "continue" and arm.reason == reason)
        if names:
            yield say(f"plan_{reason.name.lower()}", names=names)


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


def allocation_document(found: Sequence[Allocation], names: Sequence[str]) -> Document:
    """Return the best settings at each compute, and whether they move with it."""
    keys = [f"setting_{place}" for place in range(len(names))]
    columns = {"compute": "{compute:c}", **{name: f"{{{key}:g}}" for key, name in zip(keys, names, strict=True)}}
    rows = [
        (dict(zip(keys, row.settings, strict=True)), {"arm": " x ".join(f"{value:g}" for value in row.best)}, row)
        for row in found
    ]
    best = table("allocation", columns | ALLOCATION_COLUMNS, rows, left=0)
    return sections(("allocation", "What to spend a step on", [*allocation_says(found, names), best]))


ALLOCATION_COLUMNS = {
    "best arm": "{arm}",
    "P(best)": "{p_best:p}",
    "its reward": "{reward:a}",
    "more than the last arm has": "{lost:a}",
}


def allocation_says(found: Sequence[Allocation], names: Sequence[str]) -> Iterator[Say]:
    """Yield what can be said of each setting: whether its best value moves with compute."""
    first, last = found[0], found[-1]
    for name, early, late in zip(names, first.settings, last.settings, strict=True):
        if early.high < late.low or late.high < early.low:
            kind = "allocation_grows" if late.value > early.value else "allocation_falls"
        else:
            kind = "allocation_known" if late.low == late.high else "allocation_open"
        yield say(kind, Level.WHY, late, name=name, at=last.compute, early=early.value, late=late.value)


def allocation_json(found: Sequence[Allocation], names: Sequence[str]) -> Json:
    by_name = lambda values: dict(zip(names, values, strict=True))  # noqa: E731
    return {
        "allocations": [
            picked(
                ("compute", "best", "p_best", "settings", "reward", "lost_by_last"),
                {"best": by_name(row.best), "settings": by_name(row.settings), "lost_by_last": row.lost},
                row,
            )
            for row in found
        ]
    }
