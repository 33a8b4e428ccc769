"""Whether a run rises at all, and the smallest rise that would have been noticed."""

from dataclasses import dataclass

import numpy as np

from scalerl.curves.points import Known, Points
from scalerl.curves.residuals.columns import add_columns, places, steps

STEP_RANKS = (0.1, 0.3, 0.5, 0.7)  # shares of the points before the middle of a rise
POWER, POWER_Z = 0.8, 0.84  # share of runs that notice a gain, and the standard errors beyond the limit it takes
# The limit for a run of many points, and what it is higher by for one of few, times their number.
LIMIT, FEW_POINTS = 2.3, 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Rise:
    """The strongest rise seen, in standard errors, against the limit from which it counts as one."""

    statistic: float
    limit: float
    noticeable: float
    """Smallest gain per doubling of compute that would have been noticed in four runs of five."""
    autocorrelation: float

    @property
    def seen(self) -> bool:
        return self.statistic > self.limit


def find_rise(points: Points, known: Known, least_noise: float = 0.0) -> Rise:
    """Test a constant reward (the start, where that is known exactly) against rises of several shapes."""
    after = np.isfinite(points.log_compute)  # a noisy start is a point at compute 0
    log_compute = np.where(after, points.log_compute, points.log_compute[after].min())
    columns = [log_compute / np.log(2.0), np.exp(log_compute), *steps(points, places(points, STEP_RANKS)).T]
    reward, tangent = points.reward, np.ones((points.num, 1))
    if known.start is not None:
        reward, tangent = points.reward - known.start, np.empty((points.num, 0))
    if known.start is not None or not after.all():
        columns.append(np.where(after, 1.0, 0.0))  # a jump before the first point
    if points.num_runs > 1 and known.start is None:
        # Runs may lie at different heights.
        tangent = np.stack([np.where(points.run == run, 1.0, 0.0) for run in np.unique(points.run)], axis=1)
    tests = add_columns(reward, tangent, np.stack(columns, axis=1), points)
    limit = LIMIT + FEW_POINTS / points.num
    error = tests.error[0] * max(1.0, least_noise / max(tests.noise_sd[0], 1e-300))
    return Rise(
        statistic=float(tests.t.max()),
        limit=limit,
        noticeable=float((limit + POWER_Z) * error),
        autocorrelation=float(tests.autocorrelation[0]),
    )
