"""`Source`: a file that is being read, within limits on its size, its values and the time it takes."""

import codecs
import gzip
import io
import os
import select
import stat
import time
import zlib
from functools import cached_property
from pathlib import Path
from typing import Any

from scalerl.errors import InputError
from scalerl.forecast.logs.facts import Fact, fact
from scalerl.forecast.logs.frame import Frame, Placed, frame_of

MAX_COLUMNS = 5_000
"""Columns of one log; a run with many metrics has some hundred."""
MAX_WORD = 1_000
"""Longest name or number that is read from text."""
MAX_BYTES = 256 << 20
"""Bytes of a file, and characters that come out of a database."""
# A small file may unpack into anything.
_MAX_UNPACKED = 64 << 20
_MAX_VALUES = 3_000_000
_MAX_CELLS = 20_000_000
_MAX_LINES = 500_000
_MAX_SECONDS = 20.0
# How long a pipe may be silent, and how much is taken from it at a time.
_MAX_WAIT_S = 20.0
_CHUNK = 1 << 20
# Control characters that text does not hold; NUL is apart, since console output of several processes may hold some.
_BINARY = bytes(set(range(32)) - {0, 7, 8, 9, 10, 11, 12, 13, 27})


class Source:
    """A file that is being read: its content, loaded when first asked for, and facts about it.

    A damaged or hostile file ends in a sentence, not in a full memory or a hang.
    """

    def __init__(self, path: Path, inside: str = "") -> None:
        """`inside` is the content, where that is text which was printed inside the file."""
        self.path = path
        self.is_inside = bool(inside)
        """Whether the name of the file does not say what the content is."""
        self.facts: list[Fact] = []
        self._inside = inside.encode()
        self._values = 0
        self._until = time.process_time() + _MAX_SECONDS

    def limit(self, num: float, most: float, what: str) -> None:
        """Raise InputError for more than a limit."""
        if num > most:
            raise InputError(f"{self.path} has more than {most:,} {what}, which is the limit: keep what you need.")

    def spend(self, values: int = 0) -> None:
        """Count what was read; raise InputError beyond the limits."""
        self._values += values
        self.limit(self._values, _MAX_VALUES, "values")
        if time.process_time() > self._until:
            raise InputError(f"{self.path} takes longer than {_MAX_SECONDS:g} s to read: give a shorter file.")

    def expect(self, values: int) -> None:
        """Raise InputError if so many values are beyond the limits; they are counted when they are framed."""
        self.limit(self._values + values, _MAX_VALUES, "values")
        self.spend()

    def note(self, kind: str, **values: Any) -> None:
        self.facts.append(fact(kind, **values))

    def framed(self, rows: Placed) -> Frame:
        """Return rows as a frame; InputError for none, or for too many columns."""
        if not rows:
            raise InputError(f"{self.path} holds no rows yet: wait until the run has logged something.")
        self.spend(sum(len(row) + 1 for _, row in rows))
        num_columns = len({name for _, row in rows for name in row})
        self.limit(num_columns, MAX_COLUMNS, "columns")
        self.limit(num_columns * len(rows), _MAX_CELLS, "cells")
        return frame_of(rows)

    @cached_property
    def data(self) -> bytes:
        """The content of a file, unpacked."""
        data = self._inside or bounded_bytes(self.path)
        data = _unpacked(self.path, data) if data[:2] == b"\x1f\x8b" else data
        if data[:4] == b"PK\x03\x04" or data[257:262] == b"ustar":
            raise InputError(f"{self.path} is an archive or a spreadsheet: unpack it, or save the table as CSV.")
        return data

    @cached_property
    def text(self) -> str:
        """The content as text; InputError for what is no text, or more of it than can be read."""
        text = _decoded(self.path, self.data)
        self.limit(text.count("\n"), _MAX_LINES, "lines")
        if text.lstrip()[:1] in ("{", "["):
            # A parser makes an object of each value at once: they are counted before.
            self.limit(text.count(",") + text.count("[") + text.count("{"), _MAX_VALUES, "values")
        return text


def bounded_bytes(path: Path) -> bytes:
    """Return the content of a file, or of a pipe, that is not too large to hold."""
    kind = path.stat().st_mode
    if stat.S_ISFIFO(kind):
        return _piped(path)
    if not stat.S_ISREG(kind):
        raise InputError(f"{path} is neither a file nor a pipe: write its content to a file first.")
    num_bytes = path.stat().st_size
    if num_bytes > MAX_BYTES:
        raise InputError(f"{path} has {num_bytes >> 20} MiB, and {MAX_BYTES >> 20} is the limit: cut it into parts.")
    with path.open("rb") as file:
        # What is written meanwhile is left for the next time: a file may grow as fast as it is read.
        return file.read(num_bytes)


def _piped(path: Path) -> bytes:
    """Return what comes through a pipe until it is closed. One that nobody writes to is empty."""
    parts: list[bytes] = []
    num_bytes = 0
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    try:
        while num_bytes <= _MAX_UNPACKED:
            part = _next_part(path, descriptor)
            if not part:
                return b"".join(parts)
            parts.append(part)
            num_bytes += len(part)
    finally:
        os.close(descriptor)
    raise InputError(
        f"{path} is a pipe, and more than {_MAX_UNPACKED >> 20} MiB came from it: write it to a file first."
    )


def _next_part(path: Path, descriptor: int) -> bytes:
    """Return what a pipe holds now, or what comes next; empty where nobody writes to it."""
    while True:
        try:
            return os.read(descriptor, _CHUNK)
        except BlockingIOError:
            is_ready, _, _ = select.select([descriptor], [], [], _MAX_WAIT_S)
        if not is_ready:
            raise InputError(
                f"{path} is a pipe from which nothing came for {_MAX_WAIT_S:g} s: write the log to a file first."
            )


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
