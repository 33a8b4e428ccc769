"""The forecast of a run while it trains: what `scalerl fit` says of its folder, or of the numbers of any other loop."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from scalerl.errors import InputError, unknown_argument
from scalerl.forecast.curves import decide, fit
from scalerl.forecast.curves.fit import LEAST_POINTS
from scalerl.forecast.logs import Series
from scalerl.forecast.logs.start import start_noise
from scalerl.forecast.report.analyse import fitted_curves, with_end
from scalerl.forecast.report.options import FitOptions
from scalerl.forecast.report.results import CurveResult, curve_result
from scalerl.forecast.report.run_series import Evaluations, run_series

FIRST_FIT = LEAST_POINTS - 1
"""Evaluations after the start from which a curve is fitted."""


FIT_OPTIONS = ("form", "level", "fixed", "skip_before", "fit_until")
"""Options of a fit that a live forecast may be given."""


def _number(given: object, name: str) -> float:
    """Return a number that a caller gave; InputError for anything else."""
    if isinstance(given, int | float | np.integer | np.floating) and not isinstance(given, bool):
        number = float(given)
        if math.isfinite(number):
            return number
    raise InputError(f"{name} must be a finite number, not {given!r}.")


class LiveForecast:
    """A forecast for any training loop: add each evaluation, and ask for the outlook.

    >>> forecast = LiveForecast(end_compute=1000)         # compute in any unit: steps, GPU-hours, FLOPs
    >>> for step, reward in ((0, 0.12), (50, 0.18), (100, 0.26), (150, 0.31), (200, 0.37), (250, 0.39)):
    ...     forecast.add(step, reward)                    # compute 0 is the model before training
    >>> outlook = forecast.outlook()                      # None before the sixth evaluation
    >>> outlook.decision.state.value, outlook.at_end.compute
    ('rising', 1000.0)
    """

    def __init__(
        self,
        end_compute: float | None = None,
        *,
        bounds: tuple[float, float] | None = (0.0, 1.0),
        worth: float | None = None,
        unit: str = "compute",
        **options: Any,
    ) -> None:
        """`bounds=None` is for rewards without limits; `worth` is the least that matters; `options` go to `fit`.

        `unit` is what compute is counted in: step, tokens, flops, hours, or any other word.
        """
        for name in options:
            if name not in FIT_OPTIONS:
                known = ("end_compute", "bounds", "worth", "unit", *FIT_OPTIONS)
                raise InputError(unknown_argument(name, "LiveForecast()", known))
        self.end_compute = None if end_compute is None else _number(end_compute, "end_compute")
        self._unit = unit
        self._bounds = bounds
        self._options = options
        self._worth = None if worth is None else _number(worth, "worth")
        self._evaluations: list[tuple[float, float, int | None]] = []

    def add(self, compute: float, reward: float, num_samples: int | None = None) -> None:
        """Add one evaluation: the mean reward of `num_samples` completions after this much compute."""
        compute = _number(compute, "compute")
        reward = _number(reward, "reward")
        if compute < 0:
            raise InputError(f"compute must be at least 0, not {compute:g}.")
        if num_samples is not None and _number(num_samples, "num_samples") < 1:
            raise InputError(f"num_samples must be at least 1, not {num_samples}.")
        if self._bounds is not None and not self._bounds[0] <= reward <= self._bounds[1]:
            low, high = self._bounds
            raise InputError(
                f"the reward {reward:g} is outside [{low:g}, {high:g}]: rescale it, or give LiveForecast(bounds=None)."
            )
        self._evaluations.append((compute, reward, num_samples))

    def outlook(self) -> CurveResult | None:
        """Fit the evaluations so far; None while there are too few."""
        start, num_at_start = next(((reward, num) for at, reward, num in self._evaluations if at == 0), (None, None))
        samples_at_start = np.array([np.nan if num_at_start is None else num_at_start])
        later = [row for row in self._evaluations if row[0] > 0]
        if len(later) < FIRST_FIT:
            return None
        compute, reward, num_samples = (np.array(values) for values in zip(*later, strict=True))
        given: dict[str, Any] = {
            "compute": compute,
            "reward": reward,
            "num_samples": None if None in num_samples else num_samples,
            "start": start,
            "start_sd": 0.0 if start is None else start_noise(np.array([start]), samples_at_start, self._bounds),
        }
        series = Series(name="", x_label=self._unit, y_label="reward", **given)
        done = fit(**given, bounds=self._bounds, **self._options)
        return with_end(curve_result(series, done, decide(done, self._worth)), self.end_compute)


def outlooks_of(rows: Sequence[Mapping[str, Any]], device: str) -> dict[str, CurveResult]:
    """Fit the evaluation sets of one of our runs from its rows of evals.jsonl; by set.

    A set without a curve yet is left out.
    """
    every = run_series([Evaluations(rows=rows, device=device)])
    sets = list(dict.fromkeys(row["set"] for row in rows))
    series = [data for data in every if len(data.compute) >= FIRST_FIT]
    # The curves of one run are different sets, which do not inform each other.
    curves = fitted_curves(series, FitOptions(alone=True))
    return {sets[0] if data.evaluation_set is None else data.evaluation_set: curve
            for data, curve in zip(series, curves, strict=True)}  # fmt: skip
