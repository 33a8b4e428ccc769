"""Follow a file of JSON lines: each call returns the rows that were added since the last one.

Only whole lines are taken, so a line that is still being written waits for its end. A file that was replaced or became
shorter is read again from its beginning. A line that is too long, or not a JSON object, is skipped and counted.
"""

import json
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from scalerl.report.board.reading.inside import Root, open_inside

MAX_LINE = 8 << 20
"""Longest line that is parsed, in bytes."""
MAX_READ = 32 << 20
"""Most bytes that one call reads: a long file is read in several calls, and the others are not kept waiting."""
_CHUNK = 1 << 20


@dataclass(slots=True)
class Added:
    """The result of one read."""

    rows: list[tuple[int, dict[str, Any]]] = field(default_factory=list)
    """(offset of the line in the file, row)."""
    restarted: bool = False
    """Whether everything returned earlier is void: the file is gone, was replaced or became shorter."""
    more: bool = False
    """Whether the end of the file was not reached."""


class Tail:
    """The position in one file of JSON lines."""

    def __init__(self, path: Path, root: Root) -> None:
        self.path, self._root = path, root
        self.num_skipped = 0
        """Lines that were too long or not JSON objects."""
        self.changed_at = 0.0
        """When the file was last written to."""
        self._file: tuple[int, int] | None = None
        self._reset()

    def _reset(self) -> None:
        self._offset = 0
        """Where the first line that was not returned begins."""
        self._pending = bytearray()
        self._skipping = False
        self._seen: tuple[int, int] | None = None
        self.num_skipped = 0

    def read(self) -> Added:
        """Return the rows added since the last call."""
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
        return added

    def _take(self, descriptor: int, added: Added) -> bool:
        """Read up to MAX_READ bytes; return whether the end of the file was reached."""
        for _ in range(MAX_READ // _CHUNK):
            data = os.pread(descriptor, _CHUNK, self._offset + len(self._pending))
            if not data:
                return True
            if self._skipping:
                end = data.find(b"\n")
                if end < 0:
                    self._offset += len(data)
                    continue
                self._skipping = False
                self._offset += end + 1
                data = data[end + 1 :]
            # Only what is new can hold the end of a line.
            if b"\n" in data:
                self._pending += data
                self._split(added)
            else:
                self._pending += data
            if len(self._pending) > MAX_LINE:
                self._offset += len(self._pending)
                self._pending.clear()
                self._skipping = True
                self.num_skipped += 1
        return False

    def _split(self, added: Added) -> None:
        end = self._pending.rfind(b"\n") + 1
        offset = self._offset
        for line in bytes(self._pending[: end - 1]).split(b"\n"):
            if line.strip():
                row = _parsed(line)
                if row is None:
                    self.num_skipped += 1
                else:
                    added.rows.append((offset, row))
            offset += len(line) + 1
        del self._pending[:end]
        self._offset = offset


def _parsed(line: bytes) -> dict[str, Any] | None:
    try:
        row = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return row if isinstance(row, dict) else None
