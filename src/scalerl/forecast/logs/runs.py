"""`LoggedRun`: the rows of one run; and what runs are to each other.

A run is one file and one value of each label. Runs that continue each other are joined, a run that begins anew is split
into attempts, and runs whose names differ in a seed share a curve.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from scalerl.errors import InputError
from scalerl.forecast.logs.attempts import MIN_ROWS, Attempts, attempts, chains
from scalerl.forecast.logs.columns import has_role
from scalerl.forecast.logs.facts import Fact, fact, facts_of
from scalerl.forecast.logs.frame import Floats, Frame, Rows, concatenated, grouped, members, objects
from scalerl.forecast.logs.names import ATTEMPT, FILE, without_seed
from scalerl.forecast.logs.plan import Plan
from scalerl.forecast.logs.points import points_of
from scalerl.forecast.logs.question import counts_rows

# If the step fails to rise at more than this share of a console's rows, several runs may have printed into it.
_MAX_SHARE_NOT_RISING = 0.2


@dataclass(frozen=True, eq=False)
class LoggedRun:
    """The rows of one run, in the order of the log."""

    plan: Plan
    key: Mapping[str, str]
    """Columns and values that set its curve apart from other curves."""
    repeat: Mapping[str, str]
    """Columns and values that set it apart from other runs of its curve."""
    frame: Frame
    facts: tuple[Fact, ...]

    @property
    def file(self) -> str:
        return str(self.frame.words(FILE)[0])

    @property
    def label(self) -> str:
        """What tells the run from others in its file."""
        labels = {**self.key, **self.repeat, FILE: ""}
        return "/".join(filter(None, labels.values()))

    @property
    def steps(self) -> Floats:
        return self.plan.steps(self.frame)

    @cached_property
    def measured(self) -> set[tuple[float, float]]:
        """The step and reward of each row that has both."""
        pairs = zip(self.steps.tolist(), self.frame.numbers(self.plan["y"]).tolist(), strict=True)
        return {pair for pair in pairs if np.isfinite(pair).all()}

    @cached_property
    def points(self) -> Frame:
        """The rows that the options keep, with a column for each role."""
        # Compute adds up over all rows, so rows are dropped afterwards.
        points = points_of(self.plan, self.frame, "/".join(self.repeat.values()))
        options = self.plan.options
        return points.take(options.selected(self.frame)) if options.where or options.where_not else points

    def noting(self, *facts: Fact) -> "LoggedRun":
        return replace(self, facts=(*self.facts, *facts))


def runs_of(plans: list[Plan]) -> list[LoggedRun]:
    """Return the runs of these logs that have rows left after the filters."""
    runs: list[LoggedRun] = []
    for plan in plans:
        runs += _split(plan, len(plans) > 1)
    # --by and --seed say how runs relate, so that nothing needs to be found out.
    may_relate = len(runs) > 1 and not any(plan.options.by or plan.options.seed for plan in plans)
    if may_relate:
        runs = _with_parts_joined(runs)
    parts: list[LoggedRun] = []
    for run in runs:
        parts += _attempts(run)
    if may_relate:
        parts = _with_seeds_pooled(parts)
    return [run for run in parts if len(run.points)]


def _split(plan: Plan, has_other_logs: bool) -> list[LoggedRun]:
    """Return the runs of a log; leave out those that never logged the reward, unless none did."""
    label = plan.roles["label"]
    repeats = [FILE, *label.others] if has_other_logs and not plan.options.seed else label.others
    held = plan.options.holdout[:1] if plan.options.holdout else ()
    runs: list[LoggedRun] = []
    silent: list[LoggedRun] = []
    for rows in members(plan.frame.groups([*label.columns, *repeats, *held])):
        frame = plan.frame.take(rows)
        key = {name: str(frame.words(name)[0]) for name in label.columns}
        repeat = {name: str(frame.words(name)[0]) for name in repeats}
        run = LoggedRun(plan, key, repeat, frame, plan.facts)
        has_reward = frame.known(plan["y"]).any() or (frame.words(plan["y"]) != "").any()
        (runs if has_reward else silent).append(run)
    if not silent or not runs:
        return [*runs, *silent]
    names = tuple(run.label for run in silent)
    return [run.noting(fact("no_reward", names=names, y=plan["y"])) for run in runs]


# Parts of one run -----------------------------------------------------------------------------------------------------


def _with_parts_joined(runs: list[LoggedRun]) -> list[LoggedRun]:
    """Join runs of one kind that continue each other, and leave out those that another one contains.

    Runs are of one kind if their files lie in one folder, or have the same name in sibling folders, and if format,
    columns and labels are the same, except for the names of the runs.
    """
    names = [path.name for path in {run.plan.path for run in runs}]

    def kind(run: LoggedRun) -> tuple[object, ...]:
        has_namesakes = names.count(run.plan.path.name) > 1
        folder = run.plan.path.absolute().parents[1 if has_namesakes else 0]
        labels = {name: word for name, word in {**run.repeat, **run.key}.items() if not _names_runs(name)}
        return folder, run.plan.kind, run.plan["step"], run.plan["y"], *labels.items()

    joined: list[LoggedRun] = []
    for family in grouped(runs, kind):
        joined += _with_chains_joined(_without_contained(family))
    return joined


def _names_runs(column: str) -> bool:
    return column == FILE or has_role(column, "run")


def _without_contained(runs: list[LoggedRun]) -> list[LoggedRun]:
    """Return the runs without those whose points are only a part of the points of another file's run."""
    contained: dict[LoggedRun, list[LoggedRun]] = {run: [] for run in runs}
    for run in runs:
        for other in runs:
            if other.file != run.file and other.measured and other.measured < run.measured:
                contained[run].append(other)
    gone = {part for parts in contained.values() for part in parts}
    left: list[LoggedRun] = []
    for run, parts in contained.items():
        if run not in gone:
            files = tuple(part.file for part in parts)
            left.append(run.noting(*facts_of("contained", files=files, file=run.file)))
    return left


def _with_chains_joined(runs: list[LoggedRun]) -> list[LoggedRun]:
    """Return the runs; those that continue each other are joined to one."""
    spans: list[tuple[float, float]] = []
    for run in runs:
        steps = [step for step, _ in run.measured]
        spans.append((min(steps, default=np.inf), max(steps, default=-np.inf)))
    return [_join([runs[at] for at in parts]) for parts in sorted(chains(spans), key=min)]


def _join(parts: list[LoggedRun]) -> LoggedRun:
    """Return one run from its parts, which are in the order of their steps."""
    first, *rest = parts
    if not rest:
        return first
    labels = [{**run.key, **run.repeat} for run in parts]
    column = next((name for name, word in labels[0].items() if labels[1].get(name) != word), "")
    kind = "files_joined" if column == FILE else "runs_joined"
    joined = replace(first, frame=concatenated([run.frame for run in parts]))
    return joined.noting(fact(kind, column=column, names=tuple(each.get(column, "") for each in labels)))


# Attempts -------------------------------------------------------------------------------------------------------------


def _attempts(run: LoggedRun) -> list[LoggedRun]:
    """Return the attempts of a run that began anew, without the rows that a later resume superseded.

    Logs without a column of steps and logs that name their attempts are left as they are, and so are our own folders,
    whose reader has dropped what a resume superseded.
    """
    plan, frame = run.plan, run.frame
    steps = plan.steps(frame)
    if plan.is_ours or ATTEMPT in frame or plan["step"] not in frame or counts_rows(plan):
        return [run]
    is_logged = frame.known(plan["y"]) & np.isfinite(steps)
    if (np.diff(steps[is_logged]) > 0).all():
        return [run]
    logged = np.flatnonzero(is_logged & plan.options.selected(frame, besides=ATTEMPT))
    if (np.diff(steps[logged]) > 0).all():
        return [run]
    split = attempts(steps[logged])
    _refuse_short_attempts(run, split, steps[logged])
    run = run.noting(*_facts_of_attempts(run, split, logged))
    parts = _parts(frame, split, logged)
    if len(parts) == 1:
        return [replace(run, frame=parts[0])]
    run = run.noting(fact("attempts", num=len(parts), place=run.file))
    made: list[LoggedRun] = []
    for number, part in enumerate(parts, start=1):
        label = {ATTEMPT: str(number)}
        own = replace(run, frame=part.having({ATTEMPT: objects([str(number)] * len(part))}))
        # Each is a curve of its own, or a run of its curve if --seed asks for that.
        if plan.options.seed == ATTEMPT:
            made.append(replace(own, repeat={**run.repeat, **label}))
        else:
            made.append(replace(own, key={**run.key, **label}))
    return made


def _refuse_short_attempts(run: LoggedRun, split: Attempts, steps: Floats) -> None:
    """Raise InputError where a run began anew again and again, and never got beyond a step or two."""
    lengths = [len({*steps[rows].tolist()}) for rows in members(split.number)]
    if len(lengths) >= MIN_ROWS > max(lengths):
        raise InputError(
            f"{run.file} has {len(lengths)} attempts of at most {max(lengths)} steps each, and none is a history: give "
            "the log of a run with more steps."
        )


def _parts(frame: Frame, split: Attempts, logged: Rows) -> list[Frame]:
    """Return the rows of each attempt that is long enough; one without a reward goes with the reward before it."""
    before = np.searchsorted(logged, np.arange(len(frame)), side="right") - 1
    number = split.number[np.maximum(before, 0)]
    is_left = np.ones(len(frame), dtype=bool)
    is_left[logged[split.gone]] = False
    return [frame.take(is_left & (number == each)) for each in np.unique(split.number[~split.short])]


def _facts_of_attempts(run: LoggedRun, split: Attempts, logged: Rows) -> Iterator[Fact]:
    """Yield facts on the steps of a run's logged rows: steps in no order, short attempts and resumed ones."""
    steps = run.steps[logged]
    num_back = int((np.diff(steps) <= 0).sum())
    if num_back > _MAX_SHARE_NOT_RISING * len(logged) and run.plan.kind == "console" and not split.is_found:
        yield fact("steps_come_back", num=num_back, num_rows=len(logged), place=run.file)
    yield from facts_of("short_attempts", num_rows=int(split.short.sum()), place=run.file)
    if not split.resumed:
        return
    # The first resume is described, and the number of all.
    at = split.resumed[0]
    yield fact(
        "superseded",
        from_step=float(steps[at - 1]),
        to_step=float(steps[at]),
        place=f"{run.frame.origin[logged[at]]} of {run.file}",
        times=len(split.resumed),
        num=int(split.gone.sum()),
    )


# Seeds ----------------------------------------------------------------------------------------------------------------


def _with_seeds_pooled(runs: list[LoggedRun]) -> list[LoggedRun]:
    """Turn runs whose files or names differ only in a seed into runs of one curve.

    Runs with different rewards stay apart, as do those whose name without the seed is the name of another run.
    """
    taken = {word for run in runs for word in run.key.values()}

    def shared_key(run: LoggedRun) -> dict[str, str]:
        column = _naming_column(run)
        return {name: without_seed(word) if name == column else word for name, word in run.key.items()}

    pooled: list[LoggedRun] = []
    for family in grouped(runs, lambda run: (run.plan["y"], *shared_key(run).items())):
        column, key = _naming_column(family[0]), shared_key(family[0])
        if len(family) == 1 or not column or key[column] in taken:
            pooled += family
            continue
        pooling = fact("seeds_by_name", column=column, names=tuple(run.key[column] for run in family))
        for run in family:
            pooled.append(replace(run, key=key, repeat={column: run.key[column]}).noting(pooling))
    return pooled


def _naming_column(run: LoggedRun) -> str:
    """Return the last label that names runs; "" if there is none."""
    return next((name for name in reversed([*run.key]) if _names_runs(name)), "")
