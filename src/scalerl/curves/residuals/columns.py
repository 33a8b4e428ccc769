"""Tests of one more column in a linear fit with autocorrelated noise.

For each column the autocorrelation is the one that maximises the restricted likelihood with the column in the fit, so
that a pattern which the column explains is not taken for noise.
"""

from dataclasses import dataclass

import numpy as np

from scalerl.curves.forms import Array
from scalerl.curves.points import Points

AUTOCORRELATIONS = np.array([0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9])
# Half for independent noise, and the rest falling off with the autocorrelation.
PRIOR = np.where(AUTOCORRELATIONS == 0, 0.5, (1 - AUTOCORRELATIONS) / 9)
STEEPNESS = 3.0  # of a step, in units of log compute
LEAST_NEW = 1e-6  # share of a column that the fit cannot follow, below which there is nothing to test
ROUNDING = 1e-12  # of the squares of the rewards: no noise is smaller


@dataclass(frozen=True, slots=True, kw_only=True)
class ColumnTests:
    """One entry for each column."""

    t: Array
    """Estimated coefficient over its standard error; 0 where the fit can follow the column anyway."""
    error: Array
    """Standard error of the coefficient; infinite where the fit can follow the column."""
    autocorrelation: Array
    noise_sd: Array
    """Standard deviation of one evaluation, with the column in the fit."""
    effect: Array
    """The largest change that the column makes to the residuals."""


def add_columns(residual: Array, tangent: Array, columns: Array, points: Points) -> ColumnTests:
    """Test each column; `tangent` holds the directions that are fitted anyway (it may have none)."""
    left = _projected(residual, tangent, columns, points)
    degrees = max(left.degrees - 1, 1)
    likelihood = left.log_det[:, None] - 0.5 * np.log(left.size) - 0.5 * degrees * np.log(left.unexplained)
    pick = (np.where(left.testable, likelihood, -np.inf).argmax(axis=0), np.arange(columns.shape[1]))
    noise_sd = np.sqrt(left.unexplained[pick] / degrees)
    error = np.where(left.testable[pick], noise_sd / np.sqrt(left.size[pick]), np.inf)
    changes = left.coefficient[pick][:, None] * left.new[pick[0], :, pick[1]] * points.noise
    return ColumnTests(
        t=np.where(np.isfinite(error), left.coefficient[pick] / error, 0.0),
        error=error,
        autocorrelation=AUTOCORRELATIONS[pick[0]],
        noise_sd=noise_sd,
        effect=np.abs(changes).max(axis=1),
    )


def evidence(residual: Array, tangent: Array, columns: Array, points: Points) -> tuple[float, float]:
    """Return the log likelihood ratios of a column with a positive, and with a negative, coefficient against none.

    Likelihoods are averaged over the autocorrelation with its prior, and over the columns: of all tests the mean of the
    likelihood ratios has the most power against a mixture of them (Neyman and Pearson).
    """
    left = _projected(residual, tangent, columns, points)
    prior = (np.log(PRIOR) + left.log_det)[:, None]
    half = 0.5 * max(left.degrees, 1)
    without = np.logaddexp.reduce(prior - half * np.log(np.maximum(left.squares, left.floor)))
    ratios = []
    for sign in (1.0, -1.0):
        squares = np.where(sign * left.coefficient > 0, left.unexplained, np.maximum(left.squares, left.floor))
        with_column = np.logaddexp.reduce(prior - half * np.log(squares))
        ratios.append(float(np.logaddexp.reduce(with_column - without) - np.log(columns.shape[1])))
    return ratios[0], ratios[1]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Projected:
    """What the fit leaves of residuals and columns; first axis: autocorrelation, last axis: column."""

    new: Array
    """Columns without what the fit can follow of them; axes: autocorrelation, point, column."""
    size: Array
    testable: np.ndarray
    coefficient: Array
    squares: Array
    unexplained: Array
    """Squares of the residuals with the column in the fit."""
    floor: float
    log_det: Array
    degrees: int


def _projected(residual: Array, tangent: Array, columns: Array, points: Points) -> _Projected:
    num, num_free = tangent.shape
    stacked = np.concatenate([tangent, residual[:, None], columns], axis=1) / points.noise[:, None]
    white = whiten(stacked, points.first, AUTOCORRELATIONS)
    rest = white[:, :, num_free:]
    total = np.einsum("knc,knc->kc", rest, rest)[:, 1:]
    log_det = -0.5 * (num - points.num_runs) * np.log(1 - AUTOCORRELATIONS**2)
    if num_free:
        basis, triangle = np.linalg.qr(white[:, :, :num_free])
        log_det = log_det - np.log(np.abs(np.einsum("kii->ki", triangle)) + 1e-300).sum(axis=1)
        rest = rest - basis @ (basis.swapaxes(1, 2) @ rest)
    left, new = rest[:, :, 0], rest[:, :, 1:]
    size = np.einsum("knc,knc->kc", new, new)
    testable = size > LEAST_NEW * total
    size = np.where(testable, size, 1.0)
    coefficient = np.where(testable, np.einsum("knc,kn->kc", new, left) / size, 0.0)
    squares = np.einsum("kn,kn->k", left, left)[:, None]
    floor = ROUNDING * float(np.sum((points.reward / points.noise) ** 2)) + 1e-300
    return _Projected(
        new=new,
        size=size,
        testable=testable,
        coefficient=coefficient,
        squares=squares,
        unexplained=np.maximum(squares - coefficient**2 * size, floor),
        floor=floor,
        log_det=log_det,
        degrees=num - num_free,
    )


def whiten(values: Array, first: np.ndarray, rho: Array) -> Array:
    """Values (points first) with noise of these autocorrelations (first axis of the result) made independent."""
    before = np.concatenate([np.zeros_like(values[:1]), values[:-1]])
    changed = (values[None] - rho[:, None, None] * before) / np.sqrt(1 - rho**2)[:, None, None]
    return np.where(first[None, :, None], values[None], changed)


def places(points: Points, ranks: tuple[float, ...]) -> Array:
    """Return the log computes with these shares of the points before them, the first point excepted."""
    ordered = np.sort(points.log_compute[np.isfinite(points.log_compute)])
    return np.array([ordered[min(max(int(rank * len(ordered)), 1), len(ordered) - 1)] for rank in ranks])


def steps(points: Points, at: Array) -> Array:
    """Return a smooth step in log compute at each place."""
    with np.errstate(over="ignore"):
        return 1.0 / (1.0 + np.exp(-STEEPNESS * (points.log_compute[:, None] - at)))
