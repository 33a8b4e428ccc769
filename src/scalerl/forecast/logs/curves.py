"""From logs to series: the numbers of each curve, checked and in the unit that is fitted.

If a curve has a fault, it becomes the `problem` of its series, and the others are not affected. If no curve is usable,
InputError is raised.
"""

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from scalerl.errors import InputError, UnclearLogError, option
from scalerl.forecast.logs.axes import UNEVEN_TIME, disagreement_in
from scalerl.forecast.logs.columns import AXES, Unit, has_role, is_lower_better
from scalerl.forecast.logs.facts import Fact, fact, facts_of
from scalerl.forecast.logs.formats import Log
from scalerl.forecast.logs.frame import Frame, concatenated, grouped, listed, number
from scalerl.forecast.logs.labels import is_right_or_wrong
from scalerl.forecast.logs.names import ATTEMPT, FILE, CurveKey, curve_names, file_names
from scalerl.forecast.logs.plan import Plan
from scalerl.forecast.logs.points import AMOUNTS, can_be_main
from scalerl.forecast.logs.readers.console import COUNTED_RECORDS
from scalerl.forecast.logs.runs import LoggedRun, runs_of
from scalerl.forecast.logs.scale import scale_of, within
from scalerl.forecast.logs.selection import SCALES, Selection
from scalerl.forecast.logs.series import Series, in_shares
from scalerl.forecast.logs.start import before_training, start_of
from scalerl.forecast.logs.typed import reward_typed
from scalerl.forecast.logs.wide import VALUE

# Fewer values without a step are no history.
_FEWEST_COUNTED = 6
# A log with so many rows per step has one for each answer.
_MANY_ROWS = 8


def series_from(logs: Sequence[Log], selection: Selection) -> list[Series]:
    """Return one series for each value of `selection.by`.

    Without it, return one for each file, and within a file for each arm, run, label or attempt.
    """
    if not logs:
        raise InputError("no file was given: name at least one log file or run folder.")
    plans, faulty = _plans(logs, selection)
    runs = runs_of(plans)
    _check_selected(plans, runs, selection)
    axis = main_axis(runs)
    built = [*(_built(key, members, axis) for key, members in _curves(runs, selection).items()), *faulty]
    names = curve_names([series.key for series in built], selection.labels)
    usable = [series for series in built if not series.problem]
    if not usable:
        among = "" if len(built) == 1 else f"no usable curve among {len(built)}; the first, {names[0]}: "
        raise InputError(f"{among}{built[0].problem}")
    # A series with a problem is shown with the others, and has the labels of their axes.
    axes = {"x_label": usable[0].x_label, "y_label": usable[0].y_label}
    named = [replace(series, name=name) for series, name in zip(built, names, strict=True)]
    return _in_one_unit([replace(each, **axes) if each.problem else each for each in named], selection)


def _plans(logs: Sequence[Log], selection: Selection) -> tuple[list[Plan], list[Series]]:
    """Return the plans of the logs that have one, and for each other log a series that says why not.

    All logs are read by one reward if they have one in common. UnclearLogError is raised where it is unclear in all.
    """
    plans, questions, faulty = list[Plan](), list[UnclearLogError](), list[Series]()
    for log, name in zip(logs, file_names([log.path for log in logs]), strict=True):
        try:
            plans.append(log.plan(selection, name))
        except UnclearLogError as question:
            shared = _plan_of_one_reward(log, selection, name, logs, question)
            if shared is None:
                questions.append(question)
                faulty.append(_without_points(((FILE, name),), question))
            else:
                plans.append(shared)
        except InputError as problem:
            faulty.append(_without_points(((FILE, name),), problem))
    if questions and not plans:
        raise questions[0]
    return _of_one_reward(plans, logs, selection), faulty


def _plan_of_one_reward(
    log: Log, selection: Selection, name: str, logs: Sequence[Log], question: UnclearLogError
) -> Plan | None:
    """Return the plan by the reward of another log that is clear, if it is one of the candidates here."""
    candidates = [each.name for each in question.candidates]
    for other in logs:
        try:
            clear = other.plan(selection)["y"] if other is not log else ""
        except InputError:
            continue
        if clear in candidates:
            return log.plan(replace(selection, y=clear), name)
    return None


def _of_one_reward(plans: list[Plan], logs: Sequence[Log], selection: Selection) -> list[Plan]:
    """Return the plans with one reward for all; where no reward is in all logs, each says what it is read by."""
    rewards = list(dict.fromkeys(plan["y"] for plan in plans))
    if len(rewards) < 2 or selection.y:
        return plans
    shared = [reward for reward in rewards if all(plan.frame.known(reward).any() for plan in plans)]
    if not shared:
        return [replace(plan, facts=(*plan.facts, fact("rewards_differ", names=tuple(rewards)))) for plan in plans]
    [reward, *_] = shared
    by_path = {log.path: log for log in logs}
    same: list[Plan] = []
    for plan in plans:
        if plan["y"] == reward:
            same.append(plan)
            continue
        name = str(plan.frame.words(FILE)[0])
        other = by_path[plan.path].plan(replace(selection, y=reward), name)
        same.append(replace(other, options=selection, facts=(*other.facts, fact("reward_of_all", y=reward))))
    return same


def _check_selected(plans: list[Plan], runs: list[LoggedRun], selection: Selection) -> None:
    """Raise InputError for a filter that keeps no row, and for held-out rows that are not there."""
    conditions = [] if runs else [("where", each) for each in (*selection.where, *selection.where_not)]
    if selection.holdout and not any(run.points.numbers("held").any() for run in runs):
        conditions = [("holdout", selection.holdout)]
    for name, (column, value) in conditions if plans else ():
        words = {word for plan in plans for word in plan.frame.words(column) if word}
        place = listed([str(plan.path) for plan in plans])
        raise InputError(
            f"{option:{name} {column}={value}} matches no row of {place}: the values there are {listed(sorted(words))}."
        )


def _curves(runs: list[LoggedRun], selection: Selection) -> dict[CurveKey, list[LoggedRun]]:
    """Return the runs of each curve, by the labels that differ between curves."""
    labels = dict.fromkeys(name for run in runs for name in run.key)
    apart = [name for name in labels if len({run.key.get(name) for run in runs}) > 1 or name in (FILE, *selection.by)]

    def key(run: LoggedRun) -> CurveKey:
        return tuple((name, run.key[name]) for name in apart if run.key.get(name))

    return {key(members[0]): members for members in grouped(runs, key)}


def main_axis(runs: list[LoggedRun]) -> str:
    """Return the first axis that most rewards of every run have, and that grows with the step; "" if there is none.

    Return "x" if --x names the column. Return FLOPs for a single run folder of ours in which the time per FLOP changed,
    and for a study of ours whose runs shared a device.
    """
    if not runs or runs[0].plan.options.x:
        return "x" if runs else ""
    axes = [axis for axis in AXES if all(_is_counted(run, axis) and can_be_main(run.points, axis) for run in runs)]
    plan = runs[0].plan
    is_ours_alone = plan.is_ours and all(run.plan is plan and "arm" not in run.key for run in runs)
    is_unfair = any(map(_shares_hours, runs)) or (is_ours_alone and disagreement_in(plan.frame) > UNEVEN_TIME)
    return "flops" if is_unfair and "flops" in axes else (*axes, "")[0]


def _is_counted(run: LoggedRun, axis: str) -> bool:
    """Return whether a log counts this compute; tokens per step do not count, as steps may be missing from a log."""
    return axis in run.plan.roles and (axis, run.plan.roles[axis].rule) != ("tokens", "per_step")


def _shares_hours(run: LoggedRun) -> bool:
    return any(each.kind == "shared_hours" for each in run.plan.facts)


def _in_one_unit(built: list[Series], selection: Selection) -> list[Series]:
    """Return all curves in shares if some are in shares and some in per cent; a given start is a share then."""
    is_given = selection.start not in (None, "first", "fit")
    if not {"1", "100"} <= {series.y_scale for series in built if not series.problem}:
        for series in built if is_given else ():
            # Rewards of per cent may show that a share was meant.
            reward_typed(selection.start, "start", series.bounds, series.reward.tolist())
        return built
    given = {"start": reward_typed(selection.start, "start", SCALES["1"])} if is_given else {}
    return [replace(in_shares(series), **given) if series.y_scale == "100" else series for series in built]


# One curve


def _built(key: CurveKey, runs: list[LoggedRun], shared: str) -> Series:
    """Return a curve on the axis that all curves share, or else on an axis of its own."""
    any_axis = next(axis for axis in ("x", *AXES) if axis in runs[0].plan.roles)
    try:
        return _series(key, runs, shared or main_axis(runs) or any_axis)
    except InputError as problem:
        return _without_points(key, problem)


def _without_points(key: CurveKey, problem: InputError) -> Series:
    """Return a series that only says what its problem is."""
    nothing = np.empty(0)
    return Series(name="", key=key, problem=str(problem), compute=nothing, reward=nothing, x_label="", y_label="")


def _series(key: CurveKey, runs: list[LoggedRun], axis: str) -> Series:
    """Return the curve of these runs: the points to fit, the start, and those held out."""
    plan = runs[0].plan
    points, repeated = _once_each(_points(runs, axis))
    points, averaged = (points, ()) if plan.is_ours else _averaged(points)
    _refuse_results(plan, points)
    scale, unit = scale_of([run.plan for run in runs])
    points = within(points, scale, plan["y"])
    is_start, is_held = before_training(plan, points, plan.axis(axis)), points.numbers("held") == 1
    start = start_of(plan, points, is_start, SCALES[scale])
    fitted, late = points.take(~is_held & ~is_start), points.take(is_held)
    if not len(fitted):
        besides = "its start and what is held out" if is_held.any() else "its start"
        raise InputError(f"{runs[0].file} has no point to fit besides {besides}.")
    fitted = fitted.sorted("run", "compute", "y", "evaluation")
    late = late.sorted("compute", "y")
    samples, evaluation = fitted.numbers("num_samples"), fitted.words("evaluation")
    facts = (*_facts(runs, axis, dict(key)), *repeated, *averaged, *_direction(plan, fitted), *unit, *start.facts)
    return Series(
        name="",
        key=key,
        compute=fitted.numbers("compute"),
        reward=fitted.numbers("y"),
        x_label=plan.axis(axis),
        y_label=plan["y"],
        run=fitted.words("run").astype(str) if len({*fitted.words("run")}) > 1 else None,
        num_samples=None if scale == "none" or np.isnan(samples).any() else samples.astype(np.int64),
        start=start.value,
        start_sd=start.sd,
        holdout_compute=late.numbers("compute"),
        holdout_reward=late.numbers("y"),
        evaluation=evaluation.astype(str) if all(evaluation) else None,
        evaluation_set=next((word for column, word in key if has_role(column, "set")), None),
        y_scale=scale,
        facts=tuple({repr(each): each for each in facts}.values()),
        plan={**plan.roles, "x": plan.roles[axis]._replace(columns=(plan.axis(axis),))},
        axes={name: fitted.numbers(name) for name in AMOUNTS if name != "x" and fitted.known(name).any()},
        units=_units(plan, axis),
    )


def _refuse_results(plan: Plan, points: Frame) -> None:
    """Raise InputError for a few values that no column orders: they are results, and no history."""
    is_step_counted = "step" in plan.roles and plan.roles["step"].rule == "counted"
    is_counted = is_step_counted or any(map(_says_counted, plan.facts))
    if is_counted and not plan.options.y and len(points) < _FEWEST_COUNTED:
        raise InputError(
            f"{plan.path} has {len(points)} values of {plan['y']!r} and nothing that counts steps: these are results, "
            "and no history; give a log with a row for each step."
        )


def _says_counted(each: Fact) -> bool:
    """Return whether a reader has counted the rows of a table, or the records of a text, itself."""
    return each.kind == "rows_counted" or (each.kind == "lines_taken" and each.values["origin"] == COUNTED_RECORDS)


def _units(plan: Plan, axis: str) -> dict[str, Unit]:
    """Return the units in which the log writes the axes, and what is shown."""
    written = {name: plan.units.get(plan[name]) for name in AMOUNTS if name != "x"}
    written[plan.axis(axis)] = plan.units.get(plan[axis])
    return {name: unit for name, unit in written.items() if unit is not None}


def _facts(runs: list[LoggedRun], axis: str, labels: dict[str, str]) -> list[Fact]:
    """Return what was decided about the runs of a curve, and about what sets it apart."""
    plan = runs[0].plan
    facts = [each for run in runs for each in run.facts if each.kind != "attempts" or ATTEMPT in labels]
    if axis == "flops" and plan.is_ours and plan["gpu_hours"] and not any(map(_shares_hours, runs)):
        facts.append(fact("counted_in_flops", share=disagreement_in(plan.frame)))
    if plan.roles[axis].rule == "counted":
        facts.append(fact("rows_counted", num=max(len(run.frame) for run in runs)))
        facts += facts_of("compute_unread", columns=plan.unread)
    devices = {device for run in runs if "device" in run.frame for device in run.frame.words("device")}
    if plan.is_ours and devices == {"cpu"}:
        facts.append(fact("cpu_time"))
    apart = tuple(column for column in labels if column not in (FILE, ATTEMPT, *plan.options.by))
    return [*facts, *facts_of("runs_apart", columns=apart)]


def _points(runs: list[LoggedRun], axis: str) -> Frame:
    """Return the points of a curve: those with compute and reward."""
    if len({(run.plan.axis(axis), run.plan["y"]) for run in runs}) > 1:
        raise InputError(f"the files of a curve use different columns: choose them with {option:x} and {option:y}.")
    points = concatenated([run.points for run in runs])
    points = points.having({"compute": points.numbers(axis)})
    is_known = points.known("compute") & points.known("y")
    if not is_known.any():
        raise InputError(_nothing_measured(runs[0], axis))
    return points.take(is_known)


def _nothing_measured(run: LoggedRun, axis: str) -> str:
    """Say why a run makes no curve, with the first word that stands where a number is needed."""
    frame, columns = run.frame, {axis: run.plan.axis(axis), "y": run.plan["y"]}
    known = " and ".join(f"{run.points.known(role).sum()} have a number for {columns[role]!r}" for role in columns)
    cells = [cell for column in columns.values() for cell in zip(frame.origin, frame.words(column), strict=True)]
    odd = [f" ({word[:40]!r} at {place})" for place, word in cells if word and not math.isfinite(number(word))]
    return (
        f"no usable curve: of {len(frame)} rows of {run.plan.path}, {known}, but none for both{''.join(odd[:1])}: "
        f"choose other columns with {option:x} and {option:y}."
    )


def _once_each(points: Frame) -> tuple[Frame, tuple[Fact, ...]]:
    """Leave out rows that only repeat the last evaluation, as some trainers write it until there is a new one.

    Values count as repeated if most stand several times in a row, and hardly any comes back later. Independent values
    that are equal by chance, such as counts of right answers, do come back.
    """
    ordered = points.sorted("run", "held", "compute", "y")
    values = ordered.groups(["run", "held", "y"])
    begins = np.flatnonzero(np.diff(values, prepend=-1))
    is_repeated = len(begins) >= 6 and np.median(np.diff(begins, append=len(values))) >= 2
    if not is_repeated or len({*values.tolist()}) < 0.8 * len(begins):
        return ordered, ()
    return ordered.take(begins), facts_of("held_values", num=len(values) - len(begins), num_rows=len(values))


def _averaged(points: Frame) -> tuple[Frame, tuple[Fact, ...]]:
    """Return the mean of each step where a log has a row for each answer: many per step, or right and wrong ones."""
    steps = points.groups(["run", "held", "step" if points.known("step").all() else "compute"])
    rewards, sizes = points.numbers("y"), np.bincount(steps)
    if np.median(sizes) < (2 if is_right_or_wrong(rewards) else _MANY_ROWS):
        return points, ()
    means = {name: np.bincount(steps, weights=points.numbers(name)) / sizes
             for name in points.columns if not points.is_words(name)}  # fmt: skip
    if {*rewards.tolist()} == {0.0, 1.0}:
        means["num_samples"] = sizes.astype(np.float64)
    firsts = points.take(np.unique(steps, return_index=True)[1])
    return firsts.having(means), (fact("answers_averaged", num=len(points), per_step=float(np.median(sizes))),)


def _direction(plan: Plan, points: Frame) -> tuple[Fact, ...]:
    """Return what speaks for a column in which lower is better: its name, or a fall where the name says nothing."""
    if is_lower_better(plan["y"]):
        return (fact("lower_is_better", y=plan["y"]),)
    rewards = points.sorted("compute").numbers("y")
    third = len(rewards) // 3
    is_fall = third > 1 and rewards[:third].min() > rewards[-third:].max()
    is_unnamed = plan.roles["y"].rule == "only_numbers" or plan["y"] == VALUE
    return (fact("values_fall", y=plan["y"]),) if is_unnamed and is_fall else ()
