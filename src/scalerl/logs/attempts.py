"""Which rows of a run count, where it was begun anew or resumed. Pure.

Within a run the step rises from row to row. Where it comes back to the first step, another attempt begins: a run of its
own. Where it comes back to a later step, the run was resumed there: the rows that were logged before of the steps from
there on belong to a model that is gone. Files and values of a run column follow the same rule: a part that begins in
the later half of another and goes beyond it continues that one.
"""

from collections.abc import Hashable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from scalerl.logs.frame import Floats, Mask, Rows

MIN_ROWS = 3
"""Rows in no order at all fall at every second row. An attempt with fewer rows is left out, unless it is the last."""


class Restart(NamedTuple):
    """A row at which a run begins anew, or is resumed."""

    at: int
    step: float
    """The step from which earlier rows are superseded; NaN where another attempt begins."""

    @property
    def is_anew(self) -> bool:
        return bool(np.isnan(self.step))


def restarts(steps: Floats) -> list[Restart]:
    """Return the restarts of a run whose rows have these steps; none for rows in no order.

    A step that repeats is a restart, too, unless most steps have several rows.
    """
    rises = np.diff(steps)
    has_several = 2 * (rises == 0).sum() >= len(rises)
    gap = float(np.median(rises[rises > 0])) if (rises > 0).any() else 0.0
    parts = np.split(np.arange(len(steps)), np.flatnonzero((rises < 0) | ((rises == 0) & (not has_several))) + 1)
    found: list[Restart] = []
    run = parts[0]
    num_inside = 0
    for part in parts[1:]:
        restart = _restart(steps[run], steps[part], gap)
        num_inside += int(steps[part].min() > steps[run].min())
        found += [] if restart is None else [Restart(int(part[0]), restart)]
        run = part if restart is not None and np.isnan(restart) else np.concatenate([run, part])
    return found if MIN_ROWS * (num_inside + 1) <= len(steps) else []


def _restart(run: Floats, part: Floats, gap: float) -> float | None:
    """Return the step from which a part supersedes a run; NaN where it begins anew, None where it does neither."""
    (first, second, *_), reached = (*np.unique(run), np.inf), run.max()
    begin, then, *_ = (*np.unique(part), np.nan)
    if begin <= first and (then <= second or then > reached + gap):
        return np.nan
    # One step alone was evaluated again, and one row that was written late does not change how the run goes on.
    if np.isnan(then) or (first < begin < reached and then - reached == gap):
        return None
    return begin if begin > first else then


def superseded(steps: Floats, found: Sequence[Restart], measured: Mask) -> Mask:
    """Return which rows a later attempt superseded. At the step of a restart a row stays if nothing replaces it."""
    places = np.arange(len(steps))
    gone = np.zeros(len(steps), dtype=bool)
    ends = [0, *(restart.at for restart in found if restart.is_anew), len(steps)]
    for restart in (restart for restart in found if not restart.is_anew):
        attempt = np.searchsorted(ends, restart.at, side="right")
        earlier = (places >= ends[attempt - 1]) & (places < restart.at)
        later = (places >= restart.at) & (places < ends[attempt])
        is_replaced = (steps[later & measured] == restart.step).any()
        gone |= earlier & ((steps > restart.step) | ((steps == restart.step) & is_replaced))
        # A resumed run may evaluate its first step again.
        gone |= later & (steps < restart.step) & (steps == np.nanmin(steps[earlier]))
    return gone


def numbered_attempts(num_rows: int, found: Sequence[Restart]) -> tuple[Rows, Mask]:
    """Return the number of the attempt of each row, and which rows are of an attempt that is too short to count."""
    begins = [restart.at for restart in found if restart.is_anew]
    attempt = np.searchsorted(begins, np.arange(num_rows), side="right")
    sizes = np.bincount(attempt, minlength=1)
    is_short = (sizes < MIN_ROWS) & (np.arange(len(sizes)) < len(sizes) - 1)
    numbers = np.cumsum(~is_short)
    return numbers[attempt], is_short[attempt]


def chains(steps: Mapping[Hashable, Floats]) -> list[list[Hashable]]:
    """Group parts into runs: each part but the first begins in the later half of the one before and goes beyond it."""
    spans = {key: (np.nanmin(part), np.nanmax(part)) for key, part in steps.items() if not np.isnan(part).all()}
    runs: list[list[Hashable]] = []
    for key, (first, last) in sorted(spans.items(), key=lambda item: item[1]):
        ending = []
        for run in runs:
            begin, end = spans[run[-1]]
            if (begin + end) / 2 < first <= end + max(1.0, 0.1 * (end - begin)) and last > end:
                ending.append(run)
        # A part that continues several others belongs to none of them for certain.
        if len(ending) == 1:
            ending[0].append(key)
        else:
            runs.append([key])
    return [run for run in runs if len(run) > 1]
