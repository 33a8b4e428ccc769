"""Shapes of a reward-against-compute curve: R(C) = level + gain * shape(C), with a shape that rises to 1.

Shape parameters are logarithms, and compute is in units of the largest compute fitted, so nothing depends on whether
compute is counted in GPU-hours or in FLOPs.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Form:
    name: str
    formula: str
    source: str
    shape: Callable[..., Array]
    """shape(log_compute, log_exponent, log_midpoint), broadcasting."""
    has_exponent: bool = True
    has_midpoint: bool = True
    has_start: bool = True
    """Whether the level is the reward before training; otherwise it is the reward at the largest compute."""
    ceiling: float | None = None
    """The ceiling that the form fixes for rewards up to 1: the largest possible reward."""

    @property
    def params(self) -> tuple[str, ...]:
        """The names in `Fit.params`."""
        names = ["ceiling"]
        if self.has_exponent:
            names.append("exponent")
        if self.has_midpoint:
            names.append("midpoint")
        names.append("start" if self.has_start else "shortfall")
        return tuple(names)


def sigmoid(log_compute: Array, log_exponent, log_midpoint) -> Array:
    """Return 1 / (1 + (C_mid / C)^B), the law of arXiv 2510.13786 (eq. 1)."""
    with np.errstate(over="ignore"):
        return 1.0 / (1.0 + np.exp(np.exp(log_exponent) * (log_midpoint - log_compute)))


def exponential(log_compute: Array, log_exponent, log_midpoint) -> Array:
    """Return 1 - 2^(-C / C_mid): exponential saturation, written with its half-way point."""
    # Far past the midpoint the shape is 1; the limit keeps exp() from an overflow.
    log_multiple = np.minimum(log_compute - log_midpoint, 20.0)
    return -np.expm1(-np.log(2.0) * np.exp(log_multiple))


def power(log_compute: Array, log_exponent, log_midpoint) -> Array:
    """Return 1 - C^-B, which is 0 at the largest compute: A - D / C^B = level + gain * shape with gain = D."""
    # The limit keeps expm1() from an overflow far below the largest compute.
    log_power = np.minimum(-np.exp(log_exponent) * log_compute, 100.0)
    return -np.expm1(log_power)


FORMS = {
    "sigmoid": Form(
        name="sigmoid",
        formula="R(C) = R0 + (A - R0) / (1 + (C_mid / C)^B)",
        source="arXiv 2510.13786, eq. 1",
        shape=sigmoid,
    ),
    "power": Form(
        name="power",
        formula="R(C) = A - D / C^B",
        source="arXiv 2510.13786, A.4",
        shape=power,
        has_midpoint=False,
        has_start=False,
    ),
    "exponential": Form(
        name="exponential",
        formula="R(C) = R0 + (A - R0) * (1 - 2^(-C / C_mid))",
        source="arXiv 2507.18014",
        shape=exponential,
        has_exponent=False,
    ),
    "log-linear": Form(
        name="log-linear",
        formula="ln(1 - R(C)) = E - k ln C",
        source="arXiv 2509.25300",
        shape=power,
        has_midpoint=False,
        has_start=False,
        ceiling=1.0,
    ),
}
