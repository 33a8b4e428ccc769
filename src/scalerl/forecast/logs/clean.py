"""Tables that say by their names what they hold: they are read as they are, and nothing about them is guessed."""

import numpy as np

from scalerl.forecast.logs.columns import (
    AXES,
    BARE,
    CLOCKS,
    METRICS,
    counts_successes,
    has_role,
    is_lower_better,
    is_statistic,
    reward_rank,
    with_role,
    without_unit,
)
from scalerl.forecast.logs.frame import Frame
from scalerl.forecast.logs.selection import Selection

_BESIDE_REWARDS = (*AXES, *CLOCKS, *METRICS, "tokens_per_step", "cost", "num_samples")


def is_clean(frame: Frame, options: Selection) -> bool:
    """Return whether a table has one reward, steps that rise from row to row, and else compute, metrics and losses.

    Options may name no more than the column of compute.
    """
    if len(frame) < 2 or options.columns.keys() - {options.x}:
        return False
    rewards: list[str] = []
    for name in frame.columns:
        if frame.is_words(name) or without_unit(name)[0] != name:
            return False
        rank = reward_rank(name)
        if rank and rank[:2] != BARE and not has_role(name, "value") and not counts_successes(name):
            rewards.append(name)
        elif rank or not (has_role(name, *_BESIDE_REWARDS) or _is_loss(name)):
            return False
    step = with_role(frame.columns, "step")
    return len(rewards) == len(step) == 1 and bool((np.diff(frame.numbers(step[0])) > 0).all())


def _is_loss(name: str) -> bool:
    """Return whether a name is that of a loss or another quantity of which less is better, and of nothing else."""
    return is_lower_better(name) and is_statistic(name)
