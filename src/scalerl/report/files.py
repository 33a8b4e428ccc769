"""Read files that others write: only regular ones inside what the user named, and JSON lines as they are added.

`Tail` returns whole lines, so a line that is still being written waits for its end. A file that was replaced or became
shorter is read again from its beginning. A line that is too long, or not a JSON object, is skipped and counted.
"""

import json
import os
import stat
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

MAX_LINE = 8 << 20
"""Longest line that is parsed, in bytes."""
MAX_READ = 32 << 20
"""Most bytes that one call reads: a long file is read in several calls, and the others are not kept waiting."""
_CHUNK = 1 << 20
# Not every system has all of them.
_FLAGS = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)


@dataclass(frozen=True, slots=True)
class Root:
    """A path that the user named; everything that is read must lie inside it. Without a path nothing is refused."""

    path: Path | None = None

    def holds(self, path: Path) -> bool:
        """Return whether a path, with all links followed, is the root or lies inside it."""
        if self.path is None:
            return True
        real, root = os.path.realpath(path), os.path.realpath(self.path)
        return real == root or real.startswith(root.rstrip(os.sep) + os.sep)


def open_inside(path: Path, root: Root, known: tuple[int, int] | None = None) -> tuple[int, os.stat_result] | None:
    """Open a regular file inside the root for reading; None if it is missing, special or lies outside.

    `known` is the (device, inode) for which the root was checked before: the check is skipped for the same file.
    """
    try:
        # Without O_NONBLOCK a named pipe would wait for a writer.
        descriptor = os.open(path, _FLAGS)
    except OSError:
        return None
    status = os.fstat(descriptor)
    if not stat.S_ISREG(status.st_mode) or ((status.st_dev, status.st_ino) != known and not root.holds(path)):
        os.close(descriptor)
        return None
    return descriptor, status


def read_inside(path: Path, root: Root, most: int) -> bytes | None:
    """Return the content of a small file inside the root; None if there is none, or it is larger than `most` bytes."""
    opened = open_inside(path, root)
    if opened is None:
        return None
    descriptor, status = opened
    with os.fdopen(descriptor, "rb") as file:
        return file.read(most) if status.st_size <= most else None


def json_object(data: bytes | None) -> tuple[dict[str, Any], str]:
    """Parse a JSON object; return it, and what is wrong with it: empty where nothing is."""
    try:
        value = json.loads(data) if data is not None else {}
    except json.JSONDecodeError as fault:
        return {}, f", line {fault.lineno}: not JSON ({fault.msg})"
    except (ValueError, RecursionError):
        return {}, ": not JSON"
    return (value, "") if isinstance(value, dict) else ({}, f": a JSON object is needed, not {type(value).__name__}")


class JsonFile:
    """A small JSON object that may be replaced as a whole."""

    def __init__(self, path: Path, root: Root, most: int = 4 << 20) -> None:
        self._path, self._root, self._most = path, root, most
        self._seen: tuple[int, int, int] | None = None
        self.value: dict[str, Any] = {}
        self.fault = ""
        """What is wrong with it; empty where nothing is."""

    def poll(self) -> bool:
        """Read the file if it was replaced; return whether its content changed."""
        try:
            status = self._path.stat()
            seen = (status.st_ino, status.st_size, status.st_mtime_ns)
        except OSError:
            seen = None
        if seen == self._seen:
            return False
        self._seen = seen
        before = self.value, self.fault
        self.value, fault = json_object(read_inside(self._path, self._root, self._most))
        self.fault = f"{self._path}{fault}" if fault else ""
        return before != (self.value, self.fault)


class Line(NamedTuple):
    offset: int
    """Of the line in its file, in bytes."""
    number: int
    row: dict[str, Any]


@dataclass(slots=True)
class Added:
    """The result of one read."""

    rows: list[Line] = field(default_factory=list)
    restarted: bool = False
    """Whether everything returned earlier is void: the file is gone, was replaced or became shorter."""
    more: bool = False
    """Whether the end of the file was not reached."""

    @property
    def changed(self) -> bool:
        return bool(self.rows) or self.restarted


class Tail:
    """The position in one file of JSON lines."""

    def __init__(self, path: Path, root: Root) -> None:
        self.path, self._root = path, root
        self.changed_at = 0.0
        """When the file was last written to."""
        self._file: tuple[int, int] | None = None
        self._reset()

    def _reset(self) -> None:
        self._offset = 0
        """Where the first line that was not returned begins."""
        self._line = 1
        self._pending = bytearray()
        self._skipping = False
        self._seen: tuple[int, int] | None = None
        self.skipped: list[int] = []
        """Numbers of the lines that were too long or not JSON objects."""

    def read(self, *, is_whole: bool = False) -> Added:
        """Return the rows added since the last call. In a file that is whole, the last line may lack its end."""
        added = Added()
        opened = open_inside(self.path, self._root, self._file)
        if opened is None:
            added.restarted = self._file is not None
            self._file = None
            self._reset()
            return added
        descriptor, status = opened
        try:
            identity, position = (status.st_dev, status.st_ino), self._offset + len(self._pending)
            if self._file is not None and (identity != self._file or status.st_size < position):
                added.restarted = True
                self._reset()
            self._file = identity
            self.changed_at = status.st_mtime
            now = (status.st_size, status.st_mtime_ns)
            if now != self._seen:
                added.more = not self._take(descriptor, added)
                self._seen = None if added.more else now
        finally:
            os.close(descriptor)
        # A last line that is not JSON was cut, and is no fault.
        if is_whole and not added.more and not json_object(bytes(self._pending) or None)[1] and self._pending:
            self._pending += b"\n"
            self._split(added)
        return added

    def _take(self, descriptor: int, added: Added) -> bool:
        """Read up to MAX_READ bytes; return whether the end of the file was reached."""
        for _ in range(MAX_READ // _CHUNK):
            data = os.pread(descriptor, _CHUNK, self._offset + len(self._pending))
            if not data:
                return True
            if self._skipping:
                end = data.find(b"\n")
                self._offset += len(data) if end < 0 else end + 1
                if end < 0:
                    continue
                self._skipping = False
                data = data[end + 1 :]
            self._pending += data
            # Only what is new can hold the end of a line.
            if b"\n" in data:
                self._split(added)
            if len(self._pending) > MAX_LINE:
                self._skip(len(self._pending))
                self._pending.clear()
                self._skipping = True
        return False

    def _skip(self, num_bytes: int) -> None:
        self.skipped.append(self._line)
        self._offset += num_bytes
        self._line += 1

    def _split(self, added: Added) -> None:
        end = self._pending.rfind(b"\n") + 1
        for line in bytes(self._pending[: end - 1]).split(b"\n"):
            row, fault = json_object(line) if line.strip() else ({}, "")
            if fault:
                self._skip(len(line) + 1)
                continue
            if line.strip():
                added.rows.append(Line(self._offset, self._line, row))
            self._offset += len(line) + 1
            self._line += 1
        del self._pending[:end]
