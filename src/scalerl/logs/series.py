"""From logs to series: the numbers of each curve, checked and in the unit that is fitted.

A fault of one curve among several becomes its `problem`, and the others stand; that of an only curve raises InputError.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from scalerl.errors import InputError
from scalerl.logs.columns import AXES, has_role, is_part, is_rate, is_score, with_role
from scalerl.logs.facts import Fact, fact, sentence
from scalerl.logs.formats import Log
from scalerl.logs.frame import Floats, Mask, Words, listed, members, number, numbered, objects
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
    return {axis: largest for axis, largest in ratios.items() if largest > ratio}


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


# All curves


def series_from(logs: Sequence[Log], selection: Selection) -> list[Series]:
    """Return one series for each value of `by`; without it for each file, and in it each arm, run, label or attempt."""
    if not logs:
        raise InputError("no file was given: name at least one log file or run folder.")
    plans, problems = _plans(logs, selection)
    runs = runs_of(plans)
    _check_selected(plans, runs, selection)
    curves, shared = _curves(runs, selection), main_axis(runs)
    built = [_built(key, members, shared) for key, members in curves.items()]
    built += [_without_points(((FILE, name),), problem) for name, problem in problems.items()]
    names = curve_names([series.key for series in built], selection.labels)
    usable = [series for series in built if not series.problem]
    if not usable:
        among = "" if len(built) == 1 else f"no usable curve among {len(built)}; the first, {names[0]}: "
        raise InputError(f"{among}{built[0].problem}")
    # What makes no curve is shown with the others, on their axes.
    axes = {"x_label": usable[0].x_label, "y_label": usable[0].y_label}
    named = [replace(series, name=name) for series, name in zip(built, names, strict=True)]
    return _in_one_unit([replace(each, **axes) if each.problem else each for each in named], selection)


def _plans(logs: Sequence[Log], selection: Selection) -> tuple[list[Plan], dict[str, str]]:
    """Return the plan of each log, and why the others have none, by file."""
    plans, problems = list[Plan](), dict[str, str]()
    for log, name in zip(logs, file_names([log.path for log in logs]), strict=True):
        try:
            plans.append(log.plan(selection, name))
        except InputError as problem:
            problems[name] = str(problem)
    return plans, problems


def _check_selected(plans: list[Plan], runs: list[Run], selection: Selection) -> None:
    """Raise InputError for a filter that keeps no row, and for held-out rows that are not there."""
    held = selection.holdout
    conditions = [] if runs else [("--where", each) for each in (*selection.where, *selection.where_not)]
    if held and not any(matching(run.frame, held).any() for run in runs):
        conditions = [("--holdout", held)]
    for option, (column, value) in conditions if plans else ():
        words = {word for plan in plans for word in plan.frame.words(column) if word}
        place = listed([str(plan.path) for plan in plans])
        raise InputError(
            f"{option} {column}={value} matches no row of {place}: the values there are {listed(sorted(words))}."
        )


def _curves(runs: list[Run], selection: Selection) -> dict[CurveKey, list[Run]]:
    """Return the runs of each curve, by the labels that differ between curves."""
    labels = dict.fromkeys(name for run in runs for name in run.key)
    apart = [name for name in labels if len({run.key.get(name) for run in runs}) > 1 or name in (FILE, *selection.by)]
    curves: dict[CurveKey, list[Run]] = {}
    for run in runs:
        curves.setdefault(tuple((name, run.key[name]) for name in apart if run.key.get(name)), []).append(run)
    return curves


def _built(key: CurveKey, runs: list[Run], shared: str) -> Series:
    """Return a curve on the axis that all curves share, or else on its own."""
    first = next(axis for axis in ("x", *AXES) if runs[0].plan.axis(axis))
    try:
        return _series(key, runs, shared or main_axis(runs) or first)
    except InputError as problem:
        return _without_points(key, str(problem))


def _without_points(key: CurveKey, problem: str) -> Series:
    return Series(name="", key=key, problem=problem, compute=_NO_POINTS, reward=_NO_POINTS, x_label="", y_label="")


def _in_one_unit(built: list[Series], selection: Selection) -> list[Series]:
    """Return curves in shares and in per cent side by side as shares; a start that is given is a share then."""
    if not {"1", "100"} <= {series.y_scale for series in built if not series.problem}:
        return built
    shares = [in_shares(series) if series.y_scale == "100" else series for series in built]
    is_given = isinstance(selection.start, float | int)
    return [replace(each, start=selection.start) if is_given and each.start is not None else each for each in shares]


# One curve


class Points(NamedTuple):
    """Points of a curve: arrays of equal length."""

    compute: Floats
    reward: Floats
    steps: Floats
    samples: Floats
    is_held: Mask
    run: Words
    evaluation: Words
    origin: Words
    axes: Floats
    """A column for each of ALL_AXES, NaN where it is not known."""

    def take(self, which: Any) -> "Points":
        return Points._make(cells[which] for cells in self)


def _series(key: CurveKey, runs: list[Run], axis: str) -> Series:
    plan, labels = runs[0].plan, dict(key)
    points, repeated = _once_each(_points(runs, axis))
    scale, unit = _scale([run.plan for run in runs])
    points = _within(points, scale, plan["y"])
    is_mean = scale != "none" and not is_part(plan["y"]) and (points.samples >= 1) & (points.samples < 2**63)
    points = points._replace(samples=np.where(is_mean, points.samples, np.nan))
    is_start = _before_training(plan, points, plan.axis(axis))
    start = _start(plan, points, is_start, SCALES[scale])
    order = np.lexsort((points.evaluation, points.reward, points.compute, points.run))
    fitted, late = (points.take(order[which[order]]) for which in (~points.is_held & ~is_start, points.is_held))
    late = late.take(np.lexsort((late.reward, late.compute)))
    if not len(fitted.compute):
        raise InputError(f"{runs[0].file} has no row left to fit besides its start and what is held out.")
    apart = tuple(column for column in labels if column not in (FILE, ATTEMPT, *plan.options.by))
    facts = [each for run in runs for each in run.facts if each.kind != "attempts" or ATTEMPT in labels]
    facts += [*repeated, *unit]
    facts += [fact("counted_in_flops")] if axis == "flops" and plan.kind == "run" and plan["gpu_hours"] else []
    facts += [fact("runs_apart", columns=apart)] if apart else []
    return Series(
        name="",
        key=key,
        compute=fitted.compute,
        reward=fitted.reward,
        x_label=plan.axis(axis),
        y_label=plan["y"],
        run=fitted.run.astype(str) if len({*fitted.run}) > 1 else None,
        num_samples=None if np.isnan(fitted.samples).any() else fitted.samples.astype(np.int64),
        start=start.value,
        start_sd=start.sd,
        holdout_compute=late.compute,
        holdout_reward=late.reward,
        evaluation=fitted.evaluation.astype(str) if all(fitted.evaluation) else None,
        evaluation_set=next((word for column, word in key if has_role(column, "set") or column == "set"), None),
        y_scale=scale,
        facts=tuple({repr(each): each for each in (*facts, *start.facts)}.values()),
        plan={**plan.roles, "x": plan.roles[axis]._replace(columns=(plan.axis(axis),))},
        axes={name: each for name, each in zip(ALL_AXES, fitted.axes.T, strict=True) if np.isfinite(each).any()},
    )


def _points(runs: list[Run], axis: str) -> Points:
    """Return the points of a curve: rows with compute and reward."""
    if len({(run.plan.axis(axis), run.plan["y"]) for run in runs}) > 1:
        raise InputError("the files of a curve use different columns: choose them with --x and --y.")
    points = Points._make(map(np.concatenate, zip(*(_rows(run, axis) for run in runs), strict=True)))
    is_known = np.isfinite(points.compute) & np.isfinite(points.reward)
    if not is_known.any():
        raise InputError(_nothing_measured(runs[0], axis))
    return points.take(is_known)


def _rows(run: Run, axis: str) -> Points:
    plan, frame, held = run.plan, run.frame, run.plan.options.holdout
    hashes = zip(frame.words("prompts_hash"), frame.words(plan["step"]), strict=True)
    return Points(
        compute=frame.numbers(plan.axis(axis)),
        reward=frame.numbers(plan["y"]),
        steps=run.steps,
        samples=frame.numbers(plan["num_samples"]),
        is_held=matching(frame, held) if held else np.zeros(len(frame), dtype=bool),
        run=objects([run.name] * len(frame)),
        evaluation=objects("@".join(pair) if all(pair) else "" for pair in hashes),
        origin=frame.origin,
        axes=np.stack([frame.numbers(plan.axis(each)) for each in ALL_AXES], axis=1),
    )


def _nothing_measured(run: Run, axis: str) -> str:
    """Say why a run makes no curve, with the first word that stands where a number is needed."""
    frame, columns = run.frame, (run.plan.axis(axis), run.plan["y"])
    known = " and ".join(f"{frame.known(column).sum()} have a number for {column!r}" for column in columns)
    cells = [cell for column in columns for cell in zip(frame.origin, frame.words(column), strict=True)]
    odd = [f" ({word[:40]!r} at {place})" for place, word in cells if word and not math.isfinite(number(word))]
    return (
        f"no usable curve: of {len(frame)} rows of {run.plan.path}, {known}, but none for both{''.join(odd[:1])}: "
        "choose other columns with --x and --y."
    )


def _once_each(points: Points) -> tuple[Points, list[Fact]]:
    """Count a value once: leave out rows that are written twice, or hold a value until there is a new one.

    A value is held where most values stand several times in a row, and hardly one comes again later, as counts of right
    answers do.
    """
    parts = numbered(zip(points.run, points.is_held, strict=True))
    order = np.lexsort((points.reward, points.compute, parts))
    ordered, values = points.take(order), numbered(zip(parts[order], points.reward[order], strict=True))
    begins = np.flatnonzero(np.diff(values, prepend=-1))
    is_held = len(begins) >= 6 and np.median(np.diff(begins, append=len(values))) >= 2
    if not is_held or len({*values.tolist()}) < 0.8 * len(begins):
        return ordered, []
    return ordered.take(begins), [fact("held_values", num=len(values) - len(begins), num_rows=len(values))]


# The unit


def _scale(plans: list[Plan]) -> tuple[YScale, list[Fact]]:
    """Return the scale of a column, which is one for all its curves, and what to say of it.

    What is named as a rate, and a benchmark's score, is per cent if its values are.
    """
    column, scale = plans[0]["y"], plans[0].options.y_scale
    low, high = _range(plans)
    if scale != "auto":
        return scale, []
    if low >= -_ROUNDING and high <= 1 + _ROUNDING:
        return "1", []
    is_named = is_rate(column) or (is_score(column) and bool(with_role(plans[0].frame.columns, "set")))
    is_percent = is_named and low >= 0 and _MIN_PERCENT <= high <= 100
    kind = "percent" if is_percent else "own_scale"
    return "100" if is_percent else "none", [fact(kind, y=column, low=low, high=high)]


def _range(plans: list[Plan]) -> tuple[float, float]:
    rewards = np.concatenate([plan.frame.numbers(plan["y"]) for plan in plans])
    rewards = rewards[np.isfinite(rewards)]
    return float(rewards.min()), float(rewards.max())


def _within(points: Points, scale: YScale, column: str) -> Points:
    """Return the points, rewards that leave the scale by rounding at its ends; InputError for those that leave it."""
    low, high = SCALES[scale] or (-np.inf, np.inf)
    fitted = np.clip(points.reward, low, high)
    outside = np.abs(fitted - points.reward) > 100 * _ROUNDING
    if outside.any():
        raise InputError(
            f"{column!r} is {points.reward[outside][0]:g} at {points.origin[outside][0]}, outside [{low:g}, {high:g}] "
            f"of --y-scale {scale}: leave --y-scale out, and it is read as it is."
        )
    return points._replace(reward=fitted)


# The start


class Start(NamedTuple):
    """The reward before training, its noise (None: that of any evaluation) and what to say of it."""

    value: float | None
    sd: float | None
    facts: list[Fact]


def _before_training(plan: Plan, points: Points, column: str) -> Mask:
    """Return which rows are of the model before training: at compute 0, or at a step below 0 as some loggers write it.

    With 'first' they are each run's first row, if it is early. InputError for any other row at or below 0.
    """
    x = np.where(points.is_held, np.inf, points.compute)
    is_start = (x == 0) | ((x < 0) & has_role(column, "step"))
    if plan.options.start == "first":
        is_first = np.zeros(len(x), dtype=bool)
        for rows in members(numbered(points.run)):
            is_first[rows] = x[rows] == x[rows].min()
        is_start = is_first & (x >= 0) & (x <= _BEFORE_TRAINING * points.compute.max())
    wrong = (x <= 0) & ~is_start
    if wrong.any():
        raise InputError(
            f"compute {column!r} is {x[wrong][0]:g} at {points.origin[wrong][0]}, which is neither training nor the "
            "start: remove those rows, or name other columns with --x, --seed or --by."
        )
    return is_start


def _start(plan: Plan, points: Points, is_start: Mask, bounds: Bounds) -> Start:
    """Return the start: given, the mean at compute 0, or an evaluation before training."""
    given, starts, compute = plan.options.start, points.take(is_start), float(points.compute.min())
    low, high = bounds or (-math.inf, math.inf)
    if isinstance(given, float | int):
        if not (math.isfinite(given) and low <= given <= high):
            raise InputError(f"--start {given:g} is outside [{low:g}, {high:g}], the scale of the rewards.")
        return Start(float(given), 0.0, [])
    if is_start.any() and given != "fit":
        mean, num = math.fsum(starts.reward) / len(starts.reward), len(starts.reward)
        is_plain = len({*starts.run}) == num if given == "first" else plan.kind == "run"
        facts = [] if is_plain else [fact("start_at_zero", start=mean, num=num, compute=compute)]
        return Start(mean, start_noise(starts.reward, starts.samples, bounds), facts)
    if given == "first":
        return Start(None, 0.0, [fact("start_is_late", compute=compute)])
    is_read = given is None and bounds == (0, 1) and plan.roles["y"].rule == "training"
    return (_evaluated_before(plan, points.steps) if is_read else None) or Start(None, 0.0, [])


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


def _evaluated_before(plan: Plan, steps: Floats) -> Start | None:
    """Return an evaluation that was made before the first training reward, as verl's of step 0."""
    early = min(np.nanmin(steps, initial=np.inf), _FIRST_STEPS * np.nanmax(steps, initial=0.0) + 1e-9)
    for column in plan.roles["y"].too_few:
        values = plan.frame.numbers(column)[plan.frame.numbers(plan["step"]) < early]
        for value in values[(values >= 0) & (values <= 1)].tolist()[:1]:
            return Start(value, None, [fact("start_from_evaluation", start=value, column=column)])
    return None
