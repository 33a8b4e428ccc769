"""Inner products under the noise: autocorrelated along a run, and with a departure of each run's own."""

from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from scalerl.curves.forms import Array
from scalerl.curves.points import Points, Sums


@dataclass(frozen=True, slots=True, kw_only=True)
class Noise:
    """Nodes of the noise's own parameters, one entry a node (or a draw)."""

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Product:
    """What an inner product a'b under any autocorrelation is made of. Last axis: the run."""

    own: Array
    """Sum of a_i b_i."""
    ends: Array
    """a_i b_i of a run's first and last point."""
    crossed: Array
    """Sum of a_i b_(i-1) + a_(i-1) b_i."""

    def under(self, rho: Array) -> Array:
        """a_1 b_1 + sum over i > 1 of (a_i - rho a_(i-1)) (b_i - rho b_(i-1)) / (1 - rho^2)."""
        return ((1 + rho**2) * self.own - rho**2 * self.ends - rho * self.crossed) / (1 - rho**2)


def products(shape: Array, points: Points) -> dict[str, Product]:
    """The products of shape, ones and reward, by their name in Sums: the points enter here and nowhere else."""
    h, one, y = shape / points.noise, 1.0 / points.noise, points.reward / points.noise
    sides = {"hh": (h, h), "h1": (h, one), "hy": (h, y), "one": (one, one), "y1": (one, y), "yy": (y, y)}
    runs = [slice(*ends) for ends in pairwise([*np.flatnonzero(points.first), points.num])]
    return {name: _product(a, b, runs) for name, (a, b) in sides.items()}


def _product(a: Array, b: Array, runs: list[slice]) -> Product:
    inner = lambda a, b: a @ b if b.ndim == 1 else np.einsum("kn,kn->k", a, b)  # noqa: E731
    parts = []
    for run in runs:
        a_run, b_run = a[..., run], b[..., run]
        crossed = inner(a_run[..., 1:], b_run[..., :-1]) + inner(a_run[..., :-1], b_run[..., 1:])
        ends = a_run[..., 0] * b_run[..., 0] + a_run[..., -1] * b_run[..., -1]
        parts.append((inner(a_run, b_run), ends, crossed))
    own, ends, crossed = (np.stack(part, axis=-1) for part in zip(*parts, strict=True))
    return Product(own=own, ends=ends, crossed=crossed)


def sums_under(noise: Noise, found: dict[str, Product], num_points: int, rising: bool) -> tuple[Sums, Array]:
    """Inner products under the noise's covariance, and minus half its log determinant.

    Within a run e_i = rho e_(i-1) + innovation; a run's own ceiling deviates by run_sd, which adds
    run_spread^2 m m' to its covariance, m the direction that the ceiling moves (Sherman-Morrison).
    """
    rho, spread = noise.autocorrelation[..., None], noise.run_spread[..., None] ** 2
    of_run = {name: product.under(rho) for name, product in found.items()}
    num_chained = num_points - of_run["hh"].shape[-1]
    log_det = -0.5 * num_chained * np.log(1 - rho[..., 0] ** 2)
    if not spread.any():
        total = {name: values.sum(-1) for name, values in of_run.items()}
    else:
        # What a run's own ceiling moves: the whole shape of a rising form, the level of one that falls short.
        mm, hm, om, ym = (of_run[name] for name in (("hh", "hh", "h1", "hy") if rising else ("one", "h1", "one", "y1")))
        shrink = spread / (1 + spread * mm)
        moved = {"hh": hm * hm, "h1": hm * om, "hy": hm * ym, "one": om * om, "y1": om * ym, "yy": ym * ym}
        total = {name: (values - shrink * moved[name]).sum(-1) for name, values in of_run.items()}
        log_det = log_det - 0.5 * np.log1p(spread * mm).sum(-1)
    shape = np.broadcast_shapes(total["hh"].shape, log_det.shape)
    full = lambda values: np.broadcast_to(values, shape)  # noqa: E731
    return Sums(**{name: full(values) for name, values in total.items()}), full(log_det)
