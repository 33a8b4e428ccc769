"""What a report is made from: a study folder, run folders or any trainer's logs, in one shape.

A run that cannot be read becomes a warning; the rest of the report is made all the same.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from scalerl import store
from scalerl.errors import InputError
from scalerl.logs.formats import Log, read_logs
from scalerl.logs.frame import objects
from scalerl.logs.names import file_names, without_seed
from scalerl.report.document import Level, Say, say
from scalerl.report.inside import Root
from scalerl.report.places import Source, planned
from scalerl.report.runs import PER_RUN, WAITING, Run, read_folder, read_source, run_of_log

ARM = "arm"


@dataclass(frozen=True, slots=True, kw_only=True)
class Material:
    """Tables of evaluations, the run folders they come from, and what went wrong on the way."""

    title: str
    tables: tuple[Log, ...]
    every: tuple[Run, ...]
    """All runs and logs, the unreadable ones too."""
    has_arms: bool
    """Whether rows say which arm they belong to."""
    folder: Path | None = None
    """The folder of a study."""
    base: str | None = None
    """The arm that the others change."""
    plan: Mapping[str, Any] = field(default_factory=dict)
    """The plan of a study: its description, axis of compute, and what is fitted and held out."""
    notes: tuple[Say, ...] = ()
    """What went wrong, and what was decided on the way."""

    @property
    def runs(self) -> tuple[Run, ...]:
        """Our own run folders."""
        return tuple(run for run in self.every if run.is_folder)


def gather(paths: Sequence[Path]) -> Material:
    """Read everything that was named; InputError where nothing of it can be used."""
    if not paths:
        raise InputError("no input was given: name a study folder, run folders or log files.")
    if len(paths) == 1 and (paths[0] / store.STUDY).is_file():
        plan = _read_plan(paths[0])
        if not (runs := [read_source(source) for source in planned(paths[0], plan, Root())]):
            raise InputError(
                f"{paths[0] / store.STUDY} lists no runs: give the run folders themselves, or run the study first."
            )
        return material_of(runs, str(plan.get("name") or paths[0].resolve().name), paths[0], plan)
    title = file_names([paths[0].resolve()])[0] if len(paths) == 1 else "report"
    return material_of(_read(paths), title)


def material_of(
    runs: Sequence[Run], title: str, folder: Path | None = None, plan: Mapping[str, Any] | None = None
) -> Material:
    """Put runs together, those of a study with its folder and plan; InputError where none of them can be used."""
    plan = plan or {}
    notes = _joined_seeds(runs) if folder is None else []
    faults = [f"{run.name}: {fault}" if run.is_folder else fault for run in runs for fault in run.faults()]
    if waiting := [run.name for run in runs if run.status == WAITING]:
        faults.append(f"Not started yet: {', '.join(waiting)}.")
    faults += [f"{row[ARM]} was not run: {row['skipped']}." for row in plan.get("skipped", []) if ARM in row]
    tables = [_with_arm(run) for run in runs if not run.problem]
    if not tables and len(runs) == 1 and not runs[0].is_folder:
        raise InputError(runs[0].problem)
    if not tables:
        raise InputError(f"nothing of what was given can be used; {faults[0] if faults else 'none is evaluated yet.'}")
    arms = [run.arm for run in runs]
    base = None if folder is None else str(plan["base"]) if plan.get("base") in arms else arms[0]
    return Material(
        title=title,
        tables=tuple(tables),
        every=tuple(runs),
        has_arms=all(run.is_folder for run in runs),
        folder=folder,
        base=base,
        plan=plan,
        notes=(*(say("fault", Level.WARNING, problem=fault) for fault in faults), *notes),
    )


def _with_arm(run: Run) -> Log:
    log = run.table()
    arm = {ARM: objects([run.arm] * len(log.frame))}
    return replace(log, frame=log.frame.having(arm)) if run.is_folder else log


def _read(paths: Sequence[Path]) -> list[Run]:
    """Return the runs and logs at these paths; a folder of runs is replaced by the runs in it."""
    runs, logs = [], read_logs(paths)
    for log, name in zip(logs, file_names([log.path for log in logs]), strict=True):
        is_run = store.is_run_folder(log.path)
        source = Source(path=log.path, root=Root(), kind="run" if is_run else "log", name=name, arm=name)
        runs.append(read_folder(source) if is_run else run_of_log(source, log))
    return runs


def _read_plan(folder: Path) -> store.Row:
    try:
        return store.read_study(folder) or {}
    except (OSError, ValueError) as fault:
        raise InputError(f"{fault}: run the study again with --resume, or repair it.") from None


def _joined_seeds(runs: Sequence[Run]) -> list[Say]:
    """Join runs whose recipes differ only in the seed into one arm; return a note on each."""
    same: dict[str, list[Run]] = {}
    for run in runs:
        key = {name: value for name, value in (run.settings or {"name": run.name}).items() if name not in PER_RUN}
        same.setdefault(json.dumps(key, sort_keys=True, default=str), []).append(run)
    notes: list[Say] = []
    taken: set[str] = set()
    for members in same.values():
        short = {without_seed(run.name) for run in members}
        arm = short.pop() if len(members) > 1 and len(short) == 1 else members[0].name
        arm = members[0].name if arm in taken else arm
        taken.add(arm)
        for run in members:
            run.source = replace(run.source, arm=arm)
        if len(members) > 1:
            notes.append(say("seeds_joined", runs=tuple(run.name for run in members), arm=arm))
    return notes
