"""One engine for training and evaluation: each submits and polls its own requests, over one copy of the weights.

    shared                 the engine that the pipeline takes for its own
    shared.evaluation      what an evaluation takes for its own
    shared.alone()         training is paused: its requests keep their place and their cache

Evaluation requests are marked by their purpose. Outside `alone`, at most `most_evaluating` of them are with the engine
at a time, so that training goes on beside them.
"""

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from typing import Any

from scalerl.loop.seams import Engine, PausableEngine
from scalerl.types import Completion, Request, Work


class SharedEngine:
    """An engine with the requests of training alone; those of evaluations are served beside them."""

    def __init__(self, engine: Engine, *, pausable: PausableEngine | None = None, most_evaluating: int = 1) -> None:
        """`pausable` is the engine itself, if it can pause, without the wrappers that `engine` may have."""
        self._engine, self._pausable = engine, pausable
        self._received: list[Completion] = []
        self._work = Work()
        self.evaluation = Evaluating(self, engine, most_evaluating)

    @property
    def version(self) -> int:
        return self._engine.version

    @property
    def num_pending(self) -> int:
        return self._engine.num_pending - self.evaluation.num_asked + len(self._received)

    @property
    def work(self) -> Work:
        """What was computed for training. An estimate of the rest must not make it fall."""
        self._work = (self._engine.work - self.eval_work).at_least(self._work)
        return self._work

    @property
    def eval_work(self) -> Work:
        """What was computed for evaluations, exactly, or for an engine that does not tell them apart by estimate."""
        return self.evaluation.estimated if self._pausable is None else self._pausable.eval_work

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Serve evaluations alone. An engine that cannot pause goes on with what it has for training besides."""
        limit, self.evaluation.most_asked = self.evaluation.most_asked, 2**62
        try:
            # An evaluation that is under way is with the engine like the rest, and would be paused too.
            with nullcontext() if self._pausable is None or self.evaluation.num_asked else self._pausable.paused():
                yield
        finally:
            self.evaluation.most_asked = limit

    def submit(self, requests: Sequence[Request]) -> None:
        self._engine.submit(requests)

    def poll(self) -> list[Completion]:
        """Return what has arrived for training; poll the engine where nothing has."""
        if not self._received:
            self.receive()
        completions, self._received = self._received, []
        return completions

    def receive(self) -> None:
        """Poll the engine, and divide what it returns."""
        self.evaluation.feed()
        for completion in self._engine.poll():
            if completion.request.purpose == "evaluation":
                self.evaluation.arrived(completion)
            else:
                self._received.append(completion)

    def push_weights(self, weights: Mapping[str, Any], version: int) -> None:
        self._engine.push_weights(weights, version)

    def close(self) -> None:
        self._engine.close()


class Evaluating:
    """The side of a shared engine that evaluations use."""

    def __init__(self, shared: SharedEngine, engine: Engine, most_asked: int) -> None:
        self._shared, self._engine, self.most_asked = shared, engine, most_asked
        self.num_asked = 0
        """Requests that are with the engine."""
        self.estimated = Work()
        self._backlog: deque[Request] = deque()
        self._received: list[Completion] = []

    @property
    def num_pending(self) -> int:
        return self.num_asked + len(self._backlog) + len(self._received)

    def submit(self, requests: Sequence[Request]) -> None:
        self._backlog.extend(replace(request, purpose="evaluation") for request in requests)
        self.feed()

    def poll(self) -> list[Completion]:
        """Return what has arrived for evaluations; poll the engine where nothing has."""
        if not self._received:
            self._shared.receive()
        return self.received()

    def received(self) -> list[Completion]:
        """Return what has arrived for evaluations, without polling the engine."""
        completions, self._received = self._received, []
        return completions

    def arrived(self, completion: Completion) -> None:
        self.num_asked -= 1
        self.estimated += estimated_work(completion)
        self._received.append(completion)

    def feed(self) -> None:
        """Give the engine as many requests as it may have."""
        num = min(self.most_asked - self.num_asked, len(self._backlog))
        if num > 0:
            self._engine.submit([self._backlog.popleft() for _ in range(num)])
            self.num_asked += num


def estimated_work(completion: Completion) -> Work:
    """Return the work of one completion if its prompt was computed for it alone, and each turn went on from its cache.

    What an environment said is read like a prompt.
    """
    prompt, num = len(completion.request.prompt_tokens), len(completion)
    context, written = prompt + num - 1, completion.num_written
    return Work(prefilled=prompt - 1 + num - written, decoded=written, attended=context * (context + 1) // 2)
