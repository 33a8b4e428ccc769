"""From logs to curves, in one pass.

    logs --plans--> what columns mean --runs--> rows of one run --main_axis--> one axis --> the points of each curve

If a curve has a fault, it becomes the `problem` of its series, and the others are not affected. If no curve is usable,
InputError is raised.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from scalerl.errors import InputError, UnclearLogError, option
from scalerl.forecast.logs.axes import disagreement_in, has_shared_hours, main_axis
from scalerl.forecast.logs.columns import AXES, Unit, has_role, is_lower_better
from scalerl.forecast.logs.facts import Fact, fact
from scalerl.forecast.logs.formats import Log
from scalerl.forecast.logs.frame import Frame, concatenated, listed, number
from scalerl.forecast.logs.names import ATTEMPT, FILE, CurveKey, curve_names, file_names
from scalerl.forecast.logs.plan import Plan
from scalerl.forecast.logs.points import AMOUNTS, one_per_step
from scalerl.forecast.logs.question import refuse_few, refuse_unread_compute
from scalerl.forecast.logs.runs import LoggedRun, runs_of
from scalerl.forecast.logs.scale import in_scale
from scalerl.forecast.logs.selection import SCALES, Selection
from scalerl.forecast.logs.series import Series, in_shares
from scalerl.forecast.logs.shapes import VALUE
from scalerl.forecast.logs.start import start_of
from scalerl.forecast.logs.typed import reward_typed

Faults = dict[CurveKey, InputError]


def series_from(logs: Sequence[Log], selection: Selection) -> list[Series]:
    """Return one series for each value of `selection.by`.

    Without it, return one for each file, and within a file for each arm, run, label or attempt.
    """
    if not logs:
        raise InputError("no file was given: name at least one log file or run folder.")
    plans, faults = _plans(logs, selection)
    runs = runs_of(plans)
    if selection.holdout or not runs:
        _check_selected(plans, runs, selection)
    curves = _runs_by_curve(runs, selection)
    keys = [*curves, *faults]
    names = curve_names(keys, selection.labels)
    axis = main_axis(runs)
    found: dict[CurveKey, Series] = {}
    for key, members in curves.items():
        try:
            found[key] = _series(key, members, axis or _own_axis(members))
        except InputError as fault:
            faults[key] = fault
    if not found:
        among = "" if len(keys) == 1 else f"no usable curve among {len(keys)}; the first, {names[0]}: "
        raise InputError(f"{among}{faults[keys[0]]}")
    are_mixed = {"1", "100"} <= {series.y_scale for series in found.values()}
    first = next(iter(found.values()))
    shown: list[Series] = []
    for key, name in zip(keys, names, strict=True):
        series = found[key] if key in found else _without_points(first, str(faults[key]))
        if are_mixed and series.y_scale == "100":
            series = in_shares(series)
        if key in found and selection.start not in (None, "first", "fit"):
            series = _started(series, selection.start)
        shown.append(replace(series, name=name, key=key))
    return shown


# From logs to plans and runs ------------------------------------------------------------------------------------------


def _plans(logs: Sequence[Log], selection: Selection) -> tuple[list[Plan], Faults]:
    """Return the plans of the logs that have one, and for each other log what is wrong with it.

    All logs are read by one reward if they have one in common. UnclearLogError is raised where it is unclear in all.
    """
    by_name = dict(zip(file_names([log.path for log in logs]), logs, strict=True))
    plans: dict[str, Plan] = {}
    faults: dict[str, InputError] = {}
    for name, log in by_name.items():
        try:
            plans[name] = log.plan(selection, name)
        except InputError as fault:
            faults[name] = fault
    questions = [fault for fault in faults.values() if isinstance(fault, UnclearLogError)]
    if questions and not plans:
        raise questions[0]
    if len(logs) > 1 and not selection.y:
        plans |= _read_by_one_reward(by_name, plans, faults, selection)
    return (
        [plans[name] for name in by_name if name in plans],
        {((FILE, name),): fault for name, fault in faults.items() if name not in plans},
    )


def _read_by_one_reward(
    logs: Mapping[str, Log], plans: Mapping[str, Plan], faults: Mapping[str, InputError], selection: Selection
) -> dict[str, Plan]:
    """Return all plans with one reward, the first that all logs have; where there is none, the plans that say so.

    A log that is not clear by itself is read by it, too.
    """
    rewards = tuple(dict.fromkeys(plan["y"] for plan in plans.values()))
    unclear = [name for name, fault in faults.items() if isinstance(fault, UnclearLogError)]
    for reward in rewards if len(rewards) > 1 or unclear else ():
        shared: dict[str, Plan] = {}
        for name in (*plans, *unclear):
            plan = plans.get(name)
            if plan is None or plan["y"] != reward:
                plan = _read_by(logs[name], name, reward, selection)
            if plan is None:
                break
            shared[name] = plan
        else:
            return shared
    if len(rewards) < 2:
        return {}
    differ = fact("rewards_differ", names=rewards)
    return {name: replace(plan, facts=(*plan.facts, differ)) for name, plan in plans.items()}


def _read_by(log: Log, name: str, reward: str, selection: Selection) -> Plan | None:
    """Return the plan of a log with another reward than its own; None if it has no such column."""
    try:
        plan = log.plan(replace(selection, y=reward), name)
    except InputError:
        return None
    if not plan.frame.known(reward).any():
        return None
    return replace(plan, options=selection, facts=(*plan.facts, fact("reward_of_all", y=reward)))


def _check_selected(plans: list[Plan], runs: list[LoggedRun], selection: Selection) -> None:
    """Raise InputError for a filter that keeps no row, and for held-out rows that are not there."""
    conditions: list[tuple[str, tuple[str, str]]] = []
    if selection.holdout and not any(run.points.numbers("held").any() for run in runs):
        conditions = [("holdout", selection.holdout)]
    elif not runs:
        conditions = [("where", each) for each in (*selection.where, *selection.where_not)]
    for name, (column, value) in conditions if plans else ():
        words = {word for plan in plans for word in plan.frame.words(column) if word}
        place = listed([str(plan.path) for plan in plans])
        raise InputError(
            f"{option:{name} {column}={value}} matches no row of {place}: the values there are {listed(sorted(words))}."
        )


def _runs_by_curve(runs: list[LoggedRun], selection: Selection) -> dict[CurveKey, list[LoggedRun]]:
    """Return the runs of each curve, by the labels that differ between curves."""
    apart: list[str] = []
    for name in dict.fromkeys(name for run in runs for name in run.key):
        if name in (FILE, *selection.by) or len({run.key.get(name) for run in runs}) > 1:
            apart.append(name)
    curves: dict[CurveKey, list[LoggedRun]] = {}
    for run in runs:
        key = tuple((name, run.key[name]) for name in apart if run.key.get(name))
        curves.setdefault(key, []).append(run)
    return curves


# One curve ------------------------------------------------------------------------------------------------------------


def _series(key: CurveKey, runs: list[LoggedRun], axis: str) -> Series:
    """Return the curve of these runs: the points to fit, the start, and those held out."""
    plan = runs[0].plan
    points, repeated = one_per_step(_points(runs, axis), plan)
    if plan.roles[axis].rule == "counted":
        refuse_unread_compute(plan)
    if not plan.is_clean:
        refuse_few(plan, len(points))
    points, scale, unit = in_scale(points, [run.plan for run in runs])
    start, is_start = start_of(plan, points, plan.axis(axis), SCALES[scale])
    is_held = points.numbers("held") == 1
    fitted = points.take(~is_held & ~is_start).sorted("run", "compute", "y", "evaluation")
    late = points.take(is_held).sorted("compute", "y")
    if not len(fitted):
        besides = "its start and what is held out" if is_held.any() else "its start"
        raise InputError(f"{runs[0].file} has no point to fit besides {besides}.")
    names = fitted.words("run").astype(str)
    evaluation = fitted.words("evaluation").astype(str)
    samples = fitted.numbers("num_samples")
    has_samples = scale != "none" and not np.isnan(samples).any()
    facts = [*_facts(runs, axis, dict(key)), *repeated]
    if is_lower_better(plan["y"]):
        facts.append(fact("lower_is_better", y=plan["y"]))
    elif (plan.roles["y"].rule == "only_numbers" or plan["y"] == VALUE) and _falls(fitted):
        facts.append(fact("values_fall", y=plan["y"]))
    facts += [*unit, *start.facts]
    return Series(
        name="",
        compute=fitted.numbers("compute"),
        reward=fitted.numbers("y"),
        x_label=plan.axis(axis),
        y_label=plan["y"],
        run=names if len({*names}) > 1 else None,
        num_samples=samples.astype(np.int64) if has_samples else None,
        start=start.value,
        start_sd=start.sd,
        holdout_compute=late.numbers("compute"),
        holdout_reward=late.numbers("y"),
        evaluation=evaluation if (evaluation != "").all() else None,
        evaluation_set=next((word for column, word in key if has_role(column, "set")), None),
        y_scale=scale,
        facts=tuple({repr(each): each for each in facts}.values()),
        plan={**plan.roles, "x": plan.roles[axis]._replace(columns=(plan.axis(axis),))},
        axes={name: fitted.numbers(name) for name in AMOUNTS if name != "x" and fitted.known(name).any()},
        units=_units(plan, axis) if plan.units else {},
    )


def _points(runs: list[LoggedRun], axis: str) -> Frame:
    """Return the points of a curve: those with compute and reward."""
    if len({(run.plan.axis(axis), run.plan["y"]) for run in runs}) > 1:
        raise InputError(f"the files of a curve use different columns: choose them with {option:x} and {option:y}.")
    points = runs[0].points if len(runs) == 1 else concatenated([run.points for run in runs])
    points = points.having({"compute": points.numbers(axis)})
    is_known = points.known("compute") & points.known("y")
    if not is_known.any():
        raise InputError(_nothing_measured(runs[0], axis))
    return points.take(is_known)


def _nothing_measured(run: LoggedRun, axis: str) -> str:
    """Say why a run makes no curve, with the first word that stands where a number is needed."""
    frame, columns = run.frame, {axis: run.plan.axis(axis), "y": run.plan["y"]}
    known = [f"{run.points.known(role).sum()} have a number for {column!r}" for role, column in columns.items()]
    odd = ""
    for column in columns.values():
        for place, word in zip(frame.origin, frame.words(column), strict=True):
            if word and not odd and not math.isfinite(number(word)):
                odd = f" ({word[:40]!r} at {place})"
    return (
        f"no usable curve: of {len(frame)} rows of {run.plan.path}, {' and '.join(known)}, but none for both{odd}: "
        f"choose other columns with {option:x} and {option:y}."
    )


def _without_points(other: Series, problem: str) -> Series:
    """Return a series that only says what its problem is, on the axes of another curve."""
    return Series(
        name="",
        problem=problem,
        compute=np.empty(0),
        reward=np.empty(0),
        x_label=other.x_label,
        y_label=other.y_label,
    )


def _started(series: Series, typed: Any) -> Series:
    """Return a curve with the start that the user gave, in the unit of its rewards."""
    return replace(series, start=reward_typed(typed, "start", series.bounds, series.reward.tolist()))


def _own_axis(runs: list[LoggedRun]) -> str:
    """Return the axis of a curve where all curves share none."""
    any_axis = next(axis for axis in ("x", *AXES) if axis in runs[0].plan.roles)
    return main_axis(runs) or any_axis


def _units(plan: Plan, axis: str) -> dict[str, Unit]:
    """Return the units in which the log writes the axes, and what is shown."""
    columns = {name: plan[name] for name in AMOUNTS if name != "x"}
    columns[plan.axis(axis)] = plan[axis]
    return {name: plan.units[column] for name, column in columns.items() if column in plan.units}


def _facts(runs: list[LoggedRun], axis: str, labels: dict[str, str]) -> list[Fact]:
    """Return what was decided about the runs of a curve, and about what sets it apart."""
    plan = runs[0].plan
    facts: list[Fact] = []
    for run in runs:
        facts += [each for each in run.facts if each.kind != "attempts" or ATTEMPT in labels]
    if plan.is_ours:
        facts += _facts_of_ours(runs, axis)
    if plan.roles[axis].rule == "counted":
        facts.append(fact("rows_counted", num=max(len(run.frame) for run in runs)))
    apart = tuple(column for column in labels if column not in (FILE, ATTEMPT, *plan.options.by))
    if apart:
        facts.append(fact("runs_apart", columns=apart))
    return facts


def _facts_of_ours(runs: list[LoggedRun], axis: str) -> list[Fact]:
    """Return what is said of the compute of runs of our own."""
    plan = runs[0].plan
    facts: list[Fact] = []
    if axis == "flops" and plan["gpu_hours"] and not any(map(has_shared_hours, runs)):
        facts.append(fact("counted_in_flops", share=disagreement_in(plan.frame)))
    devices = {device for run in runs if "device" in run.frame for device in run.frame.words("device")}
    if devices == {"cpu"}:
        facts.append(fact("cpu_time"))
    return facts


def _falls(points: Frame) -> bool:
    """Return whether the last third of the rewards lies below the first."""
    rewards = points.sorted("compute").numbers("y")
    third = len(rewards) // 3
    return third > 1 and bool(rewards[:third].min() > rewards[-third:].max())
