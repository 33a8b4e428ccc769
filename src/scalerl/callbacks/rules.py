"""Rules that end training: "p_worth < 0.1", "p_reach(0.7) < 0.05 or state == 'past its peak'".

    p_worth          probability that one more doubling of compute brings more than the worth
    p_nearly_all     probability that nearly all of the gain is reached
    p_reach(R)       probability that reward R is reached by the end of the budget
    state, action    what is decided about the run, such as 'past its peak' or 'stop'
    evaluations      number of points fitted

Conditions are joined by `and` and `or`. A rule may also be a function of the `Decision`. No rule is applied before the
reward has risen, so that it cannot end a run that has yet to begin learning, unless `give_up_after` evaluations have
passed. A condition on an unknown value is false.
"""

import operator
import re
from collections.abc import Callable
from dataclasses import dataclass

from scalerl.callbacks.forecast import Forecast
from scalerl.errors import UsageError
from scalerl.forecast.curves.decide import LIKELIER, Action, Decision, State

Test = Callable[[Decision], bool]
SIGNS = {"<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge, "==": operator.eq, "!=": operator.ne}
NUMBERS = ("p_worth", "p_nearly_all", "p_reach", "evaluations")
CHOICES = {"state": tuple(State), "action": tuple(Action)}
_NUMBER = r"[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?"
_CONDITION = re.compile(
    rf"\s*(?P<name>\w+)\s*(?:\(\s*(?P<reward>{_NUMBER})\s*\))?\s*(?P<sign><=|>=|==|!=|<|>)"
    rf"\s*(?:(?P<limit>{_NUMBER})|(?P<quote>['\"])(?P<word>[\w ]+)(?P=quote))\s*"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Condition:
    """One comparison of a rule."""

    name: str
    """A key of `Forecast.numbers`, `state` or `action`."""
    sign: str
    limit: float | str

    def holds(self, forecast: Forecast) -> bool:
        known = self.value(forecast)
        return known is not None and bool(SIGNS[self.sign](known, self.limit))

    def value(self, forecast: Forecast) -> float | str | None:
        """Return the value that is compared; None if it is unknown."""
        if self.name in CHOICES:
            return getattr(forecast.decision, self.name).value
        return forecast.numbers.get(self.name)


class StopRule:
    """A rule that says when to end training: a text, or a function of the decision.

    >>> StopRule("p_worth < 0.1 or p_reach(0.7) < 0.05").rewards
    (0.7,)
    """

    def __init__(self, rule: str | Test, give_up_after: int | None = None) -> None:
        """Parse a rule; raise UsageError if that fails.

        `give_up_after` is the number of evaluations after which the rule is applied even if the reward has not risen;
        None means never.
        """
        self.rule, self.give_up_after = rule, give_up_after
        if give_up_after is not None and give_up_after < 1:
            raise UsageError(f"give_up_after must be 1 or more evaluations, not {give_up_after}")
        parts = [] if callable(rule) else [re.split(r"\band\b", group) for group in re.split(r"\bor\b", rule)]
        self.groups = [[_condition(part, self.name) for part in group] for group in parts]
        """Training ends if all conditions of any one group hold."""
        conditions = [each for group in self.groups for each in group]
        if give_up_after is None and any((each.sign, each.limit) == ("==", State.FLAT) for each in conditions):
            raise UsageError(
                f"stop_when {rule!r} ends runs whose reward has not risen: set give_up_after to a number of evaluations"
            )

    @property
    def name(self) -> str:
        return self.rule if isinstance(self.rule, str) else getattr(self.rule, "__name__", "a function")

    @property
    def rewards(self) -> tuple[float, ...]:
        """The rewards R for which the rule needs p_reach(R)."""
        names = [each.name for group in self.groups for each in group if each.name.startswith("p_reach")]
        return tuple(float(name[len("p_reach(") : -1]) for name in names)

    def reason(self, forecast: Forecast) -> str | None:
        """Return why training should end; None if it should continue."""
        if not self._is_asked(forecast):
            return None
        if not isinstance(self.rule, str):
            return f"{self.name} is true" if self.rule(forecast.decision) else None
        for group in self.groups:
            if all(each.holds(forecast) for each in group):
                return " and ".join(f"{each.name} is {_shown(each.value(forecast))}" for each in group)
        return None

    def _is_asked(self, forecast: Forecast) -> bool:
        """Return whether the rule applies: the reward has risen, or `give_up_after` evaluations have passed."""
        decision = forecast.decision
        if decision.state == State.TOO_EARLY:
            return False
        has_risen = decision.p_seen >= LIKELIER
        return has_risen or (self.give_up_after is not None and forecast.num_points >= self.give_up_after)


def _shown(value: float | str | None) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _condition(part: str, text: str) -> Condition:
    match, rule = _CONDITION.fullmatch(part), f"stop_when {text!r}"
    if match is None:
        raise UsageError(
            f"{rule} cannot be read at {part.strip()!r}: write comparisons such as p_worth < 0.1, p_reach(0.7) < 0.05 "
            "or state == 'past its peak', joined by and, or"
        )
    name, reward, sign, limit, word = match.group("name", "reward", "sign", "limit", "word")
    if name not in (*NUMBERS, *CHOICES):
        raise UsageError(
            f"{rule} compares {name!r}; choices: {', '.join((*NUMBERS, *CHOICES))}. They are probabilities, because a "
            "flat or noisy run also has values"
        )
    if (name == "p_reach") != (reward is not None):
        needed = "needs a reward, as in p_reach(0.7)" if name == "p_reach" else "takes no reward in brackets"
        raise UsageError(f"{rule}: {name} {needed}")
    if name in CHOICES and (word not in CHOICES[name] or sign not in ("==", "!=")):
        raise UsageError(f"{rule}: {name} is compared by == or != with {', '.join(map(repr, map(str, CHOICES[name])))}")
    if name in NUMBERS and limit is None:
        raise UsageError(f"{rule}: {name} is a number, not {word!r}")
    if reward is not None:
        name = f"p_reach({float(reward):g})"
    return Condition(name=name, sign=sign, limit=word if limit is None else float(limit))
