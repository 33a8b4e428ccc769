"""Members as threads of this process: for tests, and for several GPUs of one machine without Ray.

A thread cannot be killed. One that hangs is abandoned: it is asked to stop, and nothing it returns is read.
"""

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from scalerl.rollout.fleet.generator import Generator
from scalerl.rollout.fleet.messages import Command, Report

_CLOSE_S = 5.0  # how long the close of a fleet waits for its threads


class ThreadMember:
    """A generator in this process."""

    def __init__(self, generator: Generator) -> None:
        self.generator = generator
        self._killed = False

    def give(self, number: int, commands: Sequence[Command]) -> None:
        self.generator.give(number, commands)

    def take(self) -> Report | None:
        return None if self._killed else self.generator.take()

    def kill(self) -> None:
        self._killed = True
        self.generator.stop()


class ThreadLauncher:
    """Starts generators as threads; `make_engine(number)` builds the engine of a member, in its thread."""

    def __init__(
        self,
        make_engine: Callable[[int], Any],
        *,
        slots: int,
        devices: Callable[[int], Sequence[str]] = lambda number: (),
        copy: Callable[[Mapping[str, Any]], Mapping[str, Any]] = dict,
    ) -> None:
        """`copy` returns weights that stay as they are: the learner changes its own in place while members sample."""
        if slots < 1:
            raise ValueError(f"an engine needs at least 1 slot, got {slots}")
        self._make_engine = make_engine
        self._slots = slots
        self._devices = devices
        self._copy = copy
        self._news = threading.Event()
        self._members: list[ThreadMember] = []

    def start(self, number: int) -> ThreadMember:
        generator = Generator(
            lambda: self._make_engine(number),
            slots=self._slots,
            devices=self._devices(number),
            on_news=self._news.set,
        )
        member = ThreadMember(generator)
        self._members.append(member)
        return member

    def wait(self, members: Sequence[Any], timeout_s: float) -> None:
        self._news.wait(timeout_s)
        self._news.clear()

    def publish(self, weights: Mapping[str, Any]) -> Mapping[str, Any]:
        return self._copy(weights)

    def close(self) -> None:
        deadline = time.monotonic() + _CLOSE_S
        for member in self._members:
            member.generator.stop(max(deadline - time.monotonic(), 0.0))
        self._members.clear()
