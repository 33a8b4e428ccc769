"""An engine without a model: tokens from the request's seed, latencies as programmed, no clock and no torch needed."""

from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from scalerl.errors import EngineError
from scalerl.rollout.noise import uniforms
from scalerl.rollout.progress import Progress
from scalerl.rollout.requests import check_request
from scalerl.types import Completion, Finish, Request, Work


@dataclass
class _Running:
    request: Request
    tokens: list[int]
    forced: list[bool]
    finish: Finish
    polls: int
    """In how many polls it is done."""
    age: int = 0
    versions: list[int] = field(default_factory=list)


class FakeEngine:
    """Completions take `polls(request)` polls, sampling evenly from the first of them on.

    `slots` bounds how many run at once (None: all), `fail_at_poll` makes that poll (from 0) and all later ones fail,
    `hang` makes every poll return nothing. What it was told is on record: `submitted`, `pushed`, `num_polls`, `closed`.
    """

    def __init__(
        self,
        *,
        polls: Callable[[Request], int] = lambda request: 1,
        slots: int | None = None,
        max_length: int = 10_000,
        vocabulary: int = 64,
        stop_tokens: Collection[int] = (),
        version: int = 0,
        fail_at_poll: int | None = None,
        hang: bool = False,
    ) -> None:
        if slots is not None and slots < 1:
            raise ValueError(f"an engine needs at least 1 slot, got {slots}")
        self._polls, self._slots, self._max_length = polls, slots, max_length
        self._vocabulary, self._stop_tokens = vocabulary, stop_tokens
        self._fail_at_poll, self._hang = fail_at_poll, hang
        self._waiting: deque[Request] = deque()
        self._running: list[_Running] = []
        self.version, self.work, self.closed = version, Work(), False
        self.submitted: list[Request] = []
        self.pushed: list[int] = []
        self.num_polls = 0

    @property
    def num_pending(self) -> int:
        return len(self._waiting) + len(self._running)

    def submit(self, requests: Sequence[Request]) -> None:
        self._require_life()
        for request in requests:
            check_request(request, max_length=self._max_length, vocabulary=self._vocabulary)
        self._waiting.extend(requests)
        self.submitted.extend(requests)

    def poll(self) -> list[Completion]:
        self._require_life()
        if self._fail_at_poll is not None and self.num_polls >= self._fail_at_poll:
            raise EngineError(f"the fake engine was told to fail at poll {self._fail_at_poll}")
        self.num_polls += 1
        if self._hang:
            return []
        while self._waiting and (self._slots is None or len(self._running) < self._slots):
            self._running.append(self._start(self._waiting.popleft()))
        for entry in self._running:
            self._advance(entry)
        finished = [entry for entry in self._running if len(entry.versions) == len(entry.tokens)]
        self._running = [entry for entry in self._running if len(entry.versions) < len(entry.tokens)]
        return [self._completion(entry) for entry in finished]

    def push_weights(self, weights: Mapping[str, Any], version: int) -> None:
        self._require_life()
        if version < self.version:
            raise ValueError(f"versions only rise: {version} was pushed after {self.version}")
        self.version = version
        self.pushed.append(version)

    def close(self) -> None:
        self.closed = True
        self._waiting.clear()
        self._running.clear()

    def _require_life(self) -> None:
        if self.closed:
            raise EngineError("the engine is closed")

    def _start(self, request: Request) -> _Running:
        """The whole completion at once; only its versions wait for the polls to come."""
        progress = Progress(1, self._stop_tokens)
        progress.start([0], [request.length])
        noise = uniforms(np.array([request.seed], dtype=np.uint64), np.arange(request.length.max_tokens))
        tokens, forced, stopped = [], [], False
        for sampled in (noise * self._vocabulary).astype(np.int64).tolist():
            marker = int(progress.forced(1)[0, 0])
            token = marker if marker >= 0 else 0 if request.temperature == 0 else sampled
            taken = progress.take(np.array([[token]]))
            tokens.append(token)
            forced.append(bool(taken.forced[0, 0]))
            stopped = bool(taken.stopped[0])
            if taken.finished[0]:
                break
        prompt = len(request.prompt_tokens)
        self._add_work(prefilled=prompt - 1, attended=prompt * (prompt - 1) // 2)
        return _Running(request, tokens, forced, "stop" if stopped else "length", max(1, self._polls(request)))

    def _advance(self, entry: _Running) -> None:
        entry.age += 1
        due = -(-len(entry.tokens) * entry.age // entry.polls)
        # The last token waits for the last poll, however few tokens there are.
        due = min(due, len(entry.tokens) - (entry.age < entry.polls))
        new = max(0, due - len(entry.versions))
        first = len(entry.request.prompt_tokens) + len(entry.versions)
        entry.versions.extend([self.version] * new)
        self._add_work(decoded=new, attended=sum(range(first, first + new)))

    def _completion(self, entry: _Running) -> Completion:
        forced = np.array(entry.forced)
        return Completion(
            request=entry.request,
            tokens=np.array(entry.tokens),
            log_probs=np.where(forced, 0.0, -np.log(self._vocabulary)),
            versions=np.array(entry.versions),
            forced=forced,
            finish=entry.finish,
            interrupted_at=int(forced.argmax()) if forced.any() else None,
        )

    def _add_work(self, *, prefilled: int = 0, decoded: int = 0, attended: int = 0) -> None:
        self.work = Work(
            prefilled=self.work.prefilled + prefilled,
            decoded=self.work.decoded + decoded,
            attended=self.work.attended + attended,
        )
