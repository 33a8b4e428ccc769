"""Detect an engine or grader that makes no progress, and end the run with the reason.

    polls return, but nothing is sampled, or requests are lost      WatchedEngine raises EngineStalled
    a call does not return                                          Watchdog calls `on_hung` from another thread

No exception can be raised in a thread that hangs, so `on_hung` has to end the process.

Only the engine and the grader are watched: a step of the learner or a checkpoint may take an hour.
"""

import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from scalerl.errors import EngineStalled
from scalerl.training.types import Completion, Group, Request

if TYPE_CHECKING:
    from scalerl.training.loop.seams import Engine, Grading
    from scalerl.training.types import Work

QUIET_S = 60.0  # an engine that returns from polls but samples nothing for this long counts as dead
HUNG_S = 600.0  # a call that takes this long counts as hung; far above any prefill or compilation in one poll


class Watchdog:
    """Calls `on_hung` with the reason, from a thread of its own, when a watched call does not return.

    Seconds are counted in wake-ups, not by a clock: a process that was suspended has not hung.
    """

    def __init__(self, on_hung: Callable[[str], None], *, limit_s: float | None = None) -> None:
        self._on_hung = on_hung
        self._limit_s = limit_s or HUNG_S
        self._watched: list[str | None] = []
        """What is watched in each open context, the innermost last."""
        self._num_moves = 0
        """How often a context began or ended."""
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="watchdog", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def end(self, reason: str) -> None:
        """End the run as if a call hung; can be called from any thread."""
        self._on_hung(reason)

    @contextmanager
    def watching(self, what: str | None) -> Iterator[None]:
        """Watch the calls inside this context. An inner context restarts the time; None means not watched."""
        self._num_moves += 1
        self._watched.append(what)
        try:
            yield
        finally:
            self._num_moves += 1
            self._watched.pop()

    def _watch(self) -> None:
        num_moves_seen = self._num_moves
        still_s = 0.0
        tick_s = min(1.0, self._limit_s / 10)
        while not self._over.wait(tick_s):
            # A slice, because the other thread may leave its last context meanwhile.
            innermost = self._watched[-1:]
            what = innermost[0] if innermost else None
            has_moved = self._num_moves != num_moves_seen
            num_moves_seen = self._num_moves
            if what is None or has_moved:
                still_s = 0.0
                continue
            still_s += tick_s
            if still_s >= self._limit_s:
                self._on_hung(f"{what} did not return for {self._limit_s:g} s (it was at {_place()})")
                return


def _place() -> str:
    """Return the innermost Python line of the main thread."""
    frame = sys._current_frames()[threading.main_thread().ident or 0]
    (last,) = traceback.extract_stack(frame, limit=1)
    return f"{Path(last.filename).name}, line {last.lineno}, in {last.name}"


@dataclass
class WatchedEngine:
    """Wraps an engine; detects polls that hang, sampling that stops and requests that are lost."""

    engine: "Engine"
    watchdog: Watchdog
    quiet_s: float = QUIET_S
    clock: Callable[[], float] = time.monotonic
    check: Callable[[], None] = lambda: None
    """Called in every poll; raises if another part of the run has died."""

    def __post_init__(self) -> None:
        self._num_pending = 0
        """Requests that were submitted and have not come back, by our own count."""
        self._work_seen = self.work, self.eval_work
        self._quiet_since: float | None = None
        """Start of the first poll since which nothing happened."""

    @property
    def version(self) -> int:
        return self.engine.version

    @property
    def num_pending(self) -> int:
        return self.engine.num_pending

    @property
    def work(self) -> "Work":
        return self.engine.work

    @property
    def eval_work(self) -> "Work":
        return self.engine.eval_work

    def submit(self, requests: Sequence[Request]) -> None:
        self.engine.submit(requests)
        self._num_pending += len(requests)
        self._quiet_since = None

    def poll(self) -> list[Completion]:
        start = self.clock()
        self.check()
        with self.watchdog.watching("the engine"):
            completions = self.engine.poll()
        self._num_pending -= len(completions)
        work = self.work, self.eval_work
        if completions or work != self._work_seen:
            self._work_seen = work
            self._quiet_since = None
        else:
            self._check_progress(start)
        return completions

    def _check_progress(self, start: float) -> None:
        if self._num_pending and not self.engine.num_pending:
            raise EngineStalled(f"the engine has nothing left to do, but lost {self._num_pending} requests")
        if self._quiet_since is None:
            self._quiet_since = start
        if self._num_pending and self.clock() - self._quiet_since >= self.quiet_s:
            raise EngineStalled(
                f"the engine sampled nothing for {self.quiet_s:g} s while {self._num_pending} requests are with it: "
                f"it is dead or hung"
            )

    def push_weights(self, weights: Mapping[str, Any], version: int) -> None:
        self.engine.push_weights(weights, version)
        self._quiet_since = None

    @contextmanager
    def paused(self) -> Iterator[None]:
        num_suspended = self._num_pending
        # The engine suspends them, so that none of them may come back inside, and none counts as lost.
        self._num_pending = 0
        try:
            with self.engine.paused():
                yield
        finally:
            self._num_pending = num_suspended
            self._quiet_since = None

    def close(self) -> None:
        self.engine.close()


@dataclass
class WatchedGrading:
    """Wraps a grading; detects calls that hang."""

    grading: "Grading"
    watchdog: Watchdog

    def submit(self, groups: Sequence[Sequence[Completion]]) -> None:
        with self.watchdog.watching("the grader"):
            self.grading.submit(groups)

    def poll(self, *, wait: bool = False) -> list[Group]:
        with self.watchdog.watching("the grader"):
            return self.grading.poll(wait=wait)
