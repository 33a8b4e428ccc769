"""An engine, a learner and a grader without a model: random latencies, exact accounts."""

import random
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from scalerl.tasks.curriculum import Issued
from scalerl.types import Batch, Completion, Group, LengthPlan, Problem, Request, Work, derive_seed

NUM_COMPLETIONS = 2


class Killed(BaseException):
    """The process is gone: nothing catches it, nothing is cleaned up."""


class SimulatedEngine:
    """Every poll adds a token of the current version to each running completion; who runs next is drawn at random.

    Lengths are keyed by request, like an engine's noise; one in eight is a straggler, fifty times as long.
    """

    def __init__(self, *, slots: int, seed: int = 0, polls_to_live: int = sys.maxsize) -> None:
        self.slots = slots
        self.random = random.Random(seed)
        self.polls_to_live = polls_to_live
        self.version = -1
        self.queue: list[Request] = []
        self.running: dict[str, tuple[Request, int, list[int]]] = {}
        self.submitted: list[Request] = []
        self.pushes: list[int] = []
        self.num_polls = 0
        self.num_tokens = 0

    @property
    def work(self) -> Work:
        return Work(decoded=self.num_tokens)

    @property
    def num_pending(self) -> int:
        return len(self.queue) + len(self.running)

    def submit(self, requests: Sequence[Request]) -> None:
        self.submitted.extend(requests)
        self.queue.extend(requests)

    def push_weights(self, weights: Mapping[str, Any], version: int) -> None:
        assert weights["version"] == version
        self.version = version
        self.pushes.append(version)

    def poll(self) -> list[Completion]:
        assert self.num_pending, "polled for nothing"
        assert self.version >= 0, "sampling before the first push"
        self.num_polls += 1
        if self.num_polls > self.polls_to_live:
            raise Killed
        while self.queue and len(self.running) < self.slots:
            request = self.queue.pop(self.random.randrange(len(self.queue)))
            self.running[request.key] = (request, length_of(request), [])
        done: list[Completion] = []
        for key, (request, length, versions) in list(self.running.items()):
            versions.append(self.version)
            self.num_tokens += 1
            if len(versions) == length:
                del self.running[key]
                done.append(complete(request, versions))
        self.random.shuffle(done)
        return done

    def close(self) -> None:
        pass


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


def length_of(request: Request) -> int:
    base = 1 + derive_seed("length", request.seed) % 4
    return base * (50 if derive_seed("straggler", request.seed) % 8 == 0 else 1)


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


def make_requests(issued: Issued) -> list[Request]:
    problem = Problem(id=issued.problem_id, prompt=f"what is {issued.problem_id}?", answer="1", task="simulated")
    return [
        Request(
            group=issued.key,
            index=index,
            problem=problem,
            prompt_tokens=(1, 2, 3),
            seed=derive_seed("request", issued.key, index),
            length=LengthPlan(answer_budget=256),
        )
        for index in range(NUM_COMPLETIONS)
    ]


def is_solved(key: str) -> bool:
    return derive_seed("verdict", key) % 3 == 0


class AtOnce:
    """Grading by a function that answers at once."""

    def __init__(self, grade: Callable[[Sequence[Completion]], Group]) -> None:
        self._grade = grade
        self._groups: list[Group] = []

    def submit(self, completions: Sequence[Completion]) -> None:
        self._groups.append(self._grade(completions))

    def poll(self, *, wait: bool = False) -> list[Group]:
        groups, self._groups = self._groups, []
        return groups


def grade(completions: Sequence[Completion]) -> Group:
    """A group is solved or not as a whole, by its key alone, so that what no-positive-resampling does is known."""
    request = completions[0].request
    assert [completion.request.index for completion in completions] == list(range(NUM_COMPLETIONS))
    correct = is_solved(request.group)
    return Group(
        key=request.group,
        problem=request.problem,
        completions=tuple(completions),
        correct=(correct,) * len(completions),
        rewards=(1.0 if correct else -1.0,) * len(completions),
    )
