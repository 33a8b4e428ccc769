"""One run on a virtual clock: the real pipeline and lag rule, with generators and a learner that only take time.

    together    one device does both: chunks and steps alternate
    apart       generators continue while the learner takes a step

A generator samples chunks of tokens for all its active completions at once. Requests and weights that come during a
chunk wait for its end, as in the torch engine. Between two events many chunks are taken in one jump, so the time of a
simulation depends on the number of completions, not on their lengths.
"""

import heapq
import math
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np

from scalerl.loop.pipeline import Pipeline
from scalerl.tasks.curriculum import Curriculum, Issued, uniform
from scalerl.types import Batch, Completion, Group, LengthPlan, Problem, Request, Work, derive_seed

_PROBLEM = Problem(id="0", prompt="", answer="", task="simulated")
_NUM_PROBLEMS = 997
_ONE_TOKEN = {"tokens": np.zeros(1, np.int32), "log_probs": np.zeros(1, np.float32), "forced": np.zeros(1, np.bool_)}
for _array in _ONE_TOKEN.values():
    _array.setflags(write=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Regime:
    """The settings of the lag rule, and how much is sampled at once."""

    groups_per_batch: int
    completions_per_group: int
    slots: int
    """Completions that one generator samples at a time."""
    max_lag: int
    push_every: int = 1
    drain: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Durations:
    """Durations in seconds."""

    chunk_s: Callable[[int], float]
    """A chunk of tokens of a generator, by the number of its active completions."""
    step_s: Callable[[int, int], float]
    """A step of the learner, by its version and the tokens of the batch's completions."""
    push_s: float
    """Seconds for which the loop waits for a push of weights."""
    copy_s: float = 0.0
    """Seconds for which each generator pauses to load new weights; the loop does not wait for them."""
    prompt_s: float = 0.0
    """Seconds for which a generator pauses to read the prompt of a group."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Simulated:
    """The result of a simulated run. Shares leave out the first steps, in which the pipeline fills."""

    ends_s: tuple[float, ...]
    """When each step ended, its push included."""
    num_skipped: int
    """How many first steps are left out: a quarter, in whole rounds between two pushes."""
    generator_idle: float
    """Share of the time in which a generator has nothing to sample."""
    learner_idle: float
    """Share of the time in which the learner takes no step; pushes count as idle."""
    slots_used: float
    """Share of the generators' slots that are in use."""
    num_chunks: int
    num_tokens: int
    """Tokens of all trained completions."""
    lags: Mapping[int, int]
    """How many groups were trained with each lag."""

    @property
    def step_s(self) -> float:
        """Mean seconds of a step."""
        start = self.ends_s[self.num_skipped - 1] if self.num_skipped else 0.0
        return (self.ends_s[-1] - start) / (len(self.ends_s) - self.num_skipped)


class Clock:
    """The virtual time."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


class _Generator:
    """One generator: active completions by the chunk they end with, and requests that wait for a slot."""

    def __init__(self, durations: Durations, slots: int, chunk: int) -> None:
        self._durations = durations
        self._slots = slots
        self._chunk = chunk
        self._active: list[tuple[int, int, Completion]] = []
        self._waiting: deque[Request] = deque()
        self._prompt = ""
        self._order = 0
        self.version = 0
        self.time_s = 0.0
        """The end of the chunk it is at, or when it became idle."""
        self.num_chunks = 0
        self.busy_s = 0.0
        self.slot_s = 0.0
        """Seconds of all slots that were in use."""

    @property
    def num_pending(self) -> int:
        return len(self._active) + len(self._waiting)

    def submit(self, requests: Sequence[Request]) -> None:
        self._waiting.extend(requests)

    def pause(self, seconds: float) -> None:
        self.time_s += seconds
        self.busy_s += seconds

    def next_end_s(self) -> float:
        """Return when the next completion ends; it has something to do."""
        self._fill()
        return self.time_s + (self._active[0][0] - self.num_chunks) * self._durations.chunk_s(len(self._active))

    def advance(self, until_s: float = math.inf) -> Iterator[tuple[float, Completion]]:
        """Sample until a time, or until something ends without one; a chunk that has begun ends later.

        Yield what ends, and when.
        """
        once = until_s == math.inf
        while (self._active or self._waiting) and self.time_s < until_s:
            self._fill()
            num_active = len(self._active)
            chunk_s = self._durations.chunk_s(num_active)
            left = self._active[0][0] - self.num_chunks
            # The tolerance: a jump to the end of a chunk must not add another one by rounding.
            wanted = left if once or not chunk_s else math.ceil((until_s - self.time_s) / chunk_s * (1 - 1e-12))
            num = min(left, max(wanted, 1))
            self.num_chunks += num
            self.time_s += num * chunk_s
            self.busy_s += num * chunk_s
            self.slot_s += num * chunk_s * num_active
            while self._active and self._active[0][0] <= self.num_chunks:
                yield self.time_s, heapq.heappop(self._active)[2]
            if once:
                return

    def _fill(self) -> None:
        while self._waiting and len(self._active) < self._slots:
            request = self._waiting.popleft()
            if request.group != self._prompt:
                self._prompt = request.group
                self.pause(self._durations.prompt_s)
            completion = Completion(request=request, versions=_versions(self.version), finish="length", **_ONE_TOKEN)
            end = self.num_chunks + -(-request.length.answer_budget // self._chunk)
            heapq.heappush(self._active, (end, self._order, completion))
            self._order += 1


def _versions(version: int) -> Any:
    array = np.full(1, version, dtype=np.int32)
    array.setflags(write=False)
    return array


class VirtualFleet:
    """Several generators on the virtual clock, with the interface of an engine."""

    def __init__(
        self, clock: Clock, durations: Durations, *, num: int, slots: int, chunk: int, size: int, apart: bool
    ) -> None:
        self._clock, self._durations, self._apart, self._size = clock, durations, apart, size
        self.generators = [_Generator(durations, slots, chunk) for _ in range(num)]
        self._arrived: list[tuple[float, int, Completion]] = []
        self._order = 0
        self._missing: Counter[str] = Counter()
        """How many completions of each group have not arrived yet."""
        self._seen_s = 0.0
        """The time at the last call: what has passed since was the learner's."""
        self.version = 0

    @property
    def num_pending(self) -> int:
        return sum(generator.num_pending for generator in self.generators) + len(self._arrived)

    @property
    def work(self) -> Work:
        return Work()

    def submit(self, requests: Sequence[Request]) -> None:
        self._catch_up()
        for start in range(0, len(requests), self._size):
            group = requests[start : start + self._size]
            self._missing[group[0].group] = len(group)
            min(self.generators, key=lambda generator: generator.num_pending).submit(group)

    def poll(self) -> list[Completion]:
        """Return what has ended by now, at least until a group is complete: the loop cannot use less."""
        self._catch_up()
        completions: list[Completion] = []
        upcoming = [(each.next_end_s(), place) for place, each in enumerate(self.generators) if each.num_pending]
        heapq.heapify(upcoming)
        complete = False
        while not complete:
            # Whatever ends before the first that has arrived must arrive first.
            while upcoming and not (self._arrived and self._arrived[0][0] <= upcoming[0][0]):
                _, place = heapq.heappop(upcoming)
                generator = self.generators[place]
                self._arrive(generator.advance())
                if generator.num_pending:
                    heapq.heappush(upcoming, (generator.next_end_s(), place))
            ends_s, _, completion = heapq.heappop(self._arrived)
            self._clock.now_s = max(self._clock.now_s, ends_s)
            completions.append(completion)
            complete = self._is_last(completion)
        while self._arrived and self._arrived[0][0] <= self._clock.now_s:
            completions.append(heapq.heappop(self._arrived)[2])
            self._is_last(completions[-1])
        self._seen_s = self._clock.now_s
        return completions

    def push_weights(self, weights: Mapping[str, Any], version: int) -> None:
        self._catch_up()
        self._clock.now_s += self._durations.push_s
        self.version = version
        # On one device the loop's wait is part of the copy.
        copy_s = self._durations.copy_s - (0.0 if self._apart else self._durations.push_s)
        for generator in self.generators:
            generator.version = version
            generator.pause(max(copy_s, 0.0))

    def close(self) -> None: ...

    def _is_last(self, completion: Completion) -> bool:
        group = completion.request.group
        self._missing[group] -= 1
        if self._missing[group]:
            return False
        del self._missing[group]
        return True

    def _catch_up(self) -> None:
        now_s = self._clock.now_s
        for generator in self.generators:
            if not self._apart:
                # It waited for the learner: what it had begun, such as reading a prompt, is still to be done.
                generator.time_s += now_s - self._seen_s
            elif generator.time_s < now_s:
                self._arrive(generator.advance(now_s))
                generator.time_s = max(generator.time_s, now_s)
        self._seen_s = now_s

    def _arrive(self, ended: Iterator[tuple[float, Completion]]) -> None:
        for ends_s, completion in ended:
            heapq.heappush(self._arrived, (ends_s, self._order, completion))
            self._order += 1


class _Learner:
    def __init__(self, clock: Clock, durations: Durations) -> None:
        self._clock, self._durations = clock, durations
        self.version, self.busy_s, self.num_tokens = 0, 0.0, 0

    def step(self, batch: Batch) -> Mapping[str, float]:
        tokens = sum(each.request.length.answer_budget for group in batch.groups for each in group.completions)
        seconds = self._durations.step_s(self.version, tokens)
        self._clock.now_s += seconds
        self.busy_s += seconds
        self.num_tokens += tokens
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


def simulate(
    regime: Regime,
    durations: Durations,
    num_tokens: Callable[[int, int], int],
    *,
    steps: int,
    num_generators: int = 1,
    chunk: int = 1,
    apart: bool = True,
) -> Simulated:
    """Simulate `steps` steps; a completion has `num_tokens(learner version at submission, its seed)` tokens."""
    clock = Clock()
    learner = _Learner(clock, durations)
    fleet = VirtualFleet(
        clock,
        durations,
        num=num_generators,
        slots=regime.slots,
        chunk=chunk,
        size=regime.completions_per_group,
        apart=apart,
    )

    pipeline = Pipeline(
        engine=fleet,
        curriculum=Curriculum(_problem_ids(regime), seed=0, retires=uniform),
        learner=learner,
        make_requests=lambda issued: _requests(issued, regime, lambda seed: num_tokens(learner.version, seed)),
        grading=_AtOnce(),
        groups_per_batch=regime.groups_per_batch,
        max_lag=regime.max_lag,
        push_every=regime.push_every,
        drain=regime.drain,
        clock=clock,
    )
    ends_s: list[float] = []
    lags: Counter[int] = Counter()
    before = np.zeros(4)
    num_skipped = steps // 4 // regime.push_every * regime.push_every
    for done in islice(pipeline.steps(), steps):
        ends_s.append(clock.now_s)
        lags.update(done.batch.lags)
        if len(ends_s) == num_skipped:
            before = _spent(clock, fleet, learner)
    time_s, generators_s, slots_s, learner_s = _spent(clock, fleet, learner) - before
    return Simulated(
        ends_s=tuple(ends_s),
        num_skipped=num_skipped,
        generator_idle=max(0.0, 1 - generators_s / (time_s * num_generators)),
        learner_idle=max(0.0, 1 - learner_s / time_s),
        slots_used=slots_s / (time_s * num_generators * regime.slots),
        num_chunks=sum(generator.num_chunks for generator in fleet.generators),
        num_tokens=learner.num_tokens,
        lags=dict(sorted(lags.items())),
    )


def _requests(issued: Issued, regime: Regime, num_tokens: Callable[[int], int]) -> list[Request]:
    seeds = [derive_seed("replay", issued.key, index) for index in range(regime.completions_per_group)]
    return [
        Request(
            group=issued.key,
            index=index,
            problem=_PROBLEM,
            prompt_tokens=(1,),
            seed=seed,
            length=LengthPlan(answer_budget=num_tokens(seed)),
        )
        for index, seed in enumerate(seeds)
    ]


def _spent(clock: Clock, fleet: VirtualFleet, learner: _Learner) -> Any:
    """Return the seconds so far: of the clock, of working generators, of used slots and of the learner."""
    busy_s = sum(generator.busy_s for generator in fleet.generators)
    slots_s = sum(generator.slot_s for generator in fleet.generators)
    return np.array([clock.now_s, busy_s, slots_s, learner.busy_s])


def _problem_ids(regime: Regime) -> list[str]:
    """Return ids of more problems than can be untrained at once, so that the loop never waits for one."""
    return [str(number) for number in range(max(_NUM_PROBLEMS, 2 * (regime.max_lag + 1) * regime.groups_per_batch))]
