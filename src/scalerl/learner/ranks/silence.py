"""How long a rank may give no sign of life.

A rank may take any time for a step, and waits in it for the others. So its answers say nothing about whether it still
runs; another thread of its process does, which reports every moment, whatever the rank is doing.
"""

import time
from contextlib import suppress
from pathlib import Path

RUNNING_S = 60.0
"""Longest silence of a rank that is ready and, according to the system, not stopped: a call may hold Python's lock."""
_MOST_S = 1.0


class Silence:
    """Seconds since the last sign of life, counted only while somebody listens."""

    def __init__(self) -> None:
        self.seconds, self._listened_at = 0.0, time.monotonic()

    def listen(self, heard: bool) -> None:
        """Count the time since the last call, unless a sign of life was heard.

        At most a second of it: a driver that did something else, or was stopped itself, has not listened.
        """
        now = time.monotonic()
        self.seconds = 0.0 if heard else self.seconds + min(now - self._listened_at, _MOST_S)
        self._listened_at = now


def is_stopped(pid: int) -> bool:
    """Return whether a process of this machine is stopped (SIGSTOP); False where the system has no /proc."""
    with suppress(OSError, IndexError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"
    return False
