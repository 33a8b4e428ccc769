"""`Run`: the rows of one run, with its amounts of compute; and what runs are to each other.

A run is one file and one value of each label. Its rows are split where it was begun anew, and runs that continue each
other are joined. Then every amount of compute is counted within the run.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from scalerl.logs import amounts
from scalerl.logs.attempts import attempts, chains
from scalerl.logs.axes import UNEVEN_TIME, disagreement
from scalerl.logs.columns import AXES, has_role
from scalerl.logs.facts import Fact, fact
from scalerl.logs.frame import Floats, Frame, concatenated, members, objects
from scalerl.logs.names import ATTEMPT, FILE, without_seed
from scalerl.logs.plan import Choice, Plan
from scalerl.logs.tidy import wall_times

# A counter that is corrected falls by a little, one that begins anew by far more.
_MIN_FALL = 0.1


@dataclass(frozen=True, slots=True, eq=False)
class Run:
    """The rows of one run, in the order of the log."""

    plan: Plan
    key: Mapping[str, str]
    """The file, and the value of each label."""
    frame: Frame
    facts: tuple[Fact, ...] = ()

    @property
    def steps(self) -> Floats:
        """The step of each row; rows are counted where the log has none."""
        step = self.plan["step"]
        return self.frame.numbers(step) if step else np.arange(1.0, len(self.frame) + 1)

    def noting(self, *facts: Fact) -> "Run":
        return replace(self, facts=(*self.facts, *facts))

    def measured(self) -> Frame:
        """Return the rows that have a step and a reward."""
        return self.frame.take(self.frame.known(self.plan["y"]) & np.isfinite(self.steps))


def runs_of(plans: Sequence[Plan]) -> list[Run]:
    """Return the runs of logs, joined, split into attempts and with their amounts of compute."""
    runs = [run for plan in plans for run in _split(plan)]
    asked = plans[0].asked
    joined = runs if asked.by or asked.seed else _joined(runs)
    tried = [attempt for run in joined for attempt in _attempts(run)]
    return [_with_amounts(run) for run in tried]


def _split(plan: Plan) -> list[Run]:
    """Return the runs of a log."""
    asked, labels = plan.asked, plan.roles["label"].columns if "label" in plan.roles else ()
    named = (FILE, *labels, *asked.by, *filter(None, [asked.seed]), *(asked.holdout or ())[:1])
    columns = [name for name in dict.fromkeys(named) if name in plan.frame]
    runs = []
    for rows in members(plan.frame.groups(columns)):
        key = {name: str(plan.frame.words(name)[rows[0]]) for name in columns}
        runs.append(Run(plan, key, plan.frame.take(rows), plan.facts))
    return runs


# What runs are to each other


def _joined(runs: list[Run]) -> list[Run]:
    """Join runs of one kind that continue each other, and leave out those that another one begins with.

    Files lie in one folder then, or files of one name in folders of one folder.
    """
    families: dict[object, list[Run]] = {}
    paths = [path.name for path in {run.plan.path for run in runs}]
    for run in runs:
        folder = run.plan.path.absolute().parents[paths.count(run.plan.path.name) > 1]
        labels = tuple((name, word) for name, word in run.key.items() if name != FILE and not has_role(name, "run"))
        families.setdefault((folder, run.plan.kind, run.plan["step"], run.plan["y"], labels), []).append(run)
    return [run for family in families.values() for run in _one_family(family)]


def _one_family(runs: list[Run]) -> list[Run]:
    points = [{*zip(run.measured().numbers(run.plan["step"]), run.measured().numbers(run.plan["y"]), strict=True)} for run in runs]
    files = [run.key[FILE] for run in runs]
    whole: list[Run] = []
    for run, own in zip(runs, points, strict=True):
        others = [(file, each) for file, each in zip(files, points, strict=True) if file != run.key[FILE] and each and own]
        parts = tuple(file for file, each in others if each < own)
        told = [fact("contained", files=parts, file=run.key[FILE])] if parts else []
        whole += [run.noting(*told)] if not any(own < each for _, each in others) else []
    steps = {at: run.measured().numbers(run.plan["step"]) for at, run in enumerate(whole)}
    for parts in chains({at: (each.min(), each.max()) for at, each in steps.items() if len(each)}):
        joined = [whole[at] for at in parts]
        column = next(name for name in joined[0].key if joined[0].key[name] != joined[1].key[name])
        kind = "files_joined" if column == FILE else "runs_joined"
        told = [fact(kind, column=column, names=tuple(each.key[column] for each in joined))]
        frame = concatenated([each.frame for each in joined])
        whole[parts[0]] = replace(joined[0], frame=frame).noting(*told)
        for at in parts[1:]:
            whole[at] = whole[parts[0]]
    return [*dict.fromkeys(whole)]


def seeds_in_names(runs: list[Run], column: str) -> dict[int, str]:
    """Return the names without a seed of runs whose files, or names, differ in the seed alone, by the run's place.

    Where one has the very name without a seed, or they count different things, the names say too little.
    """
    families: dict[object, list[int]] = {}
    for at, run in enumerate(runs):
        others = tuple((name, word) for name, word in run.key.items() if name != column)
        families.setdefault((others, run.plan["y"], without_seed(run.key.get(column, ""))), []).append(at)
    words = {run.key.get(column, "") for run in runs}
    alike = [(name, places) for (_, _, name), places in families.items() if name not in words]  # type: ignore[misc]
    return {at: name for name, places in alike if len({runs[at].key[column] for at in places}) > 1 for at in places}


# Attempts


def _attempts(run: Run) -> list[Run]:
    """Return the attempts of a run that begin anew, without the rows that a resumed one superseded."""
    frame, steps = run.frame, run.steps
    logged = np.flatnonzero(frame.known(run.plan["y"]) & np.isfinite(steps))
    if not len(logged) or run.plan.kind == "run" or not has_role(run.plan["step"], "step") or ATTEMPT in frame:
        return [run]
    found, place = attempts(steps[logged]), run.key[FILE]
    number, gone = np.zeros(len(frame), dtype=np.intp), np.zeros(len(frame), dtype=bool)
    number = found.number[np.maximum(np.searchsorted(logged, np.arange(len(frame)), side="right") - 1, 0)]
    gone[logged] = found.gone
    facts = list[Fact]()
    if found.gone.any():
        at = found.resumed[0]
        told = {"from_step": float(steps[logged[at - 1]]), "to_step": float(steps[logged[at]]), "times": len(found.resumed)}
        facts.append(fact("superseded", **told, place=f"{frame.origin[logged[at]]} of {place}", num=int(found.gone.sum())))
    if found.short.any():
        facts.append(fact("short_attempts", num_rows=int(found.short.sum()), place=place))
    kept = [*dict.fromkeys(found.number[~found.short].tolist())]
    facts += [fact("attempts", num=len(kept), place=place)] if len(kept) > 1 else []
    whole = []
    for at, attempt in enumerate(kept, start=1):
        rows = frame.take((number == attempt) & ~gone)
        rows = rows.having({ATTEMPT: objects([str(at)] * len(rows))}) if len(kept) > 1 else rows
        key = {**run.key, **({ATTEMPT: str(at)} if len(kept) > 1 else {})}
        whole.append(replace(run, key=key, frame=rows).noting(*facts))
    return whole


# Compute


def _with_amounts(run: Run) -> Run:
    """Return a run with its amounts of compute; one that is missing is that of another row of the step, and 0 at step 0."""
    plan, steps = run.plan, run.steps
    for axis in [axis for axis in ("hours", *AXES, "cost", "x") if axis in plan.roles]:
        values = COUNTED.get(plan.roles[axis].rule, _total)(run, axis)
        known = {step: value for step, value in zip(steps, values, strict=True) if value == value} | {np.nan: np.nan}
        filled = [known.get(step, 0.0 if step == 0 else np.nan) if value != value else value for step, value in zip(steps, values, strict=True)]
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
    return run.frame.numbers(column) if run.frame.known(column).any() else np.array([*map(amounts.duration, run.frame.words(column))])


COUNTED: dict[str, Callable[[Run, str], Floats]] = {
    "per_step": _per_step,
    "elapsed": _elapsed,
    "clock": _clock,
    "times_gpus": _times_gpus,
}
"""How an amount of compute is counted, by the rule that chose its column; else it is the column."""


def main_axis(runs: Sequence[Run]) -> str:
    """Return the axis to show: the first that most rewards of all runs have, and that grows with the step."""
    if runs[0].plan.asked.x:
        return "x"
    axes = [axis for axis in AXES if all(_is_usable(run, axis) for run in runs)]
    is_alone = len({run.plan.path for run in runs}) == 1 and runs[0].plan.kind == "run"
    is_uneven = is_alone and max(map(_unevenness, runs)) > UNEVEN_TIME
    return (*(["flops"] if is_uneven and "flops" in axes else []), *axes, "")[0]


def _is_usable(run: Run, axis: str) -> bool:
    values = run.measured().numbers(run.plan.axis(axis))
    steps = run.measured().numbers(run.plan["step"])
    order = np.argsort(steps, kind="stable")
    falls = values[order[1:]] < (1 - _MIN_FALL) * values[order[:-1]]
    is_total = not (np.diff(steps[order]) > 0).all() or not falls.any()
    is_sum = axis == "tokens" and run.plan.roles.get(axis, Choice(())).rule == "per_step"
    known = values[np.isfinite(values)]
    is_known = 2 * len(known) >= len(values) and len({*known}) >= min(len(known), 2)
    return axis in run.plan.roles and not is_sum and is_total and is_known


def _unevenness(run: Run) -> float:
    spent = zip(run.frame.numbers("gpu_hours"), run.frame.numbers("flops"), strict=True)
    return disagreement({"gpu_hours": hours, "flops": flops} for hours, flops in spent) if "arm" not in run.key else 0.0
