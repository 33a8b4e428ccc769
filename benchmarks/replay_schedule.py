"""A schedule on a virtual clock: the real pipeline and lag rule over the fake engine.

    together    one device does both: polls and steps alternate
    apart       a generator and a learner on separate devices: the generator continues during a step

A poll that has begun when new weights arrive is finished with the old ones, as a chunk is in the torch engine.
"""

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

from scalerl.loop.pipeline import Pipeline
from scalerl.rollout.fake import FakeEngine
from scalerl.tasks.curriculum import Curriculum, Issued, uniform
from scalerl.types import Batch, Completion, Group, LengthPlan, Problem, Request, Work, derive_seed

_PROBLEM = Problem(id="0", prompt="", answer="", task="replay")
_NUM_PROBLEMS = 997


@dataclass(frozen=True, slots=True, kw_only=True)
class Regime:
    """The settings of the lag rule, and how much is sampled at once."""

    groups_per_batch: int
    completions_per_group: int
    slots: int
    max_lag: int
    push_every: int = 1
    drain: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Durations:
    """Durations in seconds."""

    poll_s: float
    """Of a chunk of tokens for all slots."""
    step_s: Callable[[int], float]
    """Of the learner's step, by its version."""
    push_s: float
    """Of a push, during which both sides wait."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Replayed:
    ends_s: tuple[float, ...]
    """When each step ended, its push included."""
    generator_s: float
    """Time in which the generator worked."""
    learner_s: float
    num_polls: int
    lags: tuple[int, ...]
    """Lag of every trained group."""

    def idle(self, working_s: float) -> float:
        """Return the idle share, at least 0: a generator may still work on requests of later steps."""
        return max(0.0, 1 - working_s / self.ends_s[-1])


class _Clock:
    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


class _Generator:
    """The fake engine on the virtual clock, with the interface of an engine."""

    def __init__(self, clock: _Clock, durations: Durations, *, slots: int, apart: bool) -> None:
        self._engine = FakeEngine(polls=lambda request: request.length.max_tokens, slots=slots)
        self._clock, self._durations, self._apart = clock, durations, apart
        self._free_at_s = 0.0
        """When its current work ends."""
        self._ended: deque[tuple[float, list[Completion]]] = deque()
        """Completions that finished while the learner was busy, and when."""
        self.busy_s = 0.0

    @property
    def version(self) -> int:
        return self._engine.version

    @property
    def num_pending(self) -> int:
        return self._engine.num_pending

    @property
    def work(self) -> Work:
        return self._engine.work

    @property
    def num_polls(self) -> int:
        return self._engine.num_polls

    def submit(self, requests: Sequence[Request]) -> None:
        self._catch_up()
        self._engine.submit(requests)

    def poll(self) -> list[Completion]:
        """Return what has finished by now, or otherwise what finishes next."""
        self._catch_up()
        if not self._ended:
            self._advance()
        ends_s, completions = self._ended.popleft()
        self._clock.now_s = max(self._clock.now_s, ends_s)
        return completions

    def push_weights(self, weights: Mapping[str, Any], version: int) -> None:
        self._catch_up()
        self._engine.push_weights(weights, version)
        self.busy_s += self._durations.push_s
        self._clock.now_s += self._durations.push_s
        self._free_at_s = max(self._free_at_s + self._durations.push_s, self._clock.now_s)

    def close(self) -> None:
        self._engine.close()

    def _catch_up(self) -> None:
        """Advance to now; a poll that has begun may end later."""
        while self._apart and self._engine.num_pending and self._free_at_s < self._clock.now_s:
            self._advance()
        self._free_at_s = max(self._free_at_s, self._clock.now_s)

    def _advance(self) -> None:
        self._free_at_s += self._durations.poll_s
        self.busy_s += self._durations.poll_s
        self._ended.append((self._free_at_s, self._engine.poll()))


class _Learner:
    def __init__(self, clock: _Clock, durations: Durations) -> None:
        self._clock, self._durations = clock, durations
        self.version, self.busy_s = 0, 0.0

    def step(self, batch: Batch) -> Mapping[str, float]:
        seconds = self._durations.step_s(self.version)
        self._clock.now_s += seconds
        self.busy_s += seconds
        self.version += 1
        return {}

    def weights(self) -> Mapping[str, Any]:
        return {}


class _AtOnce:
    """A grader that takes no time."""

    def __init__(self) -> None:
        self._groups: list[Group] = []

    def submit(self, completions: Sequence[Completion]) -> None:
        num = len(completions)
        group = Group(
            key=completions[0].request.group,
            problem=_PROBLEM,
            completions=tuple(completions),
            correct=(True,) * num,
            rewards=(1.0,) * num,
        )
        self._groups.append(group)

    def poll(self, *, wait: bool = False) -> list[Group]:
        groups, self._groups = self._groups, []
        return groups


def replay(
    regime: Regime,
    durations: Durations,
    num_polls: Callable[[int, int], int],
    *,
    steps: int,
    apart: bool,
) -> Replayed:
    """Run that many steps; a request takes `num_polls(learner version at submission, its seed)` polls."""
    clock = _Clock()
    generator, learner = _Generator(clock, durations, slots=regime.slots, apart=apart), _Learner(clock, durations)

    def requests(issued: Issued) -> list[Request]:
        seeds = [derive_seed("replay", issued.key, index) for index in range(regime.completions_per_group)]
        return [
            Request(
                group=issued.key,
                index=index,
                problem=_PROBLEM,
                prompt_tokens=(1,),
                seed=seed,
                length=LengthPlan(answer_budget=num_polls(learner.version, seed)),
            )
            for index, seed in enumerate(seeds)
        ]

    pipeline = Pipeline(
        engine=generator,
        curriculum=Curriculum([str(number) for number in range(_NUM_PROBLEMS)], seed=0, retires=uniform),
        learner=learner,
        make_requests=requests,
        grading=_AtOnce(),
        groups_per_batch=regime.groups_per_batch,
        max_lag=regime.max_lag,
        push_every=regime.push_every,
        drain=regime.drain,
        clock=clock,
    )
    ends_s, lags = zip(*_steps(pipeline, clock, steps), strict=True)
    return Replayed(
        ends_s=ends_s,
        generator_s=generator.busy_s,
        learner_s=learner.busy_s,
        num_polls=generator.num_polls,
        lags=tuple(lag for of_step in lags for lag in of_step),
    )


def _steps(pipeline: Pipeline, clock: _Clock, steps: int) -> Iterator[tuple[float, list[int]]]:
    for done in islice(pipeline.steps(), steps):
        yield clock.now_s, done.batch.lags
