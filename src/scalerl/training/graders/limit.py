"""The limit of CPU time for an answer, beyond which it is wrong.

A grader that may take long on an answer reads the reference first, then works on the answer within `limits_answer`. A
process that exceeds the limit is ended by the system, even inside a computation that never returns to Python, and the
supervisor replies that the answer is wrong.
"""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

_LIMIT_S = 0.7
"""Twice what the slowest of 230 ordinary answers takes."""

TOO_SLOW = signal.SIGVTALRM
"""The signal that ends a process whose answer exceeds the limit."""
WRONG: dict[str, Any] = {"value": 0.0, "outcome": "timeout"}
"""The reply on such an answer."""


@contextmanager
def limits_answer() -> Iterator[None]:
    """Within it, the process has a limit of CPU time for an answer, if it is one that the supervisor has forked."""
    left_s, _ = signal.getitimer(signal.ITIMER_PROF)
    # A fork has a limit of CPU time for each message; half of what is left of it is a verdict.
    signal.setitimer(signal.ITIMER_VIRTUAL, min(_LIMIT_S, left_s / 2))
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
