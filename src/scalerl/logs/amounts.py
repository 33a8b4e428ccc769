"""Amounts spent: totals from the amounts of each step, from clocks, and from counters that began anew. Pure.

Only time spent training counts. A clock or counter that begins anew goes on from where it was, and a pause, such as a
night before a restart, is left out.
"""

import re
from datetime import UTC, datetime

import numpy as np

from scalerl.logs.frame import Cells, Floats, Rows, number

# Seconds, milli-, micro- and nanoseconds since 1970, between 2001 and 2065.
_UNITS = tuple((1e9 * scale, 3e9 * scale, scale) for scale in (1.0, 1e3, 1e6, 1e9))
_DURATION = re.compile(
    r"(?:(\d{1,9})d[a-z]*+)?\s*+(?:(\d{1,9})h[a-z]*+)?\s*+(?:(\d{1,9})m[a-z]*+)?\s*+(?:(\d{1,9}(?:\.\d+)?)s[a-z]*+)?"
    r"|(\d{1,9}):(\d\d):(\d\d(?:\.\d+)?)"
)
_SECONDS = (86400, 3600, 60, 1, 3600, 60, 1)
_MAX_TEXT = 40
# A pause is this many times longer than the usual time between rows, and at least this many seconds.
_PAUSE = 10.0
_MIN_PAUSE_S = 600.0
# A counter that is corrected falls by a little, one that begins anew by far more.
_MIN_FALL = 0.1
# The share of rows at which a counter of totals may fall.
_MAX_FALLS = 0.1


def seconds_since_1970(cells: Cells) -> Floats:
    """Return times of day, given as numbers in any unit or as ISO dates and times; NaN for anything else."""
    if cells.dtype != np.float64:
        return np.array([_moment(text) for text in cells], dtype=np.float64)
    seconds = np.full(len(cells), np.nan)
    for low, high, scale in _UNITS:
        seconds = np.where((cells >= low) & (cells < high), cells / scale, seconds)
    return seconds


def _moment(text: str) -> float:
    try:
        moment = datetime.fromisoformat(text.strip() if 10 <= len(text) <= _MAX_TEXT else "")
    except ValueError:
        return np.nan
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()


def duration(text: str) -> float:
    """Return seconds from a number, '1h 3m 20s' or '1:03:20'; NaN for anything else."""
    match = _DURATION.fullmatch(text.strip()) if 0 < len(text.strip()) <= _MAX_TEXT else None
    parts = [float(part or 0) for part in match.groups()] if match else []
    return sum(map(float.__mul__, parts, map(float, _SECONDS))) if parts else number(text)


def is_total(amounts: Floats) -> bool:
    """Return whether amounts grow from step to step, as totals do; those of each step go up and down or stay."""
    falls = (np.diff(amounts) < 0).mean() if len(amounts) > 1 else 0.0
    return bool(falls <= _MAX_FALLS and (len(amounts) < 2 or amounts.max() > amounts.min()))


def totals(steps: Floats, amounts: Floats) -> Floats:
    """Return the sum of the amounts of each step. One stands for every step since the row before: loggers take means.

    A first row at step 0 is one step; one at step 10 stands for the ten before it.
    """
    known = ~np.isnan(steps) & ~np.isnan(amounts)
    ordered, last = np.unique(steps[known][::-1], return_index=True)
    spent = amounts[known][::-1][last]
    lengths = np.diff(ordered, prepend=min(ordered[0] - 1, 0.0)) if len(ordered) else ordered
    summed = np.concatenate([[0.0], np.cumsum(lengths * spent)])
    return np.where(np.isnan(steps), np.nan, summed[np.searchsorted(ordered, steps, side="right")])


def began_anew(amounts: Floats) -> Rows:
    """Return the rows at which totals fall, since a counter or clock began anew."""
    return np.flatnonzero(amounts[1:] < (1 - _MIN_FALL) * amounts[:-1]) + 1


def continued(amounts: Floats) -> Floats:
    """Return totals that go on where their counter began anew; NaN in, NaN out."""
    known = np.flatnonzero(~np.isnan(amounts))
    values, result = amounts[known], amounts.copy()
    offsets = np.zeros(len(values))
    falls = began_anew(values)
    offsets[falls] = values[falls - 1]
    result[known] += np.cumsum(offsets)
    return result


def without_pauses(seconds: Floats) -> tuple[Floats, Floats]:
    """Return a clock without its pauses, and the length of the pause before each row; NaN in, NaN out."""
    known = ~np.isnan(seconds)
    gaps = np.diff(seconds[known])
    usual = float(np.median(gaps[gaps > 0])) if (gaps > 0).any() else 0.0
    pauses = np.where(gaps > max(_PAUSE * usual, _MIN_PAUSE_S), gaps - usual, 0.0)
    left_out = np.zeros(len(seconds))
    left_out[known] = np.concatenate([np.zeros(min(known.sum(), 1)), pauses])
    return seconds - np.cumsum(left_out), left_out


def from_the_start(steps: Floats, spent: Floats) -> Floats:
    """Return amounts that begin at 0 with what the steps before their first row took; any other as they are."""
    known = np.flatnonzero(~np.isnan(steps) & ~np.isnan(spent))
    order = known[np.argsort(steps[known], kind="stable")]
    if not len(order) or np.nanmin(spent) != 0 or not steps[order[-1]] > steps[order[0]] > 0:
        return spent
    first, last = order[0], order[-1]
    return spent + steps[first] * (spent[last] - spent[first]) / (steps[last] - steps[first])
