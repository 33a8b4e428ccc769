"""The limit of CPU time for an answer, beyond which it is wrong.

A grader that may take long on an answer reads the reference first, then works on the answer within `limits_answer`. A
process that exceeds the limit is ended by the system, even inside a computation that never returns to Python, and the
supervisor replies that the answer is wrong.
"""

import math
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

TOO_SLOW = signal.SIGVTALRM
"""The signal that ends a process whose answer exceeds the limit."""
WRONG: dict[str, Any] = {"value": 0.0, "outcome": "timeout"}
"""The reply on such an answer."""


@contextmanager
def limits_answer(limit_s: float = math.inf) -> Iterator[None]:
    """Within it, an answer has at most this CPU time, in a process that the supervisor has forked."""
    left_s, _ = signal.getitimer(signal.ITIMER_PROF)
    # A fork has a limit of CPU time for each message; an answer that takes half of what is left of it gets a verdict.
    signal.setitimer(signal.ITIMER_VIRTUAL, min(limit_s, left_s / 2))
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
