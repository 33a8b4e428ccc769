"""The forecast of a run while it trains, from its own evaluations. Pure."""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any, Self

import numpy as np

from scalerl.curves import decide, fit, reward_at
from scalerl.curves.fit import LEAST_POINTS
from scalerl.logs.axes import Axis, preferred_axis
from scalerl.logs.series import Series, start_noise
from scalerl.report.metrics import number
from scalerl.report.results import CurveResult

__all__ = ["FIRST_FIT", "Axis", "LiveForecast", "preferred_axis", "with_end"]

FIRST_FIT = LEAST_POINTS - 1  # evaluations after the start from which a curve is fitted


class LiveForecast:
    """A forecast for any training loop: add each evaluation, and ask for the outlook.

    forecast = LiveForecast(end_compute=1000)      compute in any unit: steps, GPU-hours, FLOPs
    forecast.add(0, 0.12); forecast.add(50, 0.18)  compute 0 is the model before training
    outlook = forecast.outlook()                   None before the sixth evaluation; .fit, .decision, .at_end
    """

    def __init__(
        self, end_compute: float | None = None, *, bounds: tuple[float, float] | None = (0.0, 1.0), **options: Any
    ) -> None:
        """`bounds=None` is for rewards without limits; `options` go to `fit`."""
        self.end_compute = end_compute
        self._bounds, self._options = bounds, options
        self._evaluations: list[tuple[float, float, int | None]] = []
        self._axis = "compute"

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
        self._evaluations.append((compute, reward, num_samples))

    def outlook(self) -> CurveResult | None:
        """Fit the evaluations so far; None while there are too few."""
        start, num_at_start = next(((reward, num) for at, reward, num in self._evaluations if at == 0), (None, None))
        samples_at_start = np.array([np.nan if num_at_start is None else num_at_start])
        later = [row for row in self._evaluations if row[0] > 0]
        if len(later) < FIRST_FIT:
            return None
        compute, reward, num_samples = (np.array(values) for values in zip(*later, strict=True))
        series = Series(
            name="",
            compute=compute,
            reward=reward,
            x_label=self._axis,
            y_label="reward",
            num_samples=None if None in num_samples else num_samples,
            start=start,
            start_sd=0.0 if start is None else start_noise(np.array([start]), samples_at_start, self._bounds),
        )
        given = {name: getattr(series, name) for name in ("compute", "reward", "num_samples", "start", "start_sd")}
        done = fit(**given, bounds=self._bounds, **self._options)
        return with_end(CurveResult(series=series, fit=done, decision=decide(done)), self.end_compute)


def with_end(curve: CurveResult, end_compute: float | None) -> CurveResult:
    """Return a curve with its forecast for the end of a budget, if the end is known and not reached yet."""
    if not curve.usable or end_compute is None or end_compute <= curve.fit.scale:
        return curve
    return replace(curve, at=tuple(reward_at(curve.fit, [end_compute])))
