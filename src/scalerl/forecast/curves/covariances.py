"""Covariances of evaluations about their curve: of drift and misfit, diagonalised by one rotation for all sizes.

Drift is an Ornstein-Uhlenbeck process along the evaluations of a run, misfit a Matern process in log compute.
"""

from dataclasses import dataclass

import numpy as np

from scalerl.forecast.curves import priors
from scalerl.forecast.curves.data import Blocks
from scalerl.forecast.curves.forms import Array

Place = tuple[Array, Array, np.ndarray]
"""Log compute, number among the evaluations, and run, of several evaluations."""


def places_of(blocks: Blocks) -> Place:
    return blocks.x, blocks.index, blocks.run


def movement(blocks: Blocks, x: Array) -> Array:
    """Return the share of its range (up to 1) that the run moves within a factor of compute around each place.

    Misfit is in proportion to it: a curve departs from its shape where it moves, not where it has levelled off.
    """
    # Runs that were evaluated at one compute have their mean there: their order decides nothing.
    places, of_place, num_of_place = np.unique(blocks.x, return_inverse=True, return_counts=True)
    level = np.bincount(of_place, weights=blocks.y) / num_of_place
    num = max(len(level) // 12, 1)
    smooth = np.convolve(np.pad(level, num, mode="edge"), np.full(2 * num + 1, 1.0 / (2 * num + 1)), mode="valid")
    here = np.clip(x, places[0], places[-1])
    high, low = (np.interp(here + side * 0.5 * priors.MISFIT_LENGTH, places, smooth) for side in (1.0, -1.0))
    return np.clip(np.abs(high - low) / blocks.span, priors.LEAST_MOVEMENT, 1.0)


def kernels(blocks: Blocks, here: Place, there: Place) -> list[Array]:
    """Return the correlations of drift, for each of its lengths, and of misfit between two sets of evaluations."""
    same_run = np.equal.outer(here[2], there[2])
    apart = np.abs(np.subtract.outer(here[1], there[1])) / float(np.median(blocks.size))
    drifts = [same_run * np.exp(-apart / length) for length in priors.DRIFT_LENGTHS]
    scaled = np.sqrt(3.0) * np.abs(np.subtract.outer(here[0], there[0])) / priors.MISFIT_LENGTH
    moving = np.outer(movement(blocks, here[0]), movement(blocks, there[0]))
    return [*drifts, moving * (1.0 + scaled) * np.exp(-scaled)]


@dataclass(frozen=True, slots=True, kw_only=True)
class CovarianceGroup:
    """Covariances `noise + spread between runs + size * kernel` for several sizes; one rotation diagonalises all."""

    kernel: int
    """Number of the kernel in the list of `kernels`."""
    size: Array
    """Sizes of drift or misfit, in units of the noise's variance."""
    spread: float
    """Standard deviation between runs, in units of the noise."""
    rotate: Array
    shrink: Array
    """Precision of each rotated direction (columns) for each size (rows); 1 without drift and misfit."""
    log_weight: Array
    """Logarithm of the prior probability of each size, plus that of the normal density's constant."""

    @property
    def is_misfit(self) -> bool:
        """Whether it is a misfit; the kernels before are drifts."""
        return self.kernel == len(priors.DRIFT_LENGTHS)


def make_groups(blocks: Blocks, rise: Array | None) -> list[CovarianceGroup]:
    """Return all covariances to try. Runs differ in proportion to `rise`; with None they do not differ."""
    unit = blocks.span / blocks.noise
    noise = blocks.weight if blocks.start is None else np.append(blocks.weight, blocks.start_weight)
    spreads = (0.0,) if rise is None else (0.0, *priors.RUN_SPREADS)
    between = between_runs(blocks, rise)
    pairs = list(zip(kernels(blocks, places_of(blocks), places_of(blocks)), kernel_sizes(unit), strict=True))
    groups = []
    for spread in spreads:
        base = np.diag(noise)
        base[: blocks.num, : blocks.num] += (spread * unit) ** 2 * between
        factor = np.linalg.cholesky(base)
        whiten, log_det = np.linalg.inv(factor), np.log(np.diag(factor)).sum()
        for number, (kernel, table) in enumerate(pairs):
            groups.append(diagonalised(number, kernel, table, spread * unit, whiten, log_det))
    return groups


def kernel_sizes(unit: float) -> list[Array]:
    """Return a table of sizes and prior probabilities for each kernel. Only the first has the size 0 (neither).

    `unit` is the observed range, in units of the noise.
    """
    drifts = np.array(priors.DRIFTS)
    neither = np.array([[0.0, priors.INDEPENDENT]])
    misfits = np.array(priors.MISFITS) * (unit, 1.0)
    misfits[:, 0] **= 2
    return [np.concatenate([neither, drifts]), *[drifts] * (len(priors.DRIFT_LENGTHS) - 1), misfits]


def between_runs(blocks: Blocks, rise: Array | None) -> Array:
    """Return the covariance of the evaluations for a spread of 1 between runs.

    It leaves out the runs' common deviation, which the data cannot tell from the recipe.
    """
    risen = np.zeros(blocks.num) if rise is None else rise
    return (np.equal.outer(blocks.run, blocks.run) - 1.0 / blocks.num_runs) * np.outer(risen, risen)


def diagonalised(
    number: int, kernel: Array, table: Array, spread: float, whiten: np.ndarray, log_det: float
) -> CovarianceGroup:
    """Return the covariances of one kernel for all its sizes; `whiten` decorrelates noise and spread."""
    num = len(kernel)
    values, vectors = np.linalg.eigh(whiten[:, :num] @ kernel @ whiten[:, :num].T)
    size, weight = table.T
    shrink = 1.0 / (1.0 + np.outer(size, np.maximum(values, 0.0)))
    return CovarianceGroup(
        kernel=number,
        size=size,
        spread=spread,
        rotate=np.asarray(vectors.T @ whiten, dtype=float),
        shrink=shrink,
        log_weight=np.log(weight) - log_det + 0.5 * np.log(shrink).sum(axis=1),
    )
