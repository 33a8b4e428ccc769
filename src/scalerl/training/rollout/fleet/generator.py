"""A generator: an engine in its own process that samples continuously and takes commands between chunks.

Commands are executed in order. So a request after a push is never sampled with older weights, as the lag rule requires.
New weights are fetched while sampling continues; only copying them into the engine pauses it. A push replaces an
earlier push that is still waiting, but not one whose weights are being fetched: a learner may push faster than weights
travel.
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

from scalerl.training.remote.weights import Parcel, Unmapped, WeightsFreed
from scalerl.training.rollout.fleet.messages import EngineTimes, Report, sampled
from scalerl.training.types import Completion, Request

REPORT_S = 0.05
"""Longest time between two reports to the driver while something is sampled."""
_WAIT_S = 0.05


@dataclass(slots=True, eq=False)
class _Push:
    """Weights to sample with; `arriving` is set while a parcel is being fetched."""

    weights: Mapping[str, Any] | None
    """None if the learner has freed them; a newer push then follows."""
    version: int
    arriving: Future[dict[str, Any]] | None = None


class Generator:
    """An engine that samples continuously; training/remote/serve.py calls its methods."""

    def __init__(self, engine: Any, *, slots: int) -> None:
        """Serve an engine with this number of slots."""
        self._engine = engine
        self._slots = slots
        self._inbox: deque[_Push | Callable[[], None]] = deque()
        """Commands in order, with at most one push in addition to the one that is being fetched."""
        self._pause = ExitStack()
        """Closing it ends the engine's current pause."""
        self._fetcher = ThreadPoolExecutor(1, thread_name_prefix="fetch")
        self._times = EngineTimes()
        self._completions: list[Completion] = []
        self._unmapped = ""
        self._reported_s = 0.0

    # Commands ---------------------------------------------------------------------------------------------------------

    def facts(self) -> Report:
        return self._report()

    def submit(self, requests: Sequence[Request]) -> None:
        """Sample these requests with the weights of the last push before them, or newer ones."""
        self._inbox.append(functools.partial(self._engine.submit, requests))

    def push(self, weights: Mapping[str, Any], version: int) -> None:
        """Sample with these weights from now on; this replaces a push that has not been started yet."""
        for command in self._inbox:
            if isinstance(command, _Push) and command.arriving is None:
                # Newer weights for the requests in between keep the order valid.
                command.weights = weights
                command.version = version
                return
        self._inbox.append(_Push(weights, version))

    def hold(self, paused: bool) -> None:
        """Begin a pause, which puts all requests aside, or end it and drop the requests submitted inside it."""
        self._inbox.append(functools.partial(self._hold, paused))

    def close(self) -> None:
        self._fetcher.shutdown(wait=False, cancel_futures=True)
        self._engine.close()

    def advance(self, send: Callable[[str, Any], None]) -> bool:
        """Execute commands that can be executed, sample a chunk, and return whether there is more to do."""
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
            times=self._times,
            version=self._engine.version,
            unmapped=self._unmapped,
        )

    def _obey(self) -> bool:
        """Execute commands in order, up to a push whose weights have not arrived; return whether a push was handled."""
        has_news = False
        while self._inbox:
            command = self._inbox[0]
            if not isinstance(command, _Push):
                command()
                self._inbox.popleft()
                continue
            if not self._is_here(command):
                break
            try:
                self._apply(command)
            except WeightsFreed:
                self._use_newer(command)
            except Unmapped as error:
                self._unmapped = str(error)
                has_news = True
                self._use_newer(command)
            else:
                self._unmapped = ""
                has_news = True
                self._inbox.popleft()
        return has_news

    def _use_newer(self, push: _Push) -> None:
        """Let a newer push replace one whose weights cannot be read, now or when it arrives."""
        push.arriving = None
        push.weights = None
        others = (each for each in self._inbox if isinstance(each, _Push) and each is not push)
        newer = next(others, None)
        if newer is not None:
            self._inbox.remove(newer)
            push.weights = newer.weights
            push.version = newer.version

    def _is_here(self, push: _Push) -> bool:
        """Return whether the weights of a push have arrived; begin to fetch them if necessary."""
        if push.arriving is None and isinstance(push.weights, Parcel) and not hasattr(self._engine, "opens_parcels"):
            push.arriving = self._fetcher.submit(push.weights.open)
        return push.weights is not None and (push.arriving is None or push.arriving.done())

    def _arriving(self) -> "list[Future[dict[str, Any]]]":
        """Return the transfer that the next command waits for, if any."""
        push = self._inbox[0] if self._inbox else None
        return [push.arriving] if isinstance(push, _Push) and push.arriving else []

    def _apply(self, push: _Push) -> None:
        weights = push.weights if push.arriving is None else push.arriving.result()
        start = time.monotonic()
        # An engine with its own workers opens a parcel in those.
        holding = weights.held() if isinstance(weights, Parcel) else nullcontext(weights)
        with holding as held:
            self._engine.push_weights(held, push.version)
        if push.arriving is not None and isinstance(push.weights, Parcel):
            # The learner may change its memory once this is reported.
            push.weights.wait_for_copies()
        self._times += EngineTimes(copies=1, copy_s=time.monotonic() - start)

    def _hold(self, paused: bool) -> None:
        self._pause.close()
        if paused:
            self._pause.enter_context(self._engine.paused())

    def _sample(self) -> None:
        active = min(self._engine.num_pending, self._slots)
        start = time.monotonic()
        completions = self._engine.poll()
        self._times += EngineTimes(chunks=1, busy_s=time.monotonic() - start, active=active)
        self._completions.extend(completions)
