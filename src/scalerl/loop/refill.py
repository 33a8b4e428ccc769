"""DAPO's refill: a group that the filters would drop is replaced before the step, as long as a limit allows.

A replaced group is graded and counts for the curriculum, but no step waits for it or takes it. Its cost stays on the
compute axis, because the engine counts everything that it samples. Plain Python, no torch.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from scalerl.config.parts import FilterSettings
from scalerl.types import Group


def teaches_nothing(group: Group, filters: FilterSettings) -> bool:
    """Return whether rl.filters.effective_batch would drop all of a group by its zero-variance filter."""
    if not filters.zero_variance:
        return False
    values = {
        value
        for completion, value in zip(group.completions, group.values, strict=True)
        if value is not None and not (filters.drop_truncated and completion.truncated) and completion.num_trained_tokens
    }
    return len(values) < 2


class Refill:
    """Decides which groups are replaced, and counts what was graded since the last step."""

    def __init__(
        self,
        *,
        most: int = 0,
        filters: FilterSettings = FilterSettings(),  # noqa: B008 -- frozen
        own: Mapping[str, FilterSettings] = MappingProxyType({}),
    ) -> None:
        """Replace at most `most` groups per step; after that, groups that teach nothing are kept.

        `own` has the filters of tasks that differ from `filters`.
        """
        self._most, self._filters, self._own = most, filters, own
        self._num_replaced = self._num_correct = self._num_graded = 0

    def replaces(self, group: Group) -> bool:
        """Return whether a group that was graded is replaced by another one."""
        self._num_correct += group.num_correct
        self._num_graded += group.num_graded
        filters = self._own.get(group.problem.task, self._filters)
        if self._num_replaced >= self._most or not teaches_nothing(group, filters):
            return False
        self._num_replaced += 1
        return True

    def take_metrics(self) -> dict[str, float]:
        """Return columns of a step's row, and reset the counts.

        They cover all groups graded since the last step, replaced ones too; `reward/` columns cover only the batch.
        """
        if not self._most:
            return {}
        share = {"rollout/correct_frac": self._num_correct / self._num_graded} if self._num_graded else {}
        metrics = {"batch/replaced_groups": float(self._num_replaced), **share}
        self._num_replaced = self._num_correct = self._num_graded = 0
        return metrics

    def state_dict(self) -> dict[str, int]:
        """Return what was counted since the last step."""
        return {"replaced": self._num_replaced, "correct": self._num_correct, "graded": self._num_graded}

    def restore(self, state: Mapping[str, Any]) -> None:
        self._num_replaced, self._num_correct, self._num_graded = (
            state.get(name, 0) for name in ("replaced", "correct", "graded")
        )
