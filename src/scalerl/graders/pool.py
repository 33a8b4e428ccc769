"""Graders in child processes with limits: they may hang, crash, use much memory or wait for an answer.

pool = GraderPool()
pool.check(GraderSpec(name="math"))                    # raises GraderError if it cannot be used
pool.submit(key, GraderSpec(name="math"), text, answer)
for graded in pool.poll(): ...                         # Graded(key, value, reason), in any order

A bad item affects only itself: it ends without a verdict, with a reason, and the items behind it go to another worker.
"""

import dataclasses
import math
import pickle
from collections import Counter
from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Self, get_args

from scalerl.errors import GraderError, GraderPoolError
from scalerl.graders.children import Children
from scalerl.graders.supervisor import Limits, Reply
from scalerl.graders.values import Score, read_score
from scalerl.graders.workers import Reason

_LOAD_TIMEOUT_S = 120.0
"""For importing a grader and its packages on a busy machine."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GraderSpec:
    """A grader and its settings."""

    name: str
    """A name in GRADERS, or "package.module:function" with the same signature, imported in the child processes."""
    settings: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Item:
    """A completion to grade."""

    key: Hashable
    spec: GraderSpec
    text: str
    answer: str


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
        """Start them; `limits` are the fields of supervisor.Limits."""
        self._limits = Limits(**limits)
        self.num_ended: Counter[str] = Counter()
        """How many items ended how: right, wrong, partly, or a reason."""
        self.first_errors: dict[str, str] = {}
        """The first exception of each grader that raised on an item."""
        self._specs: list[GraderSpec] = []
        self._pending: dict[int, tuple[Hashable, GraderSpec]] = {}
        self._children = Children("the grading process", "scalerl.graders.workers:Grading", limits=self._limits)

    @property
    def pid(self) -> int:
        """Process id of the supervisor; also the session id of all processes of the pool."""
        return self._children.pid

    @property
    def num_pending(self) -> int:
        """Items submitted and not yet returned by poll()."""
        return len(self._pending)

    def check(self, spec: GraderSpec) -> int:
        """Load a grader in the child processes, once; GraderError says why it cannot be used."""
        if spec in self._specs:
            return self._specs.index(spec)
        number = len(self._specs)
        try:
            pickle.dumps(spec.settings)
        except Exception as error:
            raise GraderError(f'the settings of "{spec.name}" cannot be sent to another process: {error}') from None
        try:
            reason = self._children.load(number, spec.name, dict(spec.settings), timeout_s=_LOAD_TIMEOUT_S)
        except GraderPoolError as error:
            raise GraderError(f'"{spec.name}" cannot be loaded: {error}') from None
        if reason is None:
            self.close()
            raise GraderError(f'"{spec.name}" cannot be loaded: its import took over {_LOAD_TIMEOUT_S:.0f} s')
        if reason:
            raise GraderError(reason)
        self._specs.append(spec)
        return number

    def submit(self, key: Hashable, spec: GraderSpec, text: str, answer: str) -> None:
        """Have an item graded; the result comes by poll() under its key."""
        number = self._children.give((self.check(spec), text, answer), self._limits.timeout_s)
        self._pending[number] = (key, spec)

    def poll(self, timeout: float = 0.0) -> list[Graded]:
        """Return what was graded since the last call; with a timeout, wait up to that long for at least one."""
        graded = []
        for number, reply in self._children.poll(timeout if self._pending else 0.0):
            key, spec = self._pending.pop(number)
            result = _read(key, reply)
            ending = "right" if result.value == 1 else "wrong" if result.value == 0 else "partly"
            self.num_ended[result.reason or ending] += 1
            graded.append(result)
            if result.reason == "error":
                self.first_errors.setdefault(spec.name, str(reply.get("error")))
        return graded

    def grade_all(self, items: Iterable[Item]) -> list[Graded]:
        """Grade these items and return the results in their order. Nothing else may be pending."""
        assert not self.num_pending
        keys = []
        for item in items:
            self.submit(len(keys), item.spec, item.text, item.answer)
            keys.append(item.key)
        graded: dict[Hashable, Graded] = {}
        while len(graded) < len(keys):
            graded |= {result.key: result for result in self.poll(math.inf)}
        return [dataclasses.replace(graded[index], key=key) for index, key in enumerate(keys)]

    def close(self) -> None:
        """End all child processes; pending items are dropped."""
        self._children.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _read(key: Hashable, reply: Reply) -> Graded:
    """Return what a process replied; what is neither a verdict nor a reason, as a grader may forge it, is a crash."""
    try:
        score, reason = (
            read_score(Score(value=reply.get("value"), outcome=reply.get("outcome", ""))),
            reply.get("reason"),
        )
        if (reason is None) != (score.value is None) and reason in (None, *get_args(Reason)):
            return Graded(key=key, value=score.value, reason=reason, outcome=score.outcome)
    except TypeError:
        pass
    return Graded(key=key, value=None, reason="crash")
