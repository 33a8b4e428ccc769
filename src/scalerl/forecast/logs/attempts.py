"""Which rows of a run count, where it was begun anew or resumed. Pure.

Within a run the step rises from row to row. Where it comes back to the first step, another attempt begins: a run of its
own. Where it comes back to a later step, the run was resumed there: the rows that were logged before of the steps from
there on belong to a model that is gone. Files and values of a run column follow the same rule: a part that begins in
the later half of another and goes beyond it continues that one. Steps that only come in another order, as files do that
are sorted by name, are neither.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from scalerl.forecast.logs.frame import Floats, Mask, Rows

MIN_ROWS = 3
"""An attempt with fewer rows is left out, unless it is the last."""
# Rows in no order at all fall at every second row.
_MAX_FALLS = 1 / 3


class Attempts(NamedTuple):
    """What the order of a run's steps says."""

    number: Rows
    """The attempt of each row, from 0."""
    gone: Mask
    """Rows that a resumed attempt superseded."""
    resumed: list[int]
    """Rows at which the run was resumed."""

    @property
    def is_found(self) -> bool:
        """Whether the run began anew or was resumed."""
        return bool(self.resumed) or self.number.max() > 0

    @property
    def short(self) -> Mask:
        """The rows of attempts that are too short to count."""
        sizes = np.bincount(self.number)
        return (sizes[self.number] < MIN_ROWS) & (self.number < self.number.max(initial=0))


def attempts(steps: Floats) -> Attempts:
    """Return the attempts of a run whose rows have these steps; one for rows in no order.

    A step that repeats is a restart, too, unless most steps have several rows.
    """
    rises = np.diff(steps)
    gap = float(np.median(rises[rises > 0])) if (rises > 0).any() else 0.0
    is_repeat = (rises == 0) & (2 * (rises == 0).sum() < len(rises))
    breaks = np.flatnonzero((rises < 0) | is_repeat) + 1
    if len(breaks) > _MAX_FALLS * len(rises) or _is_by_name(steps):
        breaks = breaks[:0]
    run, *parts = np.split(np.arange(len(steps)), breaks)
    number, gone, resumed = np.zeros(len(steps), dtype=np.intp), np.zeros(len(steps), dtype=bool), list[int]()
    for part in parts:
        begin = _begin(steps[run], steps[part], gap)
        if begin is None:
            number[part[0] :] += 1
            run = part
            continue
        lost = run[steps[run] >= begin]
        resumed += part[:1].tolist() if len(lost) else []
        gone[lost] = True
        # A resumed run may evaluate its first step again.
        gone[part] = (steps[part] == steps[run].min()) & (begin < np.inf)
        run = np.concatenate([run, part])
    return Attempts(number, gone, resumed)


def _is_by_name(steps: Floats) -> bool:
    """Return whether no step comes twice, and they are in the order of file names: 100, 1000, 200."""
    names = [f"{step:.15g}" for step in steps]
    return names == sorted({*names})


def _begin(run: Floats, part: Floats, gap: float) -> float | None:
    """Return the step from which a part supersedes a run; None where it begins anew, infinity where it does neither."""
    (first, second, *_), reached = (*np.unique(run), np.inf), run.max()
    begin, then, *_ = (*np.unique(part), np.nan)
    # Rows between the others, or before them, that were only written late.
    if part.max() < reached and not np.isin(part, run).any():
        return np.inf
    if begin <= first and then <= second:
        return None
    # One step alone was evaluated again, and one row that was written late does not change how the run goes on.
    if np.isnan(then) or (first < begin < reached and then - reached == gap):
        return np.inf
    return begin if begin > first else then


def chains(spans: Sequence[tuple[float, float]]) -> list[list[int]]:
    """Group parts, by their first and last step, into runs of parts that continue each other.

    A part that continues several others belongs to none of them for certain.
    """
    runs: list[list[int]] = []
    for at, span in sorted(enumerate(spans), key=lambda part: part[1]):
        before = [run for run in runs if _continues(span, spans[run[-1]])]
        if len(before) == 1:
            before[0].append(at)
        else:
            runs.append([at])
    return runs


def _continues(span: tuple[float, float], before: tuple[float, float]) -> bool:
    """Return whether a part begins in the later half of another, or soon after it, and goes beyond it."""
    begin, end = before
    return (begin + end) / 2 < span[0] <= end + max(1.0, 0.1 * (end - begin)) and span[1] > end
