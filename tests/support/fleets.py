"""Fleets in threads of this process, for tests that hold the engines."""

import functools
import time
from collections.abc import Callable
from typing import Any

from local_links import LocalLink

from scalerl.remote.peer import Limits
from scalerl.rollout.fleet.fleet import Fleet
from scalerl.rollout.fleet.generator import Generator
from scalerl.rollout.requests import check_request


def make_fleet(make_engine: Callable[[int], Any], num_generators: int, *, slots: int = 4, **settings: Any) -> Fleet:
    """Return a fleet; `make_engine(number)` is called for every generator and every replacement."""
    settings = {"limits": Limits(silent_s=5.0, stuck_s=5.0), "wait_s": 0.02} | settings
    check = functools.partial(check_request, max_length=10_000, vocabulary=64)

    def start(number: int) -> LocalLink:
        return LocalLink(lambda: Generator(make_engine(number), slots=slots, devices=(f"here/gpu:{number}",)))

    return Fleet(start, num_generators, check=check, **settings)


def wait_for(condition: Callable[[], Any], *, timeout_s: float = 120.0) -> Any:
    """Wait until the condition holds, and return its value."""
    deadline = time.monotonic() + timeout_s
    while not (value := condition()):
        assert time.monotonic() < deadline, "the condition never held"
        time.sleep(0.002)
    return value
