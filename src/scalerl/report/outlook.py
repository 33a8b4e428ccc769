"""The forecast of a run while it trains, from its own evaluations. Pure."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Self

import numpy as np

from scalerl.curves import At, Fit, Verdict, fit, reward_at
from scalerl.curves.data import Bounds
from scalerl.curves.fit import LEAST_POINTS
from scalerl.logs.axes import Axis, preferred_axis
from scalerl.report.columns import number

__all__ = ["FIRST_FIT", "Axis", "Ceiling", "LiveForecast", "Outlook", "forecast_end", "preferred_axis"]

FIRST_FIT = LEAST_POINTS - 1  # evaluations after the start from which a curve is fitted


@dataclass(frozen=True, slots=True, kw_only=True)
class Outlook:
    """The curve of the evaluations so far, and the reward it forecasts for the end of the budget."""

    fit: Fit
    axis: Axis | None
    """Column of the compute, None where it is not known."""
    at_end: At | None
    """See `forecast_end`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ceiling:
    """The ceiling of a fitted curve with its interval, and the verdict on the fit."""

    value: float
    low: float
    high: float
    verdict: Verdict

    @classmethod
    def of(cls, fit: Fit) -> Self:
        low, high = fit.interval("ceiling")
        return cls(value=fit.params["ceiling"], low=low, high=high, verdict=fit.verdict)


@dataclass(frozen=True, slots=True)
class _Evaluation:
    compute: float
    reward: float
    num_samples: int | None


class LiveForecast:
    """A forecast for any training loop: add each evaluation, and ask for the outlook.

    forecast = LiveForecast(end_compute=1000)      compute in any unit: steps, GPU-hours, FLOPs
    forecast.add(0, 0.12); forecast.add(50, 0.18)  compute 0 is the model before training
    outlook = forecast.outlook()                   None before the sixth evaluation
    """

    def __init__(
        self, end_compute: float | None = None, *, bounds: tuple[float, float] | None = (0.0, 1.0), **options: Any
    ) -> None:
        """`bounds=None` is for rewards without limits; `options` go to `fit`."""
        self.end_compute = end_compute
        self._options = {"bounds": bounds, **options}
        self._evaluations: list[_Evaluation] = []
        self._axis: Axis | None = None

    @classmethod
    def from_rows(
        cls, rows: Iterable[Mapping[str, Any]], end_compute: float | None = None, *, axis: Axis = "gpu_hours"
    ) -> Self:
        """Return a forecast from rows of evals.jsonl over a column of compute.

        Rows without a finite compute and reward are skipped; rewards outside 0 to 1 are fitted without bounds.
        """
        numbers = [[number(row.get(name)) for name in (axis, "reward", "num_samples")] for row in rows]
        known = [row for row in numbers if row[0] >= 0 and row[1] == row[1]]
        is_share = all(0 <= reward <= 1 for _, reward, _ in known)
        forecast = cls(end_compute, bounds=(0.0, 1.0) if is_share else None)
        forecast._axis = axis
        for compute, reward, num_samples in known:
            forecast.add(compute, reward, int(num_samples) if num_samples >= 1 else None)
        return forecast

    def add(self, compute: float, reward: float, num_samples: int | None = None) -> None:
        """Add one evaluation: the mean reward of `num_samples` completions after this much compute."""
        if not compute >= 0 or not np.isfinite(compute) or not np.isfinite(reward):
            raise ValueError(f"compute must be finite and at least 0 and reward finite, not {compute:g} and {reward:g}")
        self._evaluations.append(_Evaluation(compute, reward, num_samples))

    def outlook(self) -> Outlook | None:
        """Fit the evaluations so far; None while there are too few."""
        start = next((row for row in self._evaluations if row.compute == 0), None)
        later = [row for row in self._evaluations if row.compute > 0]
        if len(later) < FIRST_FIT:
            return None
        num_samples = [row.num_samples for row in later]
        curve = fit(
            [row.compute for row in later],
            [row.reward for row in later],
            num_samples=None if None in num_samples else num_samples,
            start=None if start is None else start.reward,
            start_sd=0.0 if start is None else _binomial_sd(start, self._options.get("bounds", (0.0, 1.0))),
            **self._options,
        )
        return Outlook(fit=curve, axis=self._axis, at_end=forecast_end(curve, self.end_compute))


def forecast_end(curve: Fit, end_compute: float | None) -> At | None:
    """Return the forecast for the end of a budget; None where the end is not known or is reached."""
    if not curve.usable or end_compute is None or end_compute <= curve.scale:
        return None
    return reward_at(curve, [end_compute])[0]


def _binomial_sd(start: _Evaluation, bounds: Bounds) -> float | None:
    """Return the noise of the start's reward; None, meaning that of one evaluation, if its samples are not known."""
    if start.num_samples is None or bounds is None:
        return None
    low, width = bounds[0], bounds[1] - bounds[0]
    rate = min(max((start.reward - low) / width, 0.5 / start.num_samples), 1 - 0.5 / start.num_samples)
    return width * float(np.sqrt(rate * (1 - rate) / start.num_samples))


def ceiling_cell(ceiling: Ceiling) -> str:
    """Return the cell of a table under the heading "ceiling": the numbers if it is known, else the verdict."""
    if ceiling.verdict == Verdict.KNOWN:
        return f"{ceiling.value:.3f} [{ceiling.low:.3f}, {ceiling.high:.3f}]"
    return "not known yet" if ceiling.verdict == Verdict.WIDE else ceiling.verdict


def ceiling_text(ceiling: Ceiling) -> str:
    """Return the same for a sentence: "ceiling 0.7 [0.6, 0.8]", "ceiling not known yet" or "curve VERDICT".

    Other verdicts judge the whole curve.
    """
    judges_ceiling = ceiling.verdict in (Verdict.KNOWN, Verdict.WIDE)
    return f"{'ceiling' if judges_ceiling else 'curve'} {ceiling_cell(ceiling)}"
