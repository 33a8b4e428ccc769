"""The environment of turns.py, in a module of its own: the process that is forked imports it and little else."""

import time
from typing import Any


class Wait:
    """Ends after some turns; each step takes some time."""

    def __init__(self, problem: Any, seed: int, *, turns: int, tool_s: float) -> None:
        self._turns_left, self._tool_s = turns, tool_s

    def step(self, text: str) -> str | float:
        time.sleep(self._tool_s)
        self._turns_left -= 1
        return "1 2 3 4" if self._turns_left else 1.0
