"""Inner products under the noise: autocorrelated along a run, and with a departure of each run's own."""

from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from scalerl.curves.forms import Array
from scalerl.curves.points import Points, Sums

# The fields of Sums as products of shape h, ones 1 and reward y.
PAIRS = {"hh": "hh", "h1": "h1", "hy": "hy", "one": "11", "y1": "1y", "yy": "yy"}


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
    """What the inner product of a and b over a run is made of, whatever the autocorrelation."""

    own: Array
    """Sum of a_i b_i."""
    ends: Array
    """a_i b_i of the first and the last point."""
    crossed: Array
    """Sum of a_i b_(i-1) + a_(i-1) b_i."""

    def under(self, rho: Array) -> Array:
        """a_1 b_1 + sum over i > 1 of (a_i - rho a_(i-1)) (b_i - rho b_(i-1)) / (1 - rho^2)."""
        free = 1 - rho**2
        return (1 + rho**2) / free * self.own - rho**2 / free * self.ends - rho / free * self.crossed


@dataclass(frozen=True, slots=True, kw_only=True)
class Products:
    """Of shape h, ones and reward y over the points: the sums under any noise follow."""

    of_runs: list[dict[str, Product]]
    """By their name in Sums."""
    num_linked: int
    """Points with one before them in their run."""

    def sums(self, noise: Noise, rising: bool) -> tuple[Sums, Array]:
        """Inner products under the noise's covariance and minus half its log determinant, flat: the noise runs slowest.

        Within a run e_i = rho e_(i-1) + innovation; a run's own ceiling deviates by run_sd, which adds
        run_spread^2 m m' to its covariance, m the direction that the ceiling moves (Sherman-Morrison).
        """
        rho, spread = noise.autocorrelation, noise.run_spread**2
        total: dict[str, Array] = dict.fromkeys(PAIRS, np.zeros(1))
        log_det = -0.5 * self.num_linked * np.log(1 - rho**2)
        for run in self.of_runs:
            part = {name: product.under(rho) for name, product in run.items()}
            if spread.any():
                # A run's own ceiling moves the whole shape of a rising form, and the level of one that falls short.
                moved = dict(zip("h1y", ("hh", "h1", "hy") if rising else ("h1", "one", "y1"), strict=True))
                own = part[moved["h" if rising else "1"]]
                shrink = spread / (1 + spread * own)
                log_det = log_det - 0.5 * np.log1p(spread * own)
                part = {
                    name: part[name] - shrink * part[moved[left]] * part[moved[right]]
                    for name, (left, right) in PAIRS.items()
                }
            total = {name: total[name] + part[name] for name in PAIRS}
        flat = lambda values: np.broadcast_to(values, total["hh"].shape).ravel()  # noqa: E731
        return Sums(**{name: flat(values) for name, values in total.items()}), flat(log_det)


def products(shape: Array, points: Points) -> Products:
    """The points enter here and nowhere else."""
    whole = {"h": shape / points.noise, "1": 1.0 / points.noise, "y": points.reward / points.noise}
    of_runs = []
    for begin, end in pairwise([*np.flatnonzero(points.first), points.num]):
        run = {name: values[..., begin:end] for name, values in whole.items()}
        of_runs.append({name: _product(run[left], run[right]) for name, (left, right) in PAIRS.items()})
    return Products(of_runs=of_runs, num_linked=points.num - len(of_runs))


def _product(a: Array, b: Array) -> Product:
    """Of one row or many with one row, or of many each with itself."""
    ends = a[..., 0] * b[..., 0] + a[..., -1] * b[..., -1]
    if b.ndim > 1:
        crossed = 2 * np.einsum("kn,kn->k", a[:, 1:], b[:, :-1])
        return Product(own=np.einsum("kn,kn->k", a, b), ends=ends, crossed=crossed)
    beside = np.zeros_like(b)
    beside[1:] += b[:-1]
    beside[:-1] += b[1:]
    return Product(own=a @ b, ends=ends, crossed=a @ beside)
