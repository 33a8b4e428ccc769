"""Whether GPU-hours and FLOPs measure the same compute within one run. Pure.

A run that has its machine to itself takes about the same time per FLOP throughout. If it shares the machine for a
while, or is suspended, GPU-hours stretch that part of its curve and a fit against them bends; FLOPs do not.
"""

from typing import Literal

import numpy as np

from scalerl.forecast.logs.frame import Floats, Frame

Axis = Literal["gpu_hours", "flops", "tokens", "step"]

UNEVEN_TIME = 0.2
"""Disagreement above which FLOPs are preferred. Runs on a GPU that others used too had 0.03 to 0.16, and runs that
waited for another process for long stretches 0.66 and 0.70 (docs/results)."""


def disagreement(hours: Floats, flops: Floats) -> float:
    """Return the largest difference, over a run's rows, between the share of GPU-hours and that of FLOPs spent so far.

    0 where time per FLOP is constant, near 1 where nearly all of the time went into a small part of the FLOPs.
    """
    known = np.isfinite(hours) & np.isfinite(flops)
    order = np.argsort(hours[known], kind="stable")
    spent = np.array([hours[known][order], flops[known][order]])
    if not spent.size or (spent[:, -1] <= 0).any():
        return 0.0
    shares = spent / spent[:, -1:]
    return float(np.abs(shares[0] - shares[1]).max())


def disagreement_in(frame: Frame) -> float:
    """Return the disagreement of the rows of a log; 0 where it does not count both."""
    return disagreement(frame.numbers("gpu_hours"), frame.numbers("flops"))
