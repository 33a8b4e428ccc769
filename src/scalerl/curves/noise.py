"""Inner products under the noise: autocorrelated along a run, and with a departure of each run's own."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from scalerl.curves.forms import Array
from scalerl.curves.points import Points, Sums

# The fields of Sums in their order, as products of shape h, ones 1 and reward y: what is on the left, and on the right.
FIELDS = tuple(Sums.__dataclass_fields__)
LEFT, RIGHT = (["h1y".index(sides[at]) for sides in ("hh", "h1", "hy", "11", "1y", "yy")] for at in (0, 1))


@dataclass(frozen=True, slots=True, kw_only=True)
class Noise:
    """Nodes of the noise's own parameters, or one entry per draw; the arrays broadcast against each other."""

    autocorrelation: Array
    run_spread: Array
    """Between-run sd over the noise's."""
    log_weight: Array

    def __getitem__(self, index) -> "Noise":
        return Noise(
            autocorrelation=self.autocorrelation[index],
            run_spread=self.run_spread[index],
            log_weight=self.log_weight[index],
        )

    def take(self, nodes: np.ndarray) -> "Noise":
        """Return some nodes by their index in the flattened order."""
        full = np.broadcast_arrays(self.autocorrelation, self.run_spread, self.log_weight)
        rho, spread, log_weight = (values.ravel()[nodes] for values in full)
        return Noise(autocorrelation=rho, run_spread=spread, log_weight=log_weight)


@dataclass(frozen=True, slots=True, kw_only=True)
class Products:
    """What inner products over each run are made of, whatever the noise; axes: field of Sums, run, shape."""

    own: Array
    """Sum of a_i b_i."""
    ends: Array
    """a_i b_i of the first and the last point."""
    crossed: Array
    """Sum of a_i b_(i-1) + a_(i-1) b_i."""
    num_linked: int
    """Points with one before them in their run."""

    def sums(self, noise: Noise, rising: bool) -> tuple[Sums, Array]:
        """Inner products under the noise's covariance and minus half its log determinant, flat: the noise runs slowest.

        Within a run e_i = rho e_(i-1) + innovation; a run's own ceiling deviates by run_sd, which adds
        run_spread^2 m m' to its covariance, m the direction that the ceiling moves (Sherman-Morrison).
        """
        rho, spread = noise.autocorrelation, noise.run_spread**2
        log_det = -0.5 * self.num_linked * np.log(1 - rho**2)
        total, log_det = over_runs(self._under(rho), log_det, spread, rising)
        flat = [np.broadcast_to(values, np.shape(total[0])).ravel() for values in (*total, log_det)]
        return Sums(**dict(zip(FIELDS, flat, strict=False))), flat[-1]

    @staticmethod
    def joined(parts: "Sequence[Products]") -> "Products":
        """Concatenate the products of several blocks of shapes."""
        own, ends, crossed = (
            np.concatenate([getattr(part, name) for part in parts], axis=-1) for name in ("own", "ends", "crossed")
        )
        return Products(own=own, ends=ends, crossed=crossed, num_linked=parts[0].num_linked)

    def _under(self, rho: Array) -> Array:
        """a_1 b_1 + sum over i > 1 of (a_i - rho a_(i-1)) (b_i - rho b_(i-1)) / (1 - rho^2)."""
        own, ends, crossed = (
            values.reshape(*values.shape[:2], *(1,) * (rho.ndim - 1), -1)
            for values in (self.own, self.ends, self.crossed)
        )
        free = 1 - rho**2
        return (1 + rho**2) / free * own - rho**2 / free * ends - rho / free * crossed


def over_runs(part: Array, log_det: Array, spread: Array, rising: bool) -> tuple[Sequence[Array], Array]:
    """Sum products over runs (second axis of `part`) whose own ceilings deviate with this variance, over the noise's.

    `log_det` is minus half the log determinant; it is returned with what the deviations add to it.
    """
    total = part.sum(axis=1)
    if not spread.any():
        return total, log_det
    # A run's own ceiling moves the whole shape of a rising form, and the level of one that falls short.
    moved, own = (part[:3], part[0]) if rising else (part[[1, 3, 4]], part[3])
    growth = 1 + spread * own
    shrink = spread / growth
    shrunk = [(shrink * (moved[a] * moved[b])).sum(axis=0) for a, b in zip(LEFT, RIGHT, strict=True)]
    return [plain - less for plain, less in zip(total, shrunk, strict=True)], log_det - 0.5 * np.log(growth).sum(axis=0)


def products(shape: Array, points: Points) -> Products:
    """Return the products of each row of shapes with the points."""
    known = _without_shape(points)
    h, (one, y) = shape * known.sides[0], known.sides[:2]
    own, ends, crossed = np.empty((3, len(FIELDS), len(known.starts), len(shape)))
    for run, (begin, end) in enumerate(zip(known.starts, known.stops, strict=True)):
        mine = h[:, begin:end]
        first, last = mine[:, 0], mine[:, -1]
        own[0, run] = np.einsum("kn,kn->k", mine, mine)
        crossed[0, run] = 2 * np.einsum("kn,kn->k", mine[:, 1:], mine[:, :-1])
        # By einsum, as above: a BLAS would wake its threads, and may add up in another order with each number of them.
        by_sides = np.einsum("kn,sn->ks", mine, known.sides[:, begin:end])
        own[1, run], own[2, run], crossed[1, run], crossed[2, run] = by_sides.T
        ends[0, run] = first**2 + last**2
        ends[1, run] = first * one[begin] + last * one[end - 1]
        ends[2, run] = first * y[begin] + last * y[end - 1]
    own[3:], ends[3:], crossed[3:] = known.own, known.ends, known.crossed
    return Products(own=own, ends=ends, crossed=crossed, num_linked=points.num - len(known.starts))


@dataclass(frozen=True, slots=True, kw_only=True)
class _WithoutShape:
    """What is the same for all shapes."""

    starts: np.ndarray
    stops: np.ndarray
    """Where runs begin, and where the next would."""
    sides: Array
    """Ones and rewards over the noise, then the sums of each one's neighbours in its run."""
    own: Array
    """Products of the last three fields, which hold no shape; `ends` and `crossed` likewise."""
    ends: Array
    crossed: Array


@lru_cache(maxsize=2)
def _without_shape(points: Points) -> _WithoutShape:
    """Return the part of the sums that does not depend on the shape; cached, since each grid of a fit needs it."""
    one = 1.0 / points.noise
    sides = np.stack([one, points.reward * one])
    beside = np.zeros_like(sides)
    linked = ~points.first[1:]
    beside[:, 1:] += np.where(linked, sides[:, :-1], 0.0)
    beside[:, :-1] += np.where(linked, sides[:, 1:], 0.0)
    starts = np.flatnonzero(points.first)
    stops = np.append(starts[1:], points.num)
    left, right = [0, 0, 1], [0, 1, 1]
    each = sides[left] * sides[right]
    return _WithoutShape(
        starts=starts,
        stops=stops,
        sides=np.concatenate([sides, beside]),
        own=np.add.reduceat(each, starts, axis=1)[..., None],
        ends=(each[:, starts] + each[:, stops - 1])[..., None],
        crossed=np.add.reduceat(sides[left] * beside[right], starts, axis=1)[..., None],
    )
