"""From logs to series: the numbers of each curve, checked and in the unit that is fitted.

A fault of one curve among several becomes its `problem`, and the others stand; that of an only curve raises InputError.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import median
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scalerl.errors import InputError
from scalerl.logs import amounts
from scalerl.logs.attempts import chains
from scalerl.logs.columns import AXES, has_role, is_part, is_rate, is_score
from scalerl.logs.facts import Fact, fact, sentence
from scalerl.logs.formats import Log
from scalerl.logs.frame import Floats, Mask, Rows, concatenated, listed, members, number, numbered, objects
from scalerl.logs.names import FILE, CurveKey, curve_names, file_names, without_seed
from scalerl.logs.plan import Choice, Decision, Plan
from scalerl.logs.selection import SCALES, Bounds, Selection, YScale, matching

# A first row within this share of the largest compute is as good as the model before training.
_BEFORE_TRAINING = 0.01
# The same for the step of an evaluation beside training rewards: some trainers log before their first step.
_FIRST_STEPS = 0.02
# The share of itself by which a time of day grows during a run.
_A_LITTLE = 0.05
# Fewer starts than these say little of their own spread.
_ENOUGH_STARTS = 4
# Share of the rows that repeat another one, from which it is taken for more than chance.
_MANY = 1 / 3
# The least maximum of a rate in per cent; a share may exceed 1 a little, by a bonus.
_MIN_PERCENT = 2.0
# A mean of floats may leave [0, 1] by rounding; float32 logs round at 6e-8.
_ROUNDING = 1e-6
_NO_POINTS = np.empty(0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    """One curve's points, sorted by run and compute."""

    name: str
    compute: Floats
    reward: Floats
    x_label: str
    y_label: str
    run: NDArray[np.str_] | None = None
    """The run each point belongs to, None where there is one."""
    num_samples: NDArray[np.int64] | None = None
    start: float | None = None
    start_sd: float | None = 0.0
    """Noise of `start`: 0 for one that is given, None for one read that is as noisy as any evaluation of the curve."""
    holdout_compute: Floats = field(default_factory=_NO_POINTS.copy)
    holdout_reward: Floats = field(default_factory=_NO_POINTS.copy)
    evaluation: NDArray[np.str_] | None = None
    """'prompts_hash@step': equal strings mean the same prompts at the same step."""
    problem: str | None = None
    """Why this curve cannot be fitted, None where it can."""
    key: CurveKey = ()
    """What sets it apart: columns and their values."""
    evaluation_set: str | None = None
    """The evaluation set, where there are several: curves of different sets are not compared."""
    y_scale: YScale = "1"
    """The scale of the rewards, which is that of the log: 1, 100 (per cent), pm1 or none (no limits)."""
    facts: tuple[Fact, ...] = ()
    """What was decided about the rows that the user did not ask for."""
    plan: Mapping[str, Decision] = field(default_factory=dict)
    """What was decided about the columns: role, column and rule."""
    axes: Mapping[str, "Axis"] = field(default_factory=dict)
    """The same points on every axis that the log has: gpu_hours, flops, tokens, hours, step, cost."""

    @property
    def notes(self) -> tuple[str, ...]:
        """The facts in English."""
        return tuple(map(sentence, self.facts))

    @property
    def bounds(self) -> Bounds:
        """The least and the largest reward there is, None for rewards without limits."""
        return SCALES[self.y_scale]

    def take(self, which: Any) -> "Series":
        """Return the series with only these points, by mask or index; held-out points stay."""
        optional = {name: getattr(self, name) for name in ("run", "num_samples", "evaluation")}
        picked = {name: None if values is None else values[which] for name, values in optional.items()}
        axes = {name: replace(axis, compute=axis.compute[which]) for name, axis in self.axes.items()}
        return replace(self, compute=self.compute[which], reward=self.reward[which], axes=axes, **picked)

    def on(self, name: str) -> "Series":
        """Return the curve on another of its axes, without the points that it does not have there."""
        axis = self.axes[name]
        known, late = axis.compute > 0, axis.holdout > 0
        moved = replace(
            self,
            compute=axis.compute,
            x_label=axis.column,
            holdout_compute=axis.holdout[late],
            holdout_reward=self.holdout_reward[late],
        )
        order = np.flatnonzero(known)
        run = np.zeros(len(known)) if self.run is None else self.run
        return moved.take(order[np.lexsort((axis.compute[order], run[order]))])

    @property
    def step_costs(self) -> dict[str, float]:
        """What a step takes on each other axis: hours, tokens, FLOPs or cost per step, the median over the run."""
        steps = self.axes["step"].compute if "step" in self.axes else np.full(len(self.compute), np.nan)
        spent = {name: axis.compute / steps for name, axis in self.axes.items() if name != "step"}
        return {name: float(np.nanmedian(each)) for name, each in spent.items() if np.isfinite(each).any()}


@dataclass(frozen=True, slots=True)
class Axis:
    """Where the points of a curve lie on one axis of compute; NaN for those that are not known there."""

    column: str
    compute: Floats
    holdout: Floats


def uneven_steps(series: Iterable[Series], ratio: float = 1.2) -> dict[str, float]:
    """Return the axes on which the steps of curves cost different amounts, and the largest ratio between two curves.

    Curves whose steps differ in hours or tokens cannot be compared by step.
    """
    costs = [data.step_costs for data in series if not data.problem]
    shared = set.intersection(*map(set, costs)) if costs else set()
    spread = {axis: [cost[axis] for cost in costs] for axis in sorted(shared)}
    ratios = {axis: max(each) / min(each) for axis, each in spread.items() if min(each) > 0}
    return {axis: found for axis, found in ratios.items() if found > ratio}


def shared_axes(series: Iterable[Series]) -> list[str]:
    """Return the axes that all curves have, in the order in which they are preferred."""
    there = [set(data.axes) for data in series if not data.problem]
    common = set.intersection(*there) if there else set()
    return [axis for axis in (*AXES, "cost") if axis in common]


def series_from(logs: Sequence[Log], selection: Selection) -> list[Series]:
    """Return one series for each value of `by`; without it for each file, and in it each arm, run, label or attempt."""
    if not logs:
        raise InputError("no file was given: name at least one log file or run folder.")
    logs = _joined(logs) if len(logs) > 1 and not selection.by and not selection.seed else logs
    plans, faulty = _plans(logs, selection)
    curves = _curves(plans, selection, faulty)
    if len(curves) > 1 and not selection.by and not selection.seed:
        curves = _with_joined_seeds(curves)
    built: list[Series] = []
    keys = [*curves, *faulty]
    for name, key in zip(curve_names(keys, selection.labels), keys, strict=True):
        parts = curves.get(key, [])
        # A file that makes no curve is shown beside the others, on their axes.
        plan = (parts or next(iter(curves.values())))[0].plan
        named = {"name": name, "key": key, "x_label": str(plan.column("x")), "y_label": str(plan.column("y"))}
        try:
            if key in faulty:
                raise InputError(faulty[key])
            built.append(_series(_pooled(parts, name), selection, named))
        except InputError as problem:
            if len(keys) == 1:
                raise
            built.append(Series(compute=_NO_POINTS, reward=_NO_POINTS, problem=str(problem), **named))
    if all(series.problem for series in built):
        raise InputError(f"no usable curve among {len(built)}; the first, {built[0].name}: {built[0].problem}")
    return _in_one_unit(built, selection)


def _in_one_unit(built: list[Series], selection: Selection) -> list[Series]:
    """Return curves in shares and in per cent side by side as shares."""
    if not {"1", "100"} <= {series.y_scale for series in built if not series.problem}:
        return built
    shares = [in_shares(series) if series.y_scale == "100" else series for series in built]
    if isinstance(selection.start, float | int):  # it is one number for all of them, so it is given in shares
        shares = [replace(each, start=float(selection.start)) if each.start is not None else each for each in shares]
    return shares


def in_shares(series: Series) -> Series:
    """Return a curve with limits as shares of what lies between them."""
    if series.bounds is None or series.y_scale == "1":
        return series
    low, width = series.bounds[0], series.bounds[1] - series.bounds[0]
    places = {name: getattr(series, name) for name in ("reward", "holdout_reward", "start")}
    return replace(
        series,
        y_scale="1",
        **{name: None if value is None else (value - low) / width for name, value in places.items()},
        start_sd=None if series.start_sd is None else series.start_sd / width,
    )


# Several logs


def _plans(logs: Sequence[Log], selection: Selection) -> tuple[list[Plan], dict[CurveKey, str]]:
    """Return the plan of each log, on one axis if they share one, and why the others have none."""
    plans: list[Plan] = []
    faulty: dict[CurveKey, str] = {}
    for log, name in zip(logs, file_names([log.path for log in logs]), strict=True):
        try:
            plans.append(log.plan(selection, name=name, num_logs=len(logs)))
        except InputError as problem:
            faulty[((FILE, name),)] = str(problem)
    if not plans:
        raise InputError(next(iter(faulty.values())))
    return _on_one_axis(plans) if selection.x is None else plans, faulty


def _on_one_axis(plans: list[Plan]) -> list[Plan]:
    """Return the plans on the first axis that all logs have; as they are if there is none."""
    shared = [axis for axis in AXES if all(axis in plan.axes for plan in plans)]
    if not shared or len({plan.column("x") for plan in plans}) == 1:
        return plans
    axis = shared[0]
    return [
        plan.choosing("x", "shared_axis", Choice(columns=(axis,), rule=axis, values={axis: plan.numbers(axis)}))
        for plan in plans
    ]


def _joined(logs: Sequence[Log]) -> list[Log]:
    """Join files of one folder that are attempts of one run, and leave out those that hold the beginning of another.

    An attempt begins in the later half of the one before it. Checkpoints of one run each hold its history so far.
    """
    families: dict[tuple[Any, ...], dict[int, Plan]] = {}
    names = [log.path.name for log in logs]
    for at, log in enumerate(logs):
        plan = log.planned()
        if plan is not None and log.kind != "run" and not plan.columns("attempt"):
            # Files of one name lie in folders of one folder.
            folder = log.path.absolute().parents[names.count(log.path.name) > 1]
            families.setdefault((folder, log.kind, plan.column("step"), plan.column("y")), {})[at] = plan
    whole: dict[int, Log | None] = dict(enumerate(logs))
    for family in families.values():
        points = {at: _step_rewards(plan) for at, plan in family.items()}
        contained: dict[int, list[int]] = {}
        for at, own in points.items():
            longer = [other for other, each in points.items() if 0 < len(own) < len(each) and own <= each]
            if longer:
                contained.setdefault(max(longer, key=lambda other: len(points[other])), []).append(at)
        for longest, parts in contained.items():
            told = fact("contained", files=tuple(str(logs[at].path) for at in parts), file=str(logs[longest].path))
            whole |= dict.fromkeys(parts) | {longest: logs[longest].noting(told)}
        steps = {at: plan.numbers("step") for at, plan in family.items() if whole[at] is not None}
        for run in chains(steps):
            parts = [logs[int(at)] for at in run]  # type: ignore[call-overload]
            told = fact("files_joined", files=tuple(part.path.name for part in parts))
            one = replace(parts[0], frame=concatenated([part.frame for part in parts]), facts=(told,))
            whole |= dict.fromkeys(run) | {run[0]: one}  # type: ignore[misc]
    return [log for log in whole.values() if log is not None]


def _step_rewards(plan: Plan) -> set[tuple[float, float]]:
    rows = plan.measured & np.isfinite(plan.numbers("step"))
    return set(zip(plan.numbers("step")[rows].tolist(), plan.numbers("y")[rows].tolist(), strict=True))


# Which rows make which curve


@dataclass(frozen=True, slots=True, eq=False)
class Points:
    """The rows of a curve as numbers, in the order of the log."""

    plan: Plan
    x: Floats
    y: Floats
    step: Floats
    run: NDArray[np.object_]
    held: Mask
    """Rows that `--holdout` names."""
    samples: Floats
    evaluation: NDArray[np.object_]
    origin: NDArray[np.object_]
    axes: Mapping[str, Floats]
    scale: tuple[float, float]
    """The least and the largest reward of the whole log: a column has one unit for all its curves."""
    facts: tuple[Fact, ...] = ()

    def take(self, which: Any) -> "Points":
        """Return some of the points, by mask or index, in the order given."""
        arrays = ("x", "y", "step", "run", "held", "samples", "evaluation", "origin")
        axes = {name: values[which] for name, values in self.axes.items()}
        return replace(self, axes=axes, **{name: getattr(self, name)[which] for name in arrays})

    def where(self, which: Any) -> str:
        return f"{listed(list(dict.fromkeys(self.origin[which])), 5)} of {self.plan.path.name}"

    def without(self, kind: str) -> "Points":
        return replace(self, facts=tuple(told for told in self.facts if told.kind != kind))

    def noting(self, *facts: Fact) -> "Points":
        return replace(self, facts=(*self.facts, *facts))


def _curves(
    plans: Sequence[Plan], selection: Selection, faulty: dict[CurveKey, str]
) -> dict[CurveKey, list[Points]]:
    """Return the points of each curve, at least one; a log without any joins the faulty ones."""
    masks = [_selected(plan) for plan in plans]
    _check_conditions(plans, masks, selection)
    differing = {
        column
        for column in {name for plan in plans for name in plan.columns("label", "attempt", "curve")}
        if len({word for plan, mask in zip(plans, masks, strict=True) for word in plan.frame.words(column)[mask]}) > 1
    }
    curves: dict[CurveKey, list[Points]] = {}
    for plan, mask in zip(plans, masks, strict=True):
        columns = [*(selection.by or (FILE,))]
        apart = differing - {*columns, selection.seed}
        columns += [name for name in plan.columns("curve", "label", "attempt") if name in apart]
        measured = mask & np.isfinite(plan.numbers("x")) & np.isfinite(plan.numbers("y"))
        points = _points(plan, measured, columns, differing)
        place = np.cumsum(measured) - 1
        for rows in members(plan.frame.groups(columns)):
            rows = rows[mask[rows]]
            key = tuple((name, str(plan.frame.words(name)[row])) for row in rows[:1] for name in columns)
            if measured[rows].any():
                curves.setdefault(key, []).append(points.take(place[rows[measured[rows]]]))
            elif len(rows) and (plan.frame.has(plan.column("y"))[rows].any() or not measured.any()):
                faulty[key if measured.any() else key[:1]] = _nothing_measured(plan, rows)
    if not curves:
        raise InputError(next(iter(faulty.values())))
    return curves


def _selected(plan: Plan) -> Mask:
    """Return the rows that count and that the filters keep."""
    kept = [matching(plan.frame, condition) for condition in plan.asked.where]
    dropped = [matching(plan.frame, condition) for condition in plan.asked.where_not]
    return np.logical_and.reduce([plan.counts, *kept, *map(np.logical_not, dropped)])


def _check_conditions(plans: Sequence[Plan], masks: Sequence[Mask], selection: Selection) -> None:
    """Raise InputError for an option that matches no row."""
    for option, conditions in (("--where", selection.where), ("--where", selection.where_not)):
        for column, value in conditions:
            sign = "=" if conditions is selection.where else "!="
            if not any(mask.any() for mask in masks):
                raise InputError(_no_match(plans, f"{option} {column}{sign}{value}", column))
    if selection.holdout and not any(matching(plan.frame, selection.holdout).any() for plan in plans):
        raise InputError(_no_match(plans, "--holdout {}={}".format(*selection.holdout), selection.holdout[0]))


def _no_match(plans: Sequence[Plan], option: str, column: str) -> str:
    values = list(dict.fromkeys(word for plan in plans for word in plan.frame.words(column) if word))
    held = f"the values there are {listed(values)}" if values else "that column holds no values"
    return f"{option} matches no row of {listed([str(plan.path) for plan in plans])}: {held}."


def _nothing_measured(plan: Plan, rows: Rows) -> str:
    """Say why rows make no curve, with the first of the words that stand where numbers are needed."""
    x, y = plan.column("x"), plan.column("y")
    with_x, with_y = (int(np.isfinite(plan.numbers(role)[rows]).sum()) for role in ("x", "y"))
    words = [(row, plan.frame.words(column)[row]) for column in (x, y) for row in rows]
    odd = [(row, word) for row, word in words if word and not math.isfinite(number(word))]
    seen = f" ({odd[0][1][:40]!r} at {plan.frame.origin[odd[0][0]]} is no finite number)" if odd else ""
    return (
        f"no usable curve: of the {len(rows)} rows selected from {plan.path}, {with_x} have a number for {x!r}, "
        f"{with_y} for {y!r} and none for both{seen}; choose other columns with --x and --y."
    )


def _points(plan: Plan, rows: Mask, columns: Sequence[str], differing: set[str]) -> Points:
    frame, facts = plan.frame.take(rows), list(plan.facts)
    facts = [told for told in facts if _is_told(told, differing)]
    for role in ("x", "y"):
        column = str(plan.column(role))
        odd = plan.frame.has(column) & ~np.isfinite(plan.frame.numbers(column)) & plan.counts
        if odd.any():
            place = f"{plan.frame.where(odd)} of {plan.path.name}"
            facts.append(fact("not_numbers", columns=(column,), num=int(odd.sum()), place=place))
    held = np.zeros(len(frame), dtype=bool)
    if plan.asked.holdout:
        held = matching(frame, plan.asked.holdout)
    hashes = zip(frame.words("prompts_hash"), frame.words(plan.column("step")), strict=True)
    rewards = plan.numbers("y")[np.isfinite(plan.numbers("y"))]
    return Points(
        plan=plan,
        x=frame.numbers(plan.column("x")),
        y=frame.numbers(plan.column("y")),
        step=frame.numbers(plan.column("step")),
        run=_run_names(plan, rows, columns),
        held=held,
        samples=frame.numbers(plan.column("num_samples")),
        evaluation=objects("@".join(pair) if all(pair) else "" for pair in hashes),
        origin=frame.origin,
        axes={axis: frame.numbers(column) for axis, column in plan.axes.items()},
        scale=(float(rewards.min()), float(rewards.max())) if rewards.size else (0.0, 0.0),
        facts=tuple(facts),
    )


def _is_told(told: Fact, differing: set[str]) -> bool:
    """Return whether a fact still holds: what is apart must differ among the rows that were selected."""
    column = {"attempts": "attempt", "runs_apart": told.values.get("column")}.get(told.kind)
    return column is None or column in differing


def _run_names(plan: Plan, rows: Mask, columns: Sequence[str]) -> NDArray[np.object_]:
    """Return the run of each row: files that are pooled are different runs, unless the user names the column of runs."""
    frame = plan.frame.take(rows)
    if plan.asked.seed:
        return frame.words(plan.asked.seed)
    seeds = [name for name in plan.columns("run") if name not in columns and len(set(frame.words(name))) > 1]
    return objects("/".join(filter(None, pair)) for pair in zip(*(frame.words(name) for name in (FILE, *seeds)), strict=True))


def _with_joined_seeds(curves: Mapping[CurveKey, list[Points]]) -> dict[CurveKey, list[Points]]:
    """Join curves whose files or runs have names that differ in the seed alone: they are runs of one curve.

    Where a curve has the very name without a seed, or they differ in their columns, the names say too little.
    """
    keys, joined = list(curves), dict[CurveKey, list[Points]]()
    for places in members(numbered(map(_seedless, keys))):
        family = [keys[at] for at in places]
        key = tuple(part for part in _seedless(family[0]) if part[1])  # a run's name may be nothing but its seed
        axes = {(each.plan.column("x"), each.plan.column("y")) for member in family for each in curves[member]}
        if len(family) == 1 or len(axes) > 1 or key in curves:
            joined |= {member: curves[member] for member in family}
            continue
        column = next(name for name, word in family[0] if _seedless(((name, word),)) != ((name, word),))
        told = fact("seeds_by_name", names=tuple(dict(member)[column] for member in family), column=column)
        joined[key] = [
            replace(each, run=objects([dict(member)[column]] * len(each.x))).without("runs_apart").noting(told)
            for member in family
            for each in curves[member]
        ]
    return joined


def _seedless(key: CurveKey) -> CurveKey:
    """Return a key whose files and runs have no seed in their names."""
    return tuple((name, without_seed(word) if name == FILE or has_role(name, "run") else word) for name, word in key)


def _pooled(parts: Sequence[Points], name: str) -> Points:
    """Return the points of several logs as one; InputError if they count different things."""
    for role in ("x", "y"):
        columns = sorted({str(each.plan.column(role)) for each in parts})
        if len(columns) > 1:
            raise InputError(f"the files of {name} use different columns ({listed(columns)}): choose one with --{role}.")
    if len(parts) == 1:
        return parts[0]
    axes = set.intersection(*(set(each.axes) for each in parts))
    arrays = ("x", "y", "step", "run", "held", "samples", "evaluation")
    first = parts[0]
    return replace(
        first,
        **{array: np.concatenate([getattr(each, array) for each in parts]) for array in arrays},
        origin=objects(f"{each.plan.path.name} {place}" for each in parts for place in each.origin),
        axes={axis: np.concatenate([each.axes[axis] for each in parts]) for axis in axes},
        scale=(min(each.scale[0] for each in parts), max(each.scale[1] for each in parts)),
        plan=replace(first.plan, path=first.plan.path.absolute().parent),
        facts=tuple({repr(told): told for each in parts for told in each.facts}.values()),
    )


# One curve


def _series(points: Points, selection: Selection, names: Mapping[str, Any]) -> Series:
    plan = points.plan
    points = _once_each(points)
    _check_time_of_day(points)
    rewards, y_scale, points = _scaled(points, selection.y_scale)
    if points.held.all():
        wanted = "=".join(selection.holdout or ())
        raise InputError(f"every row of {names['name']} matches --holdout {wanted}: none is left to fit.")
    is_start = _before_training(points, selection)
    if (points.held | is_start).all():
        raise InputError(f"{names['name']} has no row left to fit besides its start, at {points.where(is_start)}.")
    is_mean = y_scale != "none" and not is_part(names["y_label"])
    samples = np.where((points.samples >= 1) & (points.samples < 2**63) & is_mean, points.samples, np.nan)
    start, start_sd, told = _start(points, rewards, samples, is_start, selection, y_scale)
    order = np.lexsort((points.evaluation, rewards, points.x, points.run))
    fitted, late = order[~(points.held | is_start)[order]], order[points.held[order]]
    late = late[np.lexsort((rewards[late], points.x[late]))]
    run, evaluation = points.run[fitted].astype(str), points.evaluation[fitted].astype(str)
    sets = [word for name, word in names["key"] if name in plan.columns("label") and _is_set(plan, name)]
    return Series(
        compute=points.x[fitted],
        reward=rewards[fitted],
        run=run if len(set(run)) > 1 else None,
        num_samples=None if np.isnan(samples[fitted]).any() else samples[fitted].astype(np.int64),
        start=start,
        start_sd=start_sd,
        holdout_compute=points.x[late],
        holdout_reward=rewards[late],
        evaluation=evaluation if all(evaluation) else None,
        evaluation_set=next(iter(sets), None),
        y_scale=y_scale,
        facts=(*points.facts, *told),
        plan=plan.roles,
        axes={
            axis: Axis(str(plan.column(axis)), values[fitted], values[late])
            for axis, values in points.axes.items()
            if (values[fitted] > 0).any()
        },
        **names,
    )


def _is_set(plan: Plan, column: str) -> bool:
    return has_role(column, "set") or (plan.kind == "run" and column == "set")


def _once_each(points: Points) -> Points:
    """Count a value once: drop rows that a log holds twice, and rows that hold a value until there is a new one.

    A value is held where most values stand several times in a row, and hardly one comes again later, as counts of right
    answers do.
    """
    place = numbered(zip(points.run, points.x, points.held, strict=True))
    num_places, num_rows = len(set(place.tolist())), len(place)
    if num_places == num_rows:
        return _without_held(points)
    # Few different values, such as 0 and 1 of single answers, are equal without being the same row.
    if 2 * len(set(points.y.tolist())) < num_places:
        return points
    row = numbered(zip(place, points.y, map(str, points.samples), strict=True))
    last = np.sort(np.unique(row[::-1], return_index=True)[1])
    kept = np.sort(num_rows - 1 - last)
    if len(kept) < (1 - _MANY) * num_rows:
        points = points.take(kept).noting(fact("repeated_rows", num=num_rows - len(kept), num_rows=num_rows))
        place = place[kept]
    fitted = place[~points.held]
    usual = median(np.unique(fitted, return_counts=True)[1].tolist()) if len(fitted) else 0
    told = fact("several_per_compute", x=points.plan.column("x"), num=usual)
    return points.noting(told) if usual >= 2 else points


def _without_held(points: Points) -> Points:
    order = np.lexsort((points.x, points.held, points.run))
    value = numbered(zip(points.run[order], points.held[order], points.y[order], strict=True))
    begins = np.flatnonzero(np.diff(value, prepend=-1))
    is_held = len(begins) >= 6 and np.median(np.diff(begins, append=len(value))) >= 2
    if not is_held or len(set(value.tolist())) < 0.8 * len(begins):
        return points
    told = fact("held_values", num=len(value) - len(begins), num_rows=len(value))
    return points.take(np.sort(order[begins])).noting(told)


def _check_time_of_day(points: Points) -> None:
    """Raise InputError for a time of day as compute: seconds since 1970 only grow by a little."""
    column, ends = str(points.plan.column("x")), np.array([points.x.min(), points.x.max()])
    is_clock = not np.isnan(amounts.seconds_since_1970(ends)).any() and not has_role(column, "flops", "tokens")
    if is_clock and 0 < ends[1] - ends[0] < _A_LITTLE * ends[0]:
        raise InputError(
            f"{column!r} runs from {ends[0]:.0f} to {ends[1]:.0f}, which is a time of day and not an amount spent: "
            "leave --x out, and --gpus N builds GPU-hours from it, or choose another column with --x."
        )


def _scaled(points: Points, asked: YScale) -> tuple[Floats, YScale, Points]:
    """Return the rewards and their scale: shares; per cent for what is named as a rate or is a benchmark's score."""
    column, (low, high), scale = str(points.plan.column("y")), points.scale, asked
    if asked == "auto":
        is_named = is_rate(column) or (is_score(column) and bool(points.plan.named("set")))
        is_percent = is_named and low >= 0 and _MIN_PERCENT <= high <= 100
        scale = "1" if low >= -_ROUNDING and high <= 1 + _ROUNDING else "100" if is_percent else "none"
        told = fact("percent" if is_percent else "own_scale", y=column, low=low, high=high)
        points = points if scale == "1" else points.noting(told)
    if (bounds := SCALES[scale]) is None:
        return points.y, scale, points
    fitted = np.clip(points.y, *bounds)
    outside = np.abs(fitted - points.y) > _ROUNDING * (bounds[1] - bounds[0])
    if outside.any():
        raise InputError(
            f"{column!r} runs from {low:g} to {high:g}, outside [{bounds[0]:g}, {bounds[1]:g}] of --y-scale {scale} at "
            f"{points.where(outside)}: leave --y-scale out, and it is read as it is."
        )
    return fitted, scale, points


# The start


def _before_training(points: Points, selection: Selection) -> Mask:
    """Return which rows are of the model before training: at compute 0, or at a step below 0 as some loggers write it.

    With 'first' they are each run's first row, if it is early. InputError for any other row at or below 0.
    """
    x, column = points.x, str(points.plan.column("x"))
    to_fit = np.where(points.held, math.inf, x)
    is_start = (to_fit == 0) | ((to_fit < 0) & has_role(column, "step"))
    if selection.start == "first":
        least = {name: to_fit[points.run == name].min() for name in set(points.run)}
        is_first = to_fit == np.array([least[name] for name in points.run])
        is_start = is_first & (x >= 0) & (x <= max(_BEFORE_TRAINING * x[~points.held].max(initial=0.0), 0.0))
    wrong = (x <= 0) & ~is_start
    if wrong.any():
        raise InputError(
            f"compute {column!r} is {x[wrong][0]:g} at {points.where(wrong)}, which is neither training nor the "
            "start: remove those rows, or name other columns with --x, --seed or --by."
        )
    return is_start


def _start(
    points: Points, rewards: Floats, samples: Floats, is_start: Mask, selection: Selection, y_scale: YScale
) -> tuple[float | None, float | None, list[Fact]]:
    """Return the start, its noise and what to say of it: given, at compute 0, or an evaluation before training."""
    given, bounds = selection.start, SCALES[y_scale]
    if isinstance(given, float | int):
        low, high = bounds or (-math.inf, math.inf)
        if not (math.isfinite(given) and low <= given <= high):
            scale = f"outside [{low:g}, {high:g}], the scale of the rewards"
            raise InputError(f"--start {given:g} is {scale}: give the reward before training, in the unit of the log.")
        return float(given), 0.0, []
    num, compute = int(is_start.sum()), float(points.x[~points.held].min())
    if num and given != "fit":
        start = math.fsum(rewards[is_start]) / num
        is_mean = given == "first" and len(set(points.run[is_start])) < num
        is_silent = points.plan.kind == "run" or given is not None
        told = fact("start_at_zero", start=start, num=num, compute=compute, x=points.plan.column("x"))
        noise = start_noise(rewards[is_start], samples[is_start], bounds)
        return start, noise, [told] if is_mean or not is_silent else []
    if given == "first":
        return None, 0.0, [fact("start_is_late", compute=compute)]
    before = _evaluated_before(points) if given is None and y_scale == "1" else None
    return (None, 0.0, []) if before is None else (before.values["start"], None, [before])


def start_noise(rewards: Floats, samples: Floats, bounds: Bounds) -> float | None:
    """Return the noise of the mean of starts: binomial where the number of answers is known, else from their spread.

    None means that it is as noisy as any evaluation: too few starts, or the same number in every run, which is one
    evaluation that was written down several times.
    """
    if bounds is not None and not np.isnan(samples).any():
        # p (1 - p) / n for each row; p is kept off 0 and 1, where one rate would claim no noise at all.
        low, width = bounds[0], bounds[1] - bounds[0]
        rates = np.clip((rewards - low) / width, 0.02, 0.98)
        return width * math.sqrt(math.fsum(rates * (1 - rates) / samples)) / len(rewards)
    if len(rewards) < _ENOUGH_STARTS or len(set(rewards.tolist())) == 1:
        return None
    return float(np.std(rewards, ddof=1)) / math.sqrt(len(rewards))


def _evaluated_before(points: Points) -> Fact | None:
    """Return an evaluation that was made before the first training reward, as verl's of step 0: it is the start."""
    plan, steps = points.plan, points.step
    decision = plan.roles.get("y")
    if decision is None or decision.rule != "training" or np.isnan(steps).all():
        return None
    early = min(np.nanmin(steps), _FIRST_STEPS * np.nanmax(steps) + 1e-9)
    is_before = plan.numbers("step") < early
    for column in decision.too_few:
        values = plan.frame.numbers(column)[is_before & np.isfinite(plan.frame.numbers(column))]
        values = values[(values >= 0) & (values <= 1)]
        if values.size:
            return fact("start_from_evaluation", start=float(values[0]), column=column)
    return None
