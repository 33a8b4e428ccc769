"""Measure the start of a run: seconds of each part, from the start of the process to the first evaluation."""

import os
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path


class StartUp:
    """Seconds of the parts of a start, in order."""

    def __init__(self, first: str = "imports") -> None:
        """Everything since the start of the process, or since now if that is unknown, is the part `first`."""
        self._seconds: dict[str, float] = {first: seconds_since_start() or 0.0}
        self._last = time.monotonic()

    @property
    def seconds(self) -> Mapping[str, float]:
        return {name: round(seconds, 2) for name, seconds in self._seconds.items()}

    def done(self, part: str) -> None:
        """End a part, which began at the end of the one before."""
        now = time.monotonic()
        self._seconds[part] = self._seconds.get(part, 0.0) + now - self._last
        self._last = now

    def within(self, part: str, seconds: float, *, name: str) -> None:
        """Divide a part: `seconds` of it were another thing, `name`."""
        self._seconds[part] -= seconds
        self._seconds[name] = self._seconds.get(name, 0.0) + seconds

    def words(self) -> str:
        """Return the table as a line."""
        parts = ", ".join(f"{name} {seconds:.1f}" for name, seconds in self._seconds.items() if seconds >= 0.05)
        return f"Ready after {sum(self._seconds.values()):.0f} s: {parts}"


def seconds_since_start() -> float | None:
    """Return the age of this process; None where the system does not report it."""
    with suppress(OSError, ValueError, IndexError):
        fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
        uptime = float(Path("/proc/uptime").read_text().split()[0])
        return max(uptime - int(fields[19]) / os.sysconf("SC_CLK_TCK"), 0.0)
    return None
