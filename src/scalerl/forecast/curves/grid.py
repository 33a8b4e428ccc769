"""Sum over shapes: boxes of the prior, split again and again where the mass is.

A shape is two standard normal numbers, which `Problem.shapes` maps to exponent and midpoint. A box of them has the mass
of its centre times its area. The heaviest boxes are split until none has more than a small share of the mass, so that
nothing rests on a few of them. Nothing is random: the same data have the same boxes.
"""

from dataclasses import dataclass

import numpy as np

from scalerl.forecast.curves.cells import FullCells, Prepared, integrate_gain, log_sum, make_cells, rough_mass
from scalerl.forecast.curves.forms import Array

REACH = 4.5
"""The first boxes reach so far in each direction, in standard deviations of the prior."""
NUM_FIRST = 15
"""Number of the first boxes along each direction."""
SPLIT = 3
"""A box is split into so many along each direction. The middle one keeps its centre, which is not weighed again."""
WIDE = 2.0
AT_ONCE = 16
"""Number of boxes that a round splits: the heaviest, though most may be light until the mass is found."""
FINE = 1 / 200
"""No box has a larger share of the whole mass at the end ..."""
RESOLVED = 1 / 20
"""... and none a larger share of that of its own kind of curve, however unlikely the kind is."""
MOST_ROUNDS = 14
MOST_COURSES = 12
"""Each round drops half of the courses, down to this number."""
RARE = 1e-5
"""Covariances with less than this share of the mass are no longer weighed."""
NEGLIGIBLE = 1e-7
"""Boxes with less than this share of the mass are left out at the end."""
NUM_CELLS = 1500
"""Number of cells that are weighed fully, about."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Boxes:
    """Boxes of standard normal numbers (rows)."""

    centre: Array
    width: Array
    log_density: Array
    """Log mass of each centre per area, summed over covariances and courses."""

    @property
    def log_mass(self) -> Array:
        return self.log_density + 2.0 * np.log(self.width)

    def within(self, log_range: float) -> "Boxes":
        """Return the boxes whose density lies within a factor of the largest."""
        which = self.log_density > self.log_density.max() - log_range
        return Boxes(centre=self.centre[which], width=self.width[which], log_density=self.log_density[which])


@dataclass(frozen=True, slots=True, kw_only=True)
class Kept:
    """The courses and covariances that are weighed."""

    course: np.ndarray
    covariance: np.ndarray
    log_share: float = 0.0
    """Log share of the mass that they have among all."""


def search(
    prepared: Prepared, kept: Kept, begin: Boxes | None = None, log_others: float = -np.inf
) -> tuple[FullCells, Boxes]:
    """Return the cells of one kind of curve, and its boxes. `log_others` is the log mass of the other kinds.

    `begin` are the boxes of a similar problem to start from.
    """
    boxes, mass = boxes_with_mass(prepared, kept, first_boxes() if begin is None else begin)
    for _ in range(MOST_ROUNDS):
        log_own = log_sum(boxes.log_mass)
        is_resolved = bool(boxes.log_mass.max() - log_own < np.log(RESOLVED))
        is_heavy = boxes.log_mass - np.logaddexp(log_own, log_others) > np.log(FINE)
        if is_resolved and not is_heavy.any():
            break
        kept = likely(kept, mass, is_resolved)
        # The centre of a wide box says little of what lies in it, so wide boxes come earlier.
        order = np.argsort(-boxes.log_mass - WIDE * np.log(boxes.width), kind="stable")
        which = np.union1d(order[:AT_ONCE], np.flatnonzero(is_heavy))
        parts, mass = boxes_with_mass(prepared, kept, parts_of(boxes, which))
        boxes = replaced(boxes, which, parts)
    return sum_over(prepared, kept, boxes), boxes


def log_prior(centre: Array) -> Array:
    """Return the log density of standard normal numbers (rows)."""
    return -0.5 * (centre**2).sum(axis=1) - np.log(2.0 * np.pi)


def first_boxes() -> Boxes:
    """Return boxes that cover the prior; they have no mass yet."""
    width = 2.0 * REACH / NUM_FIRST
    ticks = (np.arange(NUM_FIRST) + 0.5) * width - REACH
    centre = np.stack(np.meshgrid(ticks, ticks, indexing="ij"), axis=-1).reshape(-1, 2).astype(np.float64)
    return Boxes(centre=centre, width=np.full(len(centre), width), log_density=np.zeros(len(centre)))


def boxes_with_mass(prepared: Prepared, kept: Kept, boxes: Boxes) -> tuple[Boxes, Array]:
    """Return boxes with their mass, and the log mass of every covariance, box and course."""
    mass = masses(prepared, kept, boxes.centre)
    weighed = Boxes(centre=boxes.centre, width=boxes.width, log_density=summed(mass))
    return weighed, mass + 2.0 * np.log(boxes.width)[:, None]


def likely(kept: Kept, mass: Array, is_resolved: bool) -> Kept:
    """Return half of the courses, those with the most mass; and once the boxes are resolved the likely covariances.

    Before, boxes are so wide that a misfit of the curve may explain their centres better than noise does.
    """
    share = np.exp(mass - mass.max()).sum(axis=1)
    by_course = share.sum(axis=0)
    by_covariance = share.sum(axis=1)
    num = max(len(kept.course) // 2, MOST_COURSES)
    course = np.sort(np.argsort(-by_course, kind="stable")[:num])
    least = RARE if is_resolved else 0.0
    covariance = np.flatnonzero(by_covariance >= least * by_covariance.sum())
    log_share = float(np.log(share[np.ix_(covariance, course)].sum() / share.sum()))
    return Kept(
        course=kept.course[course], covariance=kept.covariance[covariance], log_share=kept.log_share + log_share
    )


def masses(prepared: Prepared, kept: Kept, centre: Array) -> Array:
    """Return the rough log mass per area of every covariance, shape and course."""
    cells = make_cells(prepared, prepared.problem.shapes(centre), kept.covariance, kept.course)
    return rough_mass(prepared, cells) + log_prior(centre)[:, None] - kept.log_share


def summed(log_mass: Array) -> Array:
    """Return log masses of shapes: summed over covariances and courses."""
    top = log_mass.max()
    return np.log(np.maximum(np.exp(log_mass - top).sum(axis=(0, 2)), 1e-290)) + top


STEPS = (np.arange(SPLIT) - SPLIT // 2) / SPLIT
PLACES = np.stack(np.meshgrid(STEPS, STEPS, indexing="ij"), axis=-1).reshape(-1, 2)
"""Centres of the parts of a box, in units of its width from its own centre."""
AROUND = PLACES[np.abs(PLACES).sum(axis=1) > 0]


def parts_of(boxes: Boxes, which: np.ndarray) -> Boxes:
    """Return the parts of boxes but for the middle ones; they have no mass yet."""
    around = boxes.centre[which, None] + boxes.width[which, None, None] * AROUND
    centre = around.reshape(-1, 2)
    width = np.repeat(boxes.width[which] / SPLIT, len(AROUND))
    return Boxes(centre=centre, width=width, log_density=np.zeros(len(centre)))


def replaced(boxes: Boxes, which: np.ndarray, parts: Boxes) -> Boxes:
    """Return boxes with some replaced by their parts; the middle part has the centre of the box."""
    width = boxes.width.copy()
    width[which] /= SPLIT
    return Boxes(
        centre=np.concatenate([boxes.centre, parts.centre]),
        width=np.concatenate([width, parts.width]),
        log_density=np.concatenate([boxes.log_density, parts.log_density]),
    )


def sum_over(prepared: Prepared, kept: Kept, boxes: Boxes) -> FullCells:
    """Weigh the cells of these boxes that matter with the whole prior of the gain and all limits."""
    heavy = boxes.log_mass > log_sum(boxes.log_mass) + np.log(NEGLIGIBLE)
    centre = boxes.centre[heavy]
    log_share = log_prior(centre) + 2.0 * np.log(boxes.width[heavy]) - kept.log_share
    shapes = prepared.problem.shapes(centre)
    cells = make_cells(prepared, shapes, kept.covariance, kept.course)
    rough = rough_mass(prepared, cells) + log_share[:, None]
    flat, log_count = thinned(rough.ravel())
    places = np.unravel_index(flat, rough.shape)
    return integrate_gain(prepared, cells.take(*places), shapes[:, places[1]], log_share[places[1]] + log_count)


def thinned(log_mass: Array) -> tuple[np.ndarray, Array]:
    """Return the cells to weigh fully, and the log of the number of cells that each stands for.

    Heavy cells stand for themselves. Of the others, neighbours are passed over by equal steps of their mass.
    """
    mass = np.exp(log_mass - log_mass.max())
    step = mass.sum() / NUM_CELLS
    is_light = mass < step
    light = np.flatnonzero(is_light)
    total = np.cumsum(mass[light])
    num = int(np.ceil(total[-1] / step)) if len(light) else 0
    steps = (np.arange(num) + 0.5) / max(num, 1)
    picked = light[np.searchsorted(total, steps * total[-1])] if num else light
    heavy = np.flatnonzero(~is_light)
    log_count = np.log(total[-1] / num / mass[picked]) if num else np.zeros(0)
    return np.concatenate([heavy, picked]), np.concatenate([np.zeros(len(heavy)), log_count])
