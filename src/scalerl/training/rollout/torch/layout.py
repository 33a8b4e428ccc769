"""Assign slots to rows of the cache. Plain numpy.

On a CPU, rows are sorted by length, because a product over several slots needs neighbouring rows. Rows in use come
first, the longest at the front, in spans of similar length: a step computes only the rows in use, and reads each span
only up to its longest row. On a GPU, a step computes all rows, or the first half, quarter and so on if these hold all
slots in use: few different numbers of rows need few CUDA graphs.
"""

from dataclasses import dataclass

import numpy as np

from scalerl.training.rollout.progress import Ints

LENGTH_STEP = 64
"""Lengths are rounded up to a multiple of this. With a smaller one, a step reads less, but rows move more often."""
ROW_STEP = 16
"""The number of computed rows is a multiple of this, so that the last bits of a row do not depend on other rows."""


LEAST_ROWS = 64
"""Fewest rows of a step on a GPU."""


@dataclass(frozen=True, slots=True)
class RowSpan:
    """Rows from `start` to `stop` - 1, which attend to at most the first `filled` positions."""

    start: int
    stop: int
    filled: int


def rounded_length(length: int, max_length: int) -> int:
    """Return a length rounded up, but at most `max_length`."""
    return min(-(-length // LENGTH_STEP) * LENGTH_STEP, max_length)


class RowLayout:
    """A one-to-one assignment of slots to rows."""

    def __init__(self, slots: int, *, max_length: int, row_step: int = ROW_STEP) -> None:
        self.row = np.arange(slots)
        """The row of each slot."""
        self._max_length = max_length
        self._row_step = row_step

    @property
    def slot(self) -> Ints:
        """The slot of each row."""
        return np.argsort(self.row)

    def arrange(self, needed: Ints) -> tuple[Ints, tuple[RowSpan, ...]]:
        """Sort the slots by length with as few moves as possible; return the moved slots and the spans.

        `needed` is the number of positions that each slot attends to until the next call; 0 for an unused slot.
        Afterwards, `row` has the new assignment.
        """
        length = np.minimum(-(-needed // LENGTH_STEP) * LENGTH_STEP, self._max_length)
        wanted = np.sort(length)[::-1]
        moved = np.flatnonzero(wanted[self.row] != length)
        # The moved slots free as many rows of each length as they need, so that sorting both matches them.
        self.row[moved[np.argsort(-length[moved], kind="stable")]] = np.sort(self.row[moved])
        return moved, self._spans(wanted)

    def _spans(self, wanted: Ints) -> tuple[RowSpan, ...]:
        num_used = int((wanted > 0).sum())
        if not num_used:
            return ()
        starts = np.flatnonzero(np.diff(wanted[:num_used], prepend=-1)).tolist()
        stops = [*starts[1:], min(-(-num_used // self._row_step) * self._row_step, len(wanted))]
        return tuple(RowSpan(start, stop, int(wanted[start])) for start, stop in zip(starts, stops, strict=True))


class HalvedRows(RowLayout):
    """A one-to-one assignment of slots to rows; a step computes the first rows: all, a half, a quarter and so on.

    Fewer than `least_rows` would not make a step faster: reading the weights then takes longer than the products.
    """

    def __init__(self, slots: int, *, max_length: int, least_rows: int = LEAST_ROWS) -> None:
        super().__init__(slots, max_length=max_length)
        self._sizes = [slots]
        while self._sizes[-1] % 2 == 0 and self._sizes[-1] >= 2 * least_rows:
            self._sizes.append(self._sizes[-1] // 2)

    def arrange(self, needed: Ints) -> tuple[Ints, tuple[RowSpan, ...]]:
        """Move the slots in use into as few rows as a step can have; return the moved slots and one span.

        See RowLayout.arrange. Slots are exchanged, so unused slots move, too.
        """
        is_used = needed > 0
        num_rows = min(size for size in self._sizes if size >= is_used.sum())
        used = np.flatnonzero(is_used & (self.row >= num_rows))
        unused = np.flatnonzero(~is_used & (self.row < num_rows))[: len(used)]
        self.row[used], self.row[unused] = self.row[unused], self.row[used]
        filled = rounded_length(int(needed.max()), self._max_length)
        return np.concatenate([used, unused]), (RowSpan(0, num_rows, filled),)
