"""What runs in a generator's process: an engine that samples by itself, and takes commands between two chunks.

Commands are obeyed in order, so a request given after a push is never sampled with older weights, which the lag rule
needs. New weights are fetched while sampling goes on; only copying them into the engine takes time. If several pushes
wait, the newest replaces the others.
"""

import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import wait as wait_for
from contextlib import ExitStack
from typing import Any, NamedTuple

from scalerl.remote.weights import Gone, Parcel
from scalerl.rollout.fleet.messages import Pace, Report, sampled
from scalerl.types import Completion, Request, Work

REPORT_S = 0.05
"""Longest time for which the driver's counts are out of date while something is sampled."""
_WAIT_S = 0.05


class _Push(NamedTuple):
    weights: Mapping[str, Any]
    version: int


class Generator:
    """An engine that samples by itself (remote/serve.py calls its methods)."""

    def __init__(self, engine: Any, *, slots: int, devices: Sequence[str] = ()) -> None:
        """Serve an engine with this number of slots.

        At most `slots` requests, and a quarter more so that none stays empty, are with the engine at a time: the others
        wait here, so that an evaluation beside training can go before them.
        """
        self._engine, self._slots, self._room = engine, slots, slots + max(slots // 4, 1)
        self._devices = tuple(devices)
        self._inbox: deque[_Push | Callable[[], None]] = deque()
        self._inside: deque[Request] = deque()
        self._waiting: dict[str, deque[Request]] = {"evaluation": deque(), "training": deque()}
        self._pause: ExitStack | None = None
        self._fetcher = ThreadPoolExecutor(1, thread_name_prefix="fetch")
        self._arriving: tuple[int, Future[dict[str, Any]]] | None = None
        self._needs_newer = False
        """Whether the last push was freed before it was fetched, which means that another one is on its way."""
        self._pace, self._eval_work = Pace(), Work()
        self._completions: list[Completion] = []
        self._reported_s = 0.0

    # Commands ---------------------------------------------------------------------------------------------------------

    def facts(self) -> Report:
        return self._report()

    def submit(self, requests: Sequence[Request], inside: bool) -> None:
        """Sample these with the weights of the last push before, or with newer ones.

        Those that were submitted `inside` a pause are served until it ends, and no others.
        """

        def take() -> None:
            for request in requests:
                (self._inside if inside else self._waiting[request.purpose]).append(request)

        self._inbox.append(take)

    def push(self, weights: Mapping[str, Any], version: int) -> None:
        """Sample with these weights from now on."""
        self._inbox.append(_Push(weights, version))

    def hold(self, paused: bool) -> None:
        """Put all requests aside, except those that are submitted inside the pause; or end it and drop those."""
        self._inbox.append(lambda: self._hold(paused))

    def close(self) -> None:
        self._fetcher.shutdown(wait=False, cancel_futures=True)
        self._engine.close()

    def advance(self, send: Callable[[str, Any], None]) -> bool:
        """Obey what can be obeyed, sample a chunk, and return whether there is more to do."""
        has_news = self._obey()
        self._feed()
        if self._engine.num_pending:
            self._sample()
        elif self._arriving is not None:
            wait_for([self._arriving[1]], _WAIT_S)
        now = time.monotonic()
        if self._completions or has_news or now - self._reported_s >= REPORT_S:
            self._reported_s = now
            send("report", self._report())
            self._completions = []
        return bool(self._engine.num_pending or self._arriving is not None or any(self._served()))

    def _report(self) -> Report:
        return Report(
            completions=tuple(map(sampled, self._completions)),
            work=self._engine.work,
            # An engine that does not tell: what its finished completions took, if every prompt was computed alone.
            eval_work=getattr(self._engine, "eval_work", None) or self._eval_work,
            pace=self._pace,
            version=self._engine.version,
            devices=self._devices,
        )

    def _obey(self) -> bool:
        """Obey commands in order, up to a push whose weights are not here yet; return whether weights were pushed."""
        has_pushed = False
        while True:
            if self._arriving is not None:
                version, arriving = self._arriving
                if not arriving.done():
                    return has_pushed
                self._arriving = None
                try:
                    self._apply(arriving.result(), version)
                    has_pushed = True
                except Gone:
                    self._needs_newer = True
            pushes = [command for command in self._inbox if isinstance(command, _Push)]
            if not self._inbox or (self._needs_newer and not pushes):
                return has_pushed
            if not self._needs_newer and not isinstance(command := self._inbox[0], _Push):
                self._inbox.popleft()
                command()
                continue
            # Newer weights never break the order.
            self._inbox = deque(command for command in self._inbox if not isinstance(command, _Push))
            self._needs_newer = False
            weights, version = pushes[-1]
            if isinstance(weights, Parcel) and not hasattr(self._engine, "push_parcel"):
                self._arriving = (version, self._fetcher.submit(weights.open))
                if not self._engine.num_pending:
                    wait_for([self._arriving[1]], _WAIT_S)
                continue
            try:
                self._apply(weights, version)
                has_pushed = True
            except Gone:
                self._needs_newer = True

    def _apply(self, weights: Mapping[str, Any], version: int) -> None:
        start = time.monotonic()
        if isinstance(weights, Parcel):
            # An engine with workers of its own opens it in these.
            with weights.held() as held:
                self._engine.push_parcel(held, version)
        else:
            self._engine.push_weights(weights, version)
        self._pace += Pace(copies=1, copy_s=time.monotonic() - start)

    def _hold(self, paused: bool) -> None:
        if self._pause is not None:
            self._pause.close()
            self._pause = None
            self._inside.clear()
        if paused:
            self._pause = ExitStack()
            # An engine that cannot pause goes on with what it has; it is given nothing more.
            pause = getattr(self._engine, "paused", None)
            if pause is not None:
                self._pause.enter_context(pause())

    def _served(self) -> list[deque[Request]]:
        """Return the requests that wait to be served now, those of an evaluation first."""
        return [self._inside] if self._pause is not None else list(self._waiting.values())

    def _feed(self) -> None:
        """Give the engine as many waiting requests as it has room for."""
        for waiting in self._served():
            requests: list[Request] = []
            while waiting and self._engine.num_pending + len(requests) < self._room:
                requests.append(waiting.popleft())
            if requests:
                self._engine.submit(requests)

    def _sample(self) -> None:
        active, start = min(self._engine.num_pending, self._slots), time.monotonic()
        completions = self._engine.poll()
        self._pace += Pace(chunks=1, busy_s=time.monotonic() - start, active=active)
        self._eval_work += _estimated_work(completions)
        self._completions.extend(completions)


def _estimated_work(completions: Sequence[Completion]) -> Work:
    """Return the work of completions for evaluation."""
    total = Work()
    for completion in completions:
        if completion.request.purpose == "evaluation":
            total += Work.of(len(completion.request.prompt_tokens), len(completion))
    return total
