"""Where in the cache each slot lies when the slots' lengths are to be told by their place. Plain numpy.

A product over many slots runs over neighbouring rows, so rows in use stand first, the longest at the front, in spans
of like length: a step then computes the rows in use alone, and reads of a span no more than its longest row holds.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

LENGTH_STEP = 64
"""Lengths within it count as alike: a finer one reads less and moves rows more often."""
ROW_STEP = 16
"""The number of rows computed is a multiple of this, which keeps a row's last bits the same beside any others."""


@dataclass(frozen=True, slots=True)
class Span:
    """Rows from `start` to before `stop`, of which none attends beyond the first `filled` positions."""

    start: int
    stop: int
    filled: int


class RowLayout:
    """A row for every slot, and a slot for every row."""

    def __init__(self, slots: int, *, max_length: int, row_step: int = ROW_STEP) -> None:
        self.row = np.arange(slots)
        """Of each slot."""
        self._max_length, self._row_step = max_length, row_step

    @property
    def slot(self) -> NDArray[np.int64]:
        """Of each row."""
        return np.argsort(self.row)

    def arrange(self, needed: NDArray[np.int64]) -> tuple[NDArray[np.int64], tuple[Span, ...]]:
        """Move as few slots as possible. Gives those moved and the spans; `row` is where everything lies from now on.

        needed: positions each slot attends to before it is arranged again, 0 for one that is not in use.
        """
        length = np.minimum(-(-needed // LENGTH_STEP) * LENGTH_STEP, self._max_length)
        wanted = np.sort(length)[::-1]
        moved = np.flatnonzero(wanted[self.row] != length)
        # The rows given up are as many of each length as the slots that need one, and in the same order.
        self.row[moved[np.argsort(-length[moved], kind="stable")]] = np.sort(self.row[moved])
        return moved, self._spans(wanted)

    def _spans(self, wanted: NDArray[np.int64]) -> tuple[Span, ...]:
        num_used = int((wanted > 0).sum())
        if not num_used:
            return ()
        starts = np.flatnonzero(np.diff(wanted[:num_used], prepend=-1)).tolist()
        stops = [*starts[1:], min(-(-num_used // self._row_step) * self._row_step, len(wanted))]
        return tuple(Span(start, stop, int(wanted[start])) for start, stop in zip(starts, stops, strict=True))
