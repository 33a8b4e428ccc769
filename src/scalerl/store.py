"""The run folder: its file names, how it is written, and how its rows are read back.

JSON lines are append-only. A run that is killed leaves at most one cut line, the last; a run that is resumed repeats
steps under a higher `attempt`. Of the rows of one step (and evaluation set) the highest attempt counts, and where a
newer attempt went on from, the rows of an older one end: what came after was paid for, but its model is gone. A JSON
object (recipe.json, status.json) is there whole or not at all. JSON knows no NaN or infinity: they become null.
"""

import errno
import json
import math
import os
import re
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from scalerl.errors import RunFolderError, StoreError

RECIPE = "recipe.json"
ENV = "env.json"
METRICS = "metrics.jsonl"
EVALS = "evals.jsonl"
SAMPLES = "samples.jsonl"
STATUS = "status.json"
CHECKPOINTS = "checkpoints"
STUDY = "study.json"
"""Of a study's folder, beside those of its runs."""

UNFINISHED = ".unfinished"
"""Suffix of a folder that is still being written."""

Row = dict[str, Any]

# How append_row begins a row of the trainer.
_ROW_HEAD = re.compile(r'\{"step": (\d+), "attempt": (\d+)[,}]')


# Writing -------------------------------------------------------------------------------------------------------------


def check_new(folder: str | Path) -> None:
    """Refuse a folder in which a new run would write into what is there already, or that it could not make or write."""
    folder = Path(folder)
    check_place(folder)
    if folder.exists() and not (folder.is_dir() and not any(folder.iterdir())):
        if is_run_folder(folder):
            raise RunFolderError(f"{folder} holds a run already: go on with it by --resume, or choose another --out")
        raise RunFolderError(f"{folder} exists already and is no empty folder: choose another --out")


def check_place(folder: Path) -> None:
    """Refuse a folder that could not be made or written, before the work that is to go there."""
    # Not Path.exists, which raises where a folder on the way may not be entered.
    place = next(path for path in (folder, *folder.absolute().parents) if os.path.exists(path))
    if place != folder and not place.is_dir():
        raise RunFolderError(f"{folder} cannot be made: {place} is a file and no folder; choose another --out")
    if place.is_dir() and not os.access(place, os.W_OK | os.X_OK):
        raise RunFolderError(f"{folder} cannot be written: you may not write into {place}; choose another --out")


def create_run(folder: str | Path) -> Path:
    """Make the folder of a new run; what is there already is never touched."""
    folder = Path(folder)
    check_new(folder)
    with _said(folder):
        folder.mkdir(parents=True, exist_ok=True)
    return folder


def reopen_run(folder: str | Path) -> Path:
    """Ready the folder of a run to be resumed: the line that a kill may have cut goes, whole rows all stay."""
    folder = Path(folder)
    if not is_run_folder(folder):
        raise RunFolderError(f"{folder} holds no run to resume: it has no {RECIPE}")
    for path in sorted(folder.glob("*.jsonl")):
        with _said(path), path.open("r+b", buffering=0) as file:
            _mend(file.fileno())
    return folder


def append_row(path: str | Path, row: Mapping[str, Any], *, sync: bool = False) -> None:
    """Add one line, with `sync` down to the disk. A row that cannot be written whole is taken back."""
    line = (json.dumps(_finite(row), allow_nan=False) + "\n").encode()
    with _said(path):
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
        try:
            size = _mend(descriptor)
            try:
                _write_all(descriptor, line)
            except BaseException:
                os.ftruncate(descriptor, size)
                raise
            if sync:
                os.fsync(descriptor)
        finally:
            os.close(descriptor)


def write_json(path: str | Path, value: Mapping[str, Any]) -> None:
    """Write one object, or leave what was there: under another name, down to the disk, then renamed."""
    path = Path(path)
    text = (json.dumps(_finite(value), indent=2, allow_nan=False) + "\n").encode()
    unfinished = path.with_name(f".{path.name}.unfinished")
    with _said(path):
        try:
            descriptor = os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
            try:
                _write_all(descriptor, text)
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
            os.replace(unfinished, path)
        except BaseException:
            unfinished.unlink(missing_ok=True)
            raise


def write_status(folder: str | Path, status: str, reason: str = "") -> None:
    """Say that a run is running, done, stopped or failed, and why; also on a full disk, if it has said so before."""
    path, value = Path(folder) / STATUS, {"status": status, "reason": reason}
    try:
        write_json(path, value)
    except StoreError:
        if not path.is_file():
            raise
        # There is no room for a second file to swap in, but the old one's block can be written over.
        with _said(path):
            descriptor = os.open(path, os.O_WRONLY)
            try:
                # Blanks over what is left of a longer one.
                _write_all(descriptor, (json.dumps(value) + "\n").encode().ljust(os.fstat(descriptor).st_size))
            finally:
                os.close(descriptor)


def _mend(descriptor: int) -> int:
    """End the last line: a whole row that lacks its newline gets it, a cut one is removed. Gives the size."""
    size = os.fstat(descriptor).st_size
    if size == 0 or os.pread(descriptor, 1, size - 1) == b"\n":
        return size
    data = os.pread(descriptor, size, 0)
    start = data.rfind(b"\n") + 1
    try:
        json.loads(data[start:])
    except ValueError:
        # A cut line in the middle of a file could not be told from a damaged one, so it must not stay.
        os.ftruncate(descriptor, start)
        return start
    os.lseek(descriptor, 0, os.SEEK_END)
    _write_all(descriptor, b"\n")
    return size + 1


def _write_all(descriptor: int, data: bytes) -> None:
    # One write in all but the rarest cases, so that a kill cannot cut the line.
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


@contextmanager
def _said(path: str | Path) -> Iterator[None]:
    try:
        yield
    except OSError as fault:
        raise StoreError(f"cannot write {path}: {write_failure(fault)}") from fault


@contextmanager
def new_folder(
    target: Path, *, replace: bool = False, write_errors: tuple[type[Exception], ...] = ()
) -> Iterator[Path]:
    """Yield a folder to fill; it appears at `target` once all of it is on disk, and is removed if anything fails.

    `write_errors` are exceptions of the writing library that count as a failed write, like an OSError.
    """
    unfinished, replaced = (target.with_name(f"{target.name}{end}{UNFINISHED}") for end in ("", ".replaced"))
    try:
        shutil.rmtree(unfinished, ignore_errors=True)
        unfinished.mkdir(parents=True)
        yield unfinished
        for path in [*unfinished.rglob("*"), unfinished]:
            _flush(path)
        if replace and target.exists():
            # Renamed, not removed: between the two renames there is no time for a crash to fall into.
            os.rename(target, replaced)
        os.rename(unfinished, target)
        _flush(target.parent)
        shutil.rmtree(replaced, ignore_errors=True)
    except BaseException as error:
        if replaced.exists() and not target.exists():
            os.rename(replaced, target)
        shutil.rmtree(unfinished, ignore_errors=True)
        if isinstance(error, (OSError, *write_errors)):
            raise StoreError(f"cannot write {target}: {write_failure(error)}; what was there before is kept") from error
        raise


def _flush(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_failure(error: Exception) -> str:
    """Say why a write failed."""
    # safetensors passes the system's error on as text.
    full = isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT)
    if full or "No space left" in str(error):
        return "the disk is full"
    return (error.strerror if isinstance(error, OSError) else None) or str(error)


# Reading -------------------------------------------------------------------------------------------------------------


def is_run_folder(path: str | Path) -> bool:
    """Whether one of our runs wrote this folder: metrics.jsonl alone says nothing, other trainers write it too."""
    folder = Path(path)
    return folder.is_dir() and ((folder / RECIPE).is_file() or (folder / EVALS).is_file())


def read_evals(folder: str | Path) -> list[Row]:
    """One row an evaluation and set, sorted by step; empty while there is none."""
    return [row for _, row in latest_rows(Path(folder) / EVALS, ("step", "set"))]


def read_metrics(folder: str | Path) -> list[Row]:
    """One row a training step, sorted by step; empty while there is none."""
    return [row for _, row in latest_rows(Path(folder) / METRICS, ("step",))]


def read_recipe(folder: str | Path) -> Row | None:
    """The resolved settings, None where the run has not written them."""
    return _read_object(Path(folder) / RECIPE)


def read_env(folder: str | Path) -> Row | None:
    """Versions, commit and hardware, None where the run has not written them."""
    return _read_object(Path(folder) / ENV)


def read_status(folder: str | Path) -> Row | None:
    """Running, done or failed with the reason; None where the run has not said."""
    return _read_object(Path(folder) / STATUS)


def read_study(folder: str | Path) -> Row | None:
    """The plan of a study and where each of its runs is, None where the folder holds none."""
    return _read_object(Path(folder) / STUDY)


def latest_rows(path: Path, keys: Sequence[str]) -> list[tuple[int, Row]]:
    """(line number, row) of the rows that count, one for each value of `keys`, sorted by step."""
    if not path.is_file():
        return []
    origins = _origins(path.parent)
    latest: dict[tuple[Any, ...], tuple[int, Row]] = {}
    for line, row in parse_lines(path.read_text(encoding="utf-8"), path):
        step, attempt = row.get("step"), row.get("attempt", 0)
        if not isinstance(step, int | float):
            raise RunFolderError(f"{path}, line {line}: the row has no numeric 'step'")
        if any(step > origin for newer, origin in origins.items() if newer > attempt > 0):
            continue
        key = tuple(row.get(name) for name in keys)
        if key not in latest or attempt >= latest[key][1].get("attempt", 0):
            latest[key] = (line, row)
    return sorted(latest.values(), key=lambda item: item[1]["step"])


def _origins(folder: Path) -> dict[int, float]:
    """The step that each attempt went on from, by its first rows: a step is made from the one before it."""
    origins: dict[int, float] = {}
    # Both files say it: an attempt may train long before it evaluates, and may evaluate before it trains.
    for name, steps_before in ((METRICS, 1), (EVALS, 0)):
        path = folder / name
        for line in path.read_text(encoding="utf-8", errors="replace").split("\n") if path.is_file() else ():
            # As the trainer writes them: whole rows are too many to parse whenever somebody looks.
            if found := _ROW_HEAD.match(line):
                step, attempt = int(found[1]), int(found[2])
                origins[attempt] = min(origins.get(attempt, math.inf), step - steps_before)
    return origins


def parse_lines(text: str, path: Path) -> list[tuple[int, Row]]:
    """(line number, object) for each non-blank JSON line; a last line cut while being written is left out."""
    lines = [(number, line) for number, line in enumerate(text.split("\n"), start=1) if line.strip()]
    rows: list[tuple[int, Row]] = []
    for number, line in lines:
        try:
            row = json.loads(line)
        except json.JSONDecodeError as fault:
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
        value = json.loads(path.read_text(encoding="utf-8"))
    except json.JSONDecodeError as fault:
        raise RunFolderError(f"{path}, line {fault.lineno}: not JSON ({fault.msg})") from None
    if not isinstance(value, dict):
        raise RunFolderError(f"{path}: a JSON object is needed, not {type(value).__name__}")
    return value


def _short(text: str) -> str:
    return repr(text if len(text) <= 40 else text[:40] + "...")
