"""The formats of logs: two tables, of folders and of files, with a function each that finds the rows.

Content decides, not the name of a file; the first format that recognises it reads it. docs/logs.md lists what is read.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from scalerl import store
from scalerl.errors import InputError, RunFolderError, UserError
from scalerl.logs import trackers
from scalerl.logs.console import console_rows
from scalerl.logs.delimited import csv_rows
from scalerl.logs.facts import Fact, fact
from scalerl.logs.frame import Frame, Placed, objects
from scalerl.logs.names import FILE
from scalerl.logs.objects import flatten, json_rows, jsonl_rows, loaded
from scalerl.logs.places import Place, files_of, find, no_such_file, nothing_to_read, step_files, whole_kinds
from scalerl.logs.plan import Plan
from scalerl.logs.selection import Selection
from scalerl.logs.source import Source
from scalerl.logs.tidy import tidied

_BATCH = ("completions_per_group", "groups_per_batch")  # what `scalerl plan --allocate` asks about

Reader = Callable[[Source], Placed | None]
"""Returns the rows of a source; None if it has another format."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Log:
    """What was read from a path: rows, and facts about the reading."""

    path: Path
    kind: str
    """The name of the format; `run` for what our own runs wrote."""
    frame: Frame
    facts: tuple[Fact, ...] = ()

    def noting(self, told: Fact) -> "Log":
        return replace(self, facts=(*self.facts, told))

    def plan(self, selection: Selection | None = None, name: str = "") -> Plan:
        """Take every decision about the columns; InputError where one cannot be taken."""
        asked = selection or Selection()
        frame, facts = (self.frame, []) if self.kind == "run" else tidied(self.frame, asked)
        file = {FILE: objects([name] * len(frame))}
        frame = frame if FILE in frame else frame.having(file)
        plan = Plan(path=self.path, kind=self.kind, frame=frame, asked=asked, facts=(*self.facts, *facts))
        return plan.decided().checked()

    def planned(self) -> Plan | None:
        """Return the plan without options; None where something is not recognised."""
        try:
            return self.plan()
        except InputError:
            return None


def read_log(path: str | Path) -> Log:
    """Return the rows of a log of any known format."""
    logs = read_logs([path])
    if len(logs) != 1:
        raise InputError(nothing_to_read(Path(path), [log.path for log in logs]))
    return logs[0]


def read_logs(paths: Sequence[str | Path]) -> list[Log]:
    """Read several logs, in the order given; patterns such as runs/*.jsonl and folders of logs stand for the logs."""
    return [log for path in paths for log in _read_all(Path(path), find(path))]


def expand(paths: Sequence[str | Path]) -> list[Path]:
    """Return the logs that paths stand for: matches of a pattern, logs of a folder."""
    return [log.path for log in read_logs(paths)]


def _read_all(path: Path, groups: Sequence[Sequence[Place]]) -> list[Log]:
    """Read what lies at a path. Of files that the user did not name, those that make no curve are left out."""
    read: list[list[Log]] = []
    for group in groups:
        read.append([])
        for place in group:
            try:
                read[-1].append(read_place(place.path))
            except InputError:
                if place.is_named:
                    raise
    named = {place.path for group in groups for place in group if place.is_named}
    curves = [[log for log in logs if log.path in named or _num_rewards(log) > 1] for logs in read]
    kept = curves if any(curves) else read
    if not any(kept):
        raise InputError(nothing_to_read(path, ()))
    return [log for logs in kept for log in _of_one_run(logs, path)]


def _of_one_run(logs: Sequence[Log], folder: Path) -> Sequence[Log]:
    """Return logs of a folder; if no two of them have one format, they are one run, and the best of them is returned."""
    is_one_run = len({log.kind for log in logs}) == len(logs) > 1
    return [_best_of(logs, folder)] if is_one_run else logs


def _num_rewards(log: Log) -> int:
    plan = log.planned()
    return 0 if plan is None else int(plan.frame.known(plan["y"]).sum())


def _best_of(logs: Sequence[Log], folder: Path) -> Log:
    """Return the log with an evaluation, or with most values of its reward, and name the others.

    A folder that is a log, as one with a file for each step, comes before what lies beside it.
    """

    def rank(log: Log) -> tuple[bool, int]:
        plan = log.planned()
        return plan is not None and (plan.roles["y"].rule == "evaluation" or log.path.is_dir()), _num_rewards(log)

    best = max(logs, key=rank)
    plan, others = best.planned(), tuple(log.path.name for log in logs if log is not best)
    y = plan and plan["y"]
    told = fact("other_logs", file=best.path.name, num=_num_rewards(best), y=y, others=others)
    return replace(best, path=folder, facts=(told, *best.facts))


# One log


def read_place(path: Path) -> Log:
    """Read one log. This is the one place that turns whatever a reader raises into a sentence."""
    try:
        if not path.exists():
            raise InputError(no_such_file(path))
        log = _folder_log(path) if path.is_dir() else _file_log(path)
        if log is not None:
            return log
    except InputError:
        raise
    except OSError as fault:
        raise InputError(f"cannot read {path}: {fault.strerror or fault}.") from None
    except UserError as fault:  # from the run folder, whose readers know nothing of logs
        raise InputError(f"{fault}; repair it or give another file.") from None
    except Exception as fault:
        reason = str(fault) if isinstance(fault, ValueError) else f"{type(fault).__name__}: {fault}"
        where = "" if str(path) in reason else f"{path} "
        raise InputError(f"{where}cannot be read ({reason}): it is damaged, or not a log.") from None
    if path.is_dir():
        raise InputError(nothing_to_read(path, ()))
    raise InputError(
        f"{path} is text in which no line records a training step: give CSV (trackers export it, and so does a data "
        "frame or a notebook), JSON lines, or console output with lines such as 'step:12 - reward:0.5' or "
        "{'reward': 0.5, 'epoch': 0.1}."
    )


def _file_log(path: Path) -> Log | None:
    if path.name in (store.EVALS, store.METRICS) and store.is_run_folder(path.parent):
        return _run_log(path.parent, path, path.name)
    source = Source(path)
    for name, reader in FILES.items():
        rows = reader(source)
        if rows is not None:
            return Log(path=path, kind=name, frame=source.framed(rows), facts=tuple(source.facts))
    return None


def _folder_log(folder: Path) -> Log | None:
    for kind in whole_kinds(folder):
        log = FOLDERS[kind](folder, files_of(folder, kind))
        if log is not None:
            return log
    return None


def starting_with(mark: bytes, reader: Callable[[Source], Placed]) -> Reader:
    """Return a reader of files that begin with a mark."""
    return lambda source: reader(source) if source.data.startswith(mark) else None


def _events(source: Source) -> Placed | None:
    return trackers.event_rows(source) if trackers.holds_events(source) else None


# Our own folders


def _run_log(folder: Path, path: Path, name: str = store.EVALS) -> Log:
    rows = run_rows(folder, name)
    if not rows:
        raise InputError(f"{path} has no rows in {name} yet: wait for its first evaluation.")
    return log_of_rows(path, rows)


def log_of_rows(path: Path, rows: Sequence[Placed]) -> Log:
    """Return rows of one of our runs as a log."""
    return Log(path=path, kind="run", frame=Source(path).framed(rows))


def run_rows(folder: Path, name: str = store.EVALS) -> Placed:
    """Return the rows of a run folder that count, each with the run's seed and batch."""
    try:
        recipe = flatten(store.read_recipe(folder) or {})
    except RunFolderError:
        recipe = {}  # only labels are taken from it
    seeds = sorted((key for key in recipe if key.split("/")[-1] == "seed"), key=lambda key: key.count("/"))
    labels = {"seed": recipe[seed] for seed in seeds[:1]}
    labels |= {key: recipe[f"pipeline/{key}"] for key in _BATCH if f"pipeline/{key}" in recipe}
    rows = store.latest_rows(folder / name)
    return [(f"{name} line {line}", {**labels, **flatten(row)}) for line, row in rows]


def _study_log(folder: Path, files: Sequence[Path]) -> Log:
    """Return the evaluations of all runs of a study so far: arms are separate curves, seeds are runs of one curve."""
    placed: Placed = []
    for run in (store.read_study(folder) or {}).get("runs", []):
        labels = {key: run.get(key) for key in ("arm", "seed")} if isinstance(run, Mapping) else {}
        place = folder / store.portable(str(run.get("folder"))) if labels else folder
        rows = run_rows(place) if labels and store.is_run_folder(place) else []
        placed += [(f"{place.name}, {origin}", {**row, **labels}) for origin, row in rows]
    return log_of_rows(folder, placed)


# Folders of others


def _longest(folder: Path, files: Sequence[Path]) -> Log:
    """Read the largest file that can be read: each checkpoint repeats those before it."""
    ordered = sorted(files, key=lambda file: (file.name != store.METRICS, -file.stat().st_size))
    for at, file in enumerate(ordered, start=1):
        try:
            log = read_place(file)
        except InputError:  # still being written, or damaged
            if at == len(ordered):
                raise
            continue
        told = fact("longest_history", file=file.relative_to(folder).as_posix(), num_files=len(files))
        is_told = len({file.name for file in files}) == 1 < len(files)
        return replace(log, path=folder, facts=(told, *log.facts) if is_told else log.facts)
    raise AssertionError("a folder is read for the files in it")


def _file_inside(folder: Path, files: Sequence[Path]) -> Log | None:
    """Read the file that a trainer keeps its metrics in; None if what it printed records nothing."""
    try:
        return _longest(folder, files)
    except InputError:
        if any(file.name == store.METRICS for file in files):
            raise
        return None


def _wandb_log(folder: Path, files: Sequence[Path]) -> Log | None:
    """Return the history of wandb's runs; None for a run of which only what it printed is there."""
    source = Source(folder)
    rows = trackers.wandb_rows(source, files)
    is_printed = any((file.parent / "files/output.log").is_file() for file in files)
    return None if is_printed and not rows else Log(path=folder, kind="wandb", frame=source.framed(rows))


def _event_log(folder: Path, files: Sequence[Path]) -> Log:
    source = Source(folder)
    return Log(path=folder, kind="tensorboard", frame=source.framed(trackers.event_rows(source, files)))


def _step_file_log(folder: Path, files: Sequence[Path]) -> Log | None:
    """Return a row for each step whose evaluation is a file.

    Files of a step with other values of the same columns, as of two benchmarks, put their name before each column. A
    name of one step only, such as one with a date, tells nothing: of those the last one counts.
    """
    source, contents = Source(folder), dict[tuple[str, int], dict[str, dict[str, Any]]]()
    for file, step in step_files(folder).items():
        value = loaded(Source(file).data)
        if isinstance(value, dict):  # else it is still being written
            name = "/".join(file.relative_to(folder).with_suffix("").parts[1:])
            contents.setdefault(step, {})[name.replace(str(step[1]), "").strip("-_ ")] = flatten(value)
    times = Counter(name for parts in contents.values() for name in parts)
    is_told = any(map(_differ, [[cells for name, cells in parts.items() if times[name] > 1] for parts in contents.values()]))
    rows: Placed = []
    for (run, step), parts in contents.items():
        row: dict[str, Any] = {**({"run": run} if run else {}), "step": step}
        for name, cells in parts.items():
            row |= flatten({name: cells}) if is_told and times[name] > 1 else cells
        rows.append((f"step {step}", row))
    return Log(path=folder, kind="json", frame=source.framed(rows)) if rows else None


def _differ(parts: Sequence[Mapping[str, Any]]) -> bool:
    """Return whether files have other values of the same columns."""
    pairs = {(column, repr(value)) for cells in parts for column, value in cells.items()}
    return len(pairs) > len({column for column, _ in pairs})


FOLDERS: dict[str, Callable[[Path, Sequence[Path]], Log | None]] = {
    "study": _study_log,
    "run": lambda folder, files: _run_log(folder, folder),
    "trainer folder": _longest,
    "wandb": _wandb_log,
    "file inside": _file_inside,
    "tensorboard": _event_log,
    "a file each step": _step_file_log,
}
FILES: dict[str, Reader] = {
    "wandb": starting_with(b":W&B", trackers.wandb_rows),
    "tensorboard": _events,
    "sqlite": starting_with(b"SQLite format 3", trackers.sqlite_rows),
    "parquet": starting_with(b"PAR1", trackers.parquet_rows),
    "json": json_rows,
    "jsonl": jsonl_rows,
    "csv": csv_rows,
    "console": console_rows,
}
