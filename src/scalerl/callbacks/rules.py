"""Rules that end training: "gain_per_doubling < 0.005", "p_reach(0.7) < 0.05", joined by `and` or `or`.

    gain_per_doubling    gain of one more doubling of compute, also with _low and _high for the ends of its interval
    p_reach(R)           probability that reward R is reached by the end of the budget
    ceiling, end         where the curve levels off, and the reward at the end; also with _low and _high
    evaluations          number of points fitted

A condition on a value that is not known yet is false, so a rule never stops a run without data.
"""

import operator
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from scalerl.callbacks.forecast import Forecast
from scalerl.errors import UsageError

OPERATORS: dict[str, Callable[[float, float], bool]] = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
_NUMBER = r"[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?"
_CONDITION = re.compile(rf"\s*(\w+)\s*(?:\(\s*({_NUMBER})\s*\))?\s*(<=|>=|<|>)\s*({_NUMBER})\s*")


@dataclass(frozen=True, slots=True, kw_only=True)
class Condition:
    """One comparison of a rule."""

    name: str
    argument: float | None
    sign: str
    limit: float

    def value(self, forecast: Forecast) -> float | None:
        return VALUES[self.name](forecast, self.argument)

    def holds(self, forecast: Forecast) -> bool:
        value = self.value(forecast)
        return value is not None and value == value and OPERATORS[self.sign](value, self.limit)

    def words(self, forecast: Forecast) -> str:
        argument = "" if self.argument is None else f"({self.argument:g})"
        return f"{self.name}{argument} is {self.value(forecast):.4g}, {self.sign} {self.limit:g}"


@dataclass(frozen=True, slots=True, kw_only=True)
class StopRule:
    """Groups of conditions: training ends if all conditions of any one group hold."""

    text: str
    groups: tuple[tuple[Condition, ...], ...]

    @property
    def rewards(self) -> tuple[float, ...]:
        """Rewards whose p_reach the rule needs."""
        asked = [each.argument for group in self.groups for each in group if each.name == "p_reach"]
        return tuple(dict.fromkeys(reward for reward in asked if reward is not None))

    def reason(self, forecast: Forecast) -> str | None:
        """Return why training should end, None if it should go on."""
        for group in self.groups:
            if all(condition.holds(forecast) for condition in group):
                return " and ".join(condition.words(forecast) for condition in group)
        return None


def parse_rule(text: str) -> StopRule:
    """Return the rule that a text stands for; UsageError names what cannot be read."""
    groups = tuple(
        tuple(_condition(part, text) for part in re.split(r"\band\b", group)) for group in re.split(r"\bor\b", text)
    )
    return StopRule(text=text, groups=groups)


def _condition(part: str, text: str) -> Condition:
    match = _CONDITION.fullmatch(part)
    if match is None:
        raise UsageError(
            f"stop_when {text!r} cannot be read at {part.strip()!r}: write comparisons such as "
            "gain_per_doubling < 0.005 or p_reach(0.7) < 0.05, joined by and, or"
        )
    name, argument, sign, limit = match.groups()
    if name not in VALUES:
        raise UsageError(f"stop_when {text!r} names {name!r}, and there are {', '.join(VALUES)}")
    if (name == "p_reach") != (argument is not None):
        needed = "needs a reward, as in p_reach(0.7)" if name == "p_reach" else "takes nothing in brackets"
        raise UsageError(f"stop_when {text!r}: {name} {needed}")
    return Condition(name=name, argument=None if argument is None else float(argument), sign=sign, limit=float(limit))


def _field(name: str, end: str) -> Callable[[Forecast, float | None], float | None]:
    def value(forecast: Forecast, _: float | None) -> float | None:
        values: Any = getattr(forecast, name)
        return None if values is None else float(getattr(values, end))

    return value


def _p_reach(forecast: Forecast, reward: float | None) -> float | None:
    return dict(forecast.p_reach).get(reward) if reward is not None else None


VALUES: dict[str, Callable[[Forecast, float | None], float | None]] = {
    **{
        f"{name}{suffix}": _field(name, end)
        for name in ("gain_per_doubling", "ceiling", "end")
        for suffix, end in (("", "value"), ("_low", "low"), ("_high", "high"))
    },
    "p_reach": _p_reach,
    "evaluations": lambda forecast, _: float(forecast.num_points),
}
