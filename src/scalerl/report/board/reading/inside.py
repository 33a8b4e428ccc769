"""Restrict reading to regular files inside the paths that the user named, after following links."""

import os
import stat
from dataclasses import dataclass
from pathlib import Path

# Not every system has all of them.
_FLAGS = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)


@dataclass(frozen=True, slots=True)
class Root:
    """A path that the user named; everything that is read must lie inside it."""

    path: Path

    def holds(self, path: Path) -> bool:
        """Return whether a path, with all links followed, is the root or lies inside it."""
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
