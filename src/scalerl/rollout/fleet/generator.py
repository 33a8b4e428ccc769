"""What runs in a generator's process: an engine that samples by itself, and takes commands between two chunks.

Commands are obeyed in order, so a request given after a push is never sampled with older weights, which the lag rule
needs. New weights are fetched while sampling goes on; only copying them into the engine takes time. A push replaces an
earlier one that waits, but not one that is being fetched: a learner may push faster than weights travel.
"""

import functools
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import wait as wait_for
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass
from typing import Any

from scalerl.remote.weights import Gone, Parcel, Unmapped
from scalerl.rollout.fleet.messages import Pace, Report, sampled
from scalerl.types import Completion, Request

REPORT_S = 0.05
"""Longest time for which the driver's counts are out of date while something is sampled."""
_WAIT_S = 0.05


@dataclass(slots=True, eq=False)
class _Push:
    """Weights to sample with; `arriving` where a parcel is being fetched."""

    weights: Mapping[str, Any] | None
    """None if the learner has freed them, which means that a newer push is on its way."""
    version: int
    arriving: Future[dict[str, Any]] | None = None


class Generator:
    """An engine that samples by itself (remote/serve.py calls its methods)."""

    def __init__(self, engine: Any, *, slots: int) -> None:
        """Serve an engine with this number of slots."""
        self._engine, self._slots = engine, slots
        self._inbox: deque[_Push | Callable[[], None]] = deque()
        """Commands in order, with at most one push besides the one that is being fetched."""
        self._pause = ExitStack()
        """What ends the pause that the engine is in."""
        self._fetcher = ThreadPoolExecutor(1, thread_name_prefix="fetch")
        self._pace = Pace()
        self._completions: list[Completion] = []
        self._unmapped = ""
        self._reported_s = 0.0

    # Commands ---------------------------------------------------------------------------------------------------------

    def facts(self) -> Report:
        return self._report()

    def submit(self, requests: Sequence[Request]) -> None:
        """Sample these with the weights of the last push before, or with newer ones."""
        self._inbox.append(functools.partial(self._engine.submit, requests))

    def push(self, weights: Mapping[str, Any], version: int) -> None:
        """Sample with these weights from now on; they take the place of a push that has not been begun yet."""
        for command in self._inbox:
            if isinstance(command, _Push) and command.arriving is None:
                # Newer weights never break the order.
                command.weights, command.version = weights, version
                return
        self._inbox.append(_Push(weights, version))

    def hold(self, paused: bool) -> None:
        """Put all requests aside, except those that are submitted inside the pause; or end it and drop those."""
        self._inbox.append(functools.partial(self._hold, paused))

    def close(self) -> None:
        self._fetcher.shutdown(wait=False, cancel_futures=True)
        self._engine.close()

    def advance(self, send: Callable[[str, Any], None]) -> bool:
        """Obey what can be obeyed, sample a chunk, and return whether there is more to do."""
        has_news = self._obey()
        if self._engine.num_pending:
            self._sample()
        elif arriving := self._arriving():
            wait_for(arriving, _WAIT_S)
        now = time.monotonic()
        if self._completions or has_news or now - self._reported_s >= REPORT_S:
            self._reported_s = now
            send("report", self._report())
            self._completions = []
        return bool(self._engine.num_pending or self._arriving())

    def _report(self) -> Report:
        return Report(
            completions=tuple(map(sampled, self._completions)),
            work=self._engine.work,
            eval_work=self._engine.eval_work,
            pace=self._pace,
            version=self._engine.version,
            unmapped=self._unmapped,
        )

    def _obey(self) -> bool:
        """Obey commands in order, up to a push whose weights are not here yet; return whether there is news of one."""
        has_news = False
        while self._inbox:
            command = self._inbox[0]
            if not isinstance(command, _Push):
                command()
            elif not self._is_here(command):
                break
            else:
                try:
                    self._apply(command)
                    self._unmapped, has_news = "", True
                except (Gone, Unmapped) as error:
                    if isinstance(error, Unmapped):
                        self._unmapped, has_news = str(error), True
                    # A newer push takes its place, now or when it comes.
                    command.arriving = command.weights = None
                    others = (each for each in self._inbox if isinstance(each, _Push) and each is not command)
                    if (newer := next(others, None)) is not None:
                        self._inbox.remove(newer)
                        command.weights, command.version = newer.weights, newer.version
                    continue
            self._inbox.popleft()
        return has_news

    def _is_here(self, push: _Push) -> bool:
        """Return whether a push can be obeyed; fetch its weights if they have to be."""
        if push.arriving is None and isinstance(push.weights, Parcel) and not hasattr(self._engine, "opens_parcels"):
            push.arriving = self._fetcher.submit(push.weights.open)
        return push.weights is not None and (push.arriving is None or push.arriving.done())

    def _arriving(self) -> "list[Future[dict[str, Any]]]":
        """Return what the next command waits for."""
        push = self._inbox[0] if self._inbox else None
        return [push.arriving] if isinstance(push, _Push) and push.arriving else []

    def _apply(self, push: _Push) -> None:
        weights = push.weights if push.arriving is None else push.arriving.result()
        start = time.monotonic()
        # An engine with workers of its own opens a parcel in these.
        with weights.held() if isinstance(weights, Parcel) else nullcontext(weights) as held:
            self._engine.push_weights(held, push.version)
        if push.arriving is not None and isinstance(push.weights, Parcel):
            # The learner may change its memory once this is reported.
            push.weights.wait_for_copies()
        self._pace += Pace(copies=1, copy_s=time.monotonic() - start)

    def _hold(self, paused: bool) -> None:
        self._pause.close()
        if paused:
            self._pause.enter_context(self._engine.paused())

    def _sample(self) -> None:
        active, start = min(self._engine.num_pending, self._slots), time.monotonic()
        completions = self._engine.poll()
        self._pace += Pace(chunks=1, busy_s=time.monotonic() - start, active=active)
        self._completions.extend(completions)
