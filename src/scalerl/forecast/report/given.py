"""What a caller gave for an option: checked, and made a number in the unit of the log once that is read."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from scalerl.errors import InputError, option
from scalerl.forecast.logs.series import Series
from scalerl.forecast.logs.typed import compute_typed, reward_typed, rewards_seen
from scalerl.forecast.logs.written import Typed, argument, number_and_unit


def each_typed(given: Any, name: str) -> list[Typed]:
    """Return one number or several, as they were given, in a list; InputError for anything that is no number."""
    several = given if isinstance(given, list | tuple | np.ndarray) else (given,)
    made: list[Typed] = []
    for each in several:
        is_number = isinstance(each, int | float | np.number) and not isinstance(each, bool)
        typed = float(each) if is_number else each
        if not isinstance(typed, float | str):
            raise InputError(f"{argument(name)} takes numbers such as 500, or texts such as '60B', not {each!r}.")
        number_and_unit(typed, name)
        made.append(typed)
    return made


def one_typed(given: Any, name: str) -> Typed:
    """Return one number as it was given."""
    several = each_typed(given, name)
    if len(several) != 1:
        raise InputError(f"{argument(name)} takes one number, not {given!r}.")
    return several[0]


def share_given(given: Any, name: str) -> float:
    """Return a number between 0 and 1, also given as per cent."""
    try:
        value, unit = number_and_unit(one_typed(given, name), name)
    except InputError:
        raise InputError(f"{argument(name)} takes a share such as 0.5 or 50%, not {given!r}.") from None
    share = value / 100 if unit == "%" else value
    if unit not in ("", "%") or not 0 < share < 1:
        raise InputError(f"{argument(name)} must lie between 0 and 1, not {given}.")
    return share


def flag(given: Any, name: str) -> bool:
    if not isinstance(given, bool):
        raise InputError(f"{name} is True or False, not {given!r}.")
    return given


def one_of(*choices: str) -> Callable[[Any, str], str]:
    def check(given: Any, name: str) -> str:
        if given not in choices:
            raise InputError(f"{argument(name)} must be {', '.join(choices[:-1])} or {choices[-1]}, not {given!r}.")
        return given

    return check


# In the unit of the log -----------------------------------------------------------------------------------------------


def computes_typed(typed: Iterable[Typed], name: str, series: Sequence[Series]) -> list[float]:
    return [compute_typed(each, name, series) for each in typed]


def rewards_typed(typed: Iterable[Typed], name: str, series: Sequence[Series]) -> tuple[float, ...]:
    """Return rewards in the unit of the log, whose scale is that of its first curve."""
    bounds = next((each.bounds for each in series if not each.problem), None)
    return tuple(reward_typed(each, name, bounds, rewards_seen(series)) for each in typed)


def skip_typed(typed: Typed, name: str, series: Sequence[Series]) -> float | str:
    """Return a compute from which points are fitted; a share, such as 10%, unchanged."""
    value, unit = number_and_unit(typed, name)
    if value < 0:
        raise InputError(f"{option:skip-before} must not be negative, but is {typed}.")
    if unit == "%" or value == 0:
        return f"{value:g}%"
    return compute_typed(typed, "skip-before", series)
