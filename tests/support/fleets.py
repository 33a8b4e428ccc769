"""Fleets in threads of this process, for tests that hold the engines."""

import queue
import threading
from collections.abc import Callable
from typing import Any

from scalerl.training.remote.peer import Limits
from scalerl.training.remote.serve import ObjectServer
from scalerl.training.rollout.fleet.fleet import Fleet
from scalerl.training.rollout.fleet.generator import Generator


def make_fleet(make_engine: Callable[[int], Any], num_generators: int, *, slots: int = 4, **settings: Any) -> Fleet:
    """Return a fleet; `make_engine(number)` is called for every generator and every replacement."""
    settings = {"limits": Limits(silent_s=5.0, stuck_s=5.0), "wait_s": 0.02} | settings

    def start(number: int) -> LocalLink:
        return LocalLink(lambda: Generator(make_engine(number), slots=slots))

    return Fleet(start, num_generators, max_length=10_000, vocabulary=64, **settings)


class LocalLink:
    """A link to an object in a thread of this process, so that a test can hold the object itself."""

    where, pid, is_placed = "", None, True

    def __init__(self, make: Callable[[], Any]) -> None:
        self.is_killed = False
        self._inbox: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._outbox: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._server = ObjectServer(self._receive, lambda kind, value: self._outbox.put((kind, value)))
        threading.Thread(target=self._serve, args=(make,), daemon=True).start()

    def has_left(self) -> bool:
        return False

    def packed(self, name: Any, arguments: tuple[Any, ...]) -> Any:
        return name, arguments

    def write(self, command: Any) -> None:
        self._inbox.put(command)

    def read(self) -> list[tuple[str, Any]]:
        beat = ("beat", self._server.busy_s)
        try:
            return [beat, self._outbox.get(timeout=0.01)]
        except queue.Empty:
            return [beat]

    def kill(self) -> None:
        self.is_killed = True
        self._inbox.put(("close", ()))

    def _serve(self, make: Callable[[], Any]) -> None:
        try:
            self._server.run(make)
        except BaseException:
            return

    def _receive(self, wait: bool) -> Any:
        try:
            return self._inbox.get(block=wait)
        except queue.Empty:
            return None
