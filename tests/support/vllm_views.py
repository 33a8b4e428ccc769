"""One vLLM process that many tests use one after another, each through a view that looks like an engine of its own.

Starting vLLM takes half a minute. A view counts versions and work from its own start on, and gives the process at most
`slots` requests at a time; everything else is the process's.
"""

import dataclasses
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from scalerl.errors import EngineError
from scalerl.rollout.fleet.fleet import Fleet
from scalerl.types import Completion, Request, Work


class View:
    def __init__(self, process: Fleet, *, slots: int, version: int, weights: Mapping[str, Any]) -> None:
        while process.num_pending:  # what an earlier test left
            process.poll()
        self._process, self._slots = process, slots
        self._waiting: deque[Request] = deque()
        process.push_weights(weights, process.version + 1)
        self._first_version, self._offset = process.version, process.version - version
        while process.versions != (process.version,):
            process.poll()
        # The counts in this process follow those of the other one with a short delay.
        self._before, self._eval_before = process.work, process.eval_work
        self._closed = False

    @property
    def version(self) -> int:
        return self._process.version - self._offset

    @property
    def num_pending(self) -> int:
        return 0 if self._closed else len(self._waiting) + self._process.num_pending

    @property
    def work(self) -> Work:
        return _since(self._before, self._process.work)

    @property
    def eval_work(self) -> Work:
        return _since(self._eval_before, self._process.eval_work)

    @contextmanager
    def paused(self) -> Iterator[None]:
        held, self._waiting = self._waiting, deque()
        try:
            with self._process.paused():
                yield
        finally:
            self._waiting = held

    def submit(self, requests: Sequence[Request]) -> None:
        self._require_open()
        room = max(self._slots - self._process.num_pending, 0)
        self._process.submit(requests if len(requests) <= room else requests[:room])
        self._waiting.extend(requests[room:])

    def poll(self) -> list[Completion]:
        self._require_open()
        completions = self._process.poll()
        if completions and self._waiting:
            waiting = list(self._waiting)
            self._waiting.clear()
            self.submit(waiting)
        return [dataclasses.replace(each, versions=each.versions - self._offset) for each in completions]

    def push_weights(self, weights: Mapping[str, Any], version: int) -> None:
        self._process.push_weights(weights, version + self._offset)

    def close(self) -> None:
        self._closed = True

    def _require_open(self) -> None:
        if self._closed:
            raise EngineError("the engine is closed")


def _since(before: Work, work: Work) -> Work:
    return Work(**{name: number - getattr(before, name) for name, number in dataclasses.asdict(work).items()})
