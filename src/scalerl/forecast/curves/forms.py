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
        return (
            "ceiling",
            *(("exponent",) if self.has_exponent else ()),
            *(("midpoint",) if self.has_midpoint else ()),
            "start" if self.has_start else "shortfall",
        )


def sigmoid(log_compute: Array, log_exponent, log_midpoint) -> Array:
    """Return 1 / (1 + (C_mid / C)^B), the law of arXiv 2510.13786 (eq. 1)."""
    with np.errstate(over="ignore"):
        return 1.0 / (1.0 + np.exp(np.exp(log_exponent) * (log_midpoint - log_compute)))


def exponential(log_compute: Array, log_exponent, log_midpoint) -> Array:
    """Return 1 - 2^(-C / C_mid): exponential saturation, written with its half-way point."""
    return -np.expm1(-np.log(2.0) * np.exp(np.minimum(log_compute - log_midpoint, 20.0)))


def power(log_compute: Array, log_exponent, log_midpoint) -> Array:
    """Return 1 - C^-B, which is 0 at the largest compute: A - D / C^B = level + gain * shape with gain = D."""
    return -np.expm1(np.minimum(-np.exp(log_exponent) * log_compute, 100.0))


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
