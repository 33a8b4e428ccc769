"""Whether GPU-hours and FLOPs measure the same compute within one run. Pure.

A run that has its machine to itself takes about the same time per FLOP throughout. If it shares the machine for a
while, or is suspended, GPU-hours stretch that part of its curve and a fit against them bends; FLOPs do not.
"""

from collections.abc import Iterable, Mapping
from typing import Any, Literal

import numpy as np

from scalerl.logs.frame import Frame

Axis = Literal["gpu_hours", "flops", "tokens", "step"]

UNEVEN_TIME = 0.2
"""Disagreement above which FLOPs are preferred. Runs on a GPU that others used too had 0.03 to 0.16, and runs that
waited for another process for long stretches 0.66 and 0.70 (docs/results)."""


def disagreement(rows: Iterable[Mapping[str, Any]]) -> float:
    """Return the largest difference, over a run's rows, between the share of GPU-hours and that of FLOPs spent so far.

    0 where time per FLOP is constant, near 1 where nearly all of the time went into a small part of the FLOPs.
    """
    spent = [
        (row["gpu_hours"], row["flops"])
        for row in rows
        if isinstance(row.get("gpu_hours"), int | float) and isinstance(row.get("flops"), int | float)
    ]
    if not spent:
        return 0.0
    values = np.array(sorted(spent), dtype=np.float64)
    if not np.isfinite(values).all() or (values[-1] <= 0).any():
        return 0.0
    shares = values / values[-1]
    return float(np.abs(shares[:, 0] - shares[:, 1]).max())


def disagreement_in(frame: Frame) -> float:
    """Return the disagreement of the rows of a log; 0 where it does not count both."""
    spent = zip(frame.numbers("gpu_hours").tolist(), frame.numbers("flops").tolist(), strict=True)
    return disagreement({"gpu_hours": hours, "flops": flops} for hours, flops in spent)


def preferred_axis(rows: Iterable[Mapping[str, Any]]) -> Axis:
    """Return the axis for one run's own curve: GPU-hours, or FLOPs where the two disagree."""
    return "flops" if disagreement(rows) > UNEVEN_TIME else "gpu_hours"
