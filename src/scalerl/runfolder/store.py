"""The run folder: file names, writing, and reading rows. This is the only module that knows the format.

JSON lines are append-only. A killed run leaves at most one incomplete line, the last one. A resumed run repeats steps
with a higher `attempt`. Of rows with the same step (and evaluation set), the highest attempt counts. Rows of an older
attempt count only up to the step from which a newer attempt continued: compute was spent on later ones, but their model
is lost. JSON objects (recipe.json, status.json) are complete or absent. JSON has no NaN or infinity: they become null.

env.json has the format of the folder, `"format": 1`. A folder without a number is older and has the same format. The
number rises when an older version would misread a folder; folders with a newer format are rejected.
"""

import json
import math
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from json import JSONDecodeError
from pathlib import Path
from typing import Any

from scalerl.errors import RunFolderError, StoreError, not_utf8
from scalerl.runfolder.atomic_files import UNFINISHED, descriptor_of, new_file, write_errors
from scalerl.runfolder.json_text import parse_json

RECIPE = "recipe.json"
ENV = "env.json"
METRICS = "metrics.jsonl"
EVALS = "evals.jsonl"
SAMPLES = "samples.jsonl"
STATUS = "status.json"
CHECKPOINTS = "checkpoints"
STUDY = "study.json"
"""File in the folder of a study, which also contains the folders of its runs."""

FORMAT = 1
"""Format of run folders that this version writes, and the newest format that it reads."""

JSON_FORMAT = 3
"""Format of the commands' output with --json: docs/schema.json."""

BUDGET_COLUMNS = {"steps": "step", "gpu_hours": "gpu_hours", "flops": "flops"}
"""The column of metrics.jsonl for each limit of a recipe's budget."""

KEYS = {METRICS: ("step",), EVALS: ("step", "set")}
"""Columns that identify a row; of rows that agree in them, the latest attempt counts."""

BATCH = ("completions_per_group", "groups_per_batch")
"""Settings of the pipeline that label the rows of a run, for `scalerl plan --allocate`."""

KILLED = "its process was killed: --resume continues from the last checkpoint"

Row = dict[str, Any]


# The beginning of a row of the trainer, as written by append_row.
_ROW_HEAD = re.compile(r'\{"step": (\d+), "attempt": (\d+)[,}]')


# Writing -------------------------------------------------------------------------------------------------------------


def check_new(folder: str | Path) -> None:
    """Raise RunFolderError if a new run cannot use this folder, because it is not empty or not writable."""
    folder = Path(folder)
    check_place(folder)
    if folder.exists() and not (folder.is_dir() and _is_empty(folder)):
        if is_run_folder(folder):
            raise RunFolderError(f"{folder} already contains a run: continue it with --resume, or choose another --out")
        raise RunFolderError(f"{folder} already exists and is not an empty folder: choose another --out")


def check_resumable(folder: str | Path) -> None:
    """Raise RunFolderError if this folder contains no run to resume, or is not writable."""
    folder = Path(folder)
    if not (folder / RECIPE).is_file():
        if folder.is_dir() and _is_empty(folder):
            raise RunFolderError(f"{folder} has a run that ended before it started: start it again without --resume")
        why = f"it has no {RECIPE}" if folder.exists() else "it does not exist; start it without --resume"
        raise RunFolderError(f"{folder} does not contain a run to resume: {why}")
    check_place(folder)


def _is_empty(folder: Path) -> bool:
    """Return whether a folder is empty, or contains only an unfinished file of a killed run."""
    return all(path.name.endswith(UNFINISHED) for path in folder.iterdir())


def check_place(folder: Path) -> None:
    """Raise RunFolderError if a folder cannot be created or written; call this before any work for it."""
    # Do not use Path.exists, which raises PermissionError if a parent may not be entered.
    place = next(path for path in (folder, *folder.absolute().parents) if os.path.exists(path))
    if place != folder and not place.is_dir():
        raise RunFolderError(f"{folder} cannot be created: {place} is a file, not a folder; choose another --out")
    if place.is_dir() and not os.access(place, os.W_OK | os.X_OK):
        raise RunFolderError(
            f"{folder} cannot be written: no permission to write into {place}; allow it, or choose another --out"
        )


def create_run(folder: str | Path) -> Path:
    """Create the folder of a new run; a folder that is not empty is never touched."""
    folder = Path(folder)
    check_new(folder)
    with write_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
    return folder


def reopen_run(folder: str | Path) -> Path:
    """Prepare the folder of a run for a resumed attempt: remove an incomplete line, keep all complete rows."""
    folder = Path(folder)
    check_format(folder)
    if not is_run_folder(folder):
        raise RunFolderError(f"{folder} does not contain a run to resume: it has no {RECIPE}")
    for path in sorted(folder.glob("*.jsonl")):
        with write_errors(path), path.open("r+b", buffering=0) as file:
            _end_last_line(file.fileno())
    return folder


def append_row(path: str | Path, row: Mapping[str, Any], *, sync: bool = False) -> None:
    """Append one line; `sync` flushes it to the disk. A row that cannot be written completely is removed again."""
    line = (json.dumps(_finite(row), allow_nan=False) + "\n").encode()
    with write_errors(path), descriptor_of(path, os.O_RDWR | os.O_CREAT | os.O_APPEND) as descriptor:
        size = _end_last_line(descriptor)
        try:
            _write_all(descriptor, line)
        except BaseException:
            os.ftruncate(descriptor, size)
            raise
        if sync:
            os.fsync(descriptor)


def write_json(path: str | Path, value: Mapping[str, Any]) -> None:
    """Write one JSON object, completely or not at all."""
    write_text(path, json.dumps(_finite(value), indent=2, allow_nan=False) + "\n")


def write_text(path: str | Path, text: str) -> None:
    """Write a file, completely or not at all."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC
    with new_file(Path(path)) as unfinished, descriptor_of(unfinished, flags) as descriptor:
        # JSON of strangers can hold halves of characters.
        _write_all(descriptor, text.encode(errors="replace"))


def write_env(folder: str | Path, environment: Mapping[str, Any]) -> None:
    """Record versions and hardware, and the format of the folder."""
    write_json(Path(folder) / ENV, {"format": FORMAT, **environment})


def write_status(folder: str | Path, status: str, reason: str = "") -> None:
    """Record whether a run is running, done, stopped or failed, and why. If the file exists, a full disk is no problem.

    While the run is running, its process is also recorded, because a killed process cannot record its end.
    """
    path, value = Path(folder) / STATUS, {"status": status, "reason": reason}
    if status == "running":
        value["process"] = " ".join((*_machine(), str(os.getpid()), _start_time(os.getpid())))
    try:
        write_json(path, value)
    except StoreError:
        if not path.is_file():
            raise
        # There is no room for a second file, but the blocks of the old one can be overwritten.
        with write_errors(path), descriptor_of(path, os.O_WRONLY) as descriptor:
            # Spaces overwrite the rest of a longer text.
            _write_all(descriptor, (json.dumps(value) + "\n").encode().ljust(os.fstat(descriptor).st_size))


def end_status(folder: str | Path, status: str, reason: str) -> None:
    """Record the end of a run whose process ended without recording it; keep an end that was recorded."""
    with suppress(RunFolderError, StoreError):
        if (_read_object(Path(folder) / STATUS) or {}).get("status") == "running":
            write_status(folder, status, reason)


def _machine() -> tuple[str, str]:
    """Return an identifier of this machine and its process namespace; empty strings without /proc."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return boot, os.readlink("/proc/self/ns/pid")
    except OSError:
        return "", ""


def _start_time(pid: int) -> str:
    """Return the start time of a process, in ticks since the machine's start; empty if it does not exist."""
    try:
        state, *fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (OSError, ValueError):
        return ""
    return "" if state in "ZX" else fields[18]


def _end_last_line(descriptor: int) -> int:
    """Add a missing newline after a complete last row, or remove an incomplete row; return the size of the file."""
    size = os.fstat(descriptor).st_size
    if size == 0 or os.pread(descriptor, 1, size - 1) == b"\n":
        return size
    data = os.pread(descriptor, size, 0)
    start = data.rfind(b"\n") + 1
    try:
        parse_json(data[start:])
    except ValueError:
        # Remove it: an incomplete line in the middle of a file would look like damage.
        os.ftruncate(descriptor, start)
        return start
    os.lseek(descriptor, 0, os.SEEK_END)
    _write_all(descriptor, b"\n")
    return size + 1


def _write_all(descriptor: int, data: bytes) -> None:
    # This is nearly always a single write, so that a kill cannot truncate the line.
    while data:
        data = data[os.write(descriptor, data) :]


def _finite(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


# Reading -------------------------------------------------------------------------------------------------------------


def portable(folder: str) -> Path:
    """Return a relative folder as a path, which may have backslashes if it was written on Windows."""
    return Path(folder.replace("\\", "/"))


def share_spent(budget: Mapping[str, Any], spent: Mapping[str, Any]) -> float:
    """Return the share of a recipe's budget that is spent, by the limit that is reached first; the run ends at 1.

    `spent` has the columns of a row of metrics; what it lacks is not spent.
    """
    limits = ((column, budget.get(name) or 0.0) for name, column in BUDGET_COLUMNS.items())
    return max((float(spent.get(column) or 0.0) / limit for column, limit in limits if limit > 0), default=0.0)


def hours_name(device: object) -> str:
    """Return what the column gpu_hours counts on a device: env.json has its name, and "cpu" without a GPU."""
    return "CPU-hours" if device == "cpu" else "GPU-hours"


def is_run_folder(path: str | Path) -> bool:
    """Return whether a run of scalerl wrote this folder. (Other trainers also write metrics.jsonl.)"""
    folder = Path(path)
    return (folder / RECIPE).is_file() or (folder / EVALS).is_file()


def check_format(folder: str | Path) -> None:
    """Raise RunFolderError if a newer version of scalerl wrote this folder in a format that is unknown here."""
    written = None
    # An unreadable env.json has no number, but must not prevent reading the rows.
    with suppress(RunFolderError):
        written = (_read_object(Path(folder) / ENV) or {}).get("format")
    if isinstance(written, int) and written > FORMAT:
        raise RunFolderError(
            f"{folder} has the format {written}, but this version of scalerl reads formats up to {FORMAT}: "
            f"update scalerl"
        )


def read_evals(folder: str | Path) -> list[Row]:
    """Return one row per evaluation and set, sorted by step; empty before the first evaluation."""
    return [row for _, row in latest_rows(Path(folder) / EVALS)]


def read_metrics(folder: str | Path) -> list[Row]:
    """Return one row per training step, sorted by step; empty before the first step."""
    return [row for _, row in latest_rows(Path(folder) / METRICS)]


def read_recipe(folder: str | Path) -> Row | None:
    """Return the resolved settings, or None if they were not written."""
    check_format(folder)
    return _read_object(Path(folder) / RECIPE)


def read_status(folder: str | Path) -> Row | None:
    """Return the status (running, done, stopped or failed) and its reason, or None if it was not written."""
    check_format(folder)
    written = _read_object(Path(folder) / STATUS)
    return None if written is None else current_status(written)


def current_status(written: Row) -> Row:
    """Return the current status: a run whose process was killed on this machine has failed."""
    status = {key: value for key, value in written.items() if key != "process"}
    match str(written.get("process", "")).split(" "):
        case [boot, numbering, pid, started] if (boot, numbering) == _machine() and re.fullmatch(r"[0-9]{1,10}", pid):
            if _start_time(int(pid)) != started:
                return status | {"status": "failed", "reason": KILLED}
    return status


def read_study(folder: str | Path) -> Row | None:
    """Return the plan of a study and the folders of its runs, or None if the folder is not a study's."""
    return _read_object(Path(folder) / STUDY)


def latest_rows(path: Path) -> list[tuple[int, Row]]:
    """Return (line number, row) for the rows of metrics or evaluations that count, sorted by step."""
    check_format(path.parent)
    if not path.is_file():
        return []
    placed = []
    for line, row in parse_lines(_read_text(path), path):
        if fault := fault_of(row):
            raise RunFolderError(f"{path}, line {line}: {fault}")
        placed.append((line, row))
    return counting_rows(placed, path.name, _origins(path.parent))


def fault_of(row: Row) -> str:
    """Return what keeps a row from being placed among the others of its run; empty where nothing does."""
    if not _is_count(row.get("step")):
        return "the row has no numeric 'step'"
    if not _is_count(row.get("attempt", 0)):
        return "'attempt' is not a number"
    return "" if isinstance(row.get("set", ""), str) else "'set' is not a text"


def _is_count(value: object) -> bool:
    """Return whether a value is a number that counts something, and not infinite: Python's JSON has such numbers."""
    return isinstance(value, int | float) and abs(value) < 2**53


def labelled_rows(path: Path) -> list[tuple[str, Row]]:
    """Return (place, row) for the rows of a run's file that count, with the run's seed, batch and device."""
    recipe, environment = (_readable(path.parent / name) for name in (RECIPE, ENV))
    seeds = _values_of(recipe, "seed")
    labels = {"seed": seeds[0]} if seeds else {}
    labels |= {key: value for key, value in (recipe.get("pipeline") or {}).items() if key in BATCH}
    labels |= {key: value for key, value in environment.items() if key == "device"}
    return [(f"{path.name} line {line}", {**labels, **row}) for line, row in latest_rows(path)]


def _readable(path: Path) -> Row:
    """Return the content of a file; empty if it is missing or damaged."""
    try:
        return _read_object(path) or {}
    except RunFolderError:
        return {}


def _values_of(section: Mapping[str, Any], key: str) -> list[Any]:
    """Return the values of a key in nested sections, outer ones first."""
    inner = [value for part in section.values() if isinstance(part, Mapping) for value in _values_of(part, key)]
    return [section[key], *inner] if key in section else inner


def study_rows(folder: Path) -> list[tuple[str, Row]]:
    """Return (place, row) for the evaluations of all runs of a study so far, with their arm and seed."""
    placed: list[tuple[str, Row]] = []
    for run in (read_study(folder) or {}).get("runs", []):
        place = folder / portable(str(run.get("folder"))) if isinstance(run, Mapping) else folder
        rows = labelled_rows(place / EVALS) if place != folder and is_run_folder(place) else []
        placed += [(f"{place.name}, {at}", {**row, "arm": run.get("arm"), "seed": run.get("seed")}) for at, row in rows]
    return placed


def counting(rows: Iterable[tuple[float, float, Any]], origins: Mapping[int, float]) -> list[int]:
    """Return the indices of the rows that count, by step; a row is given by step, attempt and identity.

    Of rows with the same identity, the latest attempt counts. `origins` are the steps from which attempts started: rows
    of an older attempt after the origin of a newer one belong to a lost model.
    """
    latest: dict[Any, tuple[float, float, int]] = {}
    for place, (step, attempt, identity) in enumerate(rows):
        is_gone = any(step > origin for newer, origin in origins.items() if newer > attempt > 0)
        known = latest.get(identity)
        if not is_gone and (known is None or attempt >= known[1]):
            latest[identity] = (step, attempt, place)
    return [place for _, _, place in sorted(latest.values(), key=lambda row: row[0])]


def counting_rows(placed: Sequence[tuple[int, Row]], name: str, origins: Mapping[int, float]) -> list[tuple[int, Row]]:
    """Return the rows of a file that count, with their line numbers."""
    keys = [(row["step"], row.get("attempt", 0), tuple(map(row.get, KEYS[name]))) for _, row in placed]
    return [placed[place] for place in counting(keys, origins)]


def _note_origin(origins: dict[int, float], name: str, step: float, attempt: object) -> None:
    """Record the step from which a row's attempt started; a row of metrics is written after its step."""
    if isinstance(attempt, int):
        origins[attempt] = min(origins.get(attempt, math.inf), step - (name == METRICS))


def _origins(folder: Path) -> dict[int, float]:
    """Return the step from which each attempt started, from its first rows."""
    origins: dict[int, float] = {}
    # Read both files: an attempt may train long before it evaluates, or evaluate before it trains.
    for name in KEYS:
        path = folder / name
        for line in path.read_text(encoding="utf-8", errors="replace").split("\n") if path.is_file() else ():
            # Read only the beginning of each line: parsing every row on every read would be slow.
            if head := _ROW_HEAD.match(line):
                _note_origin(origins, name, int(head[1]), int(head[2]))
    return origins


def rows_that_count(placed: Mapping[str, Sequence[tuple[int, Row]]]) -> dict[str, list[tuple[int, Row]]]:
    """Return those of a run's rows of METRICS and EVALS that count, by step, with their places; no row has a fault."""
    origins: dict[int, float] = {}
    for name, rows in placed.items():
        for _, row in rows:
            _note_origin(origins, name, row["step"], row.get("attempt"))
    return {name: counting_rows(rows, name, origins) for name, rows in placed.items()}


def parse_lines(text: str, path: Path) -> list[tuple[int, Row]]:
    """Return (line number, object) for each non-blank JSON line, without an incomplete last line."""
    lines = [(number, line) for number, line in enumerate(text.split("\n"), start=1) if line.strip()]
    rows: list[tuple[int, Row]] = []
    for number, line in lines:
        try:
            row = parse_json(line)
        except JSONDecodeError as fault:
            if rows and number == lines[-1][0] and line.lstrip().startswith("{"):
                break
            raise RunFolderError(f"{path}, line {number}: not JSON ({fault.msg} at column {fault.colno})") from None
        if not isinstance(row, dict):
            raise RunFolderError(f"{path}, line {number}: a JSON object is needed, not {_short(line)}")
        rows.append((number, row))
    return rows


def _read_object(path: Path) -> Row | None:
    if not path.is_file():
        return None
    try:
        value = parse_json(_read_text(path))
    except JSONDecodeError as fault:
        raise RunFolderError(f"{path}, line {fault.lineno}: not JSON ({fault.msg})") from None
    if not isinstance(value, dict):
        raise RunFolderError(f"{path}: a JSON object is needed, not {type(value).__name__}")
    return value


def _read_text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise RunFolderError(not_utf8(path, error)) from None
    except OSError as error:
        raise RunFolderError(f"{path} cannot be read: {error.strerror}") from None


def _short(text: str) -> str:
    return repr(text if len(text) <= 40 else text[:40] + "...")
