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


def scale_of(plans: Sequence[Plan]) -> tuple[YScale, tuple[Fact, ...]]:
    """Return the scale of a column, which is one for all its curves, and what to say of it.

    What is named as a rate, and a benchmark's score, is per cent if its values are.
    """
    column, scale = plans[0]["y"], plans[0].options.y_scale
    rewards = np.concatenate([plan.frame.numbers(column) for plan in plans])
    rewards = rewards[np.isfinite(rewards)]
    low, high = float(rewards.min()), float(rewards.max())
    if scale != "auto":
        return scale, ()
    if low >= -_ROUNDING and high <= 1 + _ROUNDING:
        return "1", ()
    is_named = is_rate(column) or (
        (is_score(column) or column == VALUE) and bool(with_role(plans[0].frame.columns, "set"))
    )
    if is_named and low >= 0 and _MIN_PERCENT <= high <= 100:
        return "100", (fact("percent", y=column, low=low, high=high),)
    return "none", (fact("own_scale", y=column, low=low, high=high),)


def within(points: Frame, scale: YScale, column: str) -> Frame:
    """Return the points, rewards that leave the scale by rounding at its ends; InputError for those that leave it."""
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
    return points.having({"y": fitted})
