"""Draw all parameters from weighed cells, spread evenly instead of at random.

Cells are drawn in order of their ceiling, each as often as its mass says. What is integrated out in them (noise, drop,
gain, level) is drawn at quantiles from one sequence of evenly spread points. So 2000 draws are as good as many more
random ones, and the same data always have the same ones: every probability of a draw is a function of the data.
"""

from dataclasses import dataclass
from enum import IntEnum
from functools import lru_cache

import numpy as np

from scalerl.forecast.curves import priors
from scalerl.forecast.curves.cells import FullCells, Prepared
from scalerl.forecast.curves.forms import Array
from scalerl.forecast.curves.normal import chi_squared_quantile, normal_quantile, truncated_normal_quantile
from scalerl.forecast.curves.problem import NO_FALL


class Kind(IntEnum):
    """The kind of a curve: flat, a rise, or a rise followed by a fall."""

    flat = 0
    rise = 1
    fall = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Draws:
    """Draws of all parameters: rises, falls and flat curves, each in order of their ceiling."""

    kind: np.ndarray
    level: Array
    gain: Array
    log_exponent: Array
    log_midpoint: Array
    """Log midpoint, relative to the largest compute."""
    drop: Array
    """Total fall of the reward; 0 without a fall."""
    place: Array
    length: Array
    """Place and length of the fall, as in `Courses`."""
    noise: Array
    covariance: np.ndarray
    """Index of the covariance among those of all groups, one group after the other."""
    unseen_normal: Array
    """Standard normal numbers that scale what no evaluation informs: allowance, and distance from the recipe."""
    seen: np.ndarray
    """Whether the rise or the fall exceeds `NOTICED` times its standard error."""

    def take(self, which) -> "Draws":
        return Draws(**{name: getattr(self, name)[which] for name in self.__slots__})

    @staticmethod
    def join(many: "list[Draws]") -> "Draws":
        return Draws(**{name: np.concatenate([getattr(each, name) for each in many]) for name in Draws.__slots__})


ALIKE = 1e-9
"""Ceilings are ordered to this share of the noise."""


def draw(prepared: Prepared, weighed: FullCells, num: int) -> Draws:
    """Draw cells by their mass, then the parameters that were integrated out.

    The noise is drawn first, then the drop given the noise, the gain given the drop, and the level given both.
    """
    problem = prepared.problem
    of_cell, of_noise, of_drop, of_gain, of_level, of_unseen = even_points(num, 6)
    # A cell is one of the normals of the gain's prior, with a covariance, a shape and a course.
    # Many have one ceiling, as those that differ in the spread between runs: errors of rounding must not order them.
    ceiling = np.round(likely_ceiling(prepared, weighed) / (ALIKE * problem.blocks.noise))
    order = np.argsort(ceiling.ravel(), kind="stable")
    drawn = np.unravel_index(order[pick_by_mass(weighed.log_mass.ravel()[order], of_cell)], weighed.log_mass.shape)
    cell = drawn[1]
    covariance, course = weighed.covariance[cell], weighed.course[cell]
    noise = np.sqrt(weighed.squares[drawn] / chi_squared_quantile(problem.df, of_noise))

    falls = course != NO_FALL
    mean_drop = weighed.drop[drawn]
    drop_sd = noise / np.sqrt(weighed.drop_precision[drawn])
    drop = np.zeros(num)
    drop[falls] = truncated_normal_quantile(mean_drop[falls], drop_sd[falls], np.inf, of_drop[falls])

    mean_gain = weighed.gain[drawn] - weighed.gain_per_drop[drawn] * (drop - mean_drop)
    gain_sd = noise / np.sqrt(weighed.gain_precision[drawn])
    gain = truncated_normal_quantile(mean_gain, gain_sd, problem.gains.room, of_gain)

    level = problem.centre + prepared.level[covariance] - gain * weighed.on_level[cell]
    level -= drop * prepared.fall_on_level[covariance, course]
    level += noise / np.sqrt(prepared.level_precision[covariance]) * normal_quantile(of_level)
    if problem.fixed_ceiling is not None:
        # The linear model was solved from the ceiling down (`Problem.rises`), so this is the ceiling.
        level -= gain

    log_exponent, log_midpoint = weighed.shape[:, cell]
    return Draws(
        kind=np.where(falls, Kind.fall, Kind.rise),
        level=level,
        gain=gain,
        log_exponent=log_exponent,
        log_midpoint=log_midpoint,
        drop=drop,
        place=problem.courses.place[course],
        length=problem.courses.length[course],
        noise=noise,
        covariance=covariance,
        unseen_normal=normal_quantile(of_unseen),
        seen=(gain >= priors.NOTICED * gain_sd) | (drop >= priors.NOTICED * drop_sd),
    )


def likely_ceiling(prepared: Prepared, weighed: FullCells) -> Array:
    """Return the likely ceiling of each cell, relative to the problem's centre."""
    gain = np.clip(weighed.gain, 0.0, prepared.problem.gains.room)
    level = prepared.level[weighed.covariance] - gain * weighed.on_level
    level = level - np.maximum(weighed.drop, 0.0) * prepared.fall_on_level[weighed.covariance, weighed.course]
    return level + gain


def draw_flat(prepared: Prepared, log_mass: Array, num: int) -> Draws:
    """Draw curves without a rise, given the log mass of each covariance."""
    problem = prepared.problem
    of_covariance, of_noise, of_level, of_unseen = even_points(num, 4)
    covariance = pick_by_mass(log_mass, of_covariance)
    squares = prepared.squares[covariance] + problem.prior_squares
    noise = np.sqrt(squares / chi_squared_quantile(problem.df, of_noise))
    level = problem.centre + prepared.level[covariance]
    zeros, ones = np.zeros(num), np.ones(num)
    return Draws(
        kind=np.full(num, Kind.flat),
        level=level + noise / np.sqrt(prepared.level_precision[covariance]) * normal_quantile(of_level),
        **dict.fromkeys(("gain", "log_exponent", "log_midpoint", "drop"), zeros),
        # A flat curve has no fall, but place and length must be those of a possible one.
        place=ones,
        length=ones,
        noise=noise,
        covariance=covariance,
        unseen_normal=normal_quantile(of_unseen),
        seen=np.zeros(num, dtype=bool),
    )


BASES = (2, 3, 5, 7, 11, 13, 17, 19, 23)
ROTATION = 0.0
"""All points are moved around the cube by this share of it; benchmarks/luck.py sees by that what rests on them."""


def even_points(num: int, dims: int) -> Array:
    """Return evenly spread points (columns) of the unit cube: Hammersley's. The first coordinate is sorted."""
    first = (np.arange(num) + (0.5 + ROTATION) % 1.0) / max(num, 1)
    others = [(mirrored(num, base) + 0.5 / max(num, 1) + ROTATION) % 1.0 for base in BASES[: dims - 1]]
    return np.clip([first, *others], 1e-12, 1.0 - 1e-12)


@lru_cache(maxsize=8)
def even_normals(num: int, dims: int, stream: int) -> Array:
    """Return standard normal numbers (rows) whose columns are all evenly spread, in an order of their own each."""
    quantiles = normal_quantile((np.arange(num) + 0.5) / num)
    table = np.repeat(quantiles[:, None], dims, axis=1)
    return np.random.default_rng(stream).permuted(table, axis=0)


def mirrored(num: int, base: int) -> Array:
    """Return 0, 1, ... with their digits in this base mirrored at the point: any number of them are even."""
    left, step, value = np.arange(num), 1.0, np.zeros(num)
    while left.any():
        step /= base
        value += step * (left % base)
        left //= base
    return value


def pick_by_mass(log_mass: Array, shares: Array) -> np.ndarray:
    """Return the indices at which the cumulative mass reaches these shares of all."""
    total = np.cumsum(np.exp(log_mass - log_mass.max()))
    return np.minimum(np.searchsorted(total, shares * total[-1]), len(total) - 1)


def share_out(log_masses: Array, num: int) -> np.ndarray:
    """Divide `num` draws among the masses."""
    share = np.exp(log_masses - log_masses.max())
    return np.diff(np.round(np.cumsum(share) / share.sum() * num).astype(int), prepend=0)
