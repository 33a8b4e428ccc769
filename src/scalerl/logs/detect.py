"""Decide once what a path is: the result, a `Source`, says which reader takes it and which files it reads.

The content decides, not the name of the file.
"""

import codecs
import difflib
import gzip
import json
import re
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from scalerl import store
from scalerl.errors import InputError
from scalerl.logs.formats.console import has_records
from scalerl.logs.formats.csv import is_table, is_wandb_export
from scalerl.logs.formats.tensorboard import is_event_file
from scalerl.logs.formats.trackio import is_database
from scalerl.logs.formats.trainer_state import find_trainer_states, rows_inside, rows_of_columns
from scalerl.logs.formats.wandb import find_wandb_files, is_wandb_file
from scalerl.logs.table import listed

Kind = Literal[
    "run",
    "study",
    "trainer_folder",
    "tensorboard",
    "wandb",
    "trackio",
    "json",
    "jsonl",
    "console",
    "wandb_export",
    "csv",
]
"""json is one document: a list of rows, or a trainer_state.json."""

LOG_SUFFIXES = (".jsonl", ".csv", ".tsv", ".log", ".out", ".err", ".txt", ".json", ".gz", ".wandb", ".ndjson", ".db")
_MAX_LOGS = 64
# Control characters that text does not hold; NUL is apart, since console output of several processes may hold some.
_BINARY = bytes(set(range(32)) - {0, 7, 8, 9, 10, 11, 12, 13, 27})


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """What a path turned out to be."""

    kind: Kind
    path: Path
    files: tuple[Path, ...] = ()
    """The event files, wandb files or trainer states of a folder; the file of a run folder to read."""
    text: str = ""
    """The decoded content of a text file."""


def detect(path: Path) -> Source:
    """Return the kind of a file or folder; raise InputError for what no reader takes."""
    if not path.exists():
        raise InputError(_no_such_file(path))
    if not path.is_dir():
        return _detect_file(path)
    source = _detect_folder(path)
    if source is not None:
        return source
    logs = logs_inside(path)
    if len(logs) == 1:
        return detect(logs[0])
    raise InputError(_nothing_to_read(path, logs))


def logs_inside(folder: Path) -> list[Path]:
    """Return the logs directly inside a folder that is not a log itself: run folders, else folders, else files."""
    entries = sorted(item for item in folder.iterdir() if not item.name.startswith("."))
    runs = [item for item in entries if store.is_run_folder(item)]
    if runs:
        return runs
    folders = [item for item in entries if item.is_dir() and _detect_folder(item) is not None]
    return folders or [item for item in entries[:_MAX_LOGS] if item.suffix in LOG_SUFFIXES and _is_log(item)]


def _detect_folder(path: Path) -> Source | None:
    if store.is_run_folder(path):
        return Source(kind="run", path=path, files=(path / store.EVALS,))
    if (path / store.STUDY).is_file():
        return Source(kind="study", path=path)
    if states := find_trainer_states(path):
        return Source(kind="trainer_folder", path=path, files=tuple(states))
    if (path / store.METRICS).is_file():
        return _detect_file(path / store.METRICS)
    if files := find_wandb_files(path):
        return Source(kind="wandb", path=path, files=tuple(files))
    for name in ("files/output.log", "output.log"):
        if (path / name).is_file() and _is_log(path / name):
            return _detect_file(path / name)
    events = sorted(item for item in path.rglob("*tfevents*") if item.is_file())
    return Source(kind="tensorboard", path=path, files=tuple(events)) if events else None


def _is_log(path: Path) -> bool:
    """Return whether a file is a log: text that is neither JSON lines nor a table must hold records of steps."""
    try:
        source = _detect_file(path)
    except (InputError, OSError):
        return False
    return source.kind != "csv" or is_table(source.text)


def _nothing_to_read(path: Path, logs: Sequence[Path]) -> str:
    names = [item.name for item in logs]
    if logs and all(store.is_run_folder(item) for item in logs):
        return f"{path} is a folder of runs ({listed(names)}): give the runs themselves, such as {logs[0]}."
    if logs:
        return f"{path} holds several logs ({listed(names)}): give the logs themselves, such as {logs[0]}."
    entries = sorted(item.name for item in path.iterdir())
    content = f"holds {listed(entries)}" if entries else "is empty"
    return (
        f"the folder {path} {content}: give a log file, a run folder (with {store.EVALS}) or a folder of tensorboard "
        "event files."
    )


def _detect_file(path: Path) -> Source:
    if path.name in (store.EVALS, store.METRICS) and store.is_run_folder(path.parent):
        # The rows that count are the same whether the folder or the file in it is named.
        return Source(kind="run", path=path.parent, files=(path,))
    data = path.read_bytes()
    if is_event_file(data[:12]):
        return Source(kind="tensorboard", path=path, files=(path,))
    if is_wandb_file(data[:4]):
        return Source(kind="wandb", path=path, files=(path,))
    if is_database(data[:16]):
        return Source(kind="trackio", path=path, files=(path,))
    text, bad_byte = _decoded(path, data)
    kind = _text_kind(text)
    if bad_byte is not None and kind != "console":
        line = data.count(b"\n", 0, bad_byte) + 1
        raise InputError(f"{path} is not UTF-8 text (byte {bad_byte}, line {line}): save it as UTF-8.")
    if kind == "csv" and not is_table(text) and path.suffix.lower() not in (".csv", ".tsv", ".gz"):
        raise InputError(
            f"{path} is text in which no line records a training step: give CSV, JSON lines, or console output with "
            "lines such as 'step:12 - reward:0.5' or {'reward': 0.5, 'epoch': 0.1}."
        )
    return Source(kind=kind, path=path, text=text)


def _text_kind(text: str) -> Kind:
    body = text.lstrip()
    if body.startswith("[") and (re.match(r"\[\s*[{\]]", body) or _parses(text)):
        return "json"
    if re.match(r'\{\s*("|\}|$)', body):
        # One object over many lines is JSON, and so is one line that holds many rows; a whole first line, or a text
        # that is not JSON as a whole, is JSON lines.
        first, _, rest = body.partition("\n")
        may_be_whole = '"log_history"' in text or not _parses(first) or (not rest.strip() and _holds_rows(first))
        return "json" if may_be_whole and _parses(text) else "jsonl"
    if is_table(text):
        return "wandb_export" if is_wandb_export(text) else "csv"
    return "console" if has_records(text) else "csv"


def _decoded(path: Path, data: bytes) -> tuple[str, int | None]:
    """Return the text and the position of the first byte that is not UTF-8, None where all is."""
    if data[:2] == b"\x1f\x8b":
        try:
            data = gzip.decompress(data)
        except (EOFError, zlib.error, gzip.BadGzipFile) as fault:
            raise InputError(f"{path} cannot be decompressed ({fault}): it is damaged or cut; copy it again.") from None
    if not data.strip():
        raise InputError(f"{path} is empty: give a file with at least a header and a few rows.")
    if data[:2] in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE):
        return data.decode("utf-16", errors="replace"), None
    shares = [data[begin:4000:2].count(0) / max(len(data[begin:4000:2]), 1) for begin in (0, 1)]
    if max(shares) > 0.9 and min(shares) < 0.1 and len(data) > 16:
        return data.decode("utf-16-be" if shares[0] > shares[1] else "utf-16-le", errors="replace"), None
    # Output of several processes may hold NUL bytes, and a file that was cut while it was written begins with many.
    content = data.replace(b"\0", b"")
    num_binary = len(content) - len(content.translate(None, _BINARY))
    if b"\0" in data and (not content.strip() or 100 * num_binary > len(content) or len(content) < 32):
        raise InputError(
            f"{path} is binary and no event file: give CSV, JSON lines, trainer_state.json, console output, "
            "tensorboard event files or a run folder (text must be UTF-8)."
        )
    try:
        return content.decode("utf-8-sig"), None
    except UnicodeDecodeError as fault:
        # A character that is still being written is not an error.
        is_cut = fault.start >= len(content) - 3 and fault.reason == "unexpected end of data"
        return content.decode("utf-8-sig", errors="replace"), None if is_cut else fault.start


def _parses(line: str) -> bool:
    try:
        json.loads(line)
    except json.JSONDecodeError:
        return False
    return True


def _holds_rows(line: str) -> bool:
    value = json.loads(line)
    return rows_of_columns(value) is not None or rows_inside(value) is not None


def _no_such_file(path: Path) -> str:
    folder = path.parent
    if not folder.is_dir():
        return f"there is no file {path}: its folder {folder} does not exist either."
    near = difflib.get_close_matches(path.name, sorted(item.name for item in folder.iterdir()), n=3, cutoff=0.5)
    advice = f"did you mean {' or '.join(str(folder / name) for name in near)}?" if near else "check the path."
    return f"there is no file {path}: {advice}"
