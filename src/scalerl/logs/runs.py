"""`Run`: the rows of one run, with its amounts of compute; and what runs are to each other.

A run is one file and one value of each label. Its rows are split where it was begun anew, and runs that continue each
other are joined. Then every amount of compute is counted within the run.
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
    """What sets its curve apart: columns and their values."""
    name: str
    """Its name among the runs of the curve."""
    frame: Frame
    facts: tuple[Fact, ...] = ()

    @property
    def steps(self) -> Floats:
        """The step of each row; rows are counted where the log has none."""
        step = self.plan["step"]
        return self.frame.numbers(step) if step else np.arange(1.0, len(self.frame) + 1)

    @property
    def measured(self) -> Frame:
        """The rows that have a reward and a step."""
        return self.frame.take(self.frame.known(self.plan["y"]) & np.isfinite(self.steps))

    def noting(self, *facts: Fact) -> "Run":
        return replace(self, facts=(*self.facts, *facts))


def runs_of(plans: list[Plan]) -> list[Run]:
    """Return the runs of logs, joined, split into attempts and with their amounts of compute."""
    runs = [run for plan in plans for run in _split(plan, len(plans) > 1)]
    is_free = not plans[0].asked.by and not plans[0].asked.seed
    tried = [attempt for run in (_joined(runs) if is_free else runs) for attempt in _attempts(run)]
    whole = [_with_amounts(run) for run in (_seeds_in_names(tried) if is_free else tried)]
    kept = [replace(run, frame=run.frame.take(run.plan.asked.selected(run.frame))) for run in whole]
    return [run for run in kept if len(run.frame)]


def _split(plan: Plan, is_one_of_many: bool) -> list[Run]:
    """Return the runs of a log."""
    label, asked, runs = plan.roles["label"], plan.asked, list[Run]()
    columns = dict.fromkeys([FILE, *label.columns, *label.others, *(asked.holdout or ())[:1]])
    named = [*([FILE] if is_one_of_many and not asked.seed else []), *label.others] or [FILE]
    for rows in members(plan.frame.groups(columns)):
        words = {name: str(plan.frame.words(name)[rows[0]]) for name in columns}
        key = {column: words[column] for column in label.columns}
        name = "/".join(words[column] for column in named)
        runs.append(Run(plan, words[FILE], key, name, plan.frame.take(rows), plan.facts))
    logged = [run for run in runs if (run.frame.words(plan["y"]) != "").any()]
    silent = tuple("/".join([*run.key.values()][1:]) for run in runs if run not in logged)
    return [run.noting(fact("no_reward", names=silent, y=plan["y"])) for run in logged] if logged and silent else runs


# What runs are to each other


def _joined(runs: list[Run]) -> list[Run]:
    """Join runs of one kind that continue each other, and leave out those that another one begins with.

    Files lie in one folder then, or files of one name in folders of one folder.
    """
    families: dict[object, list[Run]] = {}
    names = [path.name for path in {run.plan.path for run in runs}]
    for run in runs:
        folder = run.plan.path.absolute().parents[names.count(run.plan.path.name) > 1]
        labels = [each for each in run.key.items() if each[0] != FILE and not has_role(each[0], "run")]
        is_repeat = not any(has_role(name, "run") for name in run.plan.roles["label"].others)
        key = (
            folder,
            run.plan.kind,
            run.plan["step"],
            run.plan["y"],
            *labels,
            is_repeat and run.name.removeprefix(run.file),
        )
        families.setdefault(key, []).append(run)
    return [run for family in families.values() for run in _chained(_longest(family))]


def _longest(runs: list[Run]) -> list[Run]:
    """Return the runs without those of files that hold the first part of another."""
    frames = [run.measured for run in runs]
    points = [
        {*zip(each.numbers(run.plan["step"]), each.numbers(run.plan["y"]), strict=True)}
        for run, each in zip(runs, frames, strict=True)
    ]
    whole: list[Run] = []
    for run, own in zip(runs, points, strict=True):
        others = [
            (other.file, each)
            for other, each in zip(runs, points, strict=True)
            if other.file != run.file and own and each
        ]
        parts = tuple(file for file, each in others if each < own)
        told = [fact("contained", files=parts, file=run.file)] if parts else []
        whole += [] if any(own < each for _, each in others) else [run.noting(*told)]
    return whole


def _chained(runs: list[Run]) -> list[Run]:
    """Return the runs, those that continue each other as one."""
    steps = {at: run.measured.numbers(run.plan["step"]) for at, run in enumerate(runs)}
    whole = dict(enumerate(runs))
    for parts in chains({at: (each.min(), each.max()) for at, each in steps.items() if len(each)}):
        first, *others = (whole.pop(at) for at in parts)
        frame = concatenated([first.frame, *(run.frame for run in others)])
        column = next((name for name, word in first.key.items() if others[0].key[name] != word), "")
        kind = "files_joined" if column == FILE else "runs_joined"
        told = fact(kind, column=column, names=tuple(run.key.get(column, run.name) for run in (first, *others)))
        whole[parts[0]] = replace(first, frame=frame).noting(told)
    return [whole[at] for at in sorted(whole)]


def _seeds_in_names(runs: list[Run]) -> list[Run]:
    """Return the runs; those whose files or names differ in the seed alone are runs of one curve.

    Where one has the very name without a seed, or they count different things, the names say too little.
    """
    taken = {word for run in runs for word in run.key.values()}
    families: dict[tuple[str, ...], list[int]] = {}
    for at, run in enumerate(runs):
        for column in [name for name in run.key if name == FILE or has_role(name, "run")][-1:]:
            short, others = without_seed(run.key[column]), [f"{each}" for each in run.key.items() if each[0] != column]
            families.setdefault((column, short, run.plan["y"], *others), []).append(at)
    for (column, short, *_), places in families.items():
        names = tuple(runs[at].key[column] for at in places)
        for at, name in zip(places, names, strict=True) if len(places) > 1 and short not in taken else ():
            told = fact("seeds_by_name", column=column, names=names)
            runs[at] = replace(runs[at], name=name, key={**runs[at].key, column: short}).noting(told)
    return runs


# Attempts


def _attempts(run: Run) -> list[Run]:
    """Return the attempts of a run that begin anew, without the rows that a resumed one superseded."""
    frame, steps = run.frame, run.steps
    logged = np.flatnonzero(frame.known(run.plan["y"]) & np.isfinite(steps))
    if not len(logged) or run.plan.kind == "run" or not has_role(run.plan["step"], "step") or ATTEMPT in frame:
        return [run]
    found, gone = attempts(steps[logged]), np.zeros(len(frame), dtype=bool)
    number = found.number[np.maximum(np.searchsorted(logged, np.arange(len(frame)), side="right") - 1, 0)]
    gone[logged] = found.gone
    kept = [*dict.fromkeys(found.number[~found.short].tolist())]
    if found.gone.any():
        at = found.resumed[0]
        spans = {"from_step": float(steps[logged[at - 1]]), "to_step": float(steps[logged[at]])}
        place = f"{frame.origin[logged[at]]} of {run.file}"
        run = run.noting(fact("superseded", **spans, place=place, times=len(found.resumed), num=int(found.gone.sum())))
    if found.short.any():
        run = run.noting(fact("short_attempts", num_rows=int(found.short.sum()), place=run.file))
    if len(kept) == 1:
        return [replace(run, frame=frame.take((number == kept[0]) & ~gone))]
    run, tried = run.noting(fact("attempts", num=len(kept), place=run.file)), list[Run]()
    for at, attempt in enumerate(map(str, range(1, len(kept) + 1))):
        part = frame.take((number == kept[at]) & ~gone)
        part = part.having({ATTEMPT: objects([attempt] * len(part))})
        is_repeat = run.plan.asked.seed == ATTEMPT
        named = {"name": attempt} if is_repeat else {"key": {**run.key, ATTEMPT: attempt}}
        tried.append(replace(run, frame=part, **named))
    return tried


# Compute


def _with_amounts(run: Run) -> Run:
    """Return a run with its amounts of compute; what a row lacks is taken from its step, and is 0 at step 0."""
    plan, steps = run.plan, run.steps.tolist()
    for axis in [axis for axis in ("hours", *AXES, "cost", "x") if axis in plan.roles]:
        values = COUNTED.get(plan.roles[axis].rule, _total)(run, axis).tolist()
        known = {0.0: 0.0} | {step: value for step, value in zip(steps, values, strict=True) if value == value}
        filled = [
            known.get(step, value) if value != value else value for step, value in zip(steps, values, strict=True)
        ]
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
    return run.frame.numbers(run.plan.axis("hours")) * (run.plan.asked.gpus or 1.0)


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

    Of one of our runs alone these are FLOPs where the time per FLOP changed. "" if there is none.
    """
    if runs[0].plan.asked.x:
        return "x"
    axes = [axis for axis in AXES if all(_is_usable(run, axis) for run in runs)]
    spent = [
        (run.frame.numbers(column).tolist() for column in ("gpu_hours", "flops"))
        for run in runs
        if run.plan.kind == "run"
    ]
    uneven = [
        disagreement({"gpu_hours": own, "flops": done} for own, done in zip(*each, strict=True)) for each in spent
    ]
    is_alone = len({run.plan.path for run in runs}) == 1 and "arm" not in runs[0].key
    return (*(["flops"] if is_alone and "flops" in axes and max(uneven, default=0) > UNEVEN_TIME else []), *axes, "")[0]


def _is_usable(run: Run, axis: str) -> bool:
    frame, is_sum = (
        run.measured,
        axis == "tokens" and run.plan.axis(axis) == "tokens" and "tokens" not in run.plan.frame,
    )
    steps, values = frame.numbers(run.plan["step"]), frame.numbers(run.plan.axis(axis))
    order = np.argsort(steps, kind="stable")
    falls = values[order[1:]] < (1 - _MIN_FALL) * values[order[:-1]]
    known = values[np.isfinite(values)]
    is_total = not (np.diff(steps[order]) > 0).all() or not falls.any()
    return not is_sum and is_total and 2 * len(known) >= len(values) and len({*known}) >= min(len(values), 2) > 0
