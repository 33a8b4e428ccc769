"""Wait for what another thread or process does."""

import time
from collections.abc import Callable
from typing import Any


def wait_until(condition: Callable[[], Any], seconds: float = 120.0, what: str = "it") -> Any:
    """Return the first true value of a condition. It is asked often at first, and then twenty times a second."""
    deadline, pause = time.monotonic() + seconds, 0.001
    while not (value := condition()):
        assert time.monotonic() < deadline, f"{what} did not happen within {seconds:g} s"
        time.sleep(pause)
        pause = min(2 * pause, 0.05)
    return value
