"""One engine for training and evaluation: each submits and polls its own requests, over one copy of the weights.

    shared                 the engine that the pipeline takes for its own
    shared.evaluation      what an evaluation takes for its own
    shared.alone()         training is paused: its requests keep their place and their cache

Evaluation requests are marked by their purpose.
"""

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import Any

from scalerl.loop.seams import Engine, PausableEngine
from scalerl.types import Completion, Request, Work


class SharedEngine:
    """An engine with the requests of training alone; those of evaluations are its other side's."""

    def __init__(self, engine: Engine, *, pausable: PausableEngine | None = None) -> None:
        """`pausable` is the engine itself, if it can pause, without the wrappers that `engine` may have."""
        self._engine, self._pausable = engine, pausable
        self._received: list[Completion] = []
        self._work = Work()
        self.evaluation = Evaluating(self, engine)

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

    def alone(self) -> AbstractContextManager[None]:
        """Serve evaluations alone. An engine that cannot pause goes on with what it has for training besides."""
        return nullcontext() if self._pausable is None else self._pausable.paused()

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

    def __init__(self, shared: SharedEngine, engine: Engine) -> None:
        self._shared, self._engine = shared, engine
        self.num_asked = 0
        """Requests that are with the engine."""
        self.estimated = Work()
        self._received: list[Completion] = []

    @property
    def num_pending(self) -> int:
        return self.num_asked + len(self._received)

    def submit(self, requests: Sequence[Request]) -> None:
        self._engine.submit([replace(request, purpose="evaluation") for request in requests])
        self.num_asked += len(requests)

    def poll(self) -> list[Completion]:
        """Return what has arrived for evaluations; poll the engine where nothing has."""
        if not self._received:
            self._shared.receive()
        completions, self._received = self._received, []
        return completions

    def arrived(self, completion: Completion) -> None:
        self.num_asked -= 1
        self.estimated += estimated_work(completion)
        self._received.append(completion)


def estimated_work(completion: Completion) -> Work:
    """Return the work of one completion if its prompt was computed for it alone, and each turn went on from its cache.

    What an environment said is read like a prompt.
    """
    prompt, num = len(completion.request.prompt_tokens), len(completion)
    context, written = prompt + num - 1, completion.num_written
    return Work(prefilled=prompt - 1 + num - written, decoded=written, attended=context * (context + 1) // 2)
