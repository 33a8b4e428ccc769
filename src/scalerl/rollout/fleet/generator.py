"""The code that runs in a member of a fleet: an engine, and a thread (the pump) that is the only one to call it.

    give(commands) -> inbox ->  pump: obey commands, feed the engine, poll it  -> outbox -> take() -> Report

The pump samples whether or not the driver asks. Commands are numbered and obeyed in that order, so a request given
after a push is never sampled with older weights, which the lag rule needs. New weights are fetched while sampling goes
on; only copying them into the engine takes time. If several pushes wait, the newest replaces the others.
"""

import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any

from scalerl.errors import UserError
from scalerl.rollout.fleet.messages import Command, Hold, Pace, Push, Report, Submit
from scalerl.types import Completion, Request, Work


class Generator:
    """An engine that runs by itself. `give`, `take` and `stop` may be called from any thread."""

    def __init__(
        self,
        make_engine: Callable[[], Any],
        *,
        slots: int,
        fetch: Callable[[Any], Mapping[str, Any]] | None = None,
        devices: Sequence[str] = (),
        on_news: Callable[[], None] = lambda: None,
    ) -> None:
        """Return at once; the pump builds the engine.

        At most `slots` requests, and a quarter more so that none stays empty, are with the engine at a time: the others
        wait here, so that an evaluation beside training can go before them. `fetch` turns what a Push holds into a
        mapping of tensors.
        """
        self._make_engine = make_engine
        self._slots = slots
        self._room = slots + max(slots // 4, 1)
        self._fetch = fetch
        self._fetcher = ThreadPoolExecutor(1, thread_name_prefix="fetch") if fetch is not None else None
        self._devices = tuple(devices)
        self._on_news = on_news
        self._changed = threading.Condition()
        # Guarded by _changed:
        self._inbox: deque[Command] = deque()
        self._early: dict[int, tuple[Command, ...]] = {}
        self._next_number = 0
        self._outbox: list[Completion] = []
        self._stopped = False
        self._ready = False
        self._failure: str | None = None
        self._by_user = False
        self._work, self._eval_work = Work(), Work()
        self._pace = Pace()
        self._version = -1
        self._call_since: float | None = None
        # Only the pump uses these:
        self._inside: deque[Request] = deque()
        self._waiting: dict[str, deque[Request]] = {"evaluation": deque(), "training": deque()}
        self._pause: ExitStack | None = None
        self._arriving: tuple[int, Future[Mapping[str, Any]]] | None = None
        self._thread = threading.Thread(target=self._pump, name="pump", daemon=True)
        self._thread.start()

    def give(self, number: int, commands: Sequence[Command]) -> None:
        """Queue commands. Calls are numbered from 0; one that overtook another waits for it."""
        with self._changed:
            self._early[number] = tuple(commands)
            while self._next_number in self._early:
                self._inbox.extend(self._early.pop(self._next_number))
                self._next_number += 1
            self._changed.notify_all()

    def take(self, wait_s: float = 0.0) -> Report:
        """Return what happened since the last call; wait up to `wait_s` for a completion, readiness or a failure."""
        with self._changed:
            was_ready = self._ready
            self._changed.wait_for(lambda: self._outbox or self._failure or self._ready != was_ready, wait_s)
            completions, self._outbox = tuple(self._outbox), []
            return Report(
                completions=completions,
                ready=self._ready,
                work=self._work,
                eval_work=self._eval_work,
                pace=self._pace,
                version=self._version,
                stuck_s=0.0 if self._call_since is None else time.monotonic() - self._call_since,
                devices=self._devices,
                failure=self._failure,
                by_user=self._by_user,
            )

    def stop(self, wait_s: float = 0.0) -> None:
        """End the pump after its current call and close the engine; wait for that up to `wait_s`."""
        with self._changed:
            self._stopped = True
            self._changed.notify_all()
        self._thread.join(wait_s)

    def _pump(self) -> None:
        engine = None
        try:
            engine = self._make_engine()
            self._publish(ready=True, version=engine.version)
            while not self._stopped:
                self._obey(engine)
                self._feed(engine)
                if engine.num_pending:
                    self._sample(engine)
                else:
                    self._wait()
        except UserError as error:
            self._by_user = True
            self._publish(failure=str(error))
        except BaseException as error:
            self._publish(failure=f"{type(error).__name__}: {error}".removesuffix(": "))
        finally:
            if self._fetcher is not None:
                self._fetcher.shutdown(wait=False, cancel_futures=True)
            if engine is not None:
                engine.close()

    def _publish(self, *, ready: bool | None = None, version: int | None = None, failure: str | None = None) -> None:
        with self._changed:
            self._ready = self._ready if ready is None else ready
            self._version = self._version if version is None else version
            self._failure = failure
            self._call_since = None
            self._changed.notify_all()
        self._on_news()

    def _wait(self) -> None:
        """Wait for a command, for the weights that are being fetched, or for the end."""
        with self._changed:
            if self._arriving is None:
                self._changed.wait_for(lambda: self._inbox or self._stopped)
            else:
                arrived = self._arriving[1]
                self._changed.wait_for(lambda: arrived.done() or self._stopped)

    def _obey(self, engine: Any) -> None:
        """Execute the commands that have come, in order; stop at a push whose weights are not here yet."""
        while True:
            if self._arriving is not None:
                version, arrived = self._arriving
                if not arrived.done():
                    return
                self._apply(engine, version, arrived.result())
                self._arriving = None
            with self._changed:
                if not self._inbox:
                    return
                command = self._inbox.popleft()
                if isinstance(command, Push):
                    command = self._newest_push(command)
            if isinstance(command, Submit):
                for request in command.requests:
                    (self._inside if command.inside else self._waiting[request.purpose]).append(request)
            elif isinstance(command, Hold):
                self._hold(engine, command.paused)
            elif self._fetcher is None or self._fetch is None:
                self._apply(engine, command.version, command.weights)
            else:
                arriving = self._fetcher.submit(self._fetch, command.weights)
                self._arriving = (command.version, arriving)
                arriving.add_done_callback(lambda _: self._notify())

    def _newest_push(self, command: Push) -> Push:
        """Return the last push in the inbox, if any, and drop the others: newer weights never break the order."""
        pushes = [other for other in self._inbox if isinstance(other, Push)]
        self._inbox = deque(other for other in self._inbox if not isinstance(other, Push))
        return pushes[-1] if pushes else command

    def _notify(self) -> None:
        with self._changed:
            self._changed.notify_all()

    def _apply(self, engine: Any, version: int, weights: Mapping[str, Any]) -> None:
        start = time.monotonic()
        with self._changed:
            self._call_since = start
        engine.push_weights(weights, version)
        self._pace += Pace(copies=1, copy_s=time.monotonic() - start)
        self._publish(version=version)

    def _hold(self, engine: Any, paused: bool) -> None:
        if self._pause is not None:
            self._pause.close()
            self._pause = None
            self._inside.clear()
        if paused:
            self._pause = ExitStack()
            # An engine that cannot pause goes on with what it has; it is given nothing more.
            pause = getattr(engine, "paused", None)
            if pause is not None:
                self._pause.enter_context(pause())

    def _feed(self, engine: Any) -> None:
        """Give the engine as many waiting requests as it has room for, those of an evaluation first."""
        for waiting in [self._inside] if self._pause is not None else self._waiting.values():
            requests: list[Request] = []
            while waiting and engine.num_pending + len(requests) < self._room:
                requests.append(waiting.popleft())
            if requests:
                engine.submit(requests)

    def _sample(self, engine: Any) -> None:
        active, start = min(engine.num_pending, self._slots), time.monotonic()
        with self._changed:
            self._call_since = start
        completions = engine.poll()
        pace = Pace(chunks=1, busy_s=time.monotonic() - start, active=active)
        with self._changed:
            self._call_since = None
            self._pace += pace
            self._work = engine.work
            # An engine that does not tell: what its finished completions took, if every prompt was computed alone.
            self._eval_work = getattr(engine, "eval_work", None) or self._eval_work + _estimated_work(completions)
            self._outbox.extend(completions)
            if completions:
                self._changed.notify_all()
        if completions:
            self._on_news()


def _estimated_work(completions: Sequence[Completion]) -> Work:
    """Return the work of completions for evaluation."""
    total = Work()
    for completion in completions:
        if completion.request.purpose == "evaluation":
            prompt, num = len(completion.request.prompt_tokens), len(completion)
            context = prompt + num - 1
            total += Work(prefilled=prompt - 1, decoded=num, attended=context * (context + 1) // 2)
    return total
