"""What a report is made from: a study folder, run folders or any trainer's logs, in one shape.

A run that cannot be read becomes a fault of the report; the rest of the report is made all the same.
"""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from scalerl import store
from scalerl.errors import InputError
from scalerl.logs.formats import expand, read_table
from scalerl.logs.names import file_names
from scalerl.logs.table import Table
from scalerl.report.changes import PER_RUN
from scalerl.report.runs import NOT_STARTED, RunFacts, read_run

ARM = "arm"
_SEED = re.compile(r"[-_.]?(seed|s)[-_]?\d+$")


@dataclass(frozen=True, slots=True, kw_only=True)
class Material:
    """Tables of evaluations, facts of their runs, and what went wrong on the way."""

    title: str
    tables: tuple[Table, ...]
    runs: tuple[RunFacts, ...]
    """Those of our own run folders, the unreadable ones too."""
    has_arms: bool
    """Whether rows say which arm they belong to."""
    folder: Path | None = None
    """The study's own."""
    description: str = ""
    base: str | None = None
    """The arm that the others change."""
    axis: str | None = None
    """The column of compute that the study is compared on."""
    shared_device: bool = False
    skip_share: float = 0.0
    fit_share: float = 1.0
    """The share of each arm's compute up to which the study fits it."""
    test_share: float = 0.0
    """The share from which evaluations test the forecast, where not all beyond the fit do."""
    skip_compute: float | None = None
    fit_compute: float | None = None
    test_compute: float | None = None
    """The same three as computes on the study's axis, equal for all arms, where it gives them so."""
    faults: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


def num_inputs(paths: Sequence[Path]) -> int:
    """Return how many runs and files were named, before any of them is read."""
    if len(paths) == 1 and (paths[0] / store.STUDY).is_file():
        return len(_read_plan(paths[0]).get("runs", []))
    return len(_expanded(paths))


def gather(paths: Sequence[Path]) -> Material:
    """Read everything that was named; InputError where nothing of it can be used."""
    if not paths:
        raise InputError("no input was given: name a study folder, run folders or log files.")
    if len(paths) == 1 and (paths[0] / store.STUDY).is_file():
        return _study(paths[0])
    return _from_folders(_expanded(paths), title=_title(paths))


def _title(paths: Sequence[Path]) -> str:
    return file_names([paths[0].resolve()])[0] if len(paths) == 1 else "report"


def _expanded(paths: Sequence[Path]) -> list[Path]:
    """Replace a folder of runs by the runs in it."""
    expanded: list[Path] = []
    for path in paths:
        inside = path / "runs" if (path / "runs").is_dir() else path
        runs = [item for item in sorted(inside.iterdir()) if store.is_run_folder(item)] if inside.is_dir() else []
        expanded += runs if runs and not store.is_run_folder(path) else expand([path])
    return expanded


# A study


def _study(folder: Path) -> Material:
    plan = _read_plan(folder)
    planned = [row for row in plan.get("runs", []) if isinstance(row, Mapping) and ARM in row]
    if not planned:
        raise InputError(
            f"{folder / store.STUDY} lists no runs: give the run folders themselves, or run the study first."
        )
    tables, runs, faults = [], [], []
    for row in planned:
        name = f"{row[ARM]}-seed{row.get('seed', 0)}"
        place = folder / store.portable(str(row.get("folder") or f"runs/{name}"))
        table, facts = _read_run_folder(place, name=name, arm=str(row[ARM]))
        tables += [] if table is None else [_of_arm(table, str(row[ARM]))]
        runs.append(replace(facts, seed=row.get("seed", facts.seed)))
        faults += [f"{name}: {fault}" for fault in facts.faults]
    if waiting := [run.name for run in runs if run.status == NOT_STARTED]:
        faults.append(f"Not started yet: {', '.join(waiting)}.")
    faults += [f"{row[ARM]} was not run: {row['skipped']}." for row in plan.get("skipped", []) if ARM in row]
    if not tables:
        raise InputError(f"no run of {folder} can be used; {faults[0] if faults else 'none has been evaluated yet.'}")
    fit, holdout = plan.get("fit") or {}, plan.get("holdout") or {}
    return Material(
        title=str(plan.get("name") or folder.resolve().name),
        tables=tuple(tables),
        runs=tuple(runs),
        has_arms=True,
        folder=folder,
        description=str(plan.get("description") or ""),
        base=str(plan["base"]) if plan.get("base") in {run.arm for run in runs} else str(planned[0][ARM]),
        axis=plan.get("compute"),
        shared_device=bool(plan.get("shared_device")),
        skip_share=float(fit.get("skip_before") or 0.0),
        fit_share=float(fit.get("until") or 1.0),
        test_share=float(holdout.get("from") or 0.0),
        skip_compute=fit.get("skip_before_compute"),
        fit_compute=fit.get("until_compute"),
        test_compute=holdout.get("from_compute"),
        faults=tuple(faults),
    )


def _read_plan(folder: Path) -> store.Row:
    try:
        return store.read_study(folder) or {}
    except (OSError, ValueError) as fault:
        raise InputError(f"{fault}: run the study again with --resume, or mend it.") from None


def _read_run_folder(folder: Path, *, name: str, arm: str) -> tuple[Table | None, RunFacts]:
    """Return the evaluations of a run, None where there are none that can be read, and its facts."""
    if not store.is_run_folder(folder):
        return None, RunFacts(name=name, arm=arm, folder=folder, status=NOT_STARTED)
    try:
        table = read_table(folder)
    except InputError as fault:
        facts = read_run(folder, name=name, arm=arm, evals=())
        return None, replace(facts, faults=(*facts.faults, str(fault)))
    return table, read_run(folder, name=name, arm=arm, evals=table.rows)


def _of_arm(table: Table, arm: str) -> Table:
    return replace(table, columns=[*table.columns, ARM], rows=[{**row, ARM: arm} for row in table.rows])


# Folders and files


def _from_folders(paths: Sequence[Path], title: str) -> Material:
    tables: list[Table] = []
    runs: list[RunFacts] = []
    faults: list[str] = []
    names = file_names(paths)
    for path, name in zip(paths, names, strict=True):
        if store.is_run_folder(path):
            table, facts = _read_run_folder(path, name=name, arm=name)
            runs.append(facts)
            faults += [f"{name}: {fault}" for fault in facts.faults]
        else:
            try:
                table = read_table(path)
            except InputError as fault:
                if len(paths) == 1:
                    raise
                table = None
                faults.append(str(fault))
        tables += [] if table is None else [table]
    if not tables:
        raise InputError(f"nothing of what was given can be used; {faults[0]}")
    tables, runs, notes = _pooled(tables, runs)
    return Material(
        title=title,
        tables=tuple(tables),
        runs=tuple(runs),
        has_arms=len(runs) == len(paths),
        faults=tuple(faults),
        notes=notes,
    )


def _pooled(tables: list[Table], runs: list[RunFacts]) -> tuple[list[Table], list[RunFacts], tuple[str, ...]]:
    """Join runs whose recipes differ only in the seed into one arm."""
    same: dict[str, list[RunFacts]] = {}
    for run in runs:
        key = {name: value for name, value in (run.settings or {"name": run.name}).items() if name not in PER_RUN}
        same.setdefault(json.dumps(key, sort_keys=True, default=str), []).append(run)
    arm_of, notes = {}, []
    taken: set[str] = set()
    for members in same.values():
        short = {_SEED.sub("", run.name) for run in members}
        arm = short.pop() if len(members) > 1 and len(short) == 1 else members[0].name
        arm = members[0].name if arm in taken else arm
        taken.add(arm)
        arm_of |= {run.folder: arm for run in members}
        if len(members) > 1:
            together = ", ".join(run.name for run in members)
            notes.append(f"{together} differ in their seed alone and are pooled as {arm}.")
    runs = [replace(run, arm=arm_of[run.folder]) for run in runs]
    tables = [_of_arm(table, arm_of[table.path]) if table.path in arm_of else table for table in tables]
    return tables, runs, tuple(notes)
