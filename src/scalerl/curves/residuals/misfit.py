"""Lack of fit: a test of whether the residuals of a fitted curve have a pattern that its form cannot follow.

The curve is linearised at its least squares, and one smooth column at a time is added to it: a constant, a step in log
compute (a phase of learning that the form does not know) or a slope that begins somewhere (a drift). The largest
F statistic of the columns is compared with a limit; docs/math.md states how often runs that follow the form exceed it.
"""

from dataclasses import dataclass

import numpy as np

from scalerl.curves.forms import Array, Form
from scalerl.curves.least_squares import Solution
from scalerl.curves.points import Known, Points
from scalerl.curves.residuals.columns import add_columns, places, steps
from scalerl.curves.residuals.tangents import residuals, tangents

STEP_RANKS = (0.02, 0.05, 0.1, 0.2, 0.35, 0.5, 0.7)  # shares of the points before the middle of a step
SLOPE_RANKS = (0.1, 0.25, 0.5)  # and before the beginning of a slope
LEAST_SPARE = 4  # points beyond the free parameters
# The limit for a run of many points, and what it is higher by for one of few, times their number: with few points an
# autocorrelation is often taken for independent noise with a pattern.
LIMIT, FEW_POINTS = 9.0, 180.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Misfit:
    """The strongest pattern in the residuals."""

    statistic: float
    limit: float
    autocorrelation: float
    """Autocorrelation of the noise, with the pattern taken out."""
    size: float
    """The largest change that the pattern makes to the curve, in units of the reward."""
    log_place: float
    """Log compute, relative to the largest, around which the pattern begins."""

    @property
    def claimed(self) -> bool:
        return self.statistic > self.limit


def find_misfit(points: Points, form: Form, known: Known, best: Solution) -> Misfit | None:
    """Return the strongest pattern in the residuals of `best`; None where there are too few points to see one."""
    tangent = tangents(points, form, known, best)
    if points.num < tangent.shape[1] + LEAST_SPARE:
        return None
    columns, begins = patterns(points)
    tests = add_columns(residuals(points, form, best), tangent, columns, points)
    which = int(np.argmax(np.abs(tests.t)))
    return Misfit(
        statistic=float(tests.t[which] ** 2),
        limit=LIMIT + FEW_POINTS / points.num,
        autocorrelation=float(tests.autocorrelation[which]),
        size=float(tests.effect[which]),
        log_place=float(begins[which]),
    )


def patterns(points: Points) -> tuple[Array, Array]:
    """Columns to try, and the log compute at which each begins."""
    step_places, slope_places = places(points, STEP_RANKS), places(points, SLOPE_RANKS)
    slopes = np.maximum(points.log_compute[:, None] - slope_places, 0.0)
    columns = np.concatenate([np.ones((points.num, 1)), steps(points, step_places), slopes], axis=1)
    return columns, np.concatenate([places(points, (0.0,)), step_places, slope_places])
