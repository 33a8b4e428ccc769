"""What the values of a column say about the roles that it may have."""

from functools import cached_property

import numpy as np

from scalerl.forecast.logs.frame import Floats, Frame

ENOUGH_STEPS = 6
"""Steps that a curve needs: a sigmoid has four parameters, and needs two points more."""
# A counter rises at more of its rows; one that falls at more than a tenth of them is no step beside it.
_MANY_RISES = 0.95
_MAX_FALLS = 0.1
# Counters that begin anew, or of which some rows are repeated, still go on by one at most rows.
_MANY_EQUAL_RISES = 0.8
# No share and no score of a benchmark is larger.
_MAX_SCORE = 100.0


class Evidence:
    """The numbers of a column, and what they may count or measure."""

    def __init__(self, frame: Frame, name: str) -> None:
        known = frame.known(name)
        self.values: Floats = frame.numbers(name)[known]
        self.is_in_all_rows = bool(known.all())
        self.is_in_half_of_rows = 2 * len(self.values) >= len(frame)

    @property
    def varies(self) -> bool:
        return bool(len(self.values)) and self.values.min() < self.values.max()

    @property
    def is_mostly_zero(self) -> bool:
        return bool(2 * np.count_nonzero(self.values) < len(self.values))

    @property
    def is_rate(self) -> bool:
        return bool(len(self.values)) and self.values.min() >= 0 and self.values.max() <= 1

    @property
    def is_whole(self) -> bool:
        return bool((self.values % 1 == 0).all())

    @property
    def counts(self) -> bool:
        """Whether these are whole numbers, and not only right and wrong."""
        return self.is_whole and bool(len(self.values)) and np.abs(self.values).max() > 1

    @property
    def is_like_a_score(self) -> bool:
        """Whether there are enough numbers within the range of scores, which differ and count nothing."""
        is_within = len(self.values) >= ENOUGH_STEPS and np.abs(self.values).max() <= _MAX_SCORE
        return bool(is_within) and self.varies and not self.counts

    @cached_property
    def _moves(self) -> Floats:
        return np.diff(self.values)

    @property
    def counts_on(self) -> bool:
        """Whether these are whole numbers that go on by one amount at most rows, and may begin anew or be repeated."""
        rises = self._moves[self._moves > 0]
        if not len(rises) or not self.is_whole or self.often_falls:
            return False
        num_usual = np.count_nonzero(rises == np.median(rises))
        return bool(num_usual >= _MANY_EQUAL_RISES * len(self._moves))

    @property
    def often_falls(self) -> bool:
        return bool(len(self._moves)) and (self._moves < 0).mean() > _MAX_FALLS

    @property
    def hardly_ever_falls(self) -> bool:
        return bool(len(self._moves)) and (self._moves > 0).mean() > _MANY_RISES

    @property
    def always_rises(self) -> bool:
        return bool((self._moves > 0).all())
