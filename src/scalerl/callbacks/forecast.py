"""Forecast a run from its rewards so far: a decision and plain numbers that can be sent between processes."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from scalerl.callbacks.live_forecast import FIRST_FIT, LiveForecast
from scalerl.forecast.curves import Decision, Value
from scalerl.forecast.logs import Series
from scalerl.forecast.report.results import CurveResult
from scalerl.forecast.report.wording import Lookup
from scalerl.forecast.report.words import text

FEWEST_REWARDS = 16
"""Fewest training rewards for a fit: they are noisier than evaluations."""
GROWTH = 1.05
"""Training rewards come with every log. They are fitted again when their number has grown by this factor."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Forecast:
    """A forecast for the end of a run."""

    num_points: int
    compute: float
    """Largest compute so far."""
    decision: Decision
    to_do: str
    """What to do with the run, in the words of `scalerl fit`."""
    ceiling: Value | None
    """None if the reward has not risen, or is past its peak."""
    doubling: Value | None
    """Gain of doubling the compute once more; None if the reward has not risen."""
    end: Value | None
    """Reward at the end of the budget; None if the reward has not risen, or if the end is unknown or reached."""
    is_training: bool = False
    """Whether the rewards are training rewards, not evaluations."""

    @property
    def numbers(self) -> dict[str, float]:
        """The known numbers by name, such as `p_worth`, `end`, `end_low` and `evaluations`."""
        decision = self.decision
        values: dict[str, float] = {
            "p_worth": decision.p_worth,
            "p_nearly_all": decision.p_nearly_all,
            "p_seen": decision.p_seen,
            "evaluations": self.num_points,
        }
        for name, value in (("ceiling", self.ceiling), ("end", self.end), ("doubling", self.doubling)):
            if value is not None:
                values |= {name: value.value, f"{name}_low": value.low, f"{name}_high": value.high}
        return {name: float(value) for name, value in values.items() if math.isfinite(value)}

    def metrics(self) -> dict[str, Any]:
        """Return the known values to log, by name."""
        logged: dict[str, Any] = {f"forecast/{name}": value for name, value in self.numbers.items()}
        logged["forecast/state"] = self.decision.state.value
        logged["forecast/action"] = self.decision.action.value
        return logged

    @property
    def text(self) -> str:
        """The forecast in one line."""
        return text("forecast", Lookup({"num": self.num_points}, self, self.decision))


def make_forecast(
    points: Sequence[tuple[float, float]],
    end_compute: float | None,
    *,
    bounds: tuple[float, float] | None = (0.0, 1.0),
    unit: str = "compute",
    is_training: bool = False,
) -> Forecast | None:
    """Return a forecast from points (compute, reward); None if there are too few.

    `unit` is the unit of compute.
    """
    if bounds is not None and any(not bounds[0] <= reward <= bounds[1] for _, reward in points):
        bounds = None  # usually a sum of several reward functions
    live = LiveForecast(end_compute, bounds=bounds, unit=unit)
    for compute, reward in points:
        live.add(float(compute), float(reward))
    outlook = live.outlook()
    return None if outlook is None else describe(outlook, is_training=is_training)


def describe(outlook: CurveResult, *, is_training: bool = False) -> Forecast:
    """Convert the result of a fit to a forecast."""
    curve = outlook.fit
    decision = outlook.decision
    has_risen = outlook.doubling is not None
    assert decision is not None, "a posterior always has a decision"
    return Forecast(
        num_points=curve.num_points,
        compute=curve.scale,
        decision=decision,
        to_do=outlook.to_do,
        ceiling=outlook.ceiling,
        doubling=outlook.doubling,
        end=outlook.at_end.reward if has_risen and outlook.at_end is not None else None,
        is_training=is_training or has_training_rewards(outlook.series),
    )


def has_training_rewards(data: Series) -> bool:
    """Return whether the curve of a log consists of training rewards, because it has no evaluations."""
    return "y" in data.plan and data.plan["y"].rule == "training"


def is_due(num_points: int, num_fitted: int, *, is_training: bool) -> bool:
    """Return whether to fit again: at every evaluation, or when there are 5 % more training rewards."""
    if is_training:
        return num_points >= max(GROWTH * num_fitted, FEWEST_REWARDS)
    return num_points != num_fitted and num_points >= FIRST_FIT
