"""`Source`: a log that is being read, within limits; and the logs that paths, patterns and folders stand for."""

import codecs
import difflib
import glob
import gzip
import io
import os
import re
import select
import time
import zlib
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from typing import Any

from scalerl import store
from scalerl.errors import InputError
from scalerl.logs.facts import Fact
from scalerl.logs.names import clean, listed

LOG_SUFFIXES = (
    *(".jsonl", ".csv", ".tsv", ".log", ".out", ".err", ".txt", ".json", ".gz", ".wandb", ".ndjson", ".db"),
)
_MAX_BYTES = 256 << 20
# A small file may unpack into anything.
_MAX_UNPACKED = 64 << 20
_HEAD = 400
_BEFORE_TEXT = b"\0" + codecs.BOM_UTF8 + codecs.BOM_UTF16
_MAX_VALUES = 3_000_000
_MAX_SECONDS = 60.0
# Control characters that text does not hold; NUL is apart, since console output of several processes may hold some.
_BINARY = bytes(set(range(32)) - {0, 7, 8, 9, 10, 11, 12, 13, 27})


class Source:
    """A file or folder that is being read: its content, loaded when first asked for, and what was decided about it.

    A damaged or hostile file ends in a sentence, not in a full memory or a hang.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.is_folder = path.is_dir()
        self.facts: list[Fact] = []
        self.decimal_comma = False
        """Whether 0,25 is a quarter."""
        self._values = 0.0
        self._until = time.process_time() + _MAX_SECONDS

    def spend(self, values: float = 1) -> None:
        """Count what was read; raise InputError beyond the limits."""
        self._values += values
        if self._values > _MAX_VALUES:
            raise InputError(f"{self.path} holds more than {_MAX_VALUES:,} values: keep the columns and rows you need.")
        if time.process_time() > self._until:
            raise InputError(f"{self.path} takes longer than {_MAX_SECONDS:g} s to read: give a shorter file.")

    def note(self, kind: str, **values: Any) -> None:
        self.facts.append(Fact(kind=kind, values=values))

    @cached_property
    def data(self) -> bytes:
        """The content of a file, unpacked."""
        data = b"" if self.is_folder else bounded_bytes(self.path)
        return _unpacked(self.path, data) if data[:2] == b"\x1f\x8b" else data

    @cached_property
    def text(self) -> str:
        """The content as text; InputError for what is none."""
        return _decoded(self.path, self.data)

    def matching(self, mark: "str | tuple[str, ...] | Callable[[Source], bool]") -> list[Path]:
        """Return the files of a folder that match patterns, each once, sorted; the file itself, if it is as asked."""
        if isinstance(mark, tuple):
            found = {file for pattern in mark for file in self.path.glob(pattern) if file.is_file()}
            return sorted(found, key=lambda path: (len(str(path)), path))
        return [self.path] if (mark(self) if callable(mark) else re.match(mark, self._head)) else []

    @cached_property
    def _head(self) -> str:
        return self.data.lstrip(_BEFORE_TEXT)[:_HEAD].replace(b"\0", b"").decode("latin-1")


def bounded_bytes(path: Path) -> bytes:
    """Return the content of a file that is not too large to hold."""
    size = path.stat().st_size
    if size > _MAX_BYTES:
        raise InputError(f"{path} has {size / 2**20:.0f} MiB, and {_MAX_BYTES >> 20} is the limit: cut it into parts.")
    return path.read_bytes() if path.is_file() else _piped(path)


def _piped(path: Path) -> bytes:
    """Return what comes through a pipe or from a device. A pipe that nobody writes to is empty, and not waited for."""
    data, descriptor = bytearray(), os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    try:
        while len(data) <= _MAX_UNPACKED:
            with suppress(BlockingIOError):
                if not (part := os.read(descriptor, 1 << 20)):
                    return bytes(data)
                data += part
                continue
            if not select.select([descriptor], [], [], _MAX_SECONDS)[0]:
                break
    finally:
        os.close(descriptor)
    raise InputError(f"{path} is not a file, and too much or nothing came from it: write it to a file first.")


def _unpacked(path: Path, data: bytes) -> bytes:
    try:
        content = gzip.GzipFile(fileobj=io.BytesIO(data)).read(_MAX_UNPACKED + 1)
    except (EOFError, OSError, zlib.error) as fault:
        raise InputError(f"{path} cannot be decompressed ({fault}): it is damaged or cut; copy it again.") from None
    if len(content) > _MAX_UNPACKED:
        raise InputError(f"{path} unpacks to more than {_MAX_UNPACKED >> 20} MiB: give the part that is needed.")
    return content


def _decoded(path: Path, data: bytes) -> str:
    """Return the text; what is not UTF-8 is replaced, as a character is that is still being written."""
    if not data.strip():
        raise InputError(f"{path} is empty: give a file with at least a header and a few rows.")
    if data[:2] in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE):
        return data.decode("utf-16", errors="replace")
    even, odd = (data[begin:4000:2].count(0) / max(len(data[begin:4000:2]), 1) for begin in (0, 1))
    if abs(even - odd) > 0.8 and len(data) > 16:
        return data.decode("utf-16-be" if even > odd else "utf-16-le", errors="replace")
    # Output of several processes may hold NUL bytes, and a file that was cut while it was written begins with many.
    content = data.replace(b"\0", b"")
    num_binary = len(content) - len(content.translate(None, _BINARY))
    if b"\0" in data and (100 * num_binary > len(content) or len(content.strip()) < 32):
        raise InputError(
            f"{path} is binary and not an event file: give CSV, JSON lines, trainer_state.json, console output, "
            "tensorboard event files or a run folder (text must be UTF-8)."
        )
    return content.decode("utf-8-sig", errors="replace")


# What paths stand for


def matches(given: Path) -> list[Path]:
    """Return the paths that a pattern such as runs/*.jsonl stands for; some shells leave it to us."""
    if given.exists() or not glob.has_magic(str(given)):
        return [given]
    found = [Path(match) for match in sorted(glob.glob(str(given), recursive=True))]
    if not found:
        raise InputError(f"no file matches {given}: check the path.")
    return found


def no_such_file(path: Path) -> str:
    folder = path.parent
    if not folder.is_dir():
        return f"there is no file {path}: its folder {folder} does not exist either."
    near = difflib.get_close_matches(path.name, sorted(item.name for item in folder.iterdir()), n=3, cutoff=0.5)
    advice = f"did you mean {' or '.join(str(folder / name) for name in near)}?" if near else "check the path."
    return f"there is no file {path}: {advice}"


def nothing_to_read(path: Path, logs: Sequence[Path]) -> str:
    if logs:
        what = "is a folder of runs" if all(map(store.is_run_folder, logs)) else "holds several logs"
        return f"{path} {what} ({listed([log.name for log in logs])}): give them by name, such as {logs[0]}."
    entries = sorted(clean(item.name) for item in path.iterdir())
    content = f"holds {listed(entries)}" if entries else "is empty"
    return (
        f"the folder {path} {content}: give a log file, a run folder (with {store.EVALS}) or a folder of tensorboard "
        "event files."
    )
