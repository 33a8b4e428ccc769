"""What the data leave open: the joint posterior of a curve's parameters, on a deterministic grid.

    reward = level + gain * shape(compute; shape parameters) + noise

Given the shape, level and gain are linear and the noise's size integrates out, so that the grid runs over the shape
parameters, the noise's autocorrelation and (with several runs) the spread between runs; level and gain get nodes of
their own around their conditional estimates. The grid zooms in until it resolves the posterior, then draws are taken
from it in order, each nudged within its cell: no random numbers, equal input gives equal output.

Priors are weak and dimensionless; docs/math.md says what they are, why, and what coverage was measured with them.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache, lru_cache

import numpy as np

from scalerl.curves.forms import Array, Form
from scalerl.curves.grid import ONE_RUN, SEVERAL_RUNS, Grid, Resolution, middles, rectangle, rows
from scalerl.curves.least_squares import shape_box, shapes
from scalerl.curves.noise import Noise, Products, products
from scalerl.curves.points import Known, Points, Sums, gain_limits, scatter, squares
from scalerl.curves.residuals.drift import SlowNoise, SlowProducts, slow_products
from scalerl.curves.special import gammaincinv

AUTOCORRELATIONS = ((0.0, 0.70), (0.2, 0.14), (0.4, 0.09), (0.6, 0.05), (0.8, 0.02))  # value, prior weight
RUN_SD_SCALE = 0.01  # of the reward's range: what three repeats of one recipe differed by (arXiv 2510.13786, A.5)
RUN_SPREADS = (0.0, 0.125, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0)  # between-run sd over that scale
KEEP = 12.0  # nats below the peak beyond which a cell is left out of the grid
NEGLIGIBLE = 10.0  # and a node of level and gain
ASIDE = 8.0  # nats by which a cell may gain from levels beside the middle of their range
FAR = 1e3  # spans of the reward beyond which an estimate is only "far out"
NOISE_FLOOR = 1e-5  # of the reward's range: even exact data do not make the posterior a point
BLOCK = 65_536  # numbers that are worked on at once
BINOMIAL_WEIGHT = 2.0  # pseudo-observations behind the noise that num_samples implies


@dataclass(frozen=True, slots=True, kw_only=True)
class Draws:
    """Joint draws: one entry of each array belongs together."""

    params: dict[str, Array]
    noise_sd: Array
    run_sd: Array
    drift_share: float = 1.0
    """Share of the noise's variance with which the run itself may drift; all of it where nothing more is known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cells:
    """Cells of the shape under each node of the noise, flat: the noise runs slowest."""

    sums: Sums
    log_mass: Array
    """Log posterior before what level and gain add."""

    def take(self, index: np.ndarray | slice) -> "Cells":
        return Cells(sums=self.sums[index], log_mass=self.log_mass[index])


@dataclass(frozen=True, slots=True, kw_only=True)
class Slices:
    """Cells (last axis, which is the long one) at nodes of their level (first axis)."""

    sums: Sums
    level: Array
    log_mass: Array
    """Log posterior before what the gain adds."""
    height: Array
    """Log posterior at the best gain."""


def posterior(
    points: Points,
    form: Form,
    known: Known,
    noise_guess: float | None,
    slow: SlowNoise | None = None,
    resolution: Resolution | None = None,
) -> Draws:
    """Return draws from the joint posterior of everything that is not held fixed."""
    model = Model(points, form, known, noise_guess, slow, resolution)
    grid, noise = model.zoom(), model.noise()
    cells = model.cells(grid, noise)
    # Most cells hold next to nothing, and so do most levels of the others: nodes of the gain only where it matters.
    cell = np.flatnonzero(_tall(model.heights(cells, middles(1)), ASIDE))
    cell = cell[_tall(model.heights(cells.take(cell), middles(3)))]
    slices = model.slices(cells.take(cell), model.level_nodes)
    row, which_level = _places(_tall(slices.height))
    parts = [model.gains(slices, row[some], which_level[some]) for some in _blocks(len(row), len(model.gain_nodes))]
    gain, log_mass = (np.concatenate(part, axis=1) for part in zip(*parts, strict=True))
    which, which_gain = _places(_tall(log_mass))
    node = which_gain * len(row) + which
    ceiling = slices.level[which_level, row][which]
    if form.rising:
        ceiling = ceiling + gain.ravel()[node]
    # In order of the ceiling, so that its quantiles are those of the grid and not of a sample. Whole numbers of 16 bits
    # are sorted several times as fast, and are finer than the cells.
    least, most = ceiling.min(), ceiling.max()
    order = np.argsort(((ceiling - least) * (65535 / max(most - least, 1e-300))).astype(np.uint16), kind="stable")
    total = np.cumsum(np.exp(log_mass.ravel()[node] - log_mass.max())[order])
    picks = order[np.searchsorted(total, middles(model.resolution.draws) * total[-1])]
    which, which_gain = which[picks], which_gain[picks]
    which_noise, which_shape = np.divmod(cell[row[which]], grid.num)
    return model.draw(grid, noise.take(which_noise), which_shape, which_level[which], which_gain)


def _blocks(num: int, width: int) -> Iterator[slice]:
    """Return blocks of rows of this width that are small enough for the processor's cache."""
    size = max(BLOCK // width, 1)
    return (slice(begin, begin + size) for begin in range(0, num, size))


def _places(true: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return column and row of each True, column by column; several times as fast as np.nonzero."""
    return np.divmod(np.flatnonzero(np.ascontiguousarray(true.T)), len(true))


def _tall(height: Array, more: float = 0.0) -> np.ndarray:
    return height > height.max() - NEGLIGIBLE - more


class Model:
    """The posterior's parts for one set of points."""

    def __init__(
        self,
        points: Points,
        form: Form,
        known: Known,
        noise_guess: float | None,
        slow: SlowNoise | None = None,
        resolution: Resolution | None = None,
    ) -> None:
        self.points, self.form, self.known, self.slow = points, form, known, slow
        self.span = points.bounds[1] - points.bounds[0]
        self.prior = known.prior if form.name == "sigmoid" else None
        self.box = shape_box(form, known, points)
        self.resolution = resolution or (SEVERAL_RUNS if points.num_runs > 1 else ONE_RUN)
        floor = (NOISE_FLOOR * self.span) ** 2
        self.prior_count = BINOMIAL_WEIGHT if noise_guess else 0.0
        self.prior_squares = points.num * floor + (self.prior_count * noise_guess**2 if noise_guess else 0.0)
        self.degrees = points.num + self.prior_count
        # Within runs: the residuals of one curve for all would hold the spread between them too.
        self.noise_sd = max(scatter(points), np.sqrt(floor))
        self._free_degrees = max(self.degrees - known.num_free(form), 1.0)
        self.level_nodes, self.gain_nodes = self._node_fractions()

    def _node_fractions(self) -> tuple[Array, Array]:
        """Return where in its range a node lies. A known level or gain has one node."""
        level_known = self.known.level(self.form) is not None
        gain_known = self.form.rising and self.known.ceiling is not None
        fine = self.resolution
        num_level, num_gain = (1, fine.gains_alone) if level_known else (fine.levels, fine.gains)
        if gain_known:
            num_gain = 1
        return middles(num_level), middles(num_gain)

    # The grid over the shape ---------------------------------------------------------------------------------------

    def log_shape_prior(self, grid: Grid) -> Array:
        """Return the prior mass of each cell, flat."""
        log_prior = grid.log_volume
        if self.prior is not None:
            held = set(self.known.log_shape)
            return (log_prior + self.prior.log_shape(grid, float(np.log(self.points.scale)), held)).ravel()
        for param, log in zip(self.form.shape_params, grid.logs, strict=True):
            if param.name not in self.known.log_shape:
                log_prior = log_prior - 0.5 * ((log - param.prior_mean) / param.prior_sd) ** 2
        return log_prior.ravel()

    def zoom(self) -> Grid:
        """Return a grid that resolves the posterior.

        The box shrinks around the posterior, then each row of the last parameter gets a separate range: a narrow,
        tilted ridge would fall between the cells of a box.
        """
        box = self.box.copy()
        free = [axis for axis, (low, high) in enumerate(box) if high > low]
        num = {0: 1, 1: 160}.get(len(free), self.resolution.zoom)
        for _ in range(8):
            grid = rectangle(box, num)
            height = self._height(grid).ravel()
            # A dozen at least: the highest of cells much larger than the posterior may lie beside it.
            kept = np.unravel_index(np.flatnonzero(height >= min(-KEEP, np.sort(height)[-12:][0])), grid.shape)
            new = box.copy()
            for axis in free:
                centres, width = grid.logs[axis].ravel(), grid.widths[axis].item()
                new[axis, 0] = max(box[axis, 0], centres[kept[axis].min()] - 1.5 * width)
                new[axis, 1] = min(box[axis, 1], centres[kept[axis].max()] + 1.5 * width)
            shrunk = np.prod([np.ptp(new[axis]) / np.ptp(box[axis]) for axis in free])
            box = new
            if shrunk > 0.7:
                break
        if len(free) < 2:
            return rectangle(box, num)
        num_rows, num_columns = self.resolution.rows, self.resolution.columns
        low, high = np.full(num_rows, box[1, 0]), np.full(num_rows, box[1, 1])
        for _ in range(self.resolution.passes):
            grid = rows(box[0], low, high, num_columns)
            height = self._height(grid)
            kept = height > height.max(axis=1, keepdims=True) - KEEP
            width = grid.widths[1][:, 0]
            first, last = kept.argmax(axis=1), grid.shape[1] - 1 - kept[:, ::-1].argmax(axis=1)
            low, high = (np.maximum(low, low + (first - 1) * width), np.minimum(high, low + (last + 2) * width))
        return rows(box[0], low, high, num_columns)

    def _height(self, grid: Grid) -> Array:
        """Return the log posterior density of each cell at its best level and gain, relative to the highest cell."""
        spread = RUN_SD_SCALE * self.span / self.noise_sd if self.points.num_runs > 1 else 0.0
        rho = np.array([0.0, 0.6]) if self.slow is None else self.slow.decay[[0, -1]]
        noise = Noise(autocorrelation=rho, run_spread=np.array([spread]), log_weight=np.zeros(2))
        height = self.heights(self.cells(grid, noise), middles(min(6, len(self.level_nodes))))
        height = height.reshape(2, *grid.shape).max(axis=0) - grid.log_volume
        return height - height.max()

    # Noise ---------------------------------------------------------------------------------------------------------

    def noise(self) -> Noise:
        several = self.points.num_runs > 1
        rho, weight = np.array(AUTOCORRELATIONS).T
        if self.slow is not None:
            rho, weight = self.slow.decay, np.ones(len(self.slow.decay))
        spread = np.array(RUN_SPREADS if several else (0.0,))
        # Half-Cauchy on the spread between runs, on a grid even in its logarithm; 0 stands for all below.
        size = np.maximum(spread, RUN_SPREADS[1] / 2)
        log_run = np.log(size) - np.log1p(size**2) if several else np.zeros(1)
        # Autocorrelations down, spreads across: what depends on one of them is computed once for all of the other.
        return Noise(
            autocorrelation=rho[:, None],
            run_spread=(spread * RUN_SD_SCALE * self.span / self.noise_sd)[None],
            log_weight=np.add.outer(np.log(weight), log_run),
        )

    def cells(self, grid: Grid, noise: Noise) -> Cells:
        sums, log_det = self._products(grid.logs).sums(noise[..., None], self.form.rising)
        log_mass = np.add.outer(noise.log_weight, self.log_shape_prior(grid)).ravel() + log_det
        return Cells(sums=sums, log_mass=log_mass)

    def _products(self, logs: list[Array]) -> Products | SlowProducts:
        shape = shapes(self.form, logs, self.points)
        return products(shape, self.points) if self.slow is None else slow_products(shape, self.points, self.slow)

    # Level and gain ------------------------------------------------------------------------------------------------

    def slices(self, cells: Cells, at: Array) -> Slices:
        """Cells at nodes of their level; `at` places them within its range."""
        level, log_mass = self._levels(cells.sums, at[:, None])
        log_mass = log_mass + cells.log_mass
        best, least = self._best_gain(cells.sums, level)
        gain = np.clip(best, *gain_limits(self.form, level, self.points.bounds))
        height = log_mass + self._log_density(least + cells.sums.hh * (gain - best) ** 2, level, gain)
        return Slices(sums=cells.sums, level=level, log_mass=log_mass, height=height)

    def heights(self, cells: Cells, at: Array) -> Array:
        """Return the log posterior of each cell at the best of these levels and its best gain."""
        blocks = _blocks(len(cells.log_mass), len(at))
        return np.concatenate([self.slices(cells.take(some), at).height.max(axis=0) for some in blocks])

    def gains(self, slices: Slices, row: np.ndarray, which_level: np.ndarray) -> tuple[Array, Array]:
        """Nodes of the gain (first axis) for some slices, and their log posterior mass."""
        level = slices.level[which_level, row][None]
        gain, width, total = self._gains(slices.sums[row], level, self.gain_nodes[:, None])
        log_mass = slices.log_mass[which_level, row] + np.log(np.maximum(width, 1e-300))
        return gain, self._log_density(total, level, gain) + log_mass

    def _log_density(self, total: Array, level: Array, gain: Array) -> Array:
        """Return the log posterior without the terms that depend on the cell alone; `total` is the sum of squares."""
        log_density = -0.5 * self.degrees * np.log(total)
        return log_density if self.known.ceiling is not None else log_density + self._log_share_prior(level, gain)

    def _log_share_prior(self, level: Array, gain: Array) -> Array:
        """Prior of the share s of the possible gain: density (1 - s / 2) / (s + 0.01), per unit of reward.

        Equal odds for each factor of gain (a small gain is as likely to double as a large one), a perfect score half as
        likely as that, and gains under a hundredth of what is possible not told apart.
        """
        base = level if self.form.rising else level + gain
        possible = np.maximum(self.points.bounds[1] - base, 1e-9 * self.span)
        size = np.abs(gain)
        if self.prior is not None and (pooled := self.prior.log_gain(size, possible)) is not None:
            return pooled
        return np.log((possible - 0.5 * size) / ((size + 0.01 * possible) * possible))

    def _levels(self, sums: Sums, at: Array) -> tuple[Array, Array]:
        """Level nodes, and the log of their width and of the prior of a noisy start."""
        exact = self.known.level(self.form)
        if exact is not None:
            level = np.full(sums.hh.shape if at.ndim == 1 else (1, *sums.hh.shape), exact)
            return level, np.zeros_like(level)
        low, high = self.points.bounds
        if self.form.rising and self.known.ceiling is not None:
            information = sums.one - 2 * sums.h1 + sums.hh
            drop = self.known.ceiling * (sums.one - sums.h1) - (sums.y1 - sums.hy)
            estimate = self.known.ceiling - drop / np.maximum(information, 1e-300)
            high = self.known.ceiling
        else:
            information = np.maximum(sums.one - sums.h1**2 / np.maximum(sums.hh, 1e-300), 1e-9 * sums.one)
            estimate = (sums.y1 - sums.h1 * sums.hy / np.maximum(sums.hh, 1e-300)) / information
        estimate = np.clip(estimate, low - FAR * self.span, high + FAR * self.span)
        residual = self._best_gain(sums, estimate)[1]
        if self.known.start is not None:
            # What the start's own noise says is information too, in units of the points' noise.
            prior = residual / self._free_degrees / self.known.start_sd**2
            estimate = (information * estimate + prior * self.known.start) / (information + prior)
            information = information + prior
        bottom, top = self._range(estimate, information, residual, np.full_like(estimate, low), high)
        width = top - bottom
        level = bottom + width * at
        log_mass = np.log(np.maximum(width / len(self.level_nodes), 1e-300))
        if self.known.start is not None:
            log_mass = log_mass - 0.5 * ((level - self.known.start) / self.known.start_sd) ** 2
        return level, np.broadcast_to(log_mass, level.shape)

    def _best_gain(self, sums: Sums, level: Array) -> tuple[Array, Array]:
        """Return the gain that fits best, whatever the limits, and the sum of squares there, the prior's among them."""
        if self.form.rising and self.known.ceiling is not None:
            gain = self.known.ceiling - level
        else:
            gain = (sums.hy - level * sums.h1) / np.maximum(sums.hh, 1e-300)
            gain = np.clip(gain, -FAR * self.span, FAR * self.span)
        return gain, np.maximum(squares(sums, level, gain) + self.prior_squares, 1e-300)

    def _gains(self, sums: Sums, level: Array, at: Array) -> tuple[Array, Array, Array]:
        """Nodes of the gain, their width and the sums of squares there."""
        best, least = self._best_gain(sums, level)
        if self.form.rising and self.known.ceiling is not None:
            return best, np.ones_like(best), least
        bottom, top = self._range(best, sums.hh, least, *gain_limits(self.form, level, self.points.bounds))
        width = np.maximum(top - bottom, 1e-12 * self.span)
        gain = bottom + width * at
        return gain, width / len(self.gain_nodes), least + sums.hh * (gain - best) ** 2

    def _range(
        self, estimate: Array, information: Array, residual: Array, low: Array, high: Array | float
    ) -> tuple[Array, Array]:
        """Return the part of [low, high] that holds the conditional posterior.

        It lies around the estimate or, if the estimate is outside, next to the nearest limit; the further outside, the
        faster the density falls from the limit.
        """
        degrees = self._free_degrees
        sd = np.sqrt(residual / degrees / np.maximum(information, 1e-300))
        beyond = np.maximum(np.maximum(low - estimate, estimate - high), 0.0) / sd
        reach = sd * (5.0 + 17.0 / degrees) * 2.0 / (beyond + np.sqrt(beyond**2 + 4.0))
        middle = np.clip(estimate, low, high)
        return np.maximum(middle - reach, low), np.minimum(middle + reach, high)

    # Draws ---------------------------------------------------------------------------------------------------------

    def draw(
        self, grid: Grid, noise: Noise, which_shape: np.ndarray, which_level: np.ndarray, which_gain: np.ndarray
    ) -> Draws:
        """Nudge each pick (a cell of the grid, nodes of level and gain) within its cell, for whose nudged shape level
        and gain are solved anew."""
        num = self.resolution.draws
        nudge = _even_spread(num, len(self.form.shape_params) + 3)
        logs = [log + (by - 0.5) * width for log, width, by in zip(*grid.take(which_shape), nudge, strict=False)]
        if self.slow is None:
            blocks = _blocks(num, self.points.num)
            shape = (shapes(self.form, [log[some] for log in logs], self.points) for some in blocks)
            joined = Products.joined([products(some, self.points) for some in shape])
        else:
            joined = self._products(logs)
        sums, _ = joined.sums(noise, self.form.rising)
        level, _ = self._levels(sums, (which_level + nudge[-1]) / len(self.level_nodes))
        gain, _, total = self._gains(sums, level, (which_gain + nudge[-2]) / len(self.gain_nodes))
        noise_sd = np.sqrt(total / _chi_squares(self.degrees, num, len(nudge)))
        params = {"ceiling": level + gain if self.form.rising else level}
        for param, log in zip(self.form.shape_params, logs, strict=True):
            params[param.name] = np.exp(log) * (self.points.scale if param.scales_with_compute else 1.0)
        params["start" if self.form.rising else "shortfall"] = level if self.form.rising else -gain
        run_sd = noise.run_spread * noise_sd
        share = 1.0 if self.slow is None else float(self.slow.share.mean())
        return Draws(params=params, noise_sd=noise_sd, run_sd=run_sd, drift_share=share)


@cache
def _even_spread(num: int, dimensions: int) -> Array:
    """Return points spread evenly over the unit cube, one row per dimension, by the generalised golden ratio."""
    ratio = 2.0
    for _ in range(40):
        ratio = (1.0 + ratio) ** (1.0 / (dimensions + 1))
    steps = ratio ** -np.arange(1.0, dimensions + 1)
    return np.modf(steps[:, None] * np.arange(1, num + 1) + 0.5)[0]


@lru_cache(maxsize=256)
def _chi_squares(degrees: float, num: int, dimensions: int) -> Array:
    """Return the ratio of each draw's sum of squares to the noise variance; equal for all fits of as many points."""
    return 2.0 * gammaincinv(degrees / 2.0, _even_spread(num, dimensions)[-3])
