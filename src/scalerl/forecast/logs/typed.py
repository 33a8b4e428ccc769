"""Numbers as a user types them: in the unit of the log, unless a unit is written, as in 100B, 65% or 60h.

    compute_typed       an amount of compute, in the unit that the curves are fitted in
    reward_typed        a reward
    difference_typed    a difference of rewards

A number that cannot be meant is an InputError that names the likely unit.
"""

import math
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from scalerl.errors import InputError, option
from scalerl.forecast.logs.columns import CLOCKS, has_role
from scalerl.forecast.logs.selection import Bounds
from scalerl.forecast.logs.series import Series
from scalerl.forecast.logs.written import FACTORS, Typed, amount_text, argument, number_and_unit, positive_typed

MOST_OUTSIDE = 100.0
"""Times outside the compute of a log from which a number was meant in another unit."""
LEAST_RANGE = 0.1
"""Share of a scale up to which a threshold may exceed the range seen: that of a flat run is nothing but noise."""


# Compute --------------------------------------------------------------------------------------------------------------


def compute_typed(typed: Typed, name: str, series: Sequence[Series], *, most: float = MOST_OUTSIDE) -> float:
    """Return an amount of compute in the unit of the curves.

    InputError for one that is not positive, or lies far outside what the curves hold: below it a hundred times, or
    above it `most` times.
    """
    positive_typed(typed, name)
    value, unit = number_and_unit(typed, name)
    known = [each for each in series if len(each.compute)]
    if not known:
        return value
    least, largest = _ends(known)
    wanted = value * _unit_size(unit, name, known)
    if least / MOST_OUTSIDE <= wanted <= most * largest:
        return wanted
    label = known[0].x_label
    own = known[0].units.get(label)
    where = "above" if wanted > largest else "below"
    times = wanted / largest if wanted > largest else least / wanted
    counts = "" if own is None or unit else f" ({label} is counted in {own.name})"
    likely = _likely_amount(value, least, largest)
    hint = f"did you mean {likely}?" if likely else "give it in the unit of the log."
    raise InputError(
        f"{_given(name, typed)} lies {amount_text(times)} times {where} the log, which goes from {amount_text(least)} "
        f"to {amount_text(largest)} {label}{counts}: {hint}"
    )


def _ends(series: Iterable[Series]) -> tuple[float, float]:
    """Return the smallest and the largest compute of curves, held-out points included."""
    compute = np.concatenate([part for each in series for part in (each.compute, each.holdout_compute)])
    return float(compute.min()), float(compute.max())


def _unit_size(unit: str, name: str, series: Sequence[Series]) -> float:
    """Return how much compute one of a unit is, on the axis of the curves: of the log's own where none is written."""
    label = series[0].x_label
    if unit == "%":
        raise InputError(f"{argument(name)} takes an amount of compute, and not a share (%).")
    is_time = has_role(label, "hours", "gpu_hours", *CLOCKS)
    if unit == "h" and not is_time:
        raise InputError(f"{argument(name)} is in hours (h), and compute is {label} here: give {label}.")
    written = {each.units.get(each.x_label) for each in series}
    if unit:
        own = series[0].units.get(label)
        ones = 1.0 if unit == "h" else FACTORS[unit]
        return ones if own is None else ones * own.on_axis / own.size
    if len(written) > 1:
        raise InputError(f"{argument(name)} needs a unit (k, M, B or T): the logs count {label} in different units.")
    own = written.pop()
    return 1.0 if own is None else own.on_axis


def _likely_amount(value: float, least: float, most: float) -> str:
    """Return a number with the unit that brings it closest to the largest compute of a log; "" if none does."""
    sizes = {1.0: "", **{size: unit for unit, size in FACTORS.items() if unit != "K"}}
    near = [size for size in sizes if least <= value * size <= MOST_OUTSIDE * most]
    if not near:
        return ""
    return amount_text(value * min(near, key=lambda size: abs(math.log(value * size / most))))


# Rewards --------------------------------------------------------------------------------------------------------------


def reward_typed(typed: Typed, name: str, bounds: Bounds, seen: Sequence[float] = ()) -> float:
    """Return a reward in the unit of the log, whose scale has these bounds and whose rewards were `seen`.

    InputError for one outside the scale, or a share among per cent.
    """
    value, unit = number_and_unit(typed, name)
    if bounds is None:
        if unit in ("%", "h"):
            raise InputError(f"{_given(name, typed)} is no reward of this log, whose rewards have no limits.")
        reward = value * FACTORS.get(unit, 1.0)
        _check_far(typed, name, reward, seen)
        return reward
    if unit not in ("", "%"):
        raise InputError(f"{_given(name, typed)} is no reward: give a number from {bounds[0]:g} to {bounds[1]:g}.")
    low, high = bounds
    reward = value / 100 * high if unit else value
    if not low <= reward <= high:
        likely = f" (did you mean {value:g}%?)" if low <= value / 100 * high <= high else ""
        raise InputError(f"{_given(name, typed)} is outside [{low:g}, {high:g}], the scale of the rewards{likely}.")
    least = min(seen, default=0.0)
    if high == 100 and not unit and 0 < value <= 1 < least:
        raise InputError(
            f"{_given(name, typed)} is far below the rewards of the log, which are per cent (from {least:.4g}): did "
            f"you mean {100 * value:g}? Write {value:g}% if not."
        )
    return reward


def _check_far(typed: Typed, name: str, reward: float, seen: Sequence[float]) -> None:
    """Raise InputError for a reward without limits that lies a hundred times the range seen outside it."""
    least, most = min(seen, default=-math.inf), max(seen, default=math.inf)
    room = MOST_OUTSIDE * (most - least)
    if room > 0 and not least - room <= reward <= most + room:
        raise InputError(
            f"{_given(name, typed)} is far outside the rewards of the log, which go from {least:.4g} to {most:.4g}: "
            "give it in the unit of the log."
        )


def difference_typed(typed: Typed, name: str, series: Sequence[Series]) -> float:
    """Return a difference of rewards in the unit of the log; 1% is that share of the scale, or else of the range seen.

    InputError for one that is not positive, or larger than the range that the rewards of all curves have together.
    """
    positive_typed(typed, name)
    value, unit = number_and_unit(typed, name)
    seen = rewards_seen(series)
    if not seen:
        return value
    bounds = next((each.bounds for each in series if each.bounds is not None), None)
    seen_range = max(seen) - min(seen)
    width = seen_range if bounds is None else bounds[1] - bounds[0]
    if unit == "h":
        raise InputError(f"{_given(name, typed)} is no difference of rewards: give a number, or a share such as 1%.")
    difference = width * value / 100 if unit == "%" else value * FACTORS.get(unit, 1.0)
    if difference > max(seen_range, LEAST_RANGE * width):
        is_likely = not unit and width * value / 100 <= seen_range
        likely = f"did you mean {value:g}%?" if is_likely else "give a smaller one."
        raise InputError(
            f"{_given(name, typed)} is more than the whole range of the rewards, from {min(seen):.4g} to "
            f"{max(seen):.4g}: {likely}"
        )
    return difference


def rewards_seen(series: Iterable[Series]) -> list[float]:
    """Return the rewards of curves, the start included."""
    seen: list[Any] = []
    for each in series:
        seen += [*each.reward, *each.holdout_reward]
        seen += [] if each.start is None else [each.start]
    return seen


def _given(name: str, typed: Typed) -> str:
    text = f"{typed:g}" if isinstance(typed, int | float) else typed.strip()
    return f"{option:{name} {text}}"
