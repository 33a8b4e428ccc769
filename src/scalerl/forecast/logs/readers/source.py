"""`Source`: a file that is being read, or a text that was printed inside one, with the budget for reading it."""

import codecs
import gzip
import io
import os
import select
import stat
import zlib
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

from scalerl.errors import InputError
from scalerl.forecast.logs.facts import Fact, fact
from scalerl.forecast.logs.frame import Placed
from scalerl.forecast.logs.readers import budget
from scalerl.forecast.logs.readers.budget import Budget

MAX_WORD = 1_000
"""Longest name or number that is read from text."""
MAX_BYTES = 256 << 20
"""Bytes of a file, and characters that come out of a database."""
# A small file may unpack into anything.
_MAX_UNPACKED = 64 << 20
# How long a pipe may be silent, and how much is taken from it at a time.
_MAX_WAIT_S = 20.0
_CHUNK = 1 << 20
# Control characters that text does not hold; NUL is apart, since console output of several processes may hold some.
_BINARY = bytes(set(range(32)) - {0, 7, 8, 9, 10, 11, 12, 13, 27})


class Table(NamedTuple):
    """Rows that stand together in a file, and what stands above them there."""

    kind: str
    """The name of the container."""
    rows: Placed
    keys: tuple[str, ...] = ()
    """The keys of a document that lead to them."""
    name: str = ""
    """The key of a list of values that has no names of its own."""
    words: tuple[tuple[str, str], ...] = ()
    """Names and words of the rows that they stand inside."""
    facts: tuple[Fact, ...] = ()

    def with_fact(self, kind: str, **values: Any) -> "Table":
        return self._replace(facts=(*self.facts, fact(kind, **values)))


class Source:
    """A file that is being read: its content, loaded when first asked for."""

    def __init__(self, path: Path, spent: Budget | None = None, inside: str = "") -> None:
        self.path = path
        self.budget = spent or Budget(path)
        self.is_inside = bool(inside)
        """Whether the content was printed inside the file, whose name does not say what it is then."""
        self._inside = inside

    def inside(self, text: str) -> "Source":
        """Return a text that the file contains as a source of its own, which spends the same budget."""
        return Source(self.path, self.budget, text)

    def content_of(self, file: Path) -> bytes:
        """Return the content of a file; that of the source itself is read once, for a pipe is empty then."""
        return self.data if file == self.path else bounded_bytes(file)

    @cached_property
    def data(self) -> bytes:
        """The content of a file, unpacked."""
        data = self._inside.encode(errors="replace") or bounded_bytes(self.path)
        if data[:2] == b"\x1f\x8b":
            data = _unpacked(self.path, data)
        if data[:4] == b"PK\x03\x04" or data[257:262] == b"ustar":
            raise InputError(f"{self.path} is an archive or a spreadsheet: unpack it, or save the table as CSV.")
        return data

    @cached_property
    def text(self) -> str:
        """The content as text; InputError for what is no text, or more of it than can be read."""
        text = self._inside or _decoded(self.path, self.data)
        self.budget.limit(text.count("\n"), budget.MAX_LINES, "lines")
        if text.lstrip()[:1] in ("{", "["):
            # A parser makes an object of each value at once: they are counted before.
            self.budget.limit(text.count(",") + text.count("[") + text.count("{"), budget.MAX_VALUES, "values")
        return text


def bounded_bytes(path: Path) -> bytes:
    """Return the content of a file, or of a pipe, that is not too large to hold."""
    status = path.stat()
    if stat.S_ISFIFO(status.st_mode):
        return _piped(path)
    if not stat.S_ISREG(status.st_mode):
        raise InputError(f"{path} is neither a file nor a pipe: write its content to a file first.")
    num_bytes = status.st_size
    if num_bytes > MAX_BYTES:
        raise InputError(f"{path} has {num_bytes >> 20} MiB, and {MAX_BYTES >> 20} is the limit: cut it into parts.")
    with path.open("rb") as file:
        # What is written meanwhile is left for the next time: a file may grow as fast as it is read.
        return file.read(num_bytes)


def _piped(path: Path) -> bytes:
    """Return what comes through a pipe until it is closed. One that nobody writes to is empty."""
    data = bytearray()
    with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK), "rb", buffering=0) as pipe:
        while (part := pipe.read(_CHUNK)) != b"":
            if part is not None:
                data += part
            elif not select.select([pipe], [], [], _MAX_WAIT_S)[0]:
                silence = f"nothing came for {_MAX_WAIT_S:g} s"
                raise InputError(f"{path} is a pipe from which {silence}: write the log to a file first.")
            if len(data) > _MAX_UNPACKED:
                most = f"{_MAX_UNPACKED >> 20} MiB"
                raise InputError(f"{path} is a pipe, and more than {most} came from it: write it to a file first.")
    return bytes(data)


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
    # Output of several processes may hold NUL bytes, and a file that was cut while it was written begins with many.
    content = data.replace(b"\0", b"")
    num_binary = len(content) - len(content.translate(None, _BINARY))
    if b"\0" in data and (100 * num_binary > len(content) or len(content.strip()) < 32):
        raise InputError(
            f"{path} is binary and not an event file: give CSV, JSON lines, trainer_state.json, console output, "
            "tensorboard event files or a run folder (text must be UTF-8)."
        )
    return content.decode("utf-8-sig", errors="replace")
