"""The points of a curve as they are drawn: one by one, or as bins where there are too many to tell apart."""

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from scalerl.curves import Fit, bin_rewards
from scalerl.logs.series import Series

Array = NDArray[np.float64]
Role = Literal["fitted", "left out", "held out"]

MOST_DOTS = 300  # points of one run that are drawn one by one
MOST_QUANTISED = 100  # and of rewards that take few values: rows of points that hide each other
FEW_VALUES = 0.25  # distinct rewards over points, below which rewards count as quantised


@dataclass(frozen=True, slots=True, kw_only=True)
class Dots:
    """Points of one run that play one part, or the bins of these."""

    role: Role
    run: int
    run_label: str
    """Empty where there is one run."""
    compute: Array
    reward: Array
    residual: Array
    """Reward less the curve; NaN where there is no curve."""
    error: Array | None
    """Standard error of each reward; None for single rewards."""
    count: NDArray[np.int64] | None
    """Rewards in each bin; None where the points are drawn one by one."""


def draw_binned(reward: Array) -> bool:
    """Return whether so many rewards of one run are drawn as bins."""
    is_quantised = len(np.unique(reward)) < FEW_VALUES * len(reward)
    return len(reward) > (MOST_QUANTISED if is_quantised else MOST_DOTS)


def curve_dots(series: Series, fit: Fit | None, usable: Fit | None) -> tuple[Dots, ...]:
    """Return the points of a series; `usable` is the fit where it has a curve."""
    left_out = _left_out(series.compute, fit)
    runs = np.zeros(len(series.compute), dtype=int)
    labels: list[str] | NDArray[np.str_] = [""]
    if series.run is not None:
        labels, runs = np.unique(series.run, return_inverse=True)
    roles: dict[Role, NDArray[np.bool_]] = {"left out": left_out, "fitted": ~left_out}
    groups = [
        _dots(role, run, str(label), series, mask & (runs == run), usable)
        for run, label in enumerate(labels)
        for role, mask in roles.items()
        if (mask & (runs == run)).any()
    ]
    if len(series.holdout_compute):
        groups.append(_made("held out", 0, "", series.holdout_compute, series.holdout_reward, None, usable))
    return tuple(groups)


def _dots(role: Role, run: int, label: str, series: Series, mask: NDArray[np.bool_], fit: Fit | None) -> Dots:
    error = None if series.error is None else series.error[mask]
    return _made(role, run, label, series.compute[mask], series.reward[mask], error, fit)


def _made(
    role: Role, run: int, label: str, compute: Array, reward: Array, error: Array | None, fit: Fit | None
) -> Dots:
    count = None
    if error is None and draw_binned(reward):
        bins = bin_rewards(compute, reward)
        compute, reward, error, count = bins.compute, bins.reward, bins.error, bins.count
    return Dots(
        role=role,
        run=run,
        run_label=label,
        compute=compute,
        reward=reward,
        residual=reward - fit.predict(compute) if fit is not None else np.full(len(reward), np.nan),
        error=error,
        count=count,
    )


def _left_out(compute: Array, fit: Fit | None) -> NDArray[np.bool_]:
    """Return which points lie outside the fitted window, with a tolerance for rounding."""
    if fit is None:
        return np.zeros(len(compute), dtype=bool)
    if not fit.num_points:
        return np.ones(len(compute), dtype=bool)
    return (compute < fit.compute.min() * (1 - 1e-9)) | (compute > fit.scale * (1 + 1e-9))
