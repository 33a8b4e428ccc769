"""Decide which problem is asked next, and record that every group is trained on exactly once.

    next() -> issued -> graded(...) -> trained(...)

A group is in flight until it is graded, and untrained until a step has used it. After a restore, groups in flight are
issued again first, under the same keys; the trainer keeps groups that are graded but untrained (it has their tokens).
Plain Python without a clock: results depend only on the seed and the order of the calls.
"""

import hashlib
import random
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, NamedTuple, Self

from scalerl.types import derive_seed, group_key


class PassRecord(NamedTuple):
    """How often a problem was solved, over completions with a verdict, before any filter."""

    latest_correct: int = 0
    latest_graded: int = 0
    total_correct: int = 0
    total_graded: int = 0

    def with_group(self, num_correct: int, num_graded: int) -> "PassRecord":
        """Return the record with a group added; a group without any verdict changes nothing."""
        if num_graded == 0:
            return self
        return PassRecord(
            latest_correct=num_correct,
            latest_graded=num_graded,
            total_correct=self.total_correct + num_correct,
            total_graded=self.total_graded + num_graded,
        )


class Issued(NamedTuple):
    """A problem to ask now; `key` names the group of its completions."""

    epoch: int
    problem_id: str

    @property
    def key(self) -> str:
        return group_key(self.epoch, self.problem_id)


Retires = Callable[[PassRecord], bool]
"""Whether a problem with this record is not asked again in later epochs."""


def no_positive_resampling(
    record: PassRecord, /, *, threshold: float, history: Literal["latest", "cumulative"]
) -> bool:
    """Retire a problem at a pass rate >= threshold (0.9 in arXiv 2510.13786, section 4).

    The paper does not say how its history is aggregated: "latest" reads the last group, "cumulative" all of them.
    """
    latest = history == "latest"
    num_correct = record.latest_correct if latest else record.total_correct
    num_graded = record.latest_graded if latest else record.total_graded
    return num_graded > 0 and num_correct / num_graded >= threshold


def uniform(record: PassRecord, /) -> bool:
    """Never retire a problem: ask every problem in every epoch."""
    return False


class Curriculum:
    """Issues every remaining problem exactly once per epoch, in an order drawn from (seed, epoch).

    The next epoch begins as soon as the last problem of this one is issued, but a problem waits in it until its
    previous group is graded, since only then it is known whether the problem is retired.
    """

    def __init__(self, problem_ids: Sequence[str], *, seed: int, retires: Retires) -> None:
        if not problem_ids:
            raise ValueError("a curriculum needs at least one problem")
        # Sorted: the order of an epoch must not depend on the order of a file.
        self._problem_ids = sorted(problem_ids)
        for left, right in zip(self._problem_ids, self._problem_ids[1:], strict=False):
            if left == right:
                raise ValueError(f"two problems have the id {left!r}; ids must be unique")
        self._seed = seed
        self._retires = retires
        self._records: dict[str, PassRecord] = {}
        self._retired: set[str] = set()
        self._in_flight: dict[str, Issued] = {}
        self._busy: set[str] = set()
        self._untrained: dict[str, Issued] = {}
        self._reissue: dict[str, Issued] = {}
        self._num_trained = 0
        self._epoch = 0
        self._pending = self._shuffled(0)

    def next(self) -> Issued | None:
        """Return the next problem to ask. None means to wait for a grade, or to stop if `exhausted`."""
        if self._reissue:
            return self._reissue.pop(next(iter(self._reissue)))
        if not self._pending and not self.exhausted:
            self._epoch += 1
            self._pending = self._shuffled(self._epoch)
        # Pending is stored in reverse, so that removing its first problem is cheap.
        for place in range(len(self._pending) - 1, -1, -1):
            problem_id = self._pending[place]
            if problem_id not in self._busy:
                del self._pending[place]
                issued = Issued(problem_id=problem_id, epoch=self._epoch)
                self._in_flight[issued.key] = issued
                self._busy.add(problem_id)
                return issued
        return None

    def graded(self, key: str, *, num_correct: int, num_graded: int, num_asked: int | None = None) -> None:
        """Record a group's verdicts; call it at grading, before any filter.

        With `num_asked`, the number of completions of the group, a group with verdicts on fewer than half of them is
        not recorded: one correct verdict of 16 must not retire a problem. Without it, every group with a verdict
        counts.
        """
        if key not in self._in_flight or key in self._reissue:
            raise ValueError(f"group {key!r} is graded but not in flight: it was never issued, or was already graded")
        if not 0 <= num_correct <= num_graded <= (num_graded if num_asked is None else num_asked):
            asked = "" if num_asked is None else f" of {num_asked} asked"
            raise ValueError(f"group {key!r}: {num_correct} correct of {num_graded} graded{asked} cannot be")
        issued = self._in_flight.pop(key)
        self._busy.discard(issued.problem_id)
        self._untrained[key] = issued
        record = self._records.get(issued.problem_id, PassRecord())
        if 2 * num_graded >= (num_asked or 0):
            record = record.with_group(num_correct, num_graded)
        self._records[issued.problem_id] = record
        if self._retires(record):
            self._retired.add(issued.problem_id)
            # The next epoch may have begun before this grade, with the problem pending in it.
            if issued.epoch < self._epoch and issued.problem_id in self._pending:
                self._pending.remove(issued.problem_id)

    def trained(self, key: str) -> None:
        """Record that a step used this group, even if a filter dropped all of it."""
        if key not in self._untrained:
            raise ValueError(f"group {key!r} is trained but not waiting: it was never graded, or was already trained")
        del self._untrained[key]
        self._num_trained += 1

    @property
    def exhausted(self) -> bool:
        """Whether no problem is left to ask, now or later; the run then ends as done, "data exhausted"."""
        return len(self._retired) == len(self._problem_ids)

    @property
    def epoch(self) -> int:
        return self._epoch

    @property
    def in_flight(self) -> tuple[Issued, ...]:
        """Groups issued and not graded yet, oldest first."""
        return tuple(self._in_flight.values())

    @property
    def untrained(self) -> tuple[Issued, ...]:
        """Groups graded and not used by a step yet, in the order of grading."""
        return tuple(self._untrained.values())

    @property
    def num_trained(self) -> int:
        return self._num_trained

    @property
    def num_retired(self) -> int:
        return len(self._retired)

    @property
    def metrics(self) -> dict[str, float]:
        """Columns of a step's row: the share of problems that will not be asked again."""
        return {"curriculum/retired_frac": len(self._retired) / len(self._problem_ids)}

    def state_dict(self) -> dict[str, Any]:
        """Return everything a resumed run needs, in JSON types."""
        return {
            "problems": self._digest(),
            "seed": self._seed,
            "epoch": self._epoch,
            "pending": list(self._pending),
            "in_flight": list(map(list, self._in_flight.values())),
            "untrained": list(map(list, self._untrained.values())),
            "num_trained": self._num_trained,
            "retired": sorted(self._retired),
            "records": {problem_id: list(record) for problem_id, record in self._records.items()},
        }

    @classmethod
    def restore(cls, state: Mapping[str, Any], problem_ids: Sequence[str], *, retires: Retires) -> Self:
        """Return a curriculum in the given state; groups in flight are issued again first."""
        curriculum = cls(problem_ids, seed=state["seed"], retires=retires)
        if state["problems"] != curriculum._digest():
            raise ValueError(
                "the checkpoint was made with other problems than these; resume with the same task settings"
            )
        curriculum._epoch = state["epoch"]
        curriculum._pending = list(state["pending"])
        curriculum._in_flight = {issued.key: issued for issued in map(Issued._make, state["in_flight"])}
        curriculum._busy = {issued.problem_id for issued in curriculum._in_flight.values()}
        curriculum._reissue = dict(curriculum._in_flight)
        curriculum._untrained = {issued.key: issued for issued in map(Issued._make, state["untrained"])}
        curriculum._num_trained = state["num_trained"]
        curriculum._retired = set(state["retired"])
        curriculum._records = {problem_id: PassRecord(*numbers) for problem_id, numbers in state["records"].items()}
        return curriculum

    def _shuffled(self, epoch: int) -> list[str]:
        # Shuffled before retired problems are removed, so that two runs differ only by what they retired.
        order = list(self._problem_ids)
        random.Random(derive_seed("epoch order", self._seed, epoch)).shuffle(order)
        return [problem_id for problem_id in reversed(order) if problem_id not in self._retired]

    def _digest(self) -> str:
        return hashlib.sha256("\n".join(self._problem_ids).encode()).hexdigest()[:16]


CURRICULA: Mapping[str, Callable[..., bool]] = {"no_positive_resampling": no_positive_resampling, "uniform": uniform}
