"""An engine, a learner and a grader without a model, for tests of the loop."""

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from fake_engine import FakeEngine, random_polls

from scalerl.training.tasks.curriculum import Issued
from scalerl.training.types import Batch, Completion, Group, LengthPlan, Problem, Request, derive_seed

NUM_COMPLETIONS = 2


class Killed(BaseException):
    """The process was killed: nothing catches this, nothing is cleaned up."""


class SimulatedEngine(FakeEngine):
    """A FakeEngine that asserts that the loop uses it well: polled only with work pending and weights pushed before.

    Every poll adds one token to each running completion. The poll after `polls_to_live` of them kills the process.
    """

    def __init__(self, *, slots: int, seed: int = 0, polls_to_live: int = sys.maxsize) -> None:
        super().__init__(
            polls=lambda request: request.length.max_tokens,
            slots=slots,
            seed=seed,
            version=-1,
            fail_at_poll=polls_to_live,
            failure=Killed(),
        )

    def push_weights(self, weights: Mapping[str, Any], version: int) -> None:
        assert weights["version"] == version
        super().push_weights(weights, version)

    def poll(self) -> list[Completion]:
        assert self.num_pending, "polled with nothing pending"
        assert self.version >= 0, "sampling before the first push"
        return super().poll()

    def drop_pending(self) -> list[Request]:
        """Forget all requests, as an engine that lost them would; return those that had not started."""
        waiting = list(self._waiting)
        self._waiting.clear()
        self._running.clear()
        return waiting


class CountingLearner:
    """Its weights are its version; remembers what it was given."""

    def __init__(self, version: int = 0) -> None:
        self.version = version
        self.batches: list[Batch] = []

    def step(self, batch: Batch) -> Mapping[str, float]:
        assert batch.version == self.version
        self.batches.append(batch)
        self.version += 1
        return {"loss/mean": float(batch.version)}

    def weights(self) -> Mapping[str, Any]:
        return {"version": self.version}


def complete(request: Request, versions: Sequence[int]) -> Completion:
    places = np.arange(len(versions))
    return Completion(
        request=request,
        tokens=((request.seed % 97 + places) % 100).astype(np.int32),
        log_probs=(-1.0 / (1 + places)).astype(np.float32),
        versions=np.array(versions, dtype=np.int32),
        forced=np.zeros(len(versions), dtype=np.bool_),
        finish="stop",
    )


def make_requests(issued: Issued, num: int = NUM_COMPLETIONS) -> list[Request]:
    problem = Problem(id=issued.problem_id, prompt=f"what is {issued.problem_id}?", answer="1", task="simulated")
    requests = [
        Request(
            group=issued.key,
            index=index,
            problem=problem,
            prompt_tokens=(1, 2, 3),
            seed=derive_seed("request", issued.key, index),
            length=LengthPlan(answer_budget=256),
        )
        for index in range(num)
    ]
    return [replace(request, length=LengthPlan(answer_budget=random_polls(request))) for request in requests]


def answers_right(key: str) -> bool:
    return derive_seed("verdict", key) % 3 == 0


class AtOnce:
    """Grading by a function, without delay."""

    def __init__(self, grade: Callable[[Sequence[Completion]], Group]) -> None:
        self._grade = grade
        self._groups: list[Group] = []

    def submit(self, groups: Sequence[Sequence[Completion]]) -> None:
        self._groups += map(self._grade, groups)

    def poll(self, *, wait: bool = False) -> list[Group]:
        groups, self._groups = self._groups, []
        return groups


def grade(completions: Sequence[Completion]) -> Group:
    """A group is solved or not as a whole, by its key alone, so that what no-positive-resampling does is known."""
    request = completions[0].request
    assert [completion.request.index for completion in completions] == list(range(len(completions)))
    correct = answers_right(request.group)
    return Group(
        key=request.group,
        problem=request.problem,
        completions=tuple(completions),
        correct=(correct,) * len(completions),
        rewards=(1.0 if correct else -1.0,) * len(completions),
    )
