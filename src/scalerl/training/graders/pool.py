"""Graders in child processes with limits: they may hang, crash, use much memory or wait for an answer.

pool = GraderPool()
pool.check(GraderSpec(name="math"))                    # raises GraderError if it cannot be used
pool.submit(key, GraderSpec(name="math"), text, answer)
for graded in pool.poll(): ...                         # Graded(key, value, reason), in any order

If grading an item fails, it gets a reason instead of a verdict, and the next items go to another worker. Every grader
has its own processes.
"""

import math
import time
from collections.abc import Hashable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Self

from scalerl.errors import GraderError, GraderPoolError
from scalerl.training.graders.children import Children
from scalerl.training.graders.supervisor import ForkLimits, Reason, Reply
from scalerl.training.graders.values import Score, read_score
from scalerl.training.graders.workers import TextGrading

_TURN_S = 0.02
"""Time to wait for one of several graders before the next one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GraderSpec:
    """A grader and its settings."""

    name: str
    """A name in GRADERS, or "package.module:function" with the same signature, imported in the child processes."""
    settings: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Graded(Score):
    """The result of grading an item: its score, or the reason why there is none."""

    key: Hashable
    reason: Reason | None = None


class GraderPool:
    """Grades items in child processes. Use a pool from one thread only."""

    def __init__(self, **limits: Any) -> None:
        """`limits` are fields of supervisor.ForkLimits."""
        self._limits = ForkLimits(**limits)
        self.first_errors: dict[str, str] = {}
        """The first exception of each grader that raised one."""
        self._graders: list[tuple[GraderSpec, Children]] = []

    @property
    def pids(self) -> tuple[int, ...]:
        """Process ids of the graders' supervisors; also the session ids of all processes."""
        return tuple(children.pid for _, children in self._graders)

    @property
    def num_pending(self) -> int:
        """Number of submitted items that poll() has not returned yet."""
        return sum(children.num_pending for _, children in self._graders)

    def check(self, spec: GraderSpec) -> Children:
        """Load a grader in child processes, once, and return these; GraderError if it is unusable."""
        for known, children in self._graders:
            if known == spec:
                return children
        name = f'the process of the grader "{spec.name}"'
        try:
            children = Children(name, TextGrading, spec.name, dict(spec.settings), limits=self._limits)
        except GraderPoolError as error:
            raise GraderError(f'"{spec.name}" cannot be loaded: {error}') from None
        self._graders.append((spec, children))
        return children

    def submit(self, key: Hashable, spec: GraderSpec, text: str, answer: str) -> None:
        """Submit an item; poll() returns the result with its key."""
        self.check(spec).give(key, (text, answer))

    def poll(self, timeout: float = 0.0) -> list[Graded]:
        """Return the results since the last call; wait up to `timeout` seconds for at least one."""
        graded: list[Graded] = []
        deadline = time.monotonic() + timeout
        while True:
            num_busy = sum(children.num_pending > 0 for _, children in self._graders)
            # Ask all graders, to notice one that has died; wait for several in turn.
            turn_s = math.inf if num_busy == 1 else _TURN_S
            for spec, children in self._graders:
                is_waited_for = children.num_pending > 0 and not graded
                wait_s = min(deadline - time.monotonic(), turn_s) if is_waited_for else 0.0
                for key, reply in children.poll(wait_s):
                    graded.append(self._read(spec.name, key, reply))
            if graded or num_busy == 0 or time.monotonic() >= deadline:
                return graded

    def close(self) -> None:
        """End all child processes; pending items are dropped."""
        for _, children in self._graders:
            children.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _read(self, name: str, key: Hashable, reply: Reply) -> Graded:
        """Return a process's reply; an invalid one, which a grader may forge, counts as a crash."""
        reason = reply.get("reason")
        score = Score(value=None)
        with suppress(TypeError):
            score = read_score(Score(value=reply.get("value"), outcome=reply.get("outcome", "")))
        has_both_or_neither = (reason is None) == (score.value is None)
        if has_both_or_neither:
            reason = "crash"
            score = Score(value=None)
        if reason == "error":
            self.first_errors.setdefault(name, str(reply.get("error")))
        return Graded(key=key, value=score.value, reason=reason, outcome=score.outcome)
