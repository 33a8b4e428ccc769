"""The unit of a reward: shares, per cent, or a scale of its own."""

from collections.abc import Sequence

import numpy as np

from scalerl.errors import InputError, option
from scalerl.forecast.logs.columns import is_rate, is_score, with_role
from scalerl.forecast.logs.facts import Fact, fact
from scalerl.forecast.logs.frame import Frame
from scalerl.forecast.logs.plan import Plan
from scalerl.forecast.logs.selection import SCALES, YScale
from scalerl.forecast.logs.shapes import VALUE

# The least maximum of a rate in per cent; a share may exceed 1 a little, by a bonus.
_MIN_PERCENT = 2.0
# A mean of floats may leave [0, 1] by rounding; float32 logs round at 6e-8.
_ROUNDING = 1e-6


def in_scale(points: Frame, plans: Sequence[Plan]) -> tuple[Frame, YScale, tuple[Fact, ...]]:
    """Return points with the scale of their rewards, which is one for all curves of a column, and what to say of it.

    What is named as a rate, and a benchmark's score, is per cent if its values are. Rewards that leave the scale by
    rounding are at its ends; InputError for those that leave it by more.
    """
    column = plans[0]["y"]
    scale = plans[0].options.y_scale
    rewards = np.concatenate([plan.frame.numbers(column) for plan in plans])
    rewards = rewards[np.isfinite(rewards)]
    low = float(rewards.min())
    high = float(rewards.max())
    facts: tuple[Fact, ...] = ()
    if scale == "auto":
        is_set = (is_score(column) or column == VALUE) and bool(with_role(plans[0].frame.columns, "set"))
        is_per_cent = (is_rate(column) or is_set) and low >= 0 and _MIN_PERCENT <= high <= 100
        if low >= -_ROUNDING and high <= 1 + _ROUNDING:
            scale = "1"
        else:
            scale = "100" if is_per_cent else "none"
            facts = (fact("percent" if is_per_cent else "own_scale", y=column, low=low, high=high),)
    low, high = SCALES[scale] or (-np.inf, np.inf)
    rewards = points.numbers("y")
    fitted = np.clip(rewards, low, high)
    outside = np.flatnonzero(np.abs(fitted - rewards) > 100 * _ROUNDING)
    if len(outside):
        at = outside[0]
        raise InputError(
            f"{column!r} is {rewards[at]:g} at {points.origin[at]}, outside [{low:g}, {high:g}] of "
            f"{option:y-scale {scale}}: leave {option:y-scale} out, and it is read as it is."
        )
    return points.having({"y": fitted}), scale, facts
