"""Cells of a reward that lie far outside all others, such as 53.2 among shares: they are left out, and said. Pure."""

from dataclasses import replace

import numpy as np

from scalerl.forecast.logs.facts import fact
from scalerl.forecast.logs.frame import Floats, Mask, Rows
from scalerl.forecast.logs.plan import Plan

LEAST_OTHERS = 8
"""Fewer cells do not show what is usual."""
MOST_SHARE = 0.02
"""Largest share of cells that can be mistakes; one cell always can."""
FAR = 20.0
"""Times the range of all others from which a cell is far outside: no reward that is measured jumps so."""


def far_outside(values: Floats, usual: Mask | None = None) -> Mask:
    """Return which values lie far outside the range of all others, of those that may be usual."""
    known = values[np.isfinite(values) if usual is None else usual]
    most = max(1, int(MOST_SHARE * len(known)))
    if len(known) < LEAST_OTHERS + most:
        return np.zeros(len(values), dtype=bool)
    distance = np.abs(known - np.median(known))
    others = known[np.argsort(distance, kind="stable")[:-most]]
    low, high = float(others.min()), float(others.max())
    room = FAR * (high - low)
    is_far = (values < low - room) | (values > high + room)
    return is_far & np.isfinite(values) & (room > 0)


def _may_be_far(values: Floats) -> bool:
    """Return whether a value lies far from most others, so that it is worth a closer look."""
    if not len(values):
        return False
    low, middle, high = np.quantile(values, (0.1, 0.5, 0.9))
    return bool(np.abs(values - middle).max() > FAR * (high - low))


def between(some: Mask, groups: Rows, progress: Floats) -> Mask:
    """Return the rows before and after which some others of their group are."""
    earliest = np.full(groups.max(initial=0) + 1, np.inf)
    latest = -earliest
    np.minimum.at(earliest, groups[some], progress[some])
    np.maximum.at(latest, groups[some], progress[some])
    return (earliest[groups] < progress) & (progress < latest[groups])


def without_far_cells(plan: Plan) -> Plan:
    """Return a plan whose reward has no mistaken cell far outside all others; a fact names the first.

    A run may begin far below what it reaches at once, and it may end in a jump: a far cell is a mistake only between
    usual ones.
    """
    frame, column = plan.frame, plan["y"]
    values, known = frame.numbers(column), frame.known(column)
    if plan.is_ours or not _may_be_far(values[known]):
        return plan
    groups, progress = plan.runs(frame), plan.progress(frame)
    if np.isnan(progress).all():
        progress = np.arange(float(len(frame)))
    known &= np.isfinite(progress)
    far = far_outside(values, known & between(known, groups, progress))
    mistaken = np.flatnonzero(far & between(known & ~far, groups, progress))
    if not len(mistaken):
        return plan
    kept = values.copy()
    kept[mistaken] = np.nan
    first = mistaken[0]
    said = fact("far_cells", y=column, num=len(mistaken), value=float(values[first]), place=frame.origin[first])
    return replace(plan, frame=frame.having({column: kept}), facts=(*plan.facts, said))
