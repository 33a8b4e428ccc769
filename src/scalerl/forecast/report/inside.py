"""Read files that anyone may have written: only regular ones inside what the user named, and only so much of them."""

import os
import stat
from array import array
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from json import JSONDecodeError
from pathlib import Path
from typing import Any

import numpy as np

from scalerl.runfolder.json_text import parse_json

MAX_LINE = 8 << 20
"""Longest line that is parsed, in bytes."""
MAX_OBJECT = 16 << 20
"""Largest file that is parsed as one object, in bytes."""
_CHUNK = 1 << 24
# Not every system has all of them.
_FLAGS = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_BINARY", 0)


@dataclass(frozen=True, slots=True)
class Root:
    """A path that the user named; everything that is read must lie inside it. Without a path nothing is refused."""

    path: Path | None = None

    def holds(self, path: Path) -> bool:
        """Return whether a path, with all links followed, is the root or lies inside it."""
        return self.path is None or Path(os.path.realpath(path)).is_relative_to(os.path.realpath(self.path))


def open_inside(path: Path, root: Root) -> int | None:
    """Open a regular file inside the root for reading; None if it is missing, special or lies outside.

    Nothing else is opened: with a device that alone has an effect.
    """
    real = os.path.realpath(path)
    try:
        if not root.holds(Path(real)) or not stat.S_ISREG(os.lstat(real).st_mode):
            return None
        # Without O_NONBLOCK a named pipe would wait for a writer.
        descriptor = os.open(real, _FLAGS)
        # A link that replaced the file or a folder meanwhile leads nowhere.
        if os.path.realpath(real) == real and os.path.samestat(os.fstat(descriptor), os.lstat(real)):
            return descriptor
        os.close(descriptor)
    except OSError:
        pass
    return None


def read_object(path: Path, root: Root) -> tuple[dict[str, Any], str]:
    """Return the JSON object in a file, without secrets, and what is wrong with it; both are empty without a file."""
    # Here, because all settings are loaded with it.
    from scalerl.recipe.secrets import hidden

    descriptor = open_inside(path, root)
    if descriptor is None:
        return {}, ""
    with os.fdopen(descriptor, "rb") as file:
        if os.fstat(descriptor).st_size > MAX_OBJECT:
            return {}, f"{path}: larger than {MAX_OBJECT >> 20} MB"
        value, fault = json_object(file.read())
    return hidden(value), f"{path}{fault}" if fault else ""


def json_object(data: bytes) -> tuple[dict[str, Any], str]:
    """Parse a JSON object; return it, and what is wrong with it: empty where nothing is."""
    try:
        value = parse_json(data)
    except JSONDecodeError as fault:
        return {}, f", line {fault.lineno}: not JSON ({fault.msg})"
    return (value, "") if isinstance(value, dict) else ({}, f": a JSON object is needed, not {type(value).__name__}")


class Lines:
    """The lines of a file of JSON objects that grows, numbered from 0; only what was added is read again.

    A last line without its end counts if it is an object, or too long to be one. Threads may share one value.
    """

    def __init__(self, path: Path, root: Root) -> None:
        self._path, self._root = path, root
        self._inode, self._begins, self._is_open = 0, array("Q", [0]), False

    def __len__(self) -> int:
        return len(self._begins) - 1

    def refresh(self) -> bool:
        """Find the lines that were added; return whether those known before are still there."""
        # A new array for what has changed: another thread may be reading the old one.
        begins = self._begins[:-1] if self._is_open else self._begins
        descriptor = open_inside(self._path, self._root)
        if descriptor is None:
            is_same, self._begins, self._is_open = not len(self), array("Q", [0]), False
            return is_same
        with os.fdopen(descriptor, "rb") as file:
            status = os.fstat(descriptor)
            file.seek(max(begins[-1] - 1, 0))
            is_same = not begins[-1] or (status.st_ino == self._inode and file.read(1) == b"\n")
            if is_same and status.st_size == self._begins[-1]:
                return True
            begins = begins[:] if is_same else array("Q", [0])
            end = file.seek(begins[-1])
            while data := file.read(_CHUNK):
                begins.extend((np.flatnonzero(np.frombuffer(data, dtype=np.uint8) == ord("\n")) + end + 1).tolist())
                end += len(data)
            file.seek(begins[-1])
            size = end - begins[-1]
            is_open = size > MAX_LINE or (size > 0 and not json_object(file.read())[1])
        if is_open:
            begins.append(end)
        self._inode, self._begins, self._is_open = status.st_ino, begins, is_open
        return is_same

    def rows(self, numbers: Iterable[int]) -> Iterator[tuple[int, dict[str, Any] | None]]:
        """Yield these lines with their numbers, without blank ones: None for one that is too long or not an object."""
        begins, descriptor = self._begins, open_inside(self._path, self._root)
        if descriptor is None:
            return
        try:
            for number in numbers:
                begin, end = begins[number : number + 2]
                data = os.pread(descriptor, end - begin, begin) if end - begin <= MAX_LINE else b"too long"
                if data.strip():
                    row, fault = json_object(data)
                    yield number, None if fault else row
        finally:
            os.close(descriptor)
