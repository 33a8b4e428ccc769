"""Whether a run rises or falls at all, and the smallest rise that would have been noticed."""

from dataclasses import dataclass

import numpy as np

from scalerl.curves.points import Known, Points
from scalerl.curves.residuals.columns import add_columns, evidence, places, steps

STEP_RANKS = (0.1, 0.3, 0.5, 0.7)  # shares of the points before the middle of a rise
LIMIT = 2.25  # nats; docs/math.md states how often flat runs exceed it
FALL_LIMIT = 5.0  # of a run that falls, whose place was chosen with the data in view
POWER = 0.8  # share of runs that notice a gain
# Standard errors of the slope that a rise with even gains per doubling must have for that: with many points, and what
# is added with few, times their number.
NOTICED, FEW_POINTS = 3.0, 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Rise:
    """Log likelihood ratio of a rise against a constant reward, and the limit from which it counts as one."""

    statistic: float
    fall: float
    """The same for a fall."""
    limit: float
    noticeable: float
    """Smallest gain per doubling of compute that would have been noticed in four runs of five."""
    autocorrelation: float

    @property
    def seen(self) -> bool:
        return self.statistic > self.limit

    @property
    def fell(self) -> bool:
        return self.fall > FALL_LIMIT


def find_rise(points: Points, known: Known, least_noise: float = 0.0) -> Rise:
    """Test a constant reward (the start, where that is known exactly) against rises of several shapes."""
    after = np.isfinite(points.log_compute)  # a noisy start is a point at compute 0
    log_compute = np.where(after, points.log_compute, points.log_compute[after].min())
    columns = [log_compute / np.log(2.0), np.exp(log_compute), *steps(points, places(points, STEP_RANKS)).T]
    reward, tangent = points.reward, np.ones((points.num, 1))
    if known.start is not None:
        reward, tangent = points.reward - known.start, np.empty((points.num, 0))
    if known.start is not None or not after.all():
        # Most of a rise, or all of it, may lie before the first point.
        columns += [steps(points, log_compute[after].min()[None])[:, 0], np.where(after, 1.0, 0.0)]
    if points.num_runs > 1 and known.start is None:
        # Runs may lie at different heights.
        tangent = np.stack([np.where(points.run == run, 1.0, 0.0) for run in np.unique(points.run)], axis=1)
    stacked = np.stack(columns, axis=1)
    up, down = evidence(reward, tangent, stacked, points)
    slope = add_columns(reward, tangent, stacked[:, :1], points)
    error = slope.error[0] * max(1.0, least_noise / max(slope.noise_sd[0], 1e-300))
    return Rise(
        statistic=up,
        fall=down,
        limit=LIMIT,
        noticeable=float((NOTICED + FEW_POINTS / points.num) * error),
        autocorrelation=float(slope.autocorrelation[0]),
    )
