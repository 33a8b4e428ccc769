"""The shapes a reward-against-compute curve may take.

Every form is a straight line in a fixed shape: R(C) = level + gain * shape(C). The two linear numbers are solved in
closed form, so that a search or a posterior only walks over the one or two shape parameters (variable projection).

    rising forms     level = start,    ceiling = level + gain,  shape climbs from 0 to 1
    shortfall forms  level = ceiling,  gain < 0,                shape falls from 1 (at the largest compute) to 0

Shape parameters are handled as logarithms, with compute in units of the largest compute fitted: nothing depends on
whether compute is counted in GPU-hours or in FLOPs.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

WIDE_EXPONENT = (np.log(0.1), np.log(20.0))


@dataclass(frozen=True, slots=True, kw_only=True)
class ShapeParam:
    """One non-linear parameter: where it may lie and a weak, dimensionless prior, all on the log scale."""

    name: str
    low: float
    high: float
    prior_mean: float
    prior_sd: float
    scales_with_compute: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Form:
    name: str
    formula: str
    source: str
    shape_params: tuple[ShapeParam, ...]
    shape: Callable[..., Array]
    """shape(log_compute, *log_params), broadcasting; log_compute is relative to the largest compute."""
    place: Callable[[Array | float, Mapping[str, Any]], Array]
    """place(value, params): the compute at which the shape has this value, from the parameters by name; relative to the
    largest compute where no parameter scales with compute."""
    rising: bool
    ceiling: float | None = None
    """A ceiling the form itself fixes."""

    @property
    def params(self) -> tuple[str, ...]:
        """The words `Fit.params` holds."""
        own = tuple(param.name for param in self.shape_params)
        return ("ceiling", *own, "start") if self.rising else ("ceiling", *own, "shortfall")

    def curve(self, compute: Array, params: Mapping[str, Array | float], scale: float) -> Array:
        """Return the reward at `compute`; parameters broadcast against it. `scale` is the largest compute fitted."""
        logs = [
            np.log(np.asarray(params[param.name], dtype=float) / (scale if param.scales_with_compute else 1.0))
            for param in self.shape_params
        ]
        ceiling = np.asarray(params["ceiling"], dtype=float)
        with np.errstate(divide="ignore", over="ignore"):
            shape = self.shape(np.log(np.asarray(compute, dtype=float) / scale), *logs)
        if self.rising:
            start = np.asarray(params["start"], dtype=float)
            return start + (ceiling - start) * shape
        return ceiling - np.asarray(params["shortfall"], dtype=float) * shape


def sigmoid(log_compute: Array, log_exponent: Array, log_midpoint: Array) -> Array:
    """1 / (1 + (C_mid / C)^B)   (arXiv 2510.13786, eq. 1)

    As C_mid^B * C^-B: on a grid of exponents and midpoints each power is computed once per row, and a fit spends its
    time on exponentials. Memory is used again, since fresh pages cost as much as the arithmetic.
    """
    exponent = np.exp(log_exponent)
    with np.errstate(over="ignore"):
        # No midpoint's power is 0 or infinite: the other one may be, and 0 times infinity is not a number.
        ratio = np.exp(-exponent * log_compute) * np.exp(np.clip(exponent * log_midpoint, -700.0, 700.0))
    ratio += 1.0
    return np.divide(1.0, ratio, out=ratio if isinstance(ratio, np.ndarray) else None)


def sigmoid_place(value: Array | float, params: Mapping[str, Any]) -> Array:
    return params["midpoint"] * (value / (1.0 - value)) ** (1.0 / np.asarray(params["exponent"]))


def exponential(log_compute: Array, log_midpoint: Array) -> Array:
    """1 - 2^(-C / C_mid), the exponential saturation written with its half-way point."""
    return -np.expm1(-np.log(2.0) * np.exp(log_compute - log_midpoint))


def exponential_place(value: Array | float, params: Mapping[str, Any]) -> Array:
    return -np.asarray(params["midpoint"]) * np.log2(1.0 - value)


def power(log_compute: Array, log_exponent: Array) -> Array:
    """C^-B; with compute relative to the largest, D / C^B = shortfall * shape."""
    return np.exp(np.minimum(-np.exp(log_exponent) * log_compute, 200.0))  # its square must not overflow


def power_place(value: Array | float, params: Mapping[str, Any]) -> Array:
    return value ** (-1.0 / np.asarray(params["exponent"]))


EXPONENT = ShapeParam(
    # Nine tenths of the prior lie between 0.9 and 4.6.
    name="exponent",
    low=WIDE_EXPONENT[0],
    high=WIDE_EXPONENT[1],
    prior_mean=np.log(2.0),
    prior_sd=0.5,
)
MIDPOINT = ShapeParam(
    # Nine tenths within a factor of five of the largest compute: people stop near where the curve bends.
    name="midpoint",
    low=np.log(1e-4),
    high=np.log(1e3),
    prior_mean=0.0,
    prior_sd=1.0,
    scales_with_compute=True,
)
DECAY = ShapeParam(name="exponent", low=np.log(0.005), high=WIDE_EXPONENT[1], prior_mean=np.log(0.5), prior_sd=1.2)

FORMS = {
    "sigmoid": Form(
        name="sigmoid",
        formula="R(C) = R0 + (A - R0) / (1 + (C_mid / C)^B)",
        source="arXiv 2510.13786, eq. 1",
        shape_params=(EXPONENT, MIDPOINT),
        shape=sigmoid,
        place=sigmoid_place,
        rising=True,
    ),
    "power": Form(
        name="power",
        formula="R(C) = A - D / C^B",
        source="arXiv 2510.13786, A.4",
        shape_params=(DECAY,),
        shape=power,
        place=power_place,
        rising=False,
    ),
    "exponential": Form(
        name="exponential",
        formula="R(C) = R0 + (A - R0) * (1 - 2^(-C / C_mid))",
        source="arXiv 2507.18014",
        shape_params=(MIDPOINT,),
        shape=exponential,
        place=exponential_place,
        rising=True,
    ),
    "log-linear": Form(
        name="log-linear",
        formula="ln(1 - R(C)) = E - k ln C",
        source="arXiv 2509.25300",
        shape_params=(DECAY,),
        shape=power,
        place=power_place,
        rising=False,
        ceiling=1.0,
    ),
}
