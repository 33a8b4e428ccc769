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
    first_part, *parts = np.split(np.arange(len(steps)), _breaks(steps, rises))
    found = Attempts(np.zeros(len(steps), dtype=np.intp), np.zeros(len(steps), dtype=bool), [])
    run = first_part
    for part in parts:
        begin = _begin(steps[run], steps[part], gap)
        if begin is None:
            found.number[part[0] :] += 1
            run = part
            continue
        superseded = run[steps[run] >= begin]
        if len(superseded):
            found.resumed.append(int(part[0]))
            found.gone[superseded] = True
        if begin < np.inf:
            # A resumed run may evaluate its first step again.
            found.gone[part[steps[part] == steps[run].min()]] = True
        run = np.concatenate([run, part])
    return found


def _breaks(steps: Floats, rises: Floats) -> Rows:
    """Return the rows at which the step comes back; none for rows in no order, or in that of file names."""
    is_repeat = rises == 0
    have_several = 2 * np.count_nonzero(is_repeat) >= len(rises)
    breaks = np.flatnonzero(rises < 0 if have_several else rises <= 0) + 1
    names = [f"{step:.15g}" for step in steps]
    is_by_name = names == sorted({*names})  # 100, 1000, 200
    begin_anew = bool(len(steps)) and bool((steps[breaks] == steps.min()).all())
    if is_by_name or (len(breaks) > _MAX_FALLS * len(rises) and not begin_anew):
        return breaks[:0]
    return breaks


def _begin(run: Floats, part: Floats, gap: float) -> float | None:
    """Return the step from which a part supersedes a run; None where it begins anew, infinity where it does neither."""
    run_steps, part_steps = np.unique(run), np.unique(part)
    first, reached = run_steps[0], run_steps[-1]
    second = run_steps[1] if len(run_steps) > 1 else np.inf
    if part_steps[-1] < reached and not np.isin(part, run).any():
        # Rows between the others, or before them, were only written late, unless they count from the beginning and
        # end before these begin.
        is_apart = part_steps[-1] + 2 * gap < first
        return None if is_apart and part_steps[0] <= 1 and len(part_steps) >= MIN_ROWS else np.inf
    begin = part_steps[0]
    if len(part_steps) == 1:
        # One step alone was evaluated again, unless training begins with it.
        return None if 0 < begin <= first else np.inf
    then = part_steps[1]
    if begin <= first and then <= second:
        return None
    # One row that was written late does not change how the run goes on.
    if first < begin < reached and then - reached == gap:
        return np.inf
    return float(begin) if begin > first else float(then)


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
    soon_after = end + max(1.0, 0.1 * (end - begin))
    return (begin + end) / 2 < span[0] <= soon_after and span[1] > end
