"""One engine for training and evaluation: each submits and polls its own requests, over one copy of the weights.

    shared.training, shared.evaluation      what the pipeline and an evaluation take for an engine of their own
    shared.alone()                          training is paused: its requests keep their place and their cache

Evaluation requests are marked by their purpose. Outside `alone`, at most `most_evaluating` of them are with the engine
at a time, so that training goes on beside them.
"""

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from typing import Any

from scalerl.loop.seams import Engine, PausableEngine
from scalerl.types import Completion, Purpose, Request, Work


class SharedEngine:
    """Divides one engine between training and evaluation."""

    def __init__(self, engine: Engine, *, pausable: PausableEngine | None = None, most_evaluating: int = 1) -> None:
        """`pausable` is the engine itself, if it can pause, without the wrappers that `engine` may have."""
        self._engine = engine
        self._pausable = pausable
        self._most_evaluating = most_evaluating
        self._backlog: deque[Request] = deque()
        """Evaluation requests that the engine has not been given yet."""
        self._num_evaluating = 0
        self._received: dict[Purpose, list[Completion]] = {"training": [], "evaluation": []}
        self._estimated, self._training_work = Work(), Work()
        self.training, self.evaluation = EngineView(self, "training"), EngineView(self, "evaluation")

    @property
    def version(self) -> int:
        return self._engine.version

    @property
    def eval_work(self) -> Work:
        """What was computed for evaluations, exactly, or for an engine that does not tell them apart by estimate."""
        return self._estimated if self._pausable is None else self._pausable.eval_work

    @property
    def training_work(self) -> Work:
        """What was computed for training. An estimate of the rest must not make it fall."""
        self._training_work = (self._engine.work - self.eval_work).at_least(self._training_work)
        return self._training_work

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Serve evaluations alone. An engine that cannot pause goes on with what it has for training besides."""
        limit, self._most_evaluating = self._most_evaluating, 2**62
        try:
            # An evaluation that is under way is with the engine like the rest, and would be paused too.
            with nullcontext() if self._pausable is None or self._num_evaluating else self._pausable.paused():
                yield
        finally:
            self._most_evaluating = limit

    def num_pending(self, purpose: Purpose) -> int:
        of_evaluation = self._num_evaluating + len(self._backlog) + len(self._received["evaluation"])
        if purpose == "evaluation":
            return of_evaluation
        return self._engine.num_pending - self._num_evaluating + len(self._received["training"])

    def submit(self, requests: Sequence[Request], purpose: Purpose) -> None:
        if purpose == "training":
            self._engine.submit(requests)
            return
        self._backlog.extend(replace(request, purpose="evaluation") for request in requests)
        self._feed()

    def poll(self, purpose: Purpose) -> list[Completion]:
        """Return what has arrived for this purpose; poll the engine where nothing has."""
        if not self._received[purpose]:
            self._feed()
            for completion in self._engine.poll():
                self._received[completion.request.purpose].append(completion)
                if completion.request.purpose == "evaluation":
                    self._num_evaluating -= 1
                    self._estimated += estimated_work(completion)
        return self.received(purpose)

    def received(self, purpose: Purpose) -> list[Completion]:
        """Return what has arrived for this purpose, without polling the engine."""
        completions, self._received[purpose] = self._received[purpose], []
        return completions

    def push_weights(self, weights: Mapping[str, Any], version: int) -> None:
        self._engine.push_weights(weights, version)

    def close(self) -> None:
        self._engine.close()

    def _feed(self) -> None:
        num = min(self._most_evaluating - self._num_evaluating, len(self._backlog))
        if num > 0:
            self._engine.submit([self._backlog.popleft() for _ in range(num)])
            self._num_evaluating += num


class EngineView:
    """What one of the two users sees: an engine with only its own requests."""

    def __init__(self, shared: SharedEngine, purpose: Purpose) -> None:
        self._shared = shared
        self._purpose: Purpose = purpose

    @property
    def version(self) -> int:
        return self._shared.version

    @property
    def num_pending(self) -> int:
        return self._shared.num_pending(self._purpose)

    @property
    def work(self) -> Work:
        return self._shared.training_work if self._purpose == "training" else self._shared.eval_work

    def submit(self, requests: Sequence[Request]) -> None:
        self._shared.submit(requests, self._purpose)

    def poll(self) -> list[Completion]:
        return self._shared.poll(self._purpose)

    def push_weights(self, weights: Mapping[str, Any], version: int) -> None:
        self._shared.push_weights(weights, version)

    def close(self) -> None:
        self._shared.close()


def estimated_work(completion: Completion) -> Work:
    """Return the work of one completion if its prompt was computed for it alone, and each turn went on from its cache.

    What an environment said is read like a prompt.
    """
    prompt, num = len(completion.request.prompt_tokens), len(completion)
    context, written = prompt + num - 1, completion.num_written
    return Work(prefilled=prompt - 1 + num - written, decoded=written, attended=context * (context + 1) // 2)
