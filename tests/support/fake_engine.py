"""An engine without a model: tokens from the request's seed, latencies as programmed. It needs no clock and no torch.

It satisfies the Engine protocol and the contract tests, so a loop, a fleet or a cluster can be tested in milliseconds.
"""

import random
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scalerl.errors import EngineError
from scalerl.training.rollout.noise import uniforms
from scalerl.training.rollout.progress import SlotProgress
from scalerl.training.rollout.requests import check_requests
from scalerl.training.types import Completion, Finish, Request, Work, derive_seed


def random_polls(request: Request) -> int:
    """Return 1 to 4 polls, or 50 times as many for one request in eight; keyed by the request's seed."""
    polls = 1 + derive_seed("length", request.seed) % 4
    return polls * (50 if derive_seed("straggler", request.seed) % 8 == 0 else 1)


@dataclass(slots=True)
class _Running:
    request: Request
    tokens: NDArray[np.int64]
    forced: NDArray[np.bool_]
    finish: Finish
    num_polls: int
    """Polls until it is finished, counted from the poll that starts it."""
    age: int = 0
    versions: list[int] = field(default_factory=list)


class FakeEngine:
    """Sample uniformly distributed tokens; a completion is spread evenly over `polls(request)` polls.

    `slots` limits how many requests run at once (None: no limit). `seed` draws the order in which waiting requests
    start and finished ones are returned (None: order of submission). The poll with index `fail_at_poll` and all later
    ones raise `failure`. `submitted`, `pushed`, `num_polls` and `closed` record how the engine was used.
    """

    def __init__(
        self,
        *,
        polls: Callable[[Request], int] = random_polls,
        slots: int | None = None,
        seed: int | None = None,
        max_length: int = 10_000,
        vocabulary: int = 64,
        stop_tokens: Collection[int] = (),
        version: int = 0,
        fail_at_poll: int | None = None,
        failure: BaseException | None = None,
    ) -> None:
        if slots is not None and slots < 1:
            raise ValueError(f"an engine needs at least 1 slot, got {slots}")
        self._polls = polls
        self._slots = slots
        self._random = None if seed is None else random.Random(seed)
        self._max_length = max_length
        self._vocabulary = vocabulary
        self._stop_tokens = stop_tokens
        self._fail_at_poll = fail_at_poll
        self._failure = failure
        self._waiting: list[Request] = []
        self._running: list[_Running] = []
        self._is_paused, self._work = False, {False: Work(), True: Work()}
        self.version = version
        self.closed = False
        self.submitted: list[Request] = []
        self.pushed: list[int] = []
        self.num_polls = 0

    @property
    def num_pending(self) -> int:
        return len(self._waiting) + len(self._running)

    @property
    def work(self) -> Work:
        return self._work[False]

    @property
    def eval_work(self) -> Work:
        return self._work[True]

    def submit(self, requests: Sequence[Request]) -> None:
        self._require_open()
        check_requests(requests, max_length=self._max_length, vocabulary=self._vocabulary)
        self._waiting.extend(requests)
        self.submitted.extend(requests)

    def poll(self) -> list[Completion]:
        self._require_open()
        if self._failure is not None and self.num_polls >= (self._fail_at_poll or 0):
            raise self._failure
        self.num_polls += 1
        while self._waiting and (self._slots is None or len(self._running) < self._slots):
            next_index = 0 if self._random is None else self._random.randrange(len(self._waiting))
            self._running.append(self._start(self._waiting.pop(next_index)))
        for entry in self._running:
            self._advance(entry)
        finished = [entry for entry in self._running if entry.age == entry.num_polls]
        self._running = [entry for entry in self._running if entry.age < entry.num_polls]
        if self._random is not None:
            self._random.shuffle(finished)
        return [self._completion(entry) for entry in finished]

    def push_weights(self, weights: Mapping[str, Any], version: int) -> None:
        self._require_open()
        if version < self.version:
            raise ValueError(f"versions must rise: {version} was pushed after {self.version}")
        self.version = version
        self.pushed.append(version)

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Put all requests aside; within this only those submitted inside are served."""
        self._require_open()
        held, self._waiting, self._running, self._is_paused = (self._waiting, self._running), [], [], True
        try:
            yield
        finally:
            self._waiting, self._running, self._is_paused = *held, False

    def close(self) -> None:
        self.closed = True
        self._waiting.clear()
        self._running.clear()

    def _require_open(self) -> None:
        if self.closed:
            raise EngineError("the engine is closed")

    def _start(self, request: Request) -> _Running:
        """Sample the whole completion at once; only its versions depend on the polls to come."""
        noise = uniforms(np.array([request.seed], dtype=np.uint64), np.arange(request.length.max_tokens))
        sampled = (noise * self._vocabulary * (request.temperature > 0)).astype(np.int64)
        # Most requests of a simulation have the simplest plan, and SlotProgress takes ten times as long.
        is_plain = request.length.thinking_budget is None and not self._stop_tokens
        if is_plain:
            tokens, forced, finish = sampled, np.zeros(len(sampled), dtype=np.bool_), "length"
        else:
            tokens, forced, finish = self._follow_plan(request, sampled)
        prompt = len(request.prompt_tokens)
        self._work[self._is_paused] += Work(prefilled=prompt - 1, attended=prompt * (prompt - 1) // 2)
        return _Running(request, tokens, forced, finish, num_polls=max(1, self._polls(request)))

    def _follow_plan(
        self, request: Request, sampled: NDArray[np.int64]
    ) -> tuple[NDArray[np.int64], NDArray[np.bool_], Finish]:
        """Return the tokens that the length plan and the stop tokens leave, which are forced, and why they end."""
        progress = SlotProgress(1, self._stop_tokens)
        progress.start([0], [request.length])
        tokens, forced, stopped = [], [], False
        # One pass, or two where thinking ends by itself before its budget and the rest is sampled again.
        while progress.active[0]:
            rest = sampled[int(progress.count[0]) :]
            marker = progress.forced(len(rest))[:, 0]
            chunk = np.where(marker >= 0, marker, rest)
            result = progress.apply(chunk[:, None])
            num_kept = int(result.num_kept[0])
            tokens.append(chunk[:num_kept])
            forced.append(result.forced[:num_kept, 0])
            stopped = bool(result.stopped[0])
        return np.concatenate(tokens), np.concatenate(forced), "stop" if stopped else "length"

    def _advance(self, entry: _Running) -> None:
        entry.age += 1
        num_tokens, num_sampled = len(entry.tokens), len(entry.versions)
        due = -(-num_tokens * entry.age // entry.num_polls)
        # The last token waits for the last poll, however few tokens there are.
        due = min(due, num_tokens - (entry.age < entry.num_polls))
        num_new = max(0, due - num_sampled)
        entry.versions.extend([self.version] * num_new)
        context = len(entry.request.prompt_tokens) + num_sampled
        attended = num_new * context + num_new * (num_new - 1) // 2
        self._work[self._is_paused] += Work(decoded=num_new, attended=attended)

    def _completion(self, entry: _Running) -> Completion:
        return Completion(
            request=entry.request,
            tokens=entry.tokens.astype(np.int32),
            log_probs=np.where(entry.forced, 0.0, -np.log(self._vocabulary)).astype(np.float32),
            versions=np.array(entry.versions, dtype=np.int32),
            forced=entry.forced,
            finish=entry.finish,
            interrupted_at=int(entry.forced.argmax()) if entry.forced.any() else None,
        )
