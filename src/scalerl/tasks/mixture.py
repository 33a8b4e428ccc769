"""Several tasks in one run, asked in the ratio of their weights.

Each task has its own curriculum; together they have the interface of one. The task furthest behind its share is asked
next, so the ratio holds at every point and not only in the long run. If that task must wait for a grade, the mixture
waits too, since asking another task would change the ratio; the task has groups in flight, so the wait ends. An
exhausted task drops out, and the others continue in their ratio.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Self

from scalerl.tasks.curriculum import Curriculum, Issued, Retires
from scalerl.types import derive_seed


class Mixture:
    """A curriculum over the problems of several tasks, with what the loop uses of one. Ids are unique across tasks.

    Plain Python without a clock: results depend only on the seed and the order of the calls.
    """

    def __init__(
        self,
        problem_ids: Mapping[str, Sequence[str]],
        *,
        weights: Mapping[str, float],
        seed: int,
        retires: Retires,
    ) -> None:
        """Both mappings are by task name; only the ratios of the weights matter."""
        if not problem_ids or problem_ids.keys() != weights.keys() or min(weights.values()) <= 0:
            raise ValueError(
                f"a mixture needs tasks and a weight above 0 for each, not tasks {list(problem_ids)} with weights "
                f"{dict(weights)}"
            )
        # Sorted: the order of problems must not depend on the order of a file.
        self._curricula = {
            name: Curriculum(problem_ids[name], seed=derive_seed("task of a mixture", seed, name), retires=retires)
            for name in sorted(problem_ids)
        }
        self._weights = dict(weights)
        # Those issued again after a resume count once.
        self._num_issued = dict.fromkeys(self._curricula, 0)
        # The task of every group that is not trained yet, in the order of issue.
        self._task_of: dict[str, str] = {}
        self._reissue: list[str] = []

    def next(self) -> Issued | None:
        """Return the next problem to ask. None means to wait for a grade, or to stop if `exhausted`."""
        if self._reissue:
            return self._curricula[self._reissue.pop(0)].next()
        remaining = [name for name, curriculum in self._curricula.items() if not curriculum.exhausted]
        if not remaining:
            return None
        # Half a problem ahead, so that the first task depends on the weights, not on the names.
        name = min(remaining, key=lambda name: (self._num_issued[name] + 0.5) / self._weights[name])
        issued = self._curricula[name].next()
        if issued is not None:
            self._num_issued[name] += 1
            self._task_of[issued.key] = name
        return issued

    def graded(self, key: str, *, num_correct: int, num_graded: int, num_asked: int | None = None) -> None:
        """Record a group's verdicts with its task; see Curriculum.graded."""
        self._curriculum_of(key).graded(key, num_correct=num_correct, num_graded=num_graded, num_asked=num_asked)

    def trained(self, key: str) -> None:
        """Record that a step used this group, even if a filter dropped all of it."""
        self._curriculum_of(key).trained(key)
        del self._task_of[key]

    def _curriculum_of(self, key: str) -> Curriculum:
        if key not in self._task_of:
            raise ValueError(f"group {key!r} belongs to no task: it was never issued, or was already trained")
        return self._curricula[self._task_of[key]]

    @property
    def exhausted(self) -> bool:
        """Whether no task has a problem left to ask, now or later."""
        return all(curriculum.exhausted for curriculum in self._curricula.values())

    @property
    def in_flight(self) -> tuple[Issued, ...]:
        """Groups issued and not graded yet, in the order of issue."""
        in_flight = {issued.key: issued for curriculum in self._curricula.values() for issued in curriculum.in_flight}
        return tuple(in_flight[key] for key in self._task_of if key in in_flight)

    @property
    def untrained(self) -> tuple[Issued, ...]:
        """Groups graded and not used by a step yet, task by task."""
        return tuple(issued for curriculum in self._curricula.values() for issued in curriculum.untrained)

    @property
    def metrics(self) -> dict[str, float]:
        """Columns of a step's row: the largest of all tasks, and those of each with its name at the end."""
        by_task = {name: curriculum.metrics for name, curriculum in self._curricula.items()}
        largest = {key: max(row[key] for row in by_task.values()) for row in by_task.values() for key in row}
        return largest | {f"{key}/{name}": value for name, row in by_task.items() for key, value in row.items()}

    def state_dict(self) -> dict[str, Any]:
        """Return everything a resumed run needs, in JSON types."""
        return {
            "tasks": {name: curriculum.state_dict() for name, curriculum in self._curricula.items()},
            "num_issued": dict(self._num_issued),
            "order": [self._task_of[issued.key] for issued in self.in_flight],
        }

    @classmethod
    def restore(
        cls,
        state: Mapping[str, Any],
        problem_ids: Mapping[str, Sequence[str]],
        *,
        weights: Mapping[str, float],
        retires: Retires,
    ) -> Self:
        """Return a mixture in the given state; groups in flight are issued again first."""
        if sorted(state["tasks"]) != sorted(problem_ids):
            raise ValueError(
                f"the checkpoint was made with the tasks {', '.join(state['tasks'])}, not {', '.join(problem_ids)}; "
                f"resume with the same tasks"
            )
        mixture = cls(problem_ids, weights=weights, seed=0, retires=retires)
        for name, task_state in state["tasks"].items():
            mixture._curricula[name] = Curriculum.restore(task_state, problem_ids[name], retires=retires)
        mixture._num_issued = dict(state["num_issued"])
        mixture._reissue = list(state["order"])
        in_flight = {name: iter(curriculum.in_flight) for name, curriculum in mixture._curricula.items()}
        mixture._task_of = {next(in_flight[name]).key: name for name in state["order"]}
        for name, curriculum in mixture._curricula.items():
            mixture._task_of |= {issued.key: name for issued in curriculum.untrained}
        return mixture
