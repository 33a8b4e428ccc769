"""What the values of a column say about the roles that it may have."""

from typing import NamedTuple

import numpy as np

from scalerl.forecast.logs.frame import Floats, Frame

ENOUGH_STEPS = 6
"""Steps that a curve needs: a sigmoid has four parameters, and needs two points more."""
# A counter rises at more of its rows; one that falls at more than a tenth of them is no step beside it.
_MANY_RISES = 0.95
_MAX_FALLS = 0.1
# Counters that begin anew, or of which some rows are repeated, still go on by one at most rows.
_MANY_EQUAL_RISES = 0.8
# Numbers are rounded: the largest of even rises is this many times the usual one.
_UNEVEN = 1.5
# Fewer numbers may rise evenly by accident.
_MANY_ROWS = 50
# No share and no score of a benchmark is larger.
_MAX_SCORE = 100.0


class Evidence(NamedTuple):
    """The numbers of a column, and what they may count or measure."""

    values: Floats
    is_in_all_rows: bool
    is_in_half_of_rows: bool
    varies: bool
    is_mostly_zero: bool
    is_rate: bool
    counts: bool
    """Whether these are whole numbers, and not only right and wrong."""
    always_rises: bool
    hardly_ever_falls: bool
    often_falls: bool
    goes_on: bool
    """Whether these are whole numbers that go on by one amount at most rows, and may begin anew or be repeated."""

    @property
    def is_like_a_score(self) -> bool:
        """Whether the numbers lie within the range of scores, differ and count nothing, as the part that is done."""
        return self.varies and not (self.counts or self.is_even) and bool(np.abs(self.values).max() <= _MAX_SCORE)

    @property
    def is_even(self) -> bool:
        """Whether the numbers rise by about one amount at each row, as the share of a run that is done."""
        moves = np.diff(self.values)
        usual = float(np.median(moves)) if len(moves) else 0.0
        is_usual = (moves > usual / _UNEVEN) & (moves < usual * _UNEVEN)
        return len(moves) >= _MANY_ROWS and int(np.count_nonzero(is_usual)) > _MANY_RISES * len(moves)


def evidence(frame: Frame, name: str) -> Evidence:
    """Return what the values of a column say."""
    known = frame.known(name)
    values = frame.numbers(name)[known]
    num = len(values)
    low = float(values.min(initial=np.inf))
    high = float(values.max(initial=-np.inf))
    moves = np.diff(values)
    rises = moves[moves > 0]
    is_whole = bool((values % 1 == 0).all())
    often_falls = bool(np.count_nonzero(moves < 0) > _MAX_FALLS * len(moves))
    num_usual = int(np.count_nonzero(rises == np.median(rises))) if len(rises) else 0
    return Evidence(
        values=values,
        is_in_all_rows=bool(known.all()),
        is_in_half_of_rows=2 * num >= len(frame),
        varies=low < high,
        is_mostly_zero=2 * int(np.count_nonzero(values)) < num,
        is_rate=low >= 0 and high <= 1,
        counts=is_whole and num > 0 and max(-low, high) > 1,
        always_rises=is_whole and len(rises) == len(moves),
        hardly_ever_falls=len(rises) > _MANY_RISES * len(moves),
        often_falls=often_falls,
        goes_on=is_whole and not often_falls and num_usual >= max(1, _MANY_EQUAL_RISES * len(moves)),
    )
