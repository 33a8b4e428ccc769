"""`Series`: the points of one curve, with what was decided about them."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scalerl.forecast.logs.columns import Unit
from scalerl.forecast.logs.facts import Fact
from scalerl.forecast.logs.frame import Floats
from scalerl.forecast.logs.names import CurveKey
from scalerl.forecast.logs.plan import Choice
from scalerl.forecast.logs.selection import SCALES, Bounds, YScale

_NO_POINTS = np.empty(0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    """One curve's points, sorted by run and compute."""

    name: str
    compute: Floats
    reward: Floats
    x_label: str
    y_label: str
    run: NDArray[np.str_] | None = None
    """The run of each point; None if all are of one run."""
    num_samples: NDArray[np.int64] | None = None
    start: float | None = None
    start_sd: float | None = 0.0
    """Noise of `start`: 0 if the user gave it; None if it was read from the log, as noisy as any evaluation."""
    holdout_compute: Floats = field(default_factory=_NO_POINTS.copy)
    holdout_reward: Floats = field(default_factory=_NO_POINTS.copy)
    evaluation: NDArray[np.str_] | None = None
    """'prompts_hash@step': equal strings mean the same prompts at the same step."""
    problem: str | None = None
    """Why this curve cannot be fitted; None if it can."""
    key: CurveKey = ()
    """The columns, with their values, that set this curve apart from others."""
    evaluation_set: str | None = None
    """The evaluation set, where there are several: curves of different sets are not compared."""
    y_scale: YScale = "1"
    """The scale of the rewards, which is that of the log: 1, 100 (per cent), pm1 or none (no limits)."""
    facts: tuple[Fact, ...] = ()
    """What was decided about the rows that the user did not ask for."""
    plan: Mapping[str, Choice] = field(default_factory=dict)
    """What was decided about the columns: role, column and rule."""
    axes: Mapping[str, Floats] = field(default_factory=dict)
    """The same points on every axis that the log has (gpu_hours, flops, tokens, hours, step, cost); NaN: not known."""
    units: Mapping[str, Unit] = field(default_factory=dict)
    """The unit in which the log writes an axis, where it says one; `x_label` has that of the axis shown."""

    @property
    def bounds(self) -> Bounds:
        """The least and the largest possible reward; None for rewards without limits."""
        return SCALES[self.y_scale]

    def take(self, which: Any) -> "Series":
        """Return the series with only these points, by mask or index; held-out points stay."""
        optional = {name: getattr(self, name) for name in ("run", "num_samples", "evaluation")}
        picked = {name: None if values is None else values[which] for name, values in optional.items()}
        axes = {name: compute[which] for name, compute in self.axes.items()}
        return replace(self, compute=self.compute[which], reward=self.reward[which], axes=axes, **picked)

    def on(self, axis: str) -> "Series":
        """Return the curve on another of its axes.

        Held-out points, and points whose compute on that axis is unknown or 0, are left out.
        """
        compute = self.axes[axis]
        runs = np.zeros(len(compute)) if self.run is None else self.run
        order = np.lexsort((compute, runs))  # by run, then by compute
        moved = replace(self, compute=compute, x_label=axis, holdout_compute=_NO_POINTS, holdout_reward=_NO_POINTS)
        return moved.take(order[compute[order] > 0])


def uneven_steps(series: Iterable[Series], ratio: float = 1.2) -> dict[str, float]:
    """Return the axes on which the steps of curves cost different amounts, and the largest ratio between two curves.

    Curves whose steps differ in hours or tokens cannot be compared by step.
    """
    axes = [data.axes for data in series if not data.problem]
    shared = set[str].intersection(*map(set, axes)) if axes else set[str]()
    if "step" not in shared:
        return {}
    uneven: dict[str, float] = {}
    for axis in sorted(shared):
        costs = [cost_of_step(each, axis) for each in axes]
        least, most = min(costs), max(costs)
        if least > 0 and most > ratio * least:
            uneven[axis] = most / least
    return uneven


def cost_of_step(axes: Mapping[str, Floats], axis: str) -> float:
    """Return what a step takes on an axis, the median over the run; 0 if it is not known."""
    steps = axes["step"]
    costs = axes[axis][steps > 0] / steps[steps > 0]
    known = costs[np.isfinite(costs)]
    return float(np.median(known)) if len(known) else 0.0


def in_shares(series: Series) -> Series:
    """Return the series with rewards rescaled so that their limits are 0 and 1; rewards without limits stay."""
    if series.bounds is None or series.y_scale == "1":
        return series
    low, high = series.bounds
    width = high - low
    return replace(
        series,
        y_scale="1",
        reward=(series.reward - low) / width,
        holdout_reward=(series.holdout_reward - low) / width,
        start=None if series.start is None else (series.start - low) / width,
        start_sd=None if series.start_sd is None else series.start_sd / width,
    )
