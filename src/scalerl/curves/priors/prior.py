"""Priors of a sigmoid's parameters, learnt from other runs: one density per parameter, on evenly spaced nodes.

Each parameter has a coordinate, the axis of its density:

    share      u = log((s + e) / (1 + e - s)),  s = (ceiling - start) / (highest reward - start),  e = 0.01
    exponent   its logarithm
    midpoint   its logarithm, in the data's own unit of compute; absent in a prior for runs of any length

A parameter without a density keeps the weak prior of its form (docs/math.md).
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from scalerl.curves.forms import FORMS, Array
from scalerl.curves.grid import Grid

SOFT = 0.01  # the e above: shares of the possible gain below it are treated as nearly equal
PARAMS = ("share", "exponent", "midpoint")
SIGMOID_PARAMS = {param.name: param for param in FORMS["sigmoid"].shape_params}


@dataclass(frozen=True, slots=True, kw_only=True)
class Density:
    """A density on evenly spaced nodes from `low` to `high`; it is constant beyond either end."""

    low: float
    high: float
    log_density: Array

    @property
    def nodes(self) -> Array:
        return np.linspace(self.low, self.high, len(self.log_density))

    def at(self, values: Array) -> Array:
        """Return the log density at each value, interpolated linearly."""
        step = (self.high - self.low) / (len(self.log_density) - 1)
        place = np.clip((values - self.low) / step, 0.0, len(self.log_density) - 1.000001)
        index = place.astype(np.int64)
        left = self.log_density[index]
        return left + (place - index) * (self.log_density[index + 1] - left)

    def quantiles(self, probabilities) -> Array:
        nodes = self.nodes
        mass = np.cumsum(np.exp(self.log_density - self.log_density.max()))
        return np.interp(probabilities, mass / mass[-1], nodes)


@dataclass(frozen=True, slots=True, kw_only=True)
class Prior:
    """Densities over a sigmoid's parameters, and the names of the runs that they were learnt from."""

    densities: dict[str, Density]
    sources: tuple[str, ...] = ()

    def log_shape(self, grid: Grid, log_scale: float, held: set[str]) -> Array:
        """Return the log density of each cell of a grid over exponent and midpoint, without the parameters in `held`.

        `log_scale` is the log of the compute that the grid's midpoints are relative to.
        """
        total = np.zeros(grid.shape)
        for param, log in zip(SIGMOID_PARAMS.values(), grid.logs, strict=True):
            if param.name in held:
                continue
            density = self.densities.get(param.name)
            if density is None:
                total = total - 0.5 * ((log - param.prior_mean) / param.prior_sd) ** 2
            else:
                total = total + density.at(log + log_scale if param.scales_with_compute else log)
        return total

    def log_gain(self, gain: Array, possible: Array) -> Array | None:
        """Return the log density of each gain, per unit of reward; None if the prior has no density of the gain."""
        density = self.densities.get("share")
        if density is None:
            return None
        share = np.clip(gain / possible, 0.0, 1.0)
        return density.at(share_coordinate(share)) + log_slope(share) - np.log(possible)


def coordinates(params: Mapping[str, Array], highest: float) -> dict[str, Array]:
    """Return a sigmoid's parameters in the coordinates of the prior; `highest` is the largest possible reward."""
    possible = np.maximum(highest - params["start"], 1e-9)
    share = np.clip((params["ceiling"] - params["start"]) / possible, 0.0, 1.0)
    logs = {name: np.log(params[name]) for name in SIGMOID_PARAMS}
    return {"share": share_coordinate(share), **logs}


def share_coordinate(share: Array) -> Array:
    """Return the coordinate u of a share s of the possible gain."""
    return np.log((share + SOFT) / (1 + SOFT - share))


def share_of(coordinate: Array) -> Array:
    """Return the share at a coordinate; the inverse of `share_coordinate`."""
    odds = np.exp(coordinate)
    return np.clip((odds * (1 + SOFT) - SOFT) / (1 + odds), 0.0, 1.0)


def log_slope(share: Array) -> Array:
    """Return the log of the derivative du/ds of the coordinate with respect to the share."""
    return np.log(1 / (share + SOFT) + 1 / (1 + SOFT - share))


def weak_log_density(param: str, coordinate: Array, log_scale: float = 0.0) -> Array:
    """Return the log density of the weak prior in the coordinate of `Prior`, up to a constant."""
    if param == "share":
        share = share_of(coordinate)
        return np.log1p(-0.5 * share) - np.log(share + SOFT) - log_slope(share)
    shape = SIGMOID_PARAMS[param]
    relative = coordinate - log_scale if shape.scales_with_compute else coordinate
    return -0.5 * ((relative - shape.prior_mean) / shape.prior_sd) ** 2
