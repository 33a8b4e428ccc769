"""Read files that anyone may have written: only regular ones inside what the user named, and only so much of them."""

import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count
from json import JSONDecodeError
from pathlib import Path
from typing import Any

from scalerl.runfolder.json_text import parse_json

MAX_LINE = 8 << 20
"""Longest line that is parsed, in bytes."""
MAX_OBJECT = 16 << 20
"""Largest file that is parsed as one object, in bytes."""
MAX_END = 8 << 20
"""Bytes from the end of a file in which its newest lines are looked for."""
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
    if isinstance(value, dict):
        return (value, "")
    return ({}, f": a JSON object is needed, not {type(value).__name__}")


def json_lines(path: Path, root: Root) -> Iterator[tuple[int, dict[str, Any] | None]]:
    """Yield the lines of a file of JSON objects with their numbers, from 1; blank ones are left out.

    A line that is too long, or not an object, is None. A last line that is still being written is left out.
    """
    descriptor = open_inside(path, root)
    if descriptor is None:
        return
    with os.fdopen(descriptor, "rb") as file:
        for number in count(1):
            line = file.readline(MAX_LINE + 1)
            if not line:
                return
            is_too_long = len(line) > MAX_LINE
            rest = line
            while is_too_long and rest and not rest.endswith(b"\n"):
                rest = file.readline(MAX_LINE)
            if is_too_long:
                yield number, None
            elif line.strip():
                row, fault = json_object(line)
                if fault and not line.endswith(b"\n"):
                    return
                yield number, None if fault else row


def newest_objects(path: Path, root: Root) -> Iterator[dict[str, Any]]:
    """Yield the JSON objects on the last lines of a file, the newest first; what is none is left out."""
    descriptor = open_inside(path, root)
    if descriptor is None:
        return
    with os.fdopen(descriptor, "rb") as file:
        begin = max(os.fstat(descriptor).st_size - MAX_END, 0)
        file.seek(begin)
        lines = file.read(MAX_END).split(b"\n")
    if begin > 0:
        del lines[0]  # its beginning was not read
    for line in reversed(lines):
        row, fault = json_object(line)
        if not fault:
            yield row
