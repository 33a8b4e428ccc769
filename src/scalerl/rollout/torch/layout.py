"""Assign slots to rows of the cache. Plain numpy.

On a CPU they are sorted by length. A product over several slots needs neighbouring rows. Rows in use therefore come
first, the longest at the front, in spans of similar length: a step computes only the rows in use, and reads of each
span only as much as its longest row holds. On a GPU every slot has its row, and every step computes all of them.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

LENGTH_STEP = 64
"""Lengths are rounded up to a multiple of this. A smaller step reads less and moves rows more often."""
ROW_STEP = 16
"""The number of rows computed is a multiple of this, so that a row's last bits do not depend on the other rows."""


@dataclass(frozen=True, slots=True)
class Span:
    """Rows start to stop - 1, none of which attends beyond the first `filled` positions."""

    start: int
    stop: int
    filled: int


def rounded_length(length: int, max_length: int) -> int:
    """Return a length, rounded up, but not beyond the largest."""
    return min(-(-length // LENGTH_STEP) * LENGTH_STEP, max_length)


class FixedRows:
    """Every slot has the row of its number; a step computes all rows, in one of few shapes."""

    def __init__(self, slots: int, *, max_length: int) -> None:
        self.row = self.slot = np.arange(slots)
        self._max_length = max_length

    def arrange(self, needed: NDArray[np.int64]) -> tuple[NDArray[np.int64], tuple[Span, ...]]:
        """Return that no slot has moved, and one span."""
        return self.row[:0], (Span(0, len(self.row), rounded_length(int(needed.max()), self._max_length)),)


class RowLayout:
    """A one-to-one assignment of slots to rows."""

    def __init__(self, slots: int, *, max_length: int, row_step: int = ROW_STEP) -> None:
        self.row = np.arange(slots)
        """The row of each slot."""
        self._max_length, self._row_step = max_length, row_step

    @property
    def slot(self) -> NDArray[np.int64]:
        """The slot of each row."""
        return np.argsort(self.row)

    def arrange(self, needed: NDArray[np.int64]) -> tuple[NDArray[np.int64], tuple[Span, ...]]:
        """Sort the slots by length, moving as few as possible; return the moved slots and the spans.

        `needed` is the number of positions each slot attends to until the next call, 0 for a slot that is not in use.
        Afterwards `row` holds the new assignment.
        """
        length = np.minimum(-(-needed // LENGTH_STEP) * LENGTH_STEP, self._max_length)
        wanted = np.sort(length)[::-1]
        moved = np.flatnonzero(wanted[self.row] != length)
        # The moved slots give up as many rows of each length as they need, so sorting both matches them.
        self.row[moved[np.argsort(-length[moved], kind="stable")]] = np.sort(self.row[moved])
        return moved, self._spans(wanted)

    def _spans(self, wanted: NDArray[np.int64]) -> tuple[Span, ...]:
        num_used = int((wanted > 0).sum())
        if not num_used:
            return ()
        starts = np.flatnonzero(np.diff(wanted[:num_used], prepend=-1)).tolist()
        stops = [*starts[1:], min(-(-num_used // self._row_step) * self._row_step, len(wanted))]
        return tuple(Span(start, stop, int(wanted[start])) for start, stop in zip(starts, stops, strict=True))
