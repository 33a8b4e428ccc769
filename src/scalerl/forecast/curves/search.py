"""Find the shapes with posterior mass: weigh shapes, draw new ones around the heavy ones, and repeat."""

from dataclasses import dataclass

import numpy as np

from scalerl.forecast.curves.forms import Array
from scalerl.forecast.curves.normal import normal_quantile
from scalerl.forecast.curves.weigh import Cells, Prepared, Weighed, pick_by_mass, rough_mass, weigh, weigh_exactly

WIDE = 1.2
"""Standard deviation of the first shapes, in units of the prior's."""
ALWAYS_WIDE = 0.1
"""Share of the shapes of every round that are drawn with that width."""
NUM_CENTRES = 40
"""Number of old shapes around which a round draws new ones."""
WIDTH = 0.7
"""Standard deviation of a new shape around an old one, in units of the old ones' spread."""
EFFECTIVE = 14.0
"""Least effective number of old shapes from which these centres are drawn."""
MOST_ROUNDS = 12
ENOUGH = 0.25
"""The search ends once the effective number of the shapes is this share of their number."""
MOST_COURSES = 12
"""Largest number of courses to try after the first round."""
NEGLIGIBLE = 1e-4
"""A covariance with less than this share of the mass is no longer tried."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cloud:
    """Shapes, as inputs of `Problem.shapes`, with the log mass of each summed over covariances and courses."""

    normal: Array
    log_mass: Array

    def wider(self) -> "Cloud":
        """Return the cloud with flatter masses, to start the search of a similar problem."""
        return Cloud(normal=self.normal, log_mass=0.2 * self.log_mass)


@dataclass(frozen=True, slots=True, kw_only=True)
class Round:
    """Shapes that were drawn and weighed together."""

    cloud: Cloud
    shapes: Array
    cells: Cells
    rough: Array
    """Rough log mass of each cell, given its shape."""
    log_share: Array
    """Log ratio of each shape's prior density to the density that it was drawn from."""
    mass: Array
    """Mass of every cell, relative to the largest."""


def search(
    prepared: Prepared,
    course: np.ndarray,
    sizes: tuple[int, int, int],
    rng: np.random.Generator,
    begin: Cloud | None = None,
    covariance: np.ndarray | None = None,
) -> tuple[Weighed, Cloud]:
    """Search by adaptive importance sampling until enough shapes have mass; return the last cells and cloud.

    `course` and `covariance` are those to try (None: all covariances), and `begin` is a cloud to start from. `sizes`
    are the numbers of shapes in the first round, in later ones and in the last.
    """
    num, again, last = sizes
    covariance = np.arange(len(prepared.level)) if covariance is None else covariance
    cloud, log_kept = begin, 0.0
    for number in range(MOST_ROUNDS):
        done = weigh_round(prepared, cloud, num, covariance, course, rng)
        cloud, num = done.cloud, again
        course, kept = likely_courses(course, done.mass)
        log_kept += np.log(kept)
        if number > 0:
            covariance = covariance[done.mass.sum(axis=(1, 2)) > NEGLIGIBLE * done.mass.sum()]
            by_shape = done.mass.sum(axis=(0, 2))
            if effective_number(by_shape) / len(by_shape) >= ENOUGH:
                break
    done = weigh_round(prepared, cloud, last, covariance, course, rng)
    # Scale the total by the share of mass of the courses that were kept.
    log_share = done.log_share - np.log(last) - log_kept
    return weigh_exactly(prepared, done.cells, done.shapes, done.rough, log_share, rng), done.cloud


def weigh_round(
    prepared: Prepared,
    cloud: Cloud | None,
    num: int,
    covariance: np.ndarray,
    course: np.ndarray,
    rng: np.random.Generator,
) -> Round:
    """Draw shapes around those of a cloud, and weigh them roughly."""
    normal, log_drawn = draw_again(cloud, num, rng)
    shapes = prepared.problem.shapes(normal)
    cells = weigh(prepared, shapes, covariance, course)
    rough, log_share = rough_mass(prepared, cells), log_normal(normal) - log_drawn
    mass = rough + log_share[:, None]
    mass = np.exp(mass - mass.max())
    log_mass = np.log(np.maximum(mass.sum(axis=(0, 2)), 1e-290))
    new = Cloud(normal=normal, log_mass=log_mass)
    return Round(cloud=new, shapes=shapes, cells=cells, rough=rough, log_share=log_share, mass=mass)


def likely_courses(course: np.ndarray, mass: Array) -> tuple[np.ndarray, float]:
    """Return the courses with the most mass, at most `MOST_COURSES`, and their share of the mass."""
    if len(course) <= MOST_COURSES:
        return course, 1.0
    by_course = mass.sum(axis=(0, 1))
    best = np.sort(np.argsort(-by_course)[:MOST_COURSES])
    return course[best], by_course[best].sum() / by_course.sum()


def log_normal(normal: Array, sd: float = 1.0) -> Array:
    """Return the log density of normal numbers (rows), up to a constant."""
    return -0.5 * (normal**2).sum(axis=1) / sd**2 - normal.shape[1] * np.log(sd)


def effective_number(weight: Array) -> float:
    """Return Kish's effective number of the weights."""
    return float(weight.sum() ** 2 / (weight @ weight))


def draw_again(cloud: Cloud | None, num: int, rng: np.random.Generator) -> tuple[Array, Array]:
    """Draw shapes around those of a cloud, or from a wide prior without one; return them and their log density."""
    dims = 3
    even = spread_evenly(num, dims + 1, rng)
    normal = normal_quantile(np.clip(even[:, :dims], 1e-4, 1.0 - 1e-4))
    if cloud is None:
        return WIDE * normal, log_normal(WIDE * normal, WIDE)
    weight = tempered(cloud.log_mass, EFFECTIVE)
    off = cloud.normal - weight @ cloud.normal
    factor = WIDTH * np.linalg.cholesky((weight[:, None] * off).T @ off + 1e-10 * np.eye(dims))
    centres = cloud.normal[pick_by_mass(weight, (np.arange(NUM_CENTRES) + rng.uniform()) / NUM_CENTRES)]
    is_wide = even[:, dims] < ALWAYS_WIDE
    centre = ((even[:, dims] - ALWAYS_WIDE) / (1.0 - ALWAYS_WIDE) * NUM_CENTRES).astype(int)
    drawn = np.where(is_wide[:, None], WIDE * normal, centres[centre] + normal @ factor.T)
    return drawn, log_mixture(drawn, centres, factor)


def log_mixture(drawn: Array, centres: Array, factor: np.ndarray) -> Array:
    """Return the log density of the mixture of normals around the centres (scaled by `factor`) and the wide one."""
    inverse = np.linalg.inv(factor).T
    mine, theirs = drawn @ inverse, centres @ inverse
    apart = (mine**2).sum(axis=1)[:, None] + (theirs**2).sum(axis=1) - 2.0 * mine @ theirs.T
    near = np.exp(-0.5 * apart).mean(axis=1) / np.prod(np.diag(factor))
    return np.log((1.0 - ALWAYS_WIDE) * near + ALWAYS_WIDE * np.exp(log_normal(drawn, WIDE)))


def spread_evenly(num: int, dims: int, rng: np.random.Generator) -> Array:
    """Return quasi-random points of the unit cube, by an additive recurrence."""
    # The golden ratio, generalised to this many dimensions; its powers are the steps.
    base = 2.0
    for _ in range(30):
        base = (1.0 + base) ** (1.0 / (dims + 1))
    steps = base ** -np.arange(1.0, dims + 1)
    places = rng.uniform(size=dims) + np.outer(np.arange(1, num + 1), steps)
    return places - np.floor(places)


def tempered(log_mass: Array, least: float) -> Array:
    """Return the mass raised to the largest power, at most 1, that gives an effective number of at least `least`."""
    power, low, high = 1.0, 0.0, 1.0
    log_mass = log_mass - log_mass.max()
    for _ in range(10):
        weight = np.exp(power * log_mass)
        low, high = (power, high) if effective_number(weight) >= least else (low, power)
        if low == 1.0:
            break
        power = 0.5 * (low + high)
    weight = np.exp(low * log_mass)
    return weight / weight.sum()
