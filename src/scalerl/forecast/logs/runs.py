"""`LoggedRun`: the rows of one run; and what runs are to each other.

A run is one file and one value of each label. Runs that continue each other are joined, a run that begins anew is split
into attempts, and runs whose names differ in a seed share a curve.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from scalerl.forecast.logs.attempts import Attempts, attempts, chains
from scalerl.forecast.logs.columns import has_role
from scalerl.forecast.logs.facts import Fact, fact, facts_of
from scalerl.forecast.logs.frame import Floats, Frame, Rows, concatenated, grouped, members, objects
from scalerl.forecast.logs.names import ATTEMPT, FILE, without_seed
from scalerl.forecast.logs.plan import Plan
from scalerl.forecast.logs.points import points_of

# If the step fails to rise at more than this share of a console's rows, several runs may have printed into it.
_MAX_SHARE_NOT_RISING = 0.2
_SUPERSEDED = -1  # instead of the number of an attempt


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
        return points.take(self.plan.options.selected(self.frame))

    def noting(self, *facts: Fact) -> "LoggedRun":
        return replace(self, facts=(*self.facts, *facts))


def runs_of(plans: list[Plan]) -> list[LoggedRun]:
    """Return the runs of these logs that have rows left after the filters."""
    runs = [run for plan in plans for run in _split(plan, len(plans) > 1)]
    # --by and --seed say how runs relate, so that nothing needs to be found out.
    may_relate = len(runs) > 1 and not any(plan.options.by or plan.options.seed for plan in plans)
    if may_relate:
        runs = _with_parts_joined(runs)
    runs = [attempt for run in runs for attempt in _attempts(run)]
    if may_relate:
        runs = _with_seeds_pooled(runs)
    return [run for run in runs if len(run.points)]


def _split(plan: Plan, has_other_logs: bool) -> list[LoggedRun]:
    """Return the runs of a log; leave out those that never logged the reward, unless none did."""
    label, options = plan.roles["label"], plan.options
    repeats = [FILE, *label.others] if has_other_logs and not options.seed else label.others
    runs: list[LoggedRun] = []
    for rows in members(plan.frame.groups([*label.columns, *repeats, *(options.holdout or ())[:1]])):
        frame = plan.frame.take(rows)
        key, repeat = ({name: str(frame.words(name)[0]) for name in names} for names in (label.columns, repeats))
        runs.append(LoggedRun(plan, key, repeat, frame, plan.facts))
    silent = [run for run in runs if not (run.frame.words(plan["y"]) != "").any()]
    labels = [{**run.key, **run.repeat, FILE: ""}.values() for run in silent]
    names = tuple("/".join(filter(None, words)) for words in labels)
    noted = [run.noting(*facts_of("no_reward", names=names, y=plan["y"])) for run in runs if run not in silent]
    return noted or runs


# Parts of one run


def _with_parts_joined(runs: list[LoggedRun]) -> list[LoggedRun]:
    """Join runs of one kind that continue each other, and leave out those that another one contains.

    Runs are of one kind if their files lie in one folder, or have the same name in sibling folders, and if format,
    columns and labels are the same, except for the names of the runs.
    """
    names = [path.name for path in {run.plan.path for run in runs}]

    def kind(run: LoggedRun) -> tuple[object, ...]:
        has_namesakes = names.count(run.plan.path.name) > 1
        folder = run.plan.path.absolute().parents[1 if has_namesakes else 0]
        labels = {name: word for name, word in {**run.repeat, **run.key}.items() if not _is_name(name)}
        return folder, run.plan.kind, run.plan["step"], run.plan["y"], *labels.items()

    return [run for family in grouped(runs, kind) for run in _with_chains_joined(_without_contained(family))]


def _is_name(column: str) -> bool:
    """Return whether a column names runs."""
    return column == FILE or has_role(column, "run")


def _without_contained(runs: list[LoggedRun]) -> list[LoggedRun]:
    """Return the runs without those whose points are only a part of the points of another file's run."""
    parts = {
        run: [part for part in runs if part.file != run.file and part.measured and part.measured < run.measured]
        for run in runs
    }
    gone = {part for each in parts.values() for part in each}
    files = {run: tuple(part.file for part in parts[run]) for run in runs if run not in gone}
    return [run.noting(*facts_of("contained", files=files[run], file=run.file)) for run in files]


def _with_chains_joined(runs: list[LoggedRun]) -> list[LoggedRun]:
    """Return the runs; those that continue each other are joined to one."""
    steps = [[step for step, _ in run.measured] for run in runs]
    spans = [(min(each, default=np.inf), max(each, default=-np.inf)) for each in steps]
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


# Attempts


def _attempts(run: LoggedRun) -> list[LoggedRun]:
    """Return the attempts of a run that began anew, without the rows that a later resume superseded.

    Logs without a column of steps and logs that name their attempts are left as they are, and so are our own folders,
    whose reader has dropped what a resume superseded.
    """
    frame, plan = run.frame, run.plan
    is_kept = plan.options.selected(frame, besides=ATTEMPT)
    logged = np.flatnonzero(frame.known(plan["y"]) & np.isfinite(run.steps) & is_kept)
    if not len(logged) or plan.is_ours or not has_role(plan["step"], "step", "coarse") or ATTEMPT in frame:
        return [run]
    split = attempts(run.steps[logged])
    run = run.noting(*_facts_of_attempts(run, split, logged))
    # A row without a reward belongs to the attempt of the reward before it.
    number = split.number[np.maximum(np.searchsorted(logged, np.arange(len(frame)), side="right") - 1, 0)]
    number[logged[split.gone]] = _SUPERSEDED
    parts = [frame.take(number == each) for each in np.unique(split.number[~split.short])]
    if len(parts) == 1:
        return [replace(run, frame=parts[0])]
    run = run.noting(fact("attempts", num=len(parts), place=run.file))
    # Each is a curve of its own, or a run of its curve if --seed asks for that.
    labels = "repeat" if plan.options.seed == ATTEMPT else "key"
    numbered = {str(at): part for at, part in enumerate(parts, start=1)}
    return [
        replace(
            run,
            frame=part.having({ATTEMPT: objects([at] * len(part))}),
            **{labels: {**getattr(run, labels), ATTEMPT: at}},
        )
        for at, part in numbered.items()
    ]


def _facts_of_attempts(run: LoggedRun, split: Attempts, logged: Rows) -> Iterator[Fact]:
    """Yield facts on the steps of a run's logged rows: steps in no order, short attempts and resumed ones."""
    steps = run.steps[logged]
    num_back = int((np.diff(steps) <= 0).sum())
    if num_back > _MAX_SHARE_NOT_RISING * len(logged) and run.plan.kind == "console" and not split.is_found:
        yield fact("steps_come_back", num=num_back, num_rows=len(logged), place=run.file)
    yield from facts_of("short_attempts", num_rows=int(split.short.sum()), place=run.file)
    # The first resume is described, and the number of all.
    for first in split.resumed[:1]:
        before, after = steps[first - 1 : first + 1].tolist()
        counts = {"times": len(split.resumed), "num": int(split.gone.sum())}
        place = f"{run.frame.origin[logged[first]]} of {run.file}"
        yield fact("superseded", from_step=before, to_step=after, place=place, **counts)


# Seeds


def _with_seeds_pooled(runs: list[LoggedRun]) -> list[LoggedRun]:
    """Turn runs whose files or names differ only in a seed into runs of one curve.

    Runs with different rewards stay apart, as do those whose name without the seed is the name of another run.
    """
    taken = {word for run in runs for word in run.key.values()}

    def naming(run: LoggedRun) -> str:
        return next(filter(_is_name, reversed([*run.key])), "")

    def without(run: LoggedRun) -> dict[str, str]:
        return {name: without_seed(word) if name == naming(run) else word for name, word in run.key.items()}

    pooled: list[LoggedRun] = []
    for family in grouped(runs, lambda run: (run.plan["y"], *without(run).items())):
        column, key = naming(family[0]), without(family[0])
        if len(family) > 1 and column and key[column] not in taken:
            pooling = fact("seeds_by_name", column=column, names=tuple(run.key[column] for run in family))
            pooled += [replace(run, key=key, repeat={column: run.key[column]}).noting(pooling) for run in family]
        else:
            pooled += family
    return pooled
