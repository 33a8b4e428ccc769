"""Least squares: a coarse grid over the shape, then damped Gauss-Newton from its best nodes; and the paper's way."""

import itertools
import warnings
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from scalerl.curves.forms import Array, Form
from scalerl.curves.notes import AtBound, GridEdge, NoRise
from scalerl.curves.points import Known, Points, plain_sums, solve

COARSE = 24  # values of each shape parameter on the grid
DAMPING = np.array([0.0, 1e-4, 1e-2, 1.0, 100.0])  # all tried at once, the best step is taken
LENGTHS = (1.0, 3.0, 10.0)
NUDGE = 1e-5  # for central differences, on the log scale
MAX_STEPS = 60

PAPER_CEILINGS = np.linspace(0.450, 0.800, 71)
# The paper prints [100, 40000]; every midpoint it reports lies on this one (docs/math.md).
PAPER_MIDPOINTS = np.linspace(100, 4000, 100)
# The grid of its larger runs: their three midpoints are 35, 90 and 93 steps of it. A midpoint of 0 makes no curve.
PAPER_LARGE_MIDPOINTS = np.linspace(0, 12_000, 100)[1:]


@dataclass(frozen=True, slots=True, kw_only=True)
class Solution:
    """Where the sum of squares is least. `log_shape` is relative to the points' scale."""

    log_shape: Array
    level: float
    gain: float
    squares: float
    at_bound: tuple[AtBound | NoRise | GridEdge, ...]
    """Parameters that ended at the edge of their range."""


def shape_box(form: Form, known: Known, points: Points) -> Array:
    """Return low and high of each shape parameter; a fixed one has no width."""
    box = []
    for param in form.shape_params:
        low, high = param.low, param.high
        if param.scales_with_compute and points.num:
            low = max(low, float(points.log_compute[np.isfinite(points.log_compute)].min()) - np.log(30.0))
        if param.name in known.log_shape:
            low = high = known.log_shape[param.name]
        box.append((low, high))
    return np.array(box, dtype=float)


def shapes(form: Form, logs: Iterable[Array], points: Points) -> Array:
    """Return the shape at every point (last axis) for each set of log-parameters; these broadcast together."""
    return form.shape(points.log_compute, *[log[..., None] for log in logs]).reshape(-1, points.num)


def least_squares(points: Points, form: Form, known: Known) -> Solution:
    """Return the global optimum within the bounds."""
    box = shape_box(form, known, points)
    free = box[:, 1] > box[:, 0]

    def solve_at(logs: Iterable[Array]) -> tuple[Array, Array, Array, Array]:
        """Return level, gain, sum of squares and shapes for each set of log-parameters."""
        shape = shapes(form, logs, points)
        return *solve(plain_sums(shape, points), form, known, points.bounds), shape

    def residuals_at(nodes: Array) -> tuple[Array, Array]:
        """Return the sum of squares and residuals for each row of log-parameters."""
        level, gain, total, shape = solve_at(nodes.T)
        return total, (points.reward - level[:, None] - gain[:, None] * shape) / points.noise

    best = box[:, 0]
    if free.any():
        axes = [np.linspace(low, high, COARSE) if high > low else np.array([low]) for low, high in box]
        nodes = np.stack(np.meshgrid(*axes, indexing="ij"), axis=-1).reshape(-1, len(axes))
        step = np.where(free, (box[:, 1] - box[:, 0]) / (COARSE - 1), 1.0)
        minima = _separate_minima(solve_at(np.ix_(*axes))[2], nodes, step)
        totals, ends = _descend(minima, free, box, residuals_at)
        best = ends[np.argmin(totals)]
    level, gain, total, _ = solve_at(best[:, None])
    return Solution(
        log_shape=best,
        level=float(level[0]),
        gain=float(gain[0]),
        squares=float(total[0]),
        at_bound=_bounds_hit(form, known, points, best, float(level[0]), float(gain[0])),
    )


def _separate_minima(total: Array, nodes: Array, step: Array) -> Array:
    """Return the best node, and the best one well away from it."""
    minima: list[Array] = []
    for index in np.argsort(total)[:64]:
        if all((np.abs(nodes[index] - other) > 3.5 * step).any() for other in minima):
            minima.append(nodes[index])
        if len(minima) == 2:
            break
    return np.stack(minima)


def _descend(nodes: Array, free: np.ndarray, box: Array, residuals_at) -> tuple[Array, Array]:
    """Damped Gauss-Newton on the projected residuals, from all nodes side by side: level and gain are solved anew at
    every trial."""
    axes = np.eye(nodes.shape[1])[free]
    num, around = len(axes), NUDGE * np.concatenate([np.zeros((1, len(free))), axes, -axes])
    nodes, total = nodes.copy(), np.full(len(nodes), np.inf)
    going = np.arange(len(nodes))

    def by_node(tried: Array) -> tuple[Array, Array]:
        totals, residuals = residuals_at(tried.reshape(-1, len(free)))
        return totals.reshape(tried.shape[:2]), residuals.reshape(*tried.shape[:2], -1)

    for _ in range(MAX_STEPS):
        totals, residuals = by_node(nodes[going, None] + around)
        moved = totals[:, 0] <= total[going] * (1.0 - 1e-10)
        going, residuals = going[moved], residuals[moved]
        if not len(going):
            break
        total[going] = totals[moved, 0]
        slope = (residuals[:, 1 : 1 + num] - residuals[:, 1 + num :]) / (2 * NUDGE)
        curvature, gradient = slope @ slope.swapaxes(1, 2), slope @ residuals[:, 0, :, None]
        diagonal = np.eye(num) * np.maximum(np.einsum("kii->ki", curvature), 1e-30)[:, None]
        damped = curvature[:, None] + (DAMPING[:, None, None] + 1e-12) * diagonal[:, None]
        moves = -np.linalg.solve(damped, gradient[:, None])[..., 0]
        # Longer steps too: along a flat, curved valley one step in the right direction is often many times too short.
        steps = np.concatenate([moves * length for length in LENGTHS], axis=1)
        trials = np.clip(nodes[going, None] + np.clip(steps, -2.0, 2.0) @ axes, box[:, 0], box[:, 1])
        totals, _ = by_node(trials)
        index = np.argmin(totals, axis=1)
        better = totals[np.arange(len(going)), index] < total[going]
        going = going[better]
        nodes[going] = trials[better, index[better]]
        if not len(going):
            break
    return total, nodes


def _bounds_hit(
    form: Form, known: Known, points: Points, log_shape: Array, level: float, gain: float
) -> tuple[AtBound | NoRise, ...]:
    hit: list[AtBound | NoRise] = []
    low, high = points.bounds
    ceiling = level + gain if form.rising else level
    if known.ceiling is None:
        if ceiling >= high - 1e-6 * (high - low):
            hit.append(AtBound(param="ceiling", end="largest", value=high))
        elif abs(gain) <= 1e-9 * (high - low):
            hit.append(NoRise())
    for param, value, (least, most) in zip(form.shape_params, log_shape, shape_box(form, known, points), strict=True):
        if param.name in known.log_shape:
            continue
        unit = points.scale if param.scales_with_compute else 1.0
        if value <= least + 1e-6:
            hit.append(AtBound(param=param.name, end="least", value=float(np.exp(least) * unit)))
        elif value >= most - 1e-6:
            hit.append(AtBound(param=param.name, end="largest", value=float(np.exp(most) * unit)))
    return tuple(hit)


def paper_grid(points: Points, start: float, *, ceilings: Array = PAPER_CEILINGS) -> Solution:
    """Fit as the paper does: `curve_fit` of the exponent for each ceiling and midpoint of a grid; keep the best.

    arXiv 2510.13786, A.5. While the best midpoint lies on the upper edge of its grid, a larger one is taken: that of
    the paper's larger runs, then three times as long ones.
    """
    # Any unit of compute: the printed grids where they make sense, else the same grids relative to the run's length.
    unit = 1.0 if 400 <= points.scale <= 400_000 else points.scale / 16_000
    larger = (unit * 3**power * PAPER_LARGE_MIDPOINTS for power in itertools.count())
    grid = unit * PAPER_MIDPOINTS
    compute = points.scale * np.exp(points.log_compute)
    best = (np.inf, 0.0, 0.0, 0.0)
    while True:
        for ceiling in ceilings:
            for midpoint in grid:
                exponent, total = _fit_exponent(compute, points.reward, start, ceiling, midpoint)
                if total < best[0]:
                    best = (total, float(ceiling), float(midpoint), exponent)
        if best[2] < grid[-1] or grid[-1] > 2 * points.scale:
            break
        grid = next(larger)
    total, ceiling, midpoint, exponent = best
    edges = (("ceiling", ceiling, ceilings), ("midpoint", midpoint, grid))
    return Solution(
        log_shape=np.array([np.log(max(exponent, 1e-12)), np.log(midpoint / points.scale)]),
        level=start,
        gain=ceiling - start,
        squares=total,
        at_bound=tuple(
            GridEdge(param=name, value=value) for name, value, values in edges if value in (values[0], values[-1])
        ),
    )


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
