"""A run that no longer moves ends with the reason, by an error where one can still be raised.

    a poll comes back, again and again, with nothing     WatchedEngine raises EngineStalled
    a call never comes back                              Watchdog, a thread beside it, ends the process

Only the engine and the grader are watched: a step of the learner or a checkpoint may well take an hour.
"""

import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from scalerl.types import Completion, Request

if TYPE_CHECKING:
    from scalerl.rollout.engine import Engine, Work

QUIET_S = 60.0  # an engine that answers, but samples nothing for so long, is held to be dead
HUNG_S = 600.0  # a call that takes so long never returns; far above any prefill or compilation within one poll


class EngineStalled(RuntimeError):
    """The engine is dead or hung: requests are with it, and nothing comes of them."""


class Watchdog:
    """Calls `on_hung` with the reason once a watched call has not returned for `limit_s`, from a thread of its own.

    Seconds are counted by waking up, not by a clock: a process that was suspended has not hung.
    """

    def __init__(self, on_hung: Callable[[str], None], *, limit_s: float = HUNG_S) -> None:
        self._on_hung, self._limit_s, self._tick_s = on_hung, limit_s, min(1.0, limit_s / 10)
        self._watched: list[str] = []
        self._moves = 0
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="watchdog", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    @contextmanager
    def watching(self, what: str) -> Iterator[None]:
        """Within this, time counts; an inner one starts it anew when it begins and when it ends."""
        self._watched.append(what)
        self._moves += 1
        try:
            yield
        finally:
            self._watched.pop()
            self._moves += 1

    def _watch(self) -> None:
        seen, quiet_s = self._moves, 0.0
        while not self._over.wait(self._tick_s):
            watched = self._watched[-1:]
            quiet_s = quiet_s + self._tick_s if watched and self._moves == seen else 0.0
            seen = self._moves
            if quiet_s >= self._limit_s:
                self._on_hung(f"{watched[0]} did not return for {self._limit_s:g} s (it was at {_place()})")
                return


def _place() -> str:
    """Where the main thread is: the innermost line that Python knows of."""
    frame = sys._current_frames()[threading.main_thread().ident or 0]
    (last,) = traceback.extract_stack(frame, limit=1)
    return f"{Path(last.filename).name}, line {last.lineno}, in {last.name}"


class WatchedEngine:
    """An engine whose polls are watched; to the loop, the engine itself."""

    def __init__(
        self,
        engine: "Engine",
        watchdog: Watchdog,
        *,
        quiet_s: float = QUIET_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._engine, self._watchdog, self._quiet_s, self._clock = engine, watchdog, quiet_s, clock
        self._num_pending = 0
        self._work_seen = engine.work
        self._quiet_since: float | None = None

    @property
    def version(self) -> int:
        return self._engine.version

    @property
    def num_pending(self) -> int:
        return self._engine.num_pending

    @property
    def work(self) -> "Work":
        return self._engine.work

    def submit(self, requests: Sequence[Request]) -> None:
        self._engine.submit(requests)
        self._num_pending += len(requests)
        self._quiet_since = None

    def poll(self) -> list[Completion]:
        start = self._clock()
        with self._watchdog.watching("the engine"):
            completions = self._engine.poll()
        self._num_pending -= len(completions)
        if completions or self._engine.work != self._work_seen:
            self._work_seen, self._quiet_since = self._engine.work, None
        else:
            self._check(start)
        return completions

    def _check(self, start: float) -> None:
        if self._num_pending and not self._engine.num_pending:
            raise EngineStalled(f"the engine has nothing left to do, but lost {self._num_pending} requests")
        self._quiet_since = start if self._quiet_since is None else self._quiet_since
        if self._num_pending and self._clock() - self._quiet_since >= self._quiet_s:
            raise EngineStalled(
                f"the engine sampled nothing for {self._quiet_s:g} s while {self._num_pending} requests are with it: "
                f"it is dead or hung"
            )

    def push_weights(self, weights: Mapping[str, Any], version: int) -> None:
        self._engine.push_weights(weights, version)
        self._quiet_since = None

    def close(self) -> None:
        self._engine.close()
