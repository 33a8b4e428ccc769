"""Choose the next problem, and ensure that every group is trained on exactly once.

    next() -> issued -> graded(...) -> trained(...)

A group is in flight until it is graded, and untrained until a step has used it. After a restore, groups in flight are
issued again first, with the same keys; the trainer keeps groups that are graded but untrained, with their tokens.
Plain Python without a clock: results depend only on the seed and the order of calls.
"""

import hashlib
import random
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from typing import Any, Literal, NamedTuple, Self

from scalerl.training.types import derive_seed, group_key


class PassRecord(NamedTuple):
    """How often a problem was solved, counted over completions with a verdict, before any filter."""

    latest_correct: int = 0
    latest_graded: int = 0
    total_correct: int = 0
    total_graded: int = 0

    def with_group(self, num_correct: int, num_graded: int) -> "PassRecord":
        """Return the record with a group added; a group without verdicts changes nothing."""
        if num_graded == 0:
            return self
        return PassRecord(
            latest_correct=num_correct,
            latest_graded=num_graded,
            total_correct=self.total_correct + num_correct,
            total_graded=self.total_graded + num_graded,
        )


class Issued(NamedTuple):
    """A problem to sample now; `key` is the name of the group of its completions."""

    epoch: int
    problem_id: str

    @property
    def key(self) -> str:
        return group_key(self.epoch, self.problem_id)


History = Literal["latest", "cumulative"]
"""Whether a pass rate is that of a problem's last group or of all its groups; the paper does not say."""
LeftOut = Callable[[PassRecord], float]
"""Returns the share of later epochs that leave a problem out, by its record; True for all: the problem is solved."""


def _pass_rate(record: PassRecord, history: History) -> float | None:
    """Return the pass rate of a problem; None before its first verdict."""
    latest = history == "latest"
    num_correct = record.latest_correct if latest else record.total_correct
    num_graded = record.latest_graded if latest else record.total_graded
    return num_correct / num_graded if num_graded else None


def no_positive_resampling(record: PassRecord, /, *, threshold: float, history: History) -> bool:
    """Leave a problem out once its pass rate is >= threshold (0.9 in arXiv 2510.13786, section 4)."""
    rate = _pass_rate(record, history)
    return rate is not None and rate >= threshold


def pools(
    record: PassRecord, /, *, easy: float, hard: float, easy_frac: float, hard_frac: float, history: History
) -> float:
    """Use easy and hard problems in a share of the epochs, and all others in every epoch.

    Easy means a pass rate >= easy, hard a pass rate <= hard. The epochs are drawn for each problem.
    """
    rate = _pass_rate(record, history)
    if rate is None or hard < rate < easy:
        return 0.0
    used_frac = easy_frac if rate >= easy else hard_frac
    return 1 - used_frac


def uniform(record: PassRecord, /) -> bool:
    """Use every problem in every epoch; no problem counts as solved."""
    return False


class _Epochs:
    """The problems of one task: each remaining problem once per epoch, in an order drawn from (seed, epoch)."""

    def __init__(self, problem_ids: Sequence[str], seed: int, left_out: Callable[[str], float]) -> None:
        """`left_out` returns the share of the epochs that leave a problem out."""
        if not problem_ids:
            raise ValueError("a curriculum needs at least one problem")
        # Sort them: the order of an epoch must not depend on the order of a file.
        self.problem_ids = sorted(problem_ids)
        self.seed = seed
        self._left_out = left_out
        self.solved: set[str] = set()
        self.epoch = 0
        self.pending = self._shuffled()

    @property
    def exhausted(self) -> bool:
        return len(self.solved) == len(self.problem_ids)

    def next(self, busy: Container[str]) -> Issued | None:
        """Return the next problem that is not busy."""
        while not self.pending and not self.exhausted:
            self.epoch += 1
            self.pending = self._shuffled()
        # Pending problems are stored in reverse, so that removing the first is cheap.
        for place in range(len(self.pending) - 1, -1, -1):
            if self.pending[place] not in busy:
                return Issued(problem_id=self.pending.pop(place), epoch=self.epoch)
        return None

    def graded(self, issued: Issued) -> None:
        """Update the epoch after the record of a problem has changed."""
        if self._left_out(issued.problem_id) >= 1:
            self.solved.add(issued.problem_id)
        # The next epoch may have begun before this grade, and include the problem.
        if issued.epoch < self.epoch and self._is_left_out(issued.problem_id) and issued.problem_id in self.pending:
            self.pending.remove(issued.problem_id)

    def state_dict(self) -> dict[str, Any]:
        solved = sorted(self.solved)
        return {"problems": self._digest(), "epoch": self.epoch, "pending": list(self.pending), "solved": solved}

    def restore(self, state: Mapping[str, Any]) -> None:
        if state["problems"] != self._digest():
            raise ValueError("the checkpoint was made with other problems; resume with the same task settings")
        self.epoch = state["epoch"]
        self.pending = list(state["pending"])
        self.solved = set(state["solved"])

    def _shuffled(self) -> list[str]:
        # Shuffle before solved problems are removed, so that runs differ only in the problems that they solved.
        order = list(self.problem_ids)
        random.Random(derive_seed("epoch order", self.seed, self.epoch)).shuffle(order)
        return [problem_id for problem_id in reversed(order) if not self._is_left_out(problem_id)]

    def _is_left_out(self, problem_id: str) -> bool:
        """Return whether this epoch leaves a problem out."""
        share = 1.0 if problem_id in self.solved else self._left_out(problem_id)
        if not 0 < share < 1:
            return share >= 1
        return random.Random(derive_seed("pool", self.seed, self.epoch, problem_id)).random() < share

    def _digest(self) -> str:
        return hashlib.sha256("\n".join(self.problem_ids).encode()).hexdigest()[:16]


class Curriculum:
    """Issues every remaining problem of a task exactly once per epoch, and tasks in the ratio of their weights.

    The next epoch begins as soon as the last problem of this one is issued, but a problem waits in it until its
    previous group is graded: only then is it known whether the problem is solved.

    The next task is the one furthest behind its share, so that the ratio holds at every point and not only in the long
    run. If this task must wait for a grade, all tasks wait, because another one would change the ratio. The wait ends,
    because the task has groups in flight. An exhausted task drops out, and the others continue in their ratio.
    """

    def __init__(
        self,
        problem_ids: Sequence[str] | Mapping[str, Sequence[str]],
        *,
        seed: int,
        left_out: LeftOut,
        weights: Mapping[str, float] | None = None,
    ) -> None:
        """With several tasks, problems and weights are given by name; only the ratios of weights matter."""
        tasks = problem_ids if isinstance(problem_ids, Mapping) else {"": problem_ids}
        weights = weights or dict.fromkeys(tasks, 1.0)
        self._records: dict[str, PassRecord] = {}

        def of_problem(problem_id: str) -> float:
            record = self._records.get(problem_id)
            return 0.0 if record is None else float(left_out(record))  # no problem is left out of its first epoch

        self._tasks: dict[str, _Epochs] = {}
        self._task_of: dict[str, _Epochs] = {}
        # Sort them: the order of problems must not depend on the order of a file.
        for name in sorted(tasks):
            own_seed = derive_seed("task of a mixture", seed, name) if name else seed
            task = _Epochs(tasks[name], own_seed, of_problem)
            self._tasks[name] = task
            self._task_of |= dict.fromkeys(task.problem_ids, task)
        self._weights = dict(weights)
        self._seed = seed
        # Problems issued again after a resume count once.
        self._num_issued = dict.fromkeys(self._tasks, 0)
        self._in_flight: dict[str, Issued] = {}
        self._untrained: dict[str, Issued] = {}
        self._reissue: dict[str, Issued] = {}

    def next(self) -> Issued | None:
        """Return the next problem. None means to wait for a grade, or to stop if `exhausted`."""
        if self._reissue:
            return self._reissue.pop(next(iter(self._reissue)))
        remaining = [name for name, task in self._tasks.items() if not task.exhausted]
        if not remaining:
            return None
        # Start half a problem ahead, so that the first task depends on weights, not on names.
        name = min(remaining, key=lambda name: (self._num_issued[name] + 0.5) / self._weights[name])
        issued = self._tasks[name].next({issued.problem_id for issued in self._in_flight.values()})
        if issued is not None:
            self._num_issued[name] += 1
            self._in_flight[issued.key] = issued
        return issued

    def graded(self, key: str, *, num_correct: int, num_graded: int, num_asked: int) -> None:
        """Record the verdicts of a group; call this when it is graded, before any filter.

        A group with verdicts on fewer than half of its `num_asked` completions is not recorded: one correct verdict of
        16 must not make a problem solved.
        """
        if key not in self._in_flight or key in self._reissue:
            raise ValueError(f"group {key!r} is graded but not in flight: it was never issued, or was already graded")
        if not 0 <= num_correct <= num_graded <= num_asked:
            counts = f"{num_correct} correct of {num_graded} graded of {num_asked} asked"
            raise ValueError(f"group {key!r}: {counts} cannot be")
        issued = self._in_flight.pop(key)
        self._untrained[key] = issued
        record = self._records.get(issued.problem_id, PassRecord())
        if 2 * num_graded >= num_asked:
            record = record.with_group(num_correct, num_graded)
        self._records[issued.problem_id] = record
        self._task_of[issued.problem_id].graded(issued)

    def trained(self, key: str) -> None:
        """Record that a step used this group, even if filters dropped all of it."""
        if key not in self._untrained:
            raise ValueError(f"group {key!r} is trained but not waiting: it was never graded, or was already trained")
        del self._untrained[key]

    @property
    def exhausted(self) -> bool:
        """Whether no problems are left, now or later; the run then ends with "data exhausted"."""
        return all(task.exhausted for task in self._tasks.values())

    @property
    def in_flight(self) -> tuple[Issued, ...]:
        """Groups that are issued but not graded yet, oldest first."""
        return tuple(self._in_flight.values())

    @property
    def untrained(self) -> tuple[Issued, ...]:
        """Groups that are graded but not used by a step yet, in the order of grading."""
        return tuple(self._untrained.values())

    @property
    def metrics(self) -> dict[str, float]:
        """Return columns of a step's row: the share of problems that are solved.

        With several tasks, there is one column per task, and the largest share.
        """
        fracs = {name: len(task.solved) / len(task.problem_ids) for name, task in self._tasks.items()}
        by_task = {f"curriculum/solved_frac/{name}": frac for name, frac in fracs.items() if name}
        return {"curriculum/solved_frac": max(fracs.values()), **by_task}

    def state_dict(self) -> dict[str, Any]:
        """Return everything that a resumed run needs, in JSON types."""
        return {
            "seed": self._seed,
            "tasks": {name: task.state_dict() for name, task in self._tasks.items()},
            "num_issued": dict(self._num_issued),
            "in_flight": list(self.in_flight),
            "untrained": list(self.untrained),
            "records": dict(self._records),
        }

    @classmethod
    def restore(
        cls,
        state: Mapping[str, Any],
        problem_ids: Sequence[str] | Mapping[str, Sequence[str]],
        *,
        left_out: LeftOut,
        weights: Mapping[str, float] | None = None,
    ) -> Self:
        """Return a curriculum in a given state; groups in flight are issued again first."""
        made = cls(problem_ids, seed=state["seed"], left_out=left_out, weights=weights)
        if state["tasks"].keys() != made._tasks.keys():
            raise ValueError(
                f"the checkpoint was made with the tasks {', '.join(state['tasks'])}, not {', '.join(made._tasks)}; "
                f"resume with the same tasks"
            )
        for name, task in made._tasks.items():
            task.restore(state["tasks"][name])
        made._num_issued = dict(state["num_issued"])
        made._in_flight = _by_key(state["in_flight"])
        made._reissue = dict(made._in_flight)
        made._untrained = _by_key(state["untrained"])
        made._records = {problem_id: PassRecord(*numbers) for problem_id, numbers in state["records"].items()}
        return made


def _by_key(groups: Iterable[Sequence[Any]]) -> dict[str, Issued]:
    return {issued.key: issued for issued in map(Issued._make, groups)}


CURRICULA: Mapping[str, Callable[..., float]] = {
    "no_positive_resampling": no_positive_resampling,
    "pools": pools,
    "uniform": uniform,
}
