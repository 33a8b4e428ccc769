"""Cells of a reward that lie far outside all others, such as 53.2 among shares: they are left out, and said. Pure."""

from dataclasses import replace

import numpy as np

from scalerl.forecast.logs.facts import fact
from scalerl.forecast.logs.frame import Floats, Mask
from scalerl.forecast.logs.plan import Plan

LEAST_OTHERS = 8
"""Fewer cells do not show what is usual."""
MOST_SHARE = 0.02
"""Largest share of cells that can be mistakes; one cell always can."""
FAR = 20.0
"""Times the range of all others from which a cell is far outside: no reward that is measured jumps so."""


def far_outside(values: Floats) -> Mask:
    """Return which values lie far outside the range of all others."""
    far = np.zeros(len(values), dtype=bool)
    known = np.flatnonzero(np.isfinite(values))
    most = max(1, int(MOST_SHARE * len(known)))
    if len(known) < LEAST_OTHERS + most:
        return far
    by_distance = known[np.argsort(np.abs(values[known] - np.median(values[known])), kind="stable")]
    others = values[by_distance[:-most]]
    low, high = float(others.min()), float(others.max())
    room = FAR * (high - low)
    if room > 0:
        far[known] = (values[known] < low - room) | (values[known] > high + room)
    return far


def without_far_cells(plan: Plan) -> Plan:
    """Return a plan whose reward has no cell far outside all others; a fact names the first."""
    column = plan["y"]
    values = plan.frame.numbers(column)
    far = np.flatnonzero(far_outside(values))
    if plan.is_ours or not len(far):
        return plan
    kept = values.copy()
    kept[far] = np.nan
    first = fact("far_cells", y=column, num=len(far), value=float(values[far[0]]), place=plan.frame.origin[far[0]])
    return replace(plan, frame=plan.frame.having({column: kept}), facts=(*plan.facts, first))
