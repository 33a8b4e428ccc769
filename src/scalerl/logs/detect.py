"""Decide once what a path is: the result, a `Source`, says which reader takes it and which files it reads.

The content decides, not the name of the file.
"""

import difflib
import gzip
import json
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from scalerl import store
from scalerl.errors import InputError
from scalerl.logs.formats.csv import is_wandb_export
from scalerl.logs.formats.tensorboard import is_event_file
from scalerl.logs.table import listed

Kind = Literal["run", "study", "tensorboard", "json", "jsonl", "wandb_export", "csv"]
"""json is one document: a list of rows, or a trainer_state.json."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """What a path turned out to be."""

    kind: Kind
    path: Path
    files: tuple[Path, ...] = ()
    """The event files of a tensorboard log; the file of a run folder to read."""
    text: str = ""
    """The decoded content of a text file."""


def detect(path: Path) -> Source:
    """Return the kind of a file or folder; raise InputError for what no reader takes."""
    if not path.exists():
        raise InputError(_no_such_file(path))
    return _detect_folder(path) if path.is_dir() else _detect_file(path)


def _detect_folder(path: Path) -> Source:
    if store.is_run_folder(path):
        return Source(kind="run", path=path, files=(path / store.EVALS,))
    if (path / store.STUDY).is_file():
        return Source(kind="study", path=path)
    for name in ("trainer_state.json", store.METRICS):
        if (path / name).is_file():
            return _detect_file(path / name)
    events = sorted(item for item in path.rglob("*tfevents*") if item.is_file())
    if events:
        return Source(kind="tensorboard", path=path, files=tuple(events))
    entries = sorted(path.iterdir())
    runs = [item.name for item in entries if store.is_run_folder(item)]
    if runs:
        raise InputError(
            f"{path} is a folder of runs ({listed(runs)}): give the runs themselves, such as {path / runs[0]}."
        )
    content = f"holds {listed([item.name for item in entries])}" if entries else "is empty"
    raise InputError(
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
    text = _decoded(path, data)
    return Source(kind=_text_kind(text), path=path, text=text)


def _text_kind(text: str) -> Kind:
    opening = text.lstrip()[:1]
    if opening == "[":
        return "json"
    if opening == "{":
        # One object over many lines is JSON; a whole first line, or a text that is not JSON as a whole, is JSON lines.
        may_be_whole = '"log_history"' in text or not _parses(text.lstrip().split("\n", 1)[0])
        return "json" if may_be_whole and _parses(text) else "jsonl"
    return "wandb_export" if is_wandb_export(text) else "csv"


def _decoded(path: Path, data: bytes) -> str:
    if data[:2] == b"\x1f\x8b":
        try:
            data = gzip.decompress(data)
        except (EOFError, zlib.error, gzip.BadGzipFile) as fault:
            raise InputError(f"{path} cannot be decompressed ({fault}): it is damaged or cut; copy it again.") from None
    if not data.strip():
        raise InputError(f"{path} is empty: give a file with at least a header and a few rows.")
    if b"\0" in data[:65536]:
        raise InputError(
            f"{path} is binary and no event file: give CSV, JSON lines, trainer_state.json, tensorboard event files or "
            "a run folder (text must be UTF-8)."
        )
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as fault:
        line = data.count(b"\n", 0, fault.start) + 1
        raise InputError(f"{path} is not UTF-8 text (byte {fault.start}, line {line}): save it as UTF-8.") from None


def _parses(line: str) -> bool:
    try:
        json.loads(line)
    except json.JSONDecodeError:
        return False
    return True


def _no_such_file(path: Path) -> str:
    folder = path.parent
    if not folder.is_dir():
        return f"there is no file {path}: its folder {folder} does not exist either."
    near = difflib.get_close_matches(path.name, sorted(item.name for item in folder.iterdir()), n=3, cutoff=0.5)
    advice = f"did you mean {' or '.join(str(folder / name) for name in near)}?" if near else "check the path."
    return f"there is no file {path}: {advice}"
