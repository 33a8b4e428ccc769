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
        total = dict.fromkeys(Sums.__dataclass_fields__, np.zeros(1))
        log_det = -0.5 * self.num_linked * np.log(1 - rho**2)
        for of_run in self.of_runs:
            part = {name: product.under(rho) for name, product in of_run.items()}
            if spread.any():
                # A run's own ceiling moves the whole shape of a rising form, and the level of one that falls short.
                m = ("hh", "h1", "hy") if rising else ("h1", "one", "y1")
                hm, om, ym = (part[name] for name in m)
                mm = hm if rising else om
                shrink = spread / (1 + spread * mm)
                log_det = log_det - 0.5 * np.log1p(spread * mm)
                left, right = {"h": hm, "1": om, "y": ym}, {"h": shrink * hm, "1": shrink * om, "y": shrink * ym}
                part = {name: value - left[a] * right[b] for (name, value), (a, b) in zip(part.items(), SIDES)}
            total = {name: total[name] + value for name, value in part.items()}
        flat = lambda values: np.broadcast_to(values, total["hh"].shape).ravel()  # noqa: E731
        return Sums(**{name: flat(values) for name, values in total.items()}), flat(log_det)
