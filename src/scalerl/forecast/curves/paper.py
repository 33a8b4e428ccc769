"""The paper's own procedure (arXiv 2510.13786, A.5): a grid of ceilings and midpoints, exponents by least squares.

It gives point estimates without intervals.
"""

import itertools
import warnings
from dataclasses import dataclass

import numpy as np

from scalerl.forecast.curves.data import Bounds
from scalerl.forecast.curves.forms import Array

CEILINGS = np.linspace(0.450, 0.800, 71)
# The paper prints [100, 40000], but every midpoint that it reports is on this grid (docs/math.md).
MIDPOINTS = np.linspace(100, 4000, 100)
# The grid of its larger runs: their three midpoints are 35, 90 and 93 steps of it. A midpoint of 0 makes no curve.
LARGE_MIDPOINTS = np.linspace(0, 12_000, 100)[1:]
# Its runs start near 0.4, gain about 0.2 and are fitted up to 8,000 GPU-hours: the grids for other data are in these
# units.
START, GAIN, COMPUTE = 0.4, 0.2, 8_000
STEP = 0.005
"""Distance between neighbouring ceilings of the grid."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Grid:
    """The ceilings to try; a single value fixes the ceiling."""

    ceilings: Array


def default_grid(start: float, reward: Array, bounds: Bounds) -> Grid:
    """Return the printed grid if the rewards lie within it, else the same grid scaled to these rewards.

    The printed grid is of rewards from 0 to 1, and is scaled to other bounds; without bounds, no unit is known in which
    it would hold. So a curve in another unit gets the same ceiling in that unit, and the same exponent.
    """
    best = float(reward.max())
    if bounds is not None:
        low, high = bounds
        printed = low + (high - low) * CEILINGS
        if start < printed[0] <= best <= printed[-1] - (high - low) * STEP:
            return Grid(ceilings=printed)
    unit = max(best - start, 1e-12) / GAIN
    return Grid(ceilings=start + unit * (CEILINGS - START))


def paper_fit(
    compute: Array, reward: Array, start: float, bounds: Bounds, grid: Grid | None
) -> tuple[dict[str, float], tuple[str, ...]]:
    """Return the parameters with the least squared error, and the names of those on the grid's edge.

    The grid of midpoints is that of the paper's fits up to 8,000 GPU-hours, in proportion to the largest compute, so
    that the unit of compute does not matter. While the best midpoint is on its upper edge, try a larger grid: that of
    the paper's larger runs, then three times as long ones.
    """
    ceilings = (grid or default_grid(start, reward, bounds)).ceilings
    scale = float(compute.max())
    unit = scale / COMPUTE
    larger = (unit * 3**power * LARGE_MIDPOINTS for power in itertools.count())
    midpoints = unit * MIDPOINTS
    best = (np.inf, 0.0, 0.0, 0.0)
    while True:
        for ceiling in ceilings:
            for midpoint in midpoints:
                exponent, total = _fit_exponent(compute, reward, start, float(ceiling), float(midpoint))
                if total < best[0]:
                    best = (total, float(ceiling), float(midpoint), exponent)
        if best[2] < midpoints[-1] or midpoints[-1] > 2 * scale:
            break
        midpoints = next(larger)
    _, ceiling, midpoint, exponent = best
    tried = (("ceiling", ceiling, ceilings), ("midpoint", midpoint, midpoints))
    edges = tuple(name for name, value, values in tried if len(values) > 1 and value in (values[0], values[-1]))
    return {"ceiling": ceiling, "exponent": max(exponent, 1e-12), "midpoint": midpoint, "start": start}, edges


def _fit_exponent(compute: Array, reward: Array, start: float, ceiling: float, midpoint: float) -> tuple[float, float]:
    # Imported here, because it takes as long to load as everything else together.
    from scipy.optimize import OptimizeWarning, curve_fit

    def curve(compute: Array, exponent: float) -> Array:
        return start + (ceiling - start) / (1.0 + (midpoint / compute) ** exponent)

    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore", OptimizeWarning)
        try:
            (exponent,), _ = curve_fit(curve, compute, reward)
        except RuntimeError:  # no convergence at this node: it cannot be the best one
            return 1.0, np.inf
        return float(exponent), float(np.sum((reward - curve(compute, exponent)) ** 2))
