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

from scalerl.callbacks.forecast import ENDS, VALUES, Forecast
from scalerl.errors import UsageError

OPERATORS: dict[str, Callable[[float, float], bool]] = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
NAMES = (*(f"{name}{end}" for name in VALUES for end in ENDS), "p_reach", "evaluations")
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
        if self.name != "p_reach":
            return forecast.numbers.get(self.name)
        return dict(forecast.p_reach).get(self.argument or 0.0)

    def holds(self, forecast: Forecast) -> bool:
        value = self.value(forecast)
        return value is not None and OPERATORS[self.sign](value, self.limit)

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
    if name not in NAMES:
        raise UsageError(f"stop_when {text!r} names {name!r}, and there are {', '.join(NAMES)}")
    if (name == "p_reach") != (argument is not None):
        needed = "needs a reward, as in p_reach(0.7)" if name == "p_reach" else "takes nothing in brackets"
        raise UsageError(f"stop_when {text!r}: {name} {needed}")
    return Condition(name=name, argument=None if argument is None else float(argument), sign=sign, limit=float(limit))
