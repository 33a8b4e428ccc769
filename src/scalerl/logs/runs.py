"""`Run`: the rows of one run, with its amounts of compute; and what runs are to each other.

A run is one file and one value of each label. Runs that continue each other are joined, a run that begins anew is split
into attempts, and runs whose names differ in a seed share a curve. Then every amount of compute is counted in each.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import numpy as np

from scalerl.logs import amounts
from scalerl.logs.attempts import attempts, chains
from scalerl.logs.axes import UNEVEN_TIME, disagreement
from scalerl.logs.columns import AXES, has_role
from scalerl.logs.facts import Fact, fact
from scalerl.logs.frame import Floats, Frame, concatenated, members, objects
from scalerl.logs.names import ATTEMPT, FILE, without_seed
from scalerl.logs.plan import Plan
from scalerl.logs.tidy import wall_times

# A counter that is corrected falls by a little, one that begins anew by far more.
_MIN_FALL = 0.1


@dataclass(frozen=True, slots=True, eq=False)
class Run:
    """The rows of one run, in the order of the log."""

    plan: Plan
    file: str
    key: Mapping[str, str]
    """Columns and values that set its curve apart from other curves."""
    repeat: Mapping[str, str]
    """Columns and values that set it apart from other runs of its curve."""
    frame: Frame
    facts: tuple[Fact, ...] = ()

    @property
    def name(self) -> str:
        """Its name among the runs of the curve."""
        return "/".join(self.repeat.values())

    @property
    def steps(self) -> Floats:
        """The step of each row; rows are counted where the log has none."""
        step = self.plan["step"]
        return self.frame.numbers(step) if step else np.arange(1.0, len(self.frame) + 1)

    @property
    def measured(self) -> Frame:
        """The rows that have a reward and a step."""
        return self.frame.take(self.frame.known(self.plan["y"]) & np.isfinite(self.steps))

    def noting(self, kind: str, **values: object) -> "Run":
        return replace(self, facts=(*self.facts, fact(kind, **values)))


def runs_of(plans: list[Plan]) -> list[Run]:
    """Return the runs of logs, with their amounts of compute and the rows that the options keep."""
    runs = [run for plan in plans for run in _split(plan, len(plans) > 1)]
    is_free = bool(plans) and not plans[0].options.by and not plans[0].options.seed
    runs = [attempt for run in (_joined(runs) if is_free else runs) for attempt in _attempts(run)]
    runs = [_with_amounts(run) for run in (_seeds_in_names(runs) if is_free else runs)]
    kept = [replace(run, frame=run.frame.take(run.plan.options.selected(run.frame))) for run in runs]
    return [run for run in kept if len(run.frame)]


def _split(plan: Plan, is_one_of_many: bool) -> list[Run]:
    """Return the runs of a log; those that never logged the reward are left out, if others did."""
    label, options, runs = plan.roles["label"], plan.options, list[Run]()
    repeat = [FILE, *label.others] if is_one_of_many and not options.seed else label.others or [FILE]
    columns = dict.fromkeys([FILE, *label.columns, *repeat, *(options.holdout or ())[:1]])
    for rows in members(plan.frame.groups(columns)):
        words = {name: str(plan.frame.words(name)[rows[0]]) for name in columns}
        key, names = ({name: words[name] for name in each} for each in (label.columns, repeat))
        runs.append(Run(plan, words[FILE], key, names, plan.frame.take(rows), plan.facts))
    logged = [run for run in runs if (run.frame.words(plan["y"]) != "").any()]
    silent = tuple("/".join([*run.key.values()][1:]) for run in runs if run not in logged)
    return [run.noting("no_reward", names=silent, y=plan["y"]) for run in logged] if logged and silent else runs


# What runs are to each other


def _joined(runs: list[Run]) -> list[Run]:
    """Join runs of one kind that continue each other, and leave out those that another one begins with.

    Files lie in one folder then, or files of one name in folders of one folder.
    """
    families: dict[object, list[Run]] = {}
    names = [path.name for path in {run.plan.path for run in runs}]
    for run in runs:
        folder = run.plan.path.absolute().parents[names.count(run.plan.path.name) > 1]
        labels = [
            each for each in {**run.key, **run.repeat}.items() if each[0] != FILE and not has_role(each[0], "run")
        ]
        key = (folder, run.plan.kind, run.plan["step"], run.plan["y"], *labels)
        families.setdefault(key, []).append(run)
    return [run for family in families.values() for run in _chained(_longest(family))]


def _longest(runs: list[Run]) -> list[Run]:
    """Return the runs without those of files that hold the first part of another."""
    points = {run: _points(run) for run in runs}
    parts = {run: [each for each in runs if each.file != run.file and set() < points[each] < points[run]]
             for run in runs}  # fmt: skip
    contained = {part for each in parts.values() for part in each}
    noted = {run: run.noting("contained", files=tuple(part.file for part in each), file=run.file)
             for run, each in parts.items() if each}  # fmt: skip
    return [noted.get(run, run) for run in runs if run not in contained]


def _points(run: Run) -> set[tuple[float, float]]:
    steps, rewards = (run.measured.numbers(run.plan[role]).tolist() for role in ("step", "y"))
    return {*zip(steps, rewards, strict=True)}


def _chained(runs: list[Run]) -> list[Run]:
    """Return the runs, those that continue each other as one."""
    steps = [run.measured.numbers(run.plan["step"]) for run in runs]
    spans = [(float(each.min(initial=np.inf)), float(each.max(initial=-np.inf))) for each in steps]
    return [_whole([runs[at] for at in parts]) for parts in sorted(chains(spans), key=min)]


def _whole(parts: list[Run]) -> Run:
    """Return a run from its parts, in the order of their steps."""
    first = parts[0]
    if len(parts) == 1:
        return first
    column = next((name for name, word in first.key.items() if parts[1].key[name] != word), "")
    names = tuple(run.key.get(column, run.name) for run in parts)
    joined = replace(first, frame=concatenated([run.frame for run in parts]))
    return joined.noting("files_joined" if column == FILE else "runs_joined", column=column, names=names)


def _seeds_in_names(runs: list[Run]) -> list[Run]:
    """Return the runs; those whose files or names differ in the seed alone are runs of one curve.

    Where one has the very name without a seed, or they count different things, the names say too little.
    """
    taken = {word for run in runs for word in run.key.values()}
    families: dict[object, list[Run]] = {}
    for run in runs:
        short = without_seed(run.key.get(_naming(run), ""))
        families.setdefault((run.plan["y"], *{**run.key, _naming(run): short}.items()), []).append(run)
    return [each for family in families.values() for each in _pooled(family, taken)]


def _naming(run: Run) -> str:
    """Return the column that names a run: that of runs, or the file."""
    return [FILE, *(name for name in run.key if has_role(name, "run"))][-1]


def _pooled(family: list[Run], taken: set[str]) -> list[Run]:
    column = _naming(family[0])
    names = tuple(run.key.get(column, "") for run in family)
    short = without_seed(names[0])
    if len(family) == 1 or column not in family[0].key or short in taken:
        return family
    pooled = [replace(run, key={**run.key, column: short}, repeat={column: run.key[column]}) for run in family]
    return [run.noting("seeds_by_name", column=column, names=names) for run in pooled]


# Attempts


def _attempts(run: Run) -> list[Run]:
    """Return the attempts of a run that begin anew, without the rows that a resumed one superseded."""
    frame, steps = run.frame, run.steps
    logged = np.flatnonzero(frame.known(run.plan["y"]) & np.isfinite(steps))
    if not len(logged) or run.plan.kind == "run" or not has_role(run.plan["step"], "step") or ATTEMPT in frame:
        return [run]
    split = attempts(steps[logged])
    if split.gone.any():
        at, num = logged[split.resumed[0]], int(split.gone.sum())
        before = float(steps[logged[split.resumed[0] - 1]])
        place, times = f"{frame.origin[at]} of {run.file}", len(split.resumed)
        run = run.noting("superseded", from_step=before, to_step=float(steps[at]), place=place, times=times, num=num)
    if split.short.any():
        run = run.noting("short_attempts", num_rows=int(split.short.sum()), place=run.file)
    # A row without a reward belongs to the attempt of the reward before it.
    number = split.number[np.maximum(np.searchsorted(logged, np.arange(len(frame)), side="right") - 1, 0)]
    number[logged[split.gone]] = -1
    parts = [frame.take(number == each) for each in np.unique(split.number[~split.short])]
    if len(parts) == 1:
        return [replace(run, frame=parts[0])]
    run = run.noting("attempts", num=len(parts), place=run.file)
    return [_attempt(run, str(at), part) for at, part in enumerate(parts, start=1)]


def _attempt(run: Run, number: str, frame: Frame) -> Run:
    frame, label = frame.having({ATTEMPT: objects([number] * len(frame))}), {ATTEMPT: number}
    is_repeat = run.plan.options.seed == ATTEMPT
    return replace(run, frame=frame, **({"repeat": label} if is_repeat else {"key": {**run.key, **label}}))


# Compute


def _with_amounts(run: Run) -> Run:
    """Return a run with its amounts of compute; what a row lacks is taken from its step, and is 0 at step 0."""
    plan, steps = run.plan, run.steps.tolist()
    for axis in [axis for axis in ("hours", *AXES, "cost", "x") if axis in plan.roles]:
        values = COUNTED.get(plan.roles[axis].rule, _total)(run, axis).tolist()
        known = {0.0: 0.0} | {step: value for step, value in zip(steps, values, strict=True) if value == value}
        pairs = zip(steps, values, strict=True)
        filled = [value if value == value else known.get(step, value) for step, value in pairs]
        run = replace(run, frame=run.frame.having({plan.axis(axis): np.array(filled)}))
    return run


def _total(run: Run, axis: str) -> Floats:
    return run.frame.numbers(run.plan[axis])


def _per_step(run: Run, axis: str) -> Floats:
    spent = np.sum([_seconds(run, column) for column in run.plan.roles[axis].columns], axis=0)
    return amounts.totals(run.steps, spent) / (3600 if axis == "hours" else 1)


def _elapsed(run: Run, axis: str) -> Floats:
    return amounts.on_clock(run.steps, _seconds(run, run.plan[axis])) / 3600


def _clock(run: Run, axis: str) -> Floats:
    times = wall_times(run.frame)
    return amounts.on_clock(run.steps, times - np.nanmin(times, initial=np.inf)) / 3600


def _times_gpus(run: Run, axis: str) -> Floats:
    return run.frame.numbers(run.plan.axis("hours")) * (run.plan.options.gpus or 1.0)


def _seconds(run: Run, column: str) -> Floats:
    is_text = run.frame.is_words(column) and not run.frame.known(column).any()
    return np.array([*map(amounts.duration, run.frame.words(column))]) if is_text else run.frame.numbers(column)


COUNTED: dict[str, Callable[[Run, str], Floats]] = {
    "per_step": _per_step,
    "elapsed": _elapsed,
    "clock": _clock,
    "times_gpus": _times_gpus,
}
"""How an amount of compute is counted, by the rule that chose its column; else it is the column."""


def main_axis(runs: list[Run]) -> str:
    """Return the axis to show: the first that most rewards of all runs have, and that grows with the step.

    For one of our runs alone these are FLOPs where the time per FLOP changed. "" if there is none.
    """
    if not runs:
        return ""
    plan = runs[0].plan
    if plan.options.x:
        return "x"
    axes = [axis for axis in AXES if all(_is_usable(run, axis) for run in runs)]
    is_ours_alone = plan.kind == "run" and all(run.plan is plan and "arm" not in run.key for run in runs)
    return "flops" if is_ours_alone and "flops" in axes and _is_uneven(plan.frame) else (*axes, "")[0]


def _is_uneven(frame: Frame) -> bool:
    spent = zip(frame.numbers("gpu_hours").tolist(), frame.numbers("flops").tolist(), strict=True)
    return disagreement({"gpu_hours": hours, "flops": flops} for hours, flops in spent) > UNEVEN_TIME


def _is_usable(run: Run, axis: str) -> bool:
    """Return whether most rewards have this compute and it grows; tokens per step leave out what no step was logged."""
    frame, is_sum = run.measured, axis == "tokens" and run.plan.axis(axis) not in run.plan.frame
    steps, values = frame.numbers(run.plan["step"]), frame.numbers(run.plan.axis(axis))
    order = np.argsort(steps, kind="stable")
    falls = values[order[1:]] < (1 - _MIN_FALL) * values[order[:-1]]
    known = values[np.isfinite(values)]
    is_total = not (np.diff(steps[order]) > 0).all() or not falls.any()
    return not is_sum and is_total and 2 * len(known) >= len(values) and len({*known}) >= min(len(values), 2) > 0
