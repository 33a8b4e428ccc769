"""Cells of a reward that lie far outside all others, such as 53.2 among shares: they are left out, and said. Pure."""

from dataclasses import replace

import numpy as np

from scalerl.forecast.logs.facts import fact
from scalerl.forecast.logs.frame import Floats, Mask, members
from scalerl.forecast.logs.plan import Plan

LEAST_OTHERS = 8
"""Fewer cells do not show what is usual."""
MOST_SHARE = 0.02
"""Largest share of cells that can be mistakes."""
MOST_CELLS = 2
"""So many cells always can be."""
FAR = 20.0
"""Times the range of all others from which a cell is far outside: no reward that is measured jumps so."""


def far_outside(values: Floats) -> Mask:
    """Return which values lie far outside the range of all others."""
    known = values[np.isfinite(values)]
    most = max(MOST_CELLS, int(MOST_SHARE * len(known)))
    if len(known) < LEAST_OTHERS + most:
        return np.zeros(len(values), dtype=bool)
    order = np.argsort(np.abs(known - np.median(known)), kind="stable")
    others = known[order[:-most]]
    low = float(others.min())
    high = float(others.max())
    room = FAR * (high - low)
    return np.isfinite(values) & (room > 0) & ((values < low - room) | (values > high + room))


def without_far_cells(plan: Plan) -> Plan:
    """Return a plan whose reward has no mistaken cell far outside all others of its run; a fact names the first.

    A run may begin far below what it reaches at once, and it may end in a jump: a far cell is a mistake only between
    usual ones.
    """
    frame = plan.frame
    column = plan["y"]
    known = frame.known(column)
    values = np.where(known, frame.numbers(column), np.nan)
    if not known.any():
        return plan
    low, middle, high = np.nanquantile(values, (0.1, 0.5, 0.9))
    if np.nanmax(np.abs(values - middle)) <= FAR * (high - low):
        return plan  # as nearly all logs
    progress = plan.progress(frame)
    known &= np.isfinite(progress) | np.isnan(progress).all()
    mistaken: list[int] = []
    for run in members(plan.runs(frame)):
        rows = run[known[run]]
        rows = rows[np.argsort(progress[rows], kind="stable")]
        is_far = far_outside(values[rows])
        usual = np.flatnonzero(~is_far)
        between = slice(usual[0], usual[-1]) if len(usual) else slice(0)
        mistaken += rows[between][is_far[between]].tolist()
    if not mistaken:
        return plan
    first = mistaken[0]
    said = fact("far_cells", y=column, num=len(mistaken), value=float(values[first]), place=frame.origin[first])
    values[mistaken] = np.nan
    return replace(plan, frame=frame.having({column: values}), facts=(*plan.facts, said))
