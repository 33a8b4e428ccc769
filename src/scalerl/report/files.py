"""Read files that others write: only regular ones inside what the user named, lines and objects of bounded size."""

import json
import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

MAX_LINE = 8 << 20
"""Longest line that is parsed, in bytes."""
MAX_OBJECT = 16 << 20
"""Largest file that is parsed as one object, in bytes."""
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


def open_inside(path: Path, root: Root) -> int | None:
    """Open a regular file inside the root for reading; None if it is missing, special or lies outside."""
    try:
        # Without O_NONBLOCK a named pipe would wait for a writer.
        descriptor = os.open(path, _FLAGS)
    except OSError:
        return None
    if not stat.S_ISREG(os.fstat(descriptor).st_mode) or not root.holds(path):
        os.close(descriptor)
        return None
    return descriptor


def read_object(path: Path, root: Root) -> tuple[dict[str, Any], str]:
    """Return the JSON object in a file, and what is wrong with it; both are empty where there is no file."""
    descriptor = open_inside(path, root)
    if descriptor is None:
        return {}, ""
    with os.fdopen(descriptor, "rb") as file:
        if os.fstat(descriptor).st_size > MAX_OBJECT:
            return {}, f"{path}: larger than {MAX_OBJECT >> 20} MB"
        value, fault = json_object(file.read())
    return value, f"{path}{fault}" if fault else ""


def json_object(data: bytes) -> tuple[dict[str, Any], str]:
    """Parse a JSON object; return it, and what is wrong with it: empty where nothing is."""
    try:
        value = json.loads(data)
    except json.JSONDecodeError as fault:
        return {}, f", line {fault.lineno}: not JSON ({fault.msg})"
    except (ValueError, RecursionError):
        return {}, ": not JSON"
    return (value, "") if isinstance(value, dict) else ({}, f": a JSON object is needed, not {type(value).__name__}")


class Line(NamedTuple):
    number: int
    row: dict[str, Any] | None
    """None for a line that is too long or not a JSON object."""


@dataclass(slots=True)
class Place:
    """How far a file that grows has been read."""

    inode: int = 0
    offset: int = 0
    num_lines: int = 0
    is_open: bool = False
    """Whether the last line that was read still lacks its end."""

    def is_in(self, path: Path, root: Root) -> bool:
        """Return whether the file is still the one that was read: not shorter, and not another."""
        descriptor = open_inside(path, root)
        if descriptor is None:
            return not self.offset
        with os.fdopen(descriptor, "rb") as file:
            status = os.fstat(descriptor)
            file.seek(max(self.offset - 1, 0))
            is_same = status.st_ino == self.inode and status.st_size >= self.offset
            return not self.offset or (is_same and (self.is_open or file.read(1) == b"\n"))


def read_lines(path: Path, root: Root, place: Place | None = None) -> Iterator[Line]:
    """Yield the lines of a file of JSON objects, without blank ones and a last one that is still being written.

    With a `place`, begin there and move it on.
    """
    descriptor, place = open_inside(path, root), place or Place()
    if descriptor is None:
        return
    with os.fdopen(descriptor, "rb") as file:
        place.inode = os.fstat(descriptor).st_ino
        file.seek(place.offset)
        while data := file.readline(MAX_LINE):
            size, is_long = len(data), len(data) == MAX_LINE
            is_whole = data.endswith(b"\n")
            while is_long and data and not data.endswith(b"\n"):
                data = file.readline(MAX_LINE)
                size += len(data)
            row, fault = ({}, "too long") if is_long else json_object(data) if data.strip() else ({}, "")
            if fault and not is_whole and not is_long:
                return
            place.num_lines += not place.is_open
            place.offset, place.is_open = place.offset + size, not data.endswith(b"\n")
            if fault or data.strip():
                yield Line(place.num_lines, None if fault else row)
