"""`Budget`: what reading one log may cost. Each reader spends it as it goes, so that a hostile file ends soon."""

import time
from pathlib import Path

from scalerl.errors import InputError

MAX_COLUMNS = 5_000
"""Columns of one log; a run with many metrics has some hundred."""
MAX_VALUES = 3_000_000
MAX_CELLS = 20_000_000
MAX_LINES = 500_000
MAX_SECONDS = 20.0


class Budget:
    """The values, columns, lines and seconds that may be read from a path; beyond them the user gets a sentence."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._values = 0
        self._until = time.process_time() + MAX_SECONDS

    def spend(self, values: int = 0) -> None:
        """Count values that were read, and the time; InputError beyond the limits."""
        self._values += values
        self.limit(self._values, MAX_VALUES, "values")
        if time.process_time() > self._until:
            raise InputError(f"{self._path} takes longer than {MAX_SECONDS:g} s to read: give a shorter file.")

    def limit(self, num: float, most: float, what: str) -> None:
        """Raise InputError for more of something than a limit."""
        if num > most:
            raise InputError(f"{self._path} has more than {most:,} {what}, which is the limit: keep what you need.")
