"""The scale of a reward: what --y-scale does, and which value fits rewards outside [0, 1]."""

import re
from collections.abc import Sequence

from scalerl.logs.columns import RATES, plain
from scalerl.logs.points import Point, YScale, at

# Names of rates, which lie in [0, 1] or are percentages; a reward may be a sum of several functions.
_RATE = re.compile(rf"(^|[/_.])({'|'.join(RATES[:3])}|percent|pct)([/_.@]|$)")
_MIN_PERCENT = {True: 2.0, False: 20.0}
"""The least maximum of percentages, by whether the column is named as a rate."""


def scaled(reward: float, y_scale: YScale) -> float:
    """Return a reward on the scale that is fitted."""
    if y_scale == "100":
        return reward / 100
    if y_scale == "pm1":
        return (reward + 1) / 2
    return reward


def fitting_scale(column: str, rewards: Sequence[float]) -> YScale:
    """Return the scale that suits a column: 100 only for what looks like percentages, none for sums of rewards."""
    low, high = min(rewards), max(rewards)
    if low >= 0 and high <= 1:
        return "1"
    if low >= -1 and high <= 1:
        return "pm1"
    least = _MIN_PERCENT[bool(_RATE.search(plain(column)))]
    return "100" if low >= 0 and least <= high <= 100 else "none"


def out_of_range(first: Point, rewards: Sequence[float], outside: Sequence[Point], y_scale: YScale) -> str:
    """Return the message for rewards outside [0, 1]: the option that fits, or a column that lies in [0, 1]."""
    scale = fitting_scale(first.y_label, rewards)
    after = "" if y_scale == "1" else f" after --y-scale {y_scale}"
    other = ""
    if scale == "none" and first.unit_columns:
        other = f", or choose a column in [0, 1] such as --y {first.unit_columns[0]}"
    return (
        f"{first.y_label!r} runs from {min(rewards):g} to {max(rewards):g}, outside [0, 1]{after} at {at(outside)}: "
        f"say --y-scale {scale}{other}."
    )
