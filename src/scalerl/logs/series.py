"""From logs to series: the numbers of each curve, checked and in the unit that is fitted.

A fault of one curve among several becomes its `problem`, and the others stand; that of an only curve raises InputError.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scalerl.errors import InputError
from scalerl.logs.columns import AXES, has_role, is_part, is_rate, is_score, with_role
from scalerl.logs.facts import Fact, fact, sentence
from scalerl.logs.formats import Log
from scalerl.logs.frame import Floats, Frame, Mask, concatenated, listed, members, number, objects
from scalerl.logs.names import ATTEMPT, FILE, CurveKey, curve_names, file_names
from scalerl.logs.plan import Choice, Plan
from scalerl.logs.runs import Run, main_axis, runs_of
from scalerl.logs.selection import SCALES, Bounds, Selection, YScale, matching

# A first row within this share of the largest compute is as good as the model before training.
_BEFORE_TRAINING = 0.01
# The same for the step of an evaluation beside training rewards: some trainers log before their first step.
_FIRST_STEPS = 0.02
# Fewer starts than these say little of their own spread.
_ENOUGH_STARTS = 4
# The least maximum of a rate in per cent; a share may exceed 1 a little, by a bonus.
_MIN_PERCENT = 2.0
# A mean of floats may leave [0, 1] by rounding; float32 logs round at 6e-8.
_ROUNDING = 1e-6
_NO_POINTS = np.empty(0)
ALL_AXES = (*AXES, "cost")


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
    plan: Mapping[str, Choice] = field(default_factory=dict)
    """What was decided about the columns: role, column and rule."""
    axes: Mapping[str, Floats] = field(default_factory=dict)
    """The same points on every axis that the log has (gpu_hours, flops, tokens, hours, step, cost); NaN: not known."""

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
        axes = {name: compute[which] for name, compute in self.axes.items()}
        return replace(self, compute=self.compute[which], reward=self.reward[which], axes=axes, **picked)

    def on(self, axis: str) -> "Series":
        """Return the curve on another of its axes, without held-out points and points that it does not have there."""
        compute, nothing = self.axes[axis], np.empty(0)
        order = np.lexsort((compute, np.zeros(len(compute)) if self.run is None else self.run))
        moved = replace(self, compute=compute, x_label=axis, holdout_compute=nothing, holdout_reward=nothing)
        return moved.take(order[compute[order] > 0])

    @property
    def step_costs(self) -> dict[str, float]:
        """What a step takes on each other axis: hours, tokens, FLOPs or cost per step, the median over the run."""
        steps = self.axes.get("step", _NO_POINTS)
        spent = {axis: compute[steps > 0] / steps[steps > 0] for axis, compute in self.axes.items() if len(steps)}
        known = {axis: each[np.isfinite(each)] for axis, each in spent.items() if axis != "step"}
        return {axis: float(np.median(each)) for axis, each in known.items() if len(each)}


def uneven_steps(series: Iterable[Series], ratio: float = 1.2) -> dict[str, float]:
    """Return the axes on which the steps of curves cost different amounts, and the largest ratio between two curves.

    Curves whose steps differ in hours or tokens cannot be compared by step.
    """
    costs = [data.step_costs for data in series if not data.problem]
    shared = set.intersection(*map(set, costs)) if costs else set()
    spread = {axis: [cost[axis] for cost in costs] for axis in sorted(shared)}
    ratios = {axis: max(each) / min(each) for axis, each in spread.items() if min(each) > 0}
    return {axis: found for axis, found in ratios.items() if found > ratio}


def series_from(logs: Sequence[Log], selection: Selection) -> list[Series]:
    """Return one series for each value of `by`; without it for each file, and in it each arm, run, label or attempt."""
    if not logs:
        raise InputError("no file was given: name at least one log file or run folder.")
    curves: dict[CurveKey, list[Run]] = {}
    plans, problems = _plans(logs, selection)
    runs = runs_of(plans) if plans else []
    _check_selected(plans, runs)
    labels = [name for name in dict.fromkeys(name for run in runs for name in run.key)
              if name in (FILE, *selection.by) or len({run.key.get(name) for run in runs}) > 1]  # fmt: skip
    for run in runs:
        curves.setdefault(tuple((name, run.key[name]) for name in labels if run.key.get(name)), []).append(run)
    shared = main_axis(runs) if runs else ""
    keys, built = [*curves, *problems], list[Series]()
    for name, key in zip(curve_names(keys, selection.labels), keys, strict=True):
        try:
            if key in problems:
                raise InputError(problems[key])
            named = [axis for axis in AXES if curves[key][0].plan.axis(axis)]
            built.append(_series(curves[key], shared or main_axis(curves[key]) or named[0], name, key))
        except InputError as problem:
            if len(keys) == 1:
                raise
            nothing = {"compute": _NO_POINTS, "reward": _NO_POINTS, "x_label": "", "y_label": ""}
            built.append(Series(name=name, key=key, problem=str(problem), **nothing))
    usable = [series for series in built if not series.problem]
    if not usable:
        raise InputError(f"no usable curve among {len(built)}; the first, {built[0].name}: {built[0].problem}")
    # What makes no curve is shown beside the others, on their axes.
    axes = {"x_label": usable[0].x_label, "y_label": usable[0].y_label}
    return _in_one_unit([replace(each, **axes) if each.problem else each for each in built], selection)


def _check_selected(plans: list[Plan], runs: list[Run]) -> None:
    """Raise InputError for a filter that keeps no row, and for held-out rows that are not there."""
    asked = plans[0].asked if plans else Selection()
    held = (
        [asked.holdout] if asked.holdout and not any(matching(run.frame, asked.holdout).any() for run in runs) else []
    )
    for column, value in [*held, *asked.where, *asked.where_not][: 1 if held or (plans and not runs) else 0]:
        words = {word for plan in plans for word in plan.frame.words(column) if word}
        place, option = listed([str(plan.path) for plan in plans]), "--holdout" if held else "--where"
        raise InputError(
            f"{option} {column}={value} matches no row of {place}: the values there are {listed(sorted(words))}."
        )


def _in_one_unit(built: list[Series], selection: Selection) -> list[Series]:
    """Return curves in shares and in per cent side by side as shares; a start that is given is a share then."""
    if not {"1", "100"} <= {series.y_scale for series in built if not series.problem}:
        return built
    shares = [in_shares(series) if series.y_scale == "100" else series for series in built]
    is_given = isinstance(selection.start, float | int)
    return [replace(each, start=selection.start) if is_given and each.start is not None else each for each in shares]


def in_shares(series: Series) -> Series:
    """Return a curve with limits as shares of what lies between them."""
    if series.bounds is None or series.y_scale == "1":
        return series
    low, width = series.bounds[0], series.bounds[1] - series.bounds[0]
    return replace(
        series,
        y_scale="1",
        reward=(series.reward - low) / width,
        holdout_reward=(series.holdout_reward - low) / width,
        start=None if series.start is None else (series.start - low) / width,
        start_sd=None if series.start_sd is None else series.start_sd / width,
    )


def _plans(logs: Sequence[Log], selection: Selection) -> tuple[list[Plan], dict[CurveKey, str]]:
    """Return the plan of each log, and why the others have none."""
    plans: list[Plan] = []
    problems: dict[CurveKey, str] = {}
    for log, name in zip(logs, file_names([log.path for log in logs]), strict=True):
        try:
            plans.append(log.plan(selection, name))
        except InputError as problem:
            problems[((FILE, name),)] = str(problem)
    return plans, problems


# One curve


def _series(runs: list[Run], axis: str, name: str, key: CurveKey) -> Series:
    plan, asked = runs[0].plan, runs[0].plan.asked
    points, facts = _once_each(_points(runs, axis))
    x, y_scale, rewards, told = points.numbers("x"), *_scaled([run.plan for run in runs], points)
    held, run = points.numbers("held") > 0, points.words("run").astype(str)
    is_start = _before_training(asked, points, plan.axis(axis))
    if (held | is_start).all():
        raise InputError(f"{name} has no row left to fit besides its start and what is held out.")
    samples = points.numbers("samples")
    is_mean = y_scale != "none" and not is_part(plan["y"])
    samples = np.where((samples >= 1) & (samples < 2**63) & is_mean, samples, np.nan)
    start, start_sd, begun = _start(plan, points, is_start, (rewards[is_start], samples[is_start], SCALES[y_scale]))
    evaluation = points.words("evaluation").astype(str)
    order = np.lexsort((evaluation, rewards, x, run))
    fitted, late = order[~(held | is_start)[order]], order[held[order]]
    late = late[np.lexsort((rewards[late], x[late]))]
    if axis == "flops" and plan.kind == "run" and not asked.x and plan["gpu_hours"]:
        told.append(fact("counted_in_flops"))
    apart = tuple(column for column in dict(key) if column not in (FILE, ATTEMPT, *asked.by))
    told += [fact("runs_apart", columns=apart)] if apart else []
    read = [each for run in runs for each in run.facts if each.kind != "attempts" or ATTEMPT in dict(key)]
    return Series(
        name=name,
        key=key,
        compute=x[fitted],
        reward=rewards[fitted],
        x_label=plan.axis(axis),
        y_label=plan["y"],
        run=run[fitted] if len({*run[fitted]}) > 1 else None,
        num_samples=None if np.isnan(samples[fitted]).any() else samples[fitted].astype(np.int64),
        start=start,
        start_sd=start_sd,
        holdout_compute=x[late],
        holdout_reward=rewards[late],
        evaluation=evaluation[fitted] if all(evaluation[fitted]) else None,
        evaluation_set=next((word for column, word in key if has_role(column, "set") or column == "set"), None),
        y_scale=y_scale,
        facts=tuple({repr(each): each for each in (*read, *facts, *told, *begun)}.values()),
        plan={**plan.roles, "x": plan.roles[axis]._replace(columns=(plan.axis(axis),))},
        axes={each: points.numbers(each)[fitted] for each in ALL_AXES if each in points},
    )


def _points(runs: list[Run], axis: str) -> Frame:
    """Return the points of a curve: compute and reward as x and y, and what else is known of them."""
    asked, parts, columns = runs[0].plan.asked, list[Frame](), {(run.plan.axis(axis), run.plan["y"]) for run in runs}
    if len(columns) > 1:
        raise InputError("the files of a curve use different columns: choose them with --x and --y.")
    for run in runs:
        plan, frame = run.plan, run.frame
        held = matching(frame, asked.holdout) if asked.holdout else np.zeros(len(frame), dtype=bool)
        hashes = zip(frame.words("prompts_hash"), frame.words(plan["step"]), strict=True)
        known = {each: frame.numbers(plan.axis(each)) for each in ALL_AXES if plan.axis(each)}
        known |= {"x": frame.numbers(plan.axis(axis)), "y": frame.numbers(plan["y"]), "held": held.astype(float)}
        known |= {
            "steps": run.steps,
            "samples": frame.numbers(plan["num_samples"]),
            "run": objects([run.name] * len(frame)),
        }
        known["evaluation"] = objects("@".join(pair) if all(pair) else "" for pair in hashes)
        made = Frame(known, frame.origin)
        parts.append(made.take(made.known("x") & made.known("y")))
    if not any(map(len, parts)):
        raise InputError(_nothing_measured(runs[0], axis))
    return concatenated(parts)


def _nothing_measured(run: Run, axis: str) -> str:
    """Say why a run makes no curve, with the first word that stands where a number is needed."""
    frame, columns = run.frame, (run.plan.axis(axis), run.plan["y"])
    known = " and ".join(f"{frame.known(column).sum()} have a number for {column!r}" for column in columns)
    odd = [
        f" ({word[:40]!r} at {place})"
        for column in columns
        for place, word in zip(frame.origin, frame.words(column), strict=True)
        if word and not math.isfinite(number(word))
    ]
    return (
        f"no usable curve: of {len(frame)} rows of {run.plan.path}, {known}, but none for both{''.join(odd[:1])}: "
        "choose other columns with --x and --y."
    )


def _once_each(points: Frame) -> tuple[Frame, list[Fact]]:
    """Count a value once: leave out rows that are written twice, or hold a value until there is a new one.

    A value is held where most values stand several times in a row, and hardly one comes again later, as counts of right
    answers do.
    """
    points = points.take(np.lexsort((points.numbers("y"), points.numbers("x"), points.groups(["run", "held"]))))
    value = points.groups(["run", "held", "y"])
    begins = np.flatnonzero(np.diff(value, prepend=-1))
    is_held = len(begins) >= 6 and np.median(np.diff(begins, append=len(value))) >= 2
    if not is_held or len({*value.tolist()}) < 0.8 * len(begins):
        return points, []
    return points.take(begins), [fact("held_values", num=len(points) - len(begins), num_rows=len(points))]


def _scaled(plans: list[Plan], points: Frame) -> tuple[YScale, Floats, list[Fact]]:
    """Return the scale, the rewards and what to say: per cent for what is named as a rate or is a benchmark's score."""
    column, scale, rewards, facts = plans[0]["y"], plans[0].asked.y_scale, points.numbers("y"), list[Fact]()
    # A column has one unit for all its curves.
    every = np.concatenate([plan.frame.numbers(plan["y"])[plan.frame.known(plan["y"])] for plan in plans])
    low, high = float(every.min()), float(every.max())
    if scale == "auto":
        is_named = is_rate(column) or (is_score(column) and bool(with_role(plans[0].frame.columns, "set")))
        is_percent = is_named and low >= 0 and _MIN_PERCENT <= high <= 100
        scale = "1" if low >= -_ROUNDING and high <= 1 + _ROUNDING else "100" if is_percent else "none"
        facts = [fact("percent" if is_percent else "own_scale", y=column, low=low, high=high)] * (scale != "1")
    least, most = SCALES[scale] or (-np.inf, np.inf)
    fitted = np.clip(rewards, least, most)
    outside = np.abs(fitted - rewards) > 100 * _ROUNDING
    if outside.any():
        raise InputError(
            f"{column!r} runs from {low:g} to {high:g}, outside [{least:g}, {most:g}] of --y-scale {scale} at "
            f"{points.origin[outside][0]}: leave --y-scale out, and it is read as it is."
        )
    return scale, fitted, facts


# The start


def _before_training(asked: Selection, points: Frame, column: str) -> Mask:
    """Return which rows are of the model before training: at compute 0, or at a step below 0 as some loggers write it.

    With 'first' they are each run's first row, if it is early. InputError for any other row at or below 0.
    """
    x = np.where(points.numbers("held") > 0, np.inf, points.numbers("x"))
    is_start = (x == 0) | ((x < 0) & has_role(column, "step"))
    if asked.start == "first":
        is_first = np.zeros(len(points), dtype=bool)
        for rows in members(points.groups(["run"])):
            is_first[rows] = x[rows] == x[rows].min()
        is_start = is_first & (x >= 0) & (x <= _BEFORE_TRAINING * points.numbers("x").max())
    wrong = (x <= 0) & ~is_start
    if wrong.any():
        raise InputError(
            f"compute {column!r} is {x[wrong][0]:g} at {points.origin[wrong][0]}, which is neither training nor the "
            "start: remove those rows, or name other columns with --x, --seed or --by."
        )
    return is_start


def _start(
    plan: Plan, points: Frame, is_start: Mask, starts: tuple[Floats, Floats, Bounds]
) -> tuple[float | None, float | None, list[Fact]]:
    """Return the start, its noise and what to say of it: given, at compute 0, or an evaluation before training."""
    given, (rewards, _, bounds) = plan.asked.start, starts
    low, high = bounds or (-math.inf, math.inf)
    compute, runs = float(points.numbers("x").min()), points.words("run")[is_start]
    if isinstance(given, float | int):
        if not (math.isfinite(given) and low <= given <= high):
            raise InputError(f"--start {given:g} is outside [{low:g}, {high:g}], the scale of the rewards.")
        return float(given), 0.0, []
    if len(rewards) and given != "fit":
        start = math.fsum(rewards) / len(rewards)
        is_told = len({*runs}) < len(runs) if given == "first" else plan.kind != "run"
        told = fact("start_at_zero", start=start, num=len(rewards), compute=compute)
        return start, start_noise(*starts), [told] * is_told
    if given == "first":
        return None, 0.0, [fact("start_is_late", compute=compute)]
    told = _evaluated_before(plan, points.numbers("steps")) if given is None and bounds == (0, 1) else []
    return (told[0].values["start"], None, told) if told else (None, 0.0, [])


def start_noise(rewards: Floats, samples: Floats, bounds: Bounds) -> float | None:
    """Return the noise of the mean of starts: binomial where the number of answers is known, else from their spread.

    None means that it is as noisy as any evaluation: too few starts, or the same number in every run, which is one
    evaluation that was written down several times.
    """
    if bounds is not None and not np.isnan(samples).any():
        # p (1 - p) / n for each row; p is kept off 0 and 1, where one rate would claim no noise at all.
        width = bounds[1] - bounds[0]
        rates = np.clip((rewards - bounds[0]) / width, 0.02, 0.98)
        return width * math.sqrt(math.fsum(rates * (1 - rates) / samples)) / len(rewards)
    if len(rewards) < _ENOUGH_STARTS or len({*rewards}) == 1:
        return None
    return float(np.std(rewards, ddof=1)) / math.sqrt(len(rewards))


def _evaluated_before(plan: Plan, steps: Floats) -> list[Fact]:
    """Return an evaluation that was made before the first training reward, as verl's of step 0: it is the start."""
    early = min(np.nanmin(steps, initial=np.inf), _FIRST_STEPS * np.nanmax(steps, initial=0.0) + 1e-9)
    for column in plan.roles["y"].too_few if plan.roles["y"].rule == "training" else ():
        values = plan.frame.numbers(column)[plan.frame.numbers(plan["step"]) < early]
        values = values[(values >= 0) & (values <= 1)]
        if values.size:
            return [fact("start_from_evaluation", start=float(values[0]), column=column)]
    return []
