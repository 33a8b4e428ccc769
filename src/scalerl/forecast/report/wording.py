"""How values are put into sentences and cells: numbers and names as texts, and templates that name their values.

A template names the values that it needs. Besides the usual format specs it has these:

    r, +r   a reward with the decimals that the values name       a       a number of any size, in few digits
    w       a worth: a difference of rewards that matters         $, d    an amount of money; a duration in seconds
    c, C    an amount of compute; in few characters               p, %    a probability; a share
    x       a ratio of two computes                               or      names joined by "or", not by "and"

{option:x COLUMN} is the name of an option, as the command line or as Python has it.
A value that has an interval is written with it, whatever the spec. None and NaN are "-".
"""

import math
from collections.abc import Callable, Mapping, Sequence
from string import Formatter
from typing import Any

import numpy as np

from scalerl.errors import option
from scalerl.forecast.curves import Fit, Value
from scalerl.forecast.curves.decide import LIKELIER, SURE, UNLIKELY
from scalerl.forecast.logs.written import amount_text

Format = Callable[[float], str]


def compute_text(compute: float) -> str:
    """Format an amount of compute for a sentence or a table: 1,234, 60B or 1.23e18, whichever reads better."""
    if not math.isfinite(compute):
        return "unbounded"
    if 0.01 <= abs(compute) < 1e6:
        if abs(compute) >= 100:
            return f"{compute:,.0f}"
        return f"{compute:.3g}"
    return amount_text(compute, digits=3)


def decimals(fit: Fit) -> int:
    """Return how many decimals a reward needs: three for rewards in [0, 1], one for per cent."""
    if fit.bounds is not None:
        span = fit.bounds[1] - fit.bounds[0]
    else:
        span = 0.0
        if fit.num_points:
            span = float(np.ptp(fit.reward))
    if span > 0:
        return min(max(3 - round(math.log10(span)), 0), 9)
    return 3


def fixed(num_decimals: int, sign: str = "") -> Format:
    """Return a function that formats numbers with `decimals` decimals; `sign="+"` shows plus signs too."""
    return lambda value: f"{value:{sign}z,.{num_decimals}f}"


def worth_text(value: float) -> str:
    """Format a difference that matters with two digits: 0.01, 0.025, 120."""
    return f"{float(f'{value:.2g}'):,.12g}"


def ratio_text(value: float) -> str:
    """Format a ratio with three digits: 0.873, 1.10, 677."""
    if value < 1000:
        return f"{value:#.3g}".rstrip(".")
    return f"{value:.3g}"


def number_text(value: float) -> str:
    """Format a reward of any range with three decimals, or as many fewer as it has digits: 0.612, 64.2, 1234."""
    if value == 0:
        return "0.000"
    if abs(value) >= 1e6 or not math.isfinite(value):
        return f"{value:.4g}"
    num_digits = math.ceil(math.log10(abs(value)))
    num_decimals = min(max(3 - num_digits, 0), 3)
    return f"{value:.{num_decimals}f}"


two_decimals: Format = "{:.2f}".format
share_text: Format = "{:.0%}".format
THRESHOLDS = (UNLIKELY, LIKELIER, SURE)
"""Probabilities from which something is said or advised."""


def interval_text(value: Value | None, show: Format = number_text) -> str:
    """Format a number with its interval, "0.61 [0.59, 0.63]"; "-" if there is none."""
    if value is None or not math.isfinite(value.value):
        return "-"
    if math.isnan(value.low) or value.low == value.high:
        return show(value.value)
    if math.isfinite(value.high):
        ends = f"{show(value.low)}, {show(value.high)}"
    else:
        ends = "not known"
        if value.low > 0:
            ends = f"more than {show(value.low)}"
    return f"{show(value.value)} [{ends}]"


def probability_text(probability: float) -> str:
    """Format a probability; one near 0 or 1 is not written as 0% or 100%, nor one near a threshold as the threshold."""
    if math.isnan(probability):
        return "-"
    if probability > 0.99:
        return "above 99%"
    if probability < 0.01:
        return "below 1%"
    shown = f"{probability:.0%}"
    for threshold in THRESHOLDS:
        if shown == f"{threshold:.0%}" and probability != threshold:
            return _beside(probability, threshold)
    return shown


def _beside(probability: float, threshold: float) -> str:
    """Format a probability near a threshold, with a digit more if that tells them apart."""
    if abs(probability - threshold) >= 0.0005:
        return f"{probability:.1%}"
    side = "above"
    if probability < threshold:
        side = "below"
    return f"just {side} {threshold:.0%}"


def money_text(amount: float) -> str:
    """Format an amount of money: $0.42, $22,500."""
    if abs(amount) < 10:
        return f"${amount:,.2f}"
    return f"${amount:,.0f}"


def duration(seconds: float) -> str:
    """Format a duration: 12 s, 3 min 20 s, 5.2 h or 3.1 days."""
    if seconds < 60:
        return f"{seconds:.0f} s"
    if seconds < 3600:
        return f"{int(seconds // 60)} min {int(seconds % 60)} s"
    if seconds < 48 * 3600:
        return f"{seconds / 3600:.1f} h"
    return f"{seconds / 86400:.1f} days"


MOST_NAMES = 12


def join_names(names: Sequence[str], word: str = "and") -> str:
    """Return the names in a sentence: 'a', 'a and b', 'a, b and c'; of very many the first, and how many more."""
    if len(names) == 1:
        return names[0]
    first = names[:-1]
    last = names[-1]
    if len(names) > MOST_NAMES + 1:
        first = names[:MOST_NAMES]
        last = f"{len(names) - MOST_NAMES} more"
    return f"{', '.join(first)} {word} {last}"


# Templates ------------------------------------------------------------------------------------------------------------

Values = Mapping[str, Any]
Words = str | Callable[[Values], str]
USUAL_DECIMALS = 3


class Lookup(dict[str, Any]):
    """The values that a template names: of each the one that the first mapping or object with it has."""

    def __init__(self, *objects: Any) -> None:
        super().__init__()
        self._objects = objects

    def __missing__(self, name: str) -> Any:
        for each in self._objects:
            if isinstance(each, Mapping):
                value = each.get(name, self)
            else:
                value = getattr(each, name, self)
            if value is not self:
                self[name] = value
                return value
        raise KeyError(name)

    def get(self, name: str, default: Any = None) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        try:
            return self[name]
        except KeyError:
            return default


SHOWS: dict[str, Callable[[Any], str]] = {
    "w": worth_text,
    "c": compute_text,
    "C": amount_text,
    "x": ratio_text,
    "%": share_text,
    "p": probability_text,
    "$": money_text,
    "a": number_text,
    "d": duration,
}


class Sentence(Formatter):
    """A formatter that knows rewards, computes, probabilities, names and money."""

    def __init__(self, values: Values) -> None:
        num = int(values.get("decimals", USUAL_DECIMALS))
        self._shows = {**SHOWS, "r": fixed(num), "+r": fixed(num, "+")}

    def get_field(self, field_name: str, args: Any, kwargs: Any) -> Any:
        """Return the value at a dotted name, as {at.0.reward}; None where something on the way is None or missing."""
        first, *rest = field_name.split(".")
        if first == "option":
            value = option
        else:
            value = kwargs[first]
        for name in rest:
            if isinstance(value, tuple):
                value = dict(enumerate(value)).get(int(name))
            else:
                value = None if value is None else getattr(value, name)
        return value, first

    def format_field(self, value: Any, format_spec: str) -> str:
        if value is option:
            return format(value, format_spec)
        if value is None or (isinstance(value, float) and value != value):
            return "-"
        if isinstance(value, tuple | list) and format_spec not in self._shows:
            return join_names([str(each) for each in value], "or" if format_spec == "or" else "and")
        show = self._shows.get(format_spec, lambda each: format(each, format_spec))
        if isinstance(value, Value) and format_spec:
            return interval_text(value, show)
        return show(value)


def filled(words: Words, values: Values) -> str:
    if callable(words):
        return words(values)
    return Sentence(values).vformat(words, (), values)
