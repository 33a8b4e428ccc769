"""Rules that end training: a function of the forecast, or one of RULES by its name.

    ForecastCallback(stop="little to gain")
    ForecastCallback(stop=lambda forecast: forecast.decision.p_worth < 0.05)

No rule is applied before the reward has risen, so that it cannot end a run that has yet to begin learning, unless
`give_up_after` evaluations have passed.
"""

from collections.abc import Callable
from typing import Literal

from scalerl.callbacks.forecast import Forecast
from scalerl.errors import UsageError
from scalerl.forecast.curves.decide import LIKELIER, State

Test = Callable[[Forecast], bool]
Ready = Literal["little to gain", "past its peak"]
UNLIKELY = 0.1
"""Largest probability that one more doubling of compute still brings more than the worth."""
PATIENCE = 2
"""Number of consecutive forecasts for which a rule must hold."""


def has_little_to_gain(forecast: Forecast) -> bool:
    """Return whether one more doubling of compute is unlikely to bring more than the worth."""
    return forecast.decision.p_worth < UNLIKELY


def is_past_its_peak(forecast: Forecast) -> bool:
    """Return whether the reward has fallen from its peak."""
    return forecast.decision.state == State.PAST_PEAK


RULES: dict[str, Test] = {"little to gain": has_little_to_gain, "past its peak": is_past_its_peak}


class StopRule:
    """A rule with the number of evaluations after which it is applied even if the reward has not risen."""

    def __init__(self, rule: Ready | Test, give_up_after: int | None = None) -> None:
        """Find a rule by its name, or take a function; UsageError if there is none."""
        if isinstance(rule, str) and rule not in RULES:
            choices = ", ".join(map(repr, RULES))
            raise UsageError(f"stop is {rule!r}, but must be {choices} or a function of the forecast")
        if give_up_after is not None and give_up_after < 1:
            raise UsageError(f"give_up_after must be 1 or more evaluations, not {give_up_after}")
        self._holds = RULES[rule] if isinstance(rule, str) else rule
        self.name = rule if isinstance(rule, str) else getattr(rule, "__name__", "a function")
        self.give_up_after = give_up_after

    def holds(self, forecast: Forecast) -> bool:
        """Return whether training should end."""
        return self._applies(forecast) and bool(self._holds(forecast))

    def _applies(self, forecast: Forecast) -> bool:
        if forecast.decision.state == State.TOO_EARLY:
            return False
        has_risen = forecast.decision.p_seen >= LIKELIER
        gives_up = self.give_up_after is not None and forecast.num_points >= self.give_up_after
        return has_risen or gives_up
