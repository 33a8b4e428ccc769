"""Fleets of threads for tests."""

import functools
import time
from collections.abc import Callable
from typing import Any

from scalerl.rollout.fleet.fleet import Fleet
from scalerl.rollout.fleet.members import Limits
from scalerl.rollout.fleet.threads import ThreadLauncher
from scalerl.rollout.requests import check_request


def make_fleet(make_engine: Callable[[int], Any], num_members: int, *, slots: int = 4, **settings: Any) -> Fleet:
    """Return a fleet of threads; `make_engine(number)` is called for every member and every replacement."""
    settings = {"limits": Limits(silent_s=5.0, stuck_s=5.0), "wait_s": 0.02} | settings
    check = functools.partial(check_request, max_length=10_000, vocabulary=64)
    return Fleet(ThreadLauncher(make_engine, slots=slots), num_members, check=check, **settings)


def wait_for(condition: Callable[[], Any], *, timeout_s: float = 20.0) -> Any:
    """Wait until the condition holds, and return its value."""
    deadline = time.monotonic() + timeout_s
    while not (value := condition()):
        assert time.monotonic() < deadline, "the condition never held"
        time.sleep(0.002)
    return value
