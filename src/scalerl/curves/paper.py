"""The paper's own procedure (arXiv 2510.13786, A.5): a grid of ceilings and midpoints, exponents by least squares."""

import itertools
import warnings
from dataclasses import dataclass, field

import numpy as np

from scalerl.curves.forms import Array
from scalerl.curves.notes import Note, NoteKind, note


def _default_ceilings() -> Array:
    return np.linspace(0.450, 0.800, 71)


@dataclass(frozen=True, slots=True, kw_only=True)
class Grid:
    """What is tried. One ceiling alone holds it fixed."""

    ceilings: Array = field(default_factory=_default_ceilings)


# The paper prints [100, 40000]; every midpoint it reports lies on this one (docs/math.md).
MIDPOINTS = np.linspace(100, 4000, 100)
# The grid of its larger runs: their three midpoints are 35, 90 and 93 steps of it. A midpoint of 0 makes no curve.
LARGE_MIDPOINTS = np.linspace(0, 12_000, 100)[1:]


def paper_fit(compute: Array, reward: Array, start: float, grid: Grid) -> tuple[dict[str, float], tuple[Note, ...]]:
    """Return the parameters with the least squared error, and a note for each that lies on the grid's edge.

    While the best midpoint lies on the upper edge of its grid, a larger one is taken: that of the paper's larger runs,
    then three times as long ones.
    """
    # Any unit of compute: the printed grids where they make sense, else the same grids relative to the run's length.
    scale = float(compute.max())
    unit = 1.0 if 400 <= scale <= 400_000 else scale / 16_000
    larger = (unit * 3**power * LARGE_MIDPOINTS for power in itertools.count())
    midpoints = unit * MIDPOINTS
    best = (np.inf, 0.0, 0.0, 0.0)
    while True:
        for ceiling in grid.ceilings:
            for midpoint in midpoints:
                exponent, total = _fit_exponent(compute, reward, start, float(ceiling), float(midpoint))
                if total < best[0]:
                    best = (total, float(ceiling), float(midpoint), exponent)
        if best[2] < midpoints[-1] or midpoints[-1] > 2 * scale:
            break
        midpoints = next(larger)
    _, ceiling, midpoint, exponent = best
    edges = (("ceiling", ceiling, grid.ceilings), ("midpoint", midpoint, midpoints))
    notes = tuple(
        note(NoteKind.GRID_EDGE, param=name, value=value)
        for name, value, values in edges
        if len(values) > 1 and value in (values[0], values[-1])
    )
    return {"ceiling": ceiling, "exponent": max(exponent, 1e-12), "midpoint": midpoint, "start": start}, notes


def _fit_exponent(compute: Array, reward: Array, start: float, ceiling: float, midpoint: float) -> tuple[float, float]:
    # Here, because it takes as long to load as everything else together and nothing else needs it.
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
