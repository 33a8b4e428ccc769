"""Rules that end training: "gain_per_doubling < 0.005", "p_reach(0.7) < 0.05", joined by `and` or `or`.

    gain_per_doubling    gain of one more doubling of compute, also with _low and _high for the ends of its interval
    p_reach(R)           probability that reward R is reached by the end of the budget
    ceiling, end         where the curve levels off, and the reward at the end; also with _low and _high
    evaluations          number of points fitted

A condition on a value that is not known yet is false, so a rule never stops a run without data.
"""

import operator
import re

from scalerl.callbacks.forecast import ENDS, VALUES, Forecast
from scalerl.errors import UsageError

OPERATORS = {"<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge}
NAMES = (*(f"{name}{end}" for name in VALUES for end in ENDS), "p_reach", "evaluations")
_NUMBER = r"[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?"
_CONDITION = re.compile(rf"\s*(\w+)\s*(?:\(\s*({_NUMBER})\s*\))?\s*(<=|>=|<|>)\s*({_NUMBER})\s*")


class StopRule:
    """Groups of conditions: training ends if all conditions of any one group hold."""

    def __init__(self, text: str) -> None:
        """Parse a rule; UsageError names what cannot be read."""
        self.text = text
        self.rewards: list[float] = []
        """Those whose p_reach the rule needs."""
        self._groups = [[self._condition(part) for part in re.split(r"\band\b", group)]
                        for group in re.split(r"\bor\b", text)]  # fmt: skip

    def _condition(self, part: str) -> tuple[str, str, float]:
        """Return the name of a value in `Forecast.numbers`, the sign and the limit."""
        match, rule = _CONDITION.fullmatch(part), f"stop_when {self.text!r}"
        if match is None:
            raise UsageError(
                f"{rule} cannot be read at {part.strip()!r}: write comparisons such as gain_per_doubling < 0.005 or "
                "p_reach(0.7) < 0.05, joined by and, or"
            )
        name, reward, sign, limit = match.groups()
        if name not in NAMES:
            raise UsageError(f"{rule} names {name!r}, and there are {', '.join(NAMES)}")
        if (name == "p_reach") != (reward is not None):
            needed = "needs a reward, as in p_reach(0.7)" if name == "p_reach" else "takes nothing in brackets"
            raise UsageError(f"{rule}: {name} {needed}")
        if reward is not None:
            self.rewards.append(float(reward))
            name = f"p_reach({float(reward):g})"
        return name, sign, float(limit)

    def reason(self, forecast: Forecast) -> str | None:
        """Return why training should end, None if it should go on."""
        known = forecast.numbers
        for group in self._groups:
            if all(name in known and OPERATORS[sign](known[name], limit) for name, sign, limit in group):
                return " and ".join(f"{name} is {known[name]:.4g}, {sign} {limit:g}" for name, sign, limit in group)
        return None
