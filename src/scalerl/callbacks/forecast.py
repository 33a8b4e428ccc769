"""Make a forecast from the rewards of a run so far: plain numbers and one sentence. Runs in any process."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from scalerl.curves import Value, conclusions, doubling, note_text
from scalerl.report.numbers import interval_text
from scalerl.report.outlook import LiveForecast
from scalerl.report.results import CurveResult, param_value

FEWEST_REWARDS = 16
"""Training rewards from which a curve is fitted to them: they are noisier than evaluations."""
VALUES = ("gain_per_doubling", "ceiling", "end")
ENDS = {"": "value", "_low": "low", "_high": "high"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Forecast:
    """A forecast for the end of a run."""

    num_points: int
    compute: float
    """Largest compute so far."""
    verdict: str
    ceiling: Value | None
    end: Value | None
    """Reward at the end of the budget; None where the end is not known, or reached."""
    gain_per_doubling: Value | None
    p_reach: tuple[tuple[float, float], ...] = ()
    """(reward, probability that it is reached by the end of the budget, or ever where the end is not known)."""
    text: str = ""

    @property
    def numbers(self) -> dict[str, float]:
        """What is known, by name: `end`, `end_low`, `p_reach(0.7)`, say; and the number of evaluations."""
        values = {
            f"{name}{suffix}": float(getattr(getattr(self, name), end, np.nan))
            for name in VALUES
            for suffix, end in ENDS.items()
        }
        values |= {f"p_reach({reward:g})": p for reward, p in self.p_reach} | {"evaluations": float(self.num_points)}
        return {name: value for name, value in values.items() if np.isfinite(value)}

    def metrics(self) -> dict[str, Any]:
        """Return what is logged, by name; what is not known is left out."""
        return {**{f"forecast/{name}": value for name, value in self.numbers.items()}, "forecast/verdict": self.verdict}


def make_forecast(
    points: Sequence[tuple[float, float]],
    end_compute: float | None,
    *,
    bounds: tuple[float, float] | None = (0.0, 1.0),
    rewards: Sequence[float] = (),
) -> Forecast | None:
    """Return the forecast from (compute, reward) so far; None while there are too few points.

    `rewards` are those whose p_reach is asked for.
    """
    if bounds is not None and any(not bounds[0] <= reward <= bounds[1] for _, reward in points):
        bounds = None  # a sum of several reward functions, mostly
    live = LiveForecast(end_compute, bounds=bounds)
    for compute, reward in points:
        live.add(float(compute), float(reward))
    outlook = live.outlook()
    return None if outlook is None else describe(outlook, end_compute, rewards)


def describe(outlook: CurveResult, end_compute: float | None = None, rewards: Sequence[float] = ()) -> Forecast:
    """Return an outlook as numbers and a sentence."""
    done, end = outlook.fit, None if outlook.at_end is None else outlook.at_end.reward
    text = " ".join(map(note_text, conclusions(done))) or str(done.verdict)
    text += "" if end is None else f" At the end of the budget: {interval_text(end)}."
    if end_compute is None or not done.has_intervals:
        draws = done.standing_draws if done.has_intervals else None
    else:
        draws = done.curve_draws([max(end_compute, done.scale)])[:, 0]
    return Forecast(
        num_points=done.num_points,
        compute=done.scale,
        verdict=str(done.verdict),
        ceiling=param_value(done, "ceiling") if done.usable else None,
        end=end,
        gain_per_doubling=doubling(done) if done.has_intervals else None,
        p_reach=() if draws is None else tuple((reward, float(np.mean(draws >= reward))) for reward in rewards),
        text=text[:1].upper() + text[1:],
    )
