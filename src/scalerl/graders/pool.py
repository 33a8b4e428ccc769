"""Graders in child processes with limits: they may hang, crash, use much memory or wait for an answer.

pool = GraderPool()
pool.check(GraderSpec(name="math"))                    # raises GraderError if it cannot be used
pool.submit(key, GraderSpec(name="math"), text, answer)
for graded in pool.poll(): ...                         # Graded(key, value, reason), in any order

A bad item affects only itself: it ends without a verdict, with a reason, and the items behind it go to another worker.
Every grader has processes of its own.
"""

import math
import time
from collections.abc import Hashable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Self

from scalerl.errors import GraderError, GraderPoolError
from scalerl.graders.children import Children
from scalerl.graders.supervisor import Limits, Reason, Reply
from scalerl.graders.values import Score, read_score

_TURN_S = 0.02
"""How long one of several graders is waited for before the next."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GraderSpec:
    """A grader and its settings."""

    name: str
    """A name in GRADERS, or "package.module:function" with the same signature, imported in the child processes."""
    settings: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Graded:
    """The result of grading an item."""

    key: Hashable
    value: float | None
    """From 0 (wrong) to 1 (right); None where there is no verdict."""
    reason: Reason | None = None
    """Why there is no verdict; None if there is one."""
    outcome: str = ""
    """The name that the grader gave to what it saw, if any."""


class GraderPool:
    """Grades items in child processes. Use a pool from one thread only."""

    def __init__(self, **limits: Any) -> None:
        """`limits` are the fields of supervisor.Limits."""
        self._limits = Limits(**limits)
        self.first_errors: dict[str, str] = {}
        """The first exception of each grader that raised on an item."""
        self._graders: list[tuple[GraderSpec, Children]] = []

    @property
    def pids(self) -> tuple[int, ...]:
        """Process ids of the graders' supervisors; also the session ids of all processes."""
        return tuple(children.pid for _, children in self._graders)

    @property
    def num_pending(self) -> int:
        """Items submitted and not yet returned by poll()."""
        return sum(children.num_pending for _, children in self._graders)

    def check(self, spec: GraderSpec) -> None:
        """Load a grader in child processes, once; GraderError says why it cannot be used."""
        self._children(spec)

    def submit(self, key: Hashable, spec: GraderSpec, text: str, answer: str) -> None:
        """Have an item graded; the result comes by poll() under its key."""
        self._children(spec).give(key, (text, answer))

    def poll(self, timeout: float = 0.0) -> list[Graded]:
        """Return what was graded since the last call; with a timeout, wait up to that long for at least one."""
        graded, deadline = [], time.monotonic() + timeout
        # All of them, so that one that has died is noticed.
        while not graded:
            busy = sum(bool(children.num_pending) for _, children in self._graders)
            for spec, children in self._graders:
                wait_s = deadline - time.monotonic() if children.num_pending and not graded else 0.0
                replies = children.poll(min(wait_s, math.inf if busy == 1 else _TURN_S))
                graded += [self._read(spec.name, key, reply) for key, reply in replies]
            if not busy or time.monotonic() >= deadline:
                break
        return graded

    def grade_all(self, spec: GraderSpec, pairs: Sequence[tuple[str, str]]) -> list[Graded]:
        """Grade texts with their references and return the results in their order. Nothing else may be pending."""
        assert not self.num_pending
        for number, (text, answer) in enumerate(pairs):
            self.submit(number, spec, text, answer)
        graded: dict[Hashable, Graded] = {}
        while len(graded) < len(pairs):
            graded |= {result.key: result for result in self.poll(math.inf)}
        return [graded[number] for number in range(len(pairs))]

    def close(self) -> None:
        """End all child processes; pending items are dropped."""
        for _, children in self._graders:
            children.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _children(self, spec: GraderSpec) -> Children:
        for known, children in self._graders:
            if known == spec:
                return children
        name, work = f'the process of the grader "{spec.name}"', "scalerl.graders.workers:Grading"
        try:
            children = Children(name, work, spec.name, dict(spec.settings), limits=self._limits)
        except GraderPoolError as error:
            raise GraderError(f'"{spec.name}" cannot be loaded: {error}') from None
        self._graders.append((spec, children))
        return children

    def _read(self, name: str, key: Hashable, reply: Reply) -> Graded:
        """Return what a process replied; what is no verdict without a reason, as a grader may forge it, is a crash."""
        reason, score = reply.get("reason"), Score(value=None)
        with suppress(TypeError):
            score = read_score(Score(value=reply.get("value"), outcome=reply.get("outcome", "")))
        if (reason is None) == (score.value is None):
            score, reason = Score(value=None), "crash"
        if reason == "error":
            self.first_errors.setdefault(name, str(reply.get("error")))
        return Graded(key=key, value=score.value, reason=reason, outcome=score.outcome)
