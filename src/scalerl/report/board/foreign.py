"""Read another trainer's log in a worker process: its reward curves, and its other metrics by training step."""

import math
import os
import time
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from scalerl.errors import InputError
from scalerl.logs.formats import read_table
from scalerl.logs.series import Selection, Series, series_from
from scalerl.logs.table import Table
from scalerl.report.columns import COLUMNS, MOST_COLUMNS, Array, number, renamed

MAX_BYTES = 256 << 20
"""Largest log that is read: it is read as a whole whenever it grows."""
_DEPTH, _MOST_FILES = 3, 4000


@dataclass(frozen=True, slots=True, kw_only=True)
class LogReading:
    """What a log held at one moment."""

    series: tuple[Series, ...] = ()
    columns: dict[str, Array] | None = None
    kind: str = ""
    num_rows: int = 0
    cpu_s: float = 0.0
    """CPU time that reading took: the longer, the longer until the log is read again."""
    problem: str = ""
    """Why nothing can be shown; empty where something can."""


def files_of(path: Path) -> list[tuple[str, int, int]]:
    """Return (path, size, modification time) of each file of a log: a file, or a folder searched three levels deep.

    The board reads a log again when this has changed.
    """
    # Beside a database lies what SQLite has not moved into it yet.
    names = [str(path), *([f"{path}-wal"] if path.suffix == ".db" else [])]
    if path.is_dir():
        names = []
        for folder, folders, inside in os.walk(path):
            depth = len(Path(folder).relative_to(path).parts)
            folders[:] = [each for each in folders if depth < _DEPTH and not each.startswith(".")]
            names += [os.path.join(folder, name) for name in inside if is_part_of_log(name)]
            if len(names) >= _MOST_FILES:
                break
    files = []
    for name in names:
        with suppress(OSError):
            status = os.stat(name)
            files.append((name, status.st_size, status.st_mtime_ns))
    return sorted(files)


def is_part_of_log(name: str) -> bool:
    """Return whether a file may be part of a log, by its name; weights and optimizer states are not."""
    return "tfevents" in name or name.endswith((".json", ".jsonl", ".wandb", ".log", ".csv", ".db"))


def read_log(path: Path) -> LogReading:
    """Read a log of any known format. Never raises: errors are returned in `problem`, as this runs in a worker."""
    began = time.process_time()
    return replace(_read(path), cpu_s=time.process_time() - began)


def _read(path: Path) -> LogReading:
    try:
        table = read_table(path)
        columns = _columns(table)
    except InputError as fault:
        return LogReading(problem=str(fault))
    except (OSError, MemoryError, RecursionError, ValueError, KeyError, TypeError, IndexError) as fault:
        return LogReading(problem=f"{path.name} cannot be read: {type(fault).__name__}: {fault}")
    try:
        series, problem = tuple(series_from([table], Selection())), ""
    except InputError as fault:
        series, problem = (), str(fault)
    return LogReading(series=series, columns=columns, kind=table.kind, num_rows=len(table), problem=problem)


def _columns(table: Table) -> dict[str, Array]:
    """Return the numbers of a log, the usual ones under our names, one entry per training step, in order of steps.

    The row number is the step in a log without a column of steps; rows whose step is missing are skipped.
    """
    names = renamed(table.columns)
    if "step" not in names and table.step is not None:
        names["step"] = table.step
    step_column = names.pop("step", None)
    taken = {*names.values(), step_column, *COLUMNS}
    shown = {**names, **{name: name for name in [each for each in table.columns if each not in taken][:MOST_COLUMNS]}}
    shown.pop("attempt", None)
    by_step: dict[float, dict[str, float]] = {}
    for place, row in enumerate(table.rows):
        step = float(place) if step_column is None else number(row.get(step_column))
        values = {key: number(row.get(name)) for key, name in shown.items()}
        known = {key: value for key, value in values.items() if not math.isnan(value)}
        if known and not math.isnan(step):
            # A trainer may write several rows for one step, such as one of the losses and one of the times.
            by_step.setdefault(step, {}).update(known)
    steps = sorted(by_step)
    keys = [key for key in shown if any(key in by_step[step] for step in steps)]
    columns = {key: np.array([by_step[step].get(key, math.nan) for step in steps]) for key in keys}
    return {"step": np.array(steps, dtype=np.float64), **columns} if steps else {}
