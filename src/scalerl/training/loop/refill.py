"""DAPO's refill: a group that the filters would drop is replaced before the step, as long as a limit allows.

A replaced group is graded and counts for the curriculum, but no step waits for it or takes it. Its cost stays on the
compute axis, because the engine counts everything that it samples. Plain Python, no torch.
"""

from collections import Counter
from dataclasses import dataclass, field

from scalerl.recipe.parts import FilterSettings
from scalerl.training.types import Group


def teaches_nothing(group: Group, filters: FilterSettings) -> bool:
    """Return whether rl.filters.effective_batch would drop all of a group by its zero-variance filter."""
    if not filters.zero_variance:
        return False
    values = set()
    for completion, value in zip(group.completions, group.values, strict=True):
        is_dropped = filters.drop_truncated and completion.truncated
        if value is not None and not is_dropped and completion.num_trained_tokens:
            values.add(value)
    return len(values) < 2


def no_counts() -> Counter[str]:
    return Counter(replaced=0, correct=0, graded=0, replaced_in_round=0, steps_in_round=0)


@dataclass(kw_only=True)
class Refill:
    """Decides which groups are replaced, and counts what was graded since the last step."""

    most: int = 0
    """Replace at most this many groups per step; after that, groups that teach nothing are kept."""
    round_steps: int = 1
    """Number of steps whose groups are all graded before the first of them, as with pipeline.drain. They share their
    limits, so that the last of them has as many groups replaced as the first."""
    filters: FilterSettings = field(default_factory=FilterSettings)
    counts: Counter[str] = field(default_factory=no_counts)
    """Replaced groups, and correct and graded completions, since the last step; replaced groups and steps in this
    round."""

    def replaces(self, group: Group) -> bool:
        """Return whether a group that was graded is replaced by another one."""
        self.counts.update(correct=group.num_correct, graded=group.num_graded)
        has_room = self.counts["replaced_in_round"] < self.most * self.round_steps
        is_replaced = has_room and teaches_nothing(group, self.filters)
        self.counts.update(replaced=is_replaced, replaced_in_round=is_replaced)
        return is_replaced

    def take_metrics(self) -> dict[str, float]:
        """Return columns of a step's row, and reset the counts.

        They cover all groups graded since the last step, replaced ones too; `reward/` columns cover only the batch.
        """
        if not self.most:
            return {}
        counts = self.counts
        self.counts = no_counts()
        steps = counts["steps_in_round"] + 1
        if steps < self.round_steps:
            self.counts.update(replaced_in_round=counts["replaced_in_round"], steps_in_round=steps)
        metrics = {"batch/replaced_groups": float(counts["replaced"])}
        if counts["graded"]:
            metrics["rollout/correct_frac"] = counts["correct"] / counts["graded"]
        return metrics
