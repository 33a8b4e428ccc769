"""Tables that say by their names what they hold: they are read as they are, and nothing about them is guessed."""

import numpy as np

from scalerl.forecast.logs.columns import (
    AXES,
    BARE,
    CLOCKS,
    METRICS,
    counts_successes,
    has_role,
    reward_rank,
    unit_of,
    with_role,
)
from scalerl.forecast.logs.frame import Frame
from scalerl.forecast.logs.selection import Selection

_BESIDE_REWARDS = (*AXES, *CLOCKS, *METRICS, "tokens_per_step", "cost", "num_samples")


def is_clean(frame: Frame, options: Selection) -> bool:
    """Return whether a table has one reward, steps that rise from row to row, and otherwise compute and known metrics.

    Options may name no more than the column of compute.
    """
    if len(frame) < 2 or options.columns.keys() - {options.x}:
        return False
    rewards: list[str] = []
    for name in frame.columns:
        if frame.is_words(name) or unit_of(name):
            return False
        rank = reward_rank(name)
        if rank and rank[:2] != BARE and not has_role(name, "value") and not counts_successes(name):
            rewards.append(name)
        elif rank or not has_role(name, *_BESIDE_REWARDS):
            return False
    step = with_role(frame.columns, "step")
    return len(rewards) == len(step) == 1 and bool((np.diff(frame.numbers(step[0])) > 0).all())
