"""Amounts spent: totals from the amounts of each step and from clocks. Pure.

Only time spent training counts. A clock that begins anew goes on from where it was, and a pause, such as a night before
a restart, is left out.
"""

import re
from datetime import UTC, datetime

import numpy as np

from scalerl.forecast.logs.frame import Cells, Floats, number

# Seconds, milli-, micro- and nanoseconds since 1970, between 2001 and 2065.
_UNITS = (1.0, 1e3, 1e6, 1e9)
_DURATION = re.compile(
    r"(?:(\d{1,9})d[a-z]*+)?\s*+(?:(\d{1,9})h[a-z]*+)?\s*+(?:(\d{1,9})m[a-z]*+)?\s*+(?:(\d{1,9}(?:\.\d+)?)s[a-z]*+)?"
    r"|(?:(\d{1,9})(?:\s?days?,?\s|-))?(?:(\d{1,9}):)?(\d{1,9}):(\d\d(?:\.\d+)?)"
)
_SECONDS = (86400, 3600, 60, 1, 86400, 3600, 60, 1)
_MAX_TEXT = 40
# A pause is this many times longer than the usual time between rows, and at least this many seconds.
_PAUSE = 10.0
_MIN_PAUSE_S = 600.0


def seconds_since_1970(cells: Cells) -> Floats:
    """Return times of day, given as numbers in any unit or as ISO dates and times; NaN for anything else."""
    if cells.dtype != np.float64:
        return np.array([_moment(text.strip()) for text in cells], dtype=np.float64)
    units = [(cells >= 1e9 * unit) & (cells < 3e9 * unit) for unit in _UNITS]
    return np.select(units, [cells / unit for unit in _UNITS], np.nan)


def _moment(text: str) -> float:
    try:
        moment = datetime.fromisoformat(text if 10 <= len(text) <= _MAX_TEXT else "")
    except ValueError:
        return np.nan
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()


def duration(text: str) -> float:
    """Return seconds from a number, '1h 3m 20s', '1:03:20' or '1 day, 1:03:20'; NaN for anything else."""
    match = _DURATION.fullmatch(text.strip()[:_MAX_TEXT])
    parts = match.groups("0") if match and match[0] else ()
    return sum(float(part) * unit for part, unit in zip(parts, _SECONDS, strict=True)) if parts else number(text)


def totals(steps: Floats, amounts: Floats) -> Floats:
    """Return the sum of the amounts of each step. One stands for every step since the row before: loggers take means.

    A first row at step 0 is one step; one at step 10 stands for the ten before it.
    """
    known = np.isfinite(steps) & np.isfinite(amounts)
    ordered, last = np.unique(steps[known][::-1], return_index=True)
    lengths = np.diff(ordered, prepend=np.minimum(ordered[:1] - 1, 0.0))
    summed = np.array([0.0, *np.cumsum(lengths * amounts[known][::-1][last])])
    return np.where(np.isnan(steps), np.nan, summed[np.searchsorted(ordered, steps, side="right")])


def on_clock(steps: Floats, seconds: Floats) -> Floats:
    """Return the seconds on a clock, without pauses and over restarts.

    A clock that begins with the first row gets what the steps before that row took.
    """
    known = np.isfinite(seconds)
    clock = seconds[known]
    gaps = np.diff(clock)
    usual = np.median(gaps[gaps > 0]) if (gaps > 0).any() else 0.0
    # A clock that falls began anew; by less than a step it was corrected.
    is_new = clock[1:] < 0.5 * clock[:-1]
    spent = np.select([gaps > max(_PAUSE * usual, _MIN_PAUSE_S), is_new, gaps < 0], [usual, clock[1:], 0.0], gaps)
    running = np.full(len(seconds), np.nan)
    running[known] = np.cumsum([*np.maximum(clock[:1], 0.0), *spent])
    placed = np.flatnonzero(known & np.isfinite(steps))
    if len(placed) and np.nanmin(running) == 0:
        first, last = placed[np.argmin(steps[placed])], placed[np.argmax(steps[placed])]
        if steps[last] > steps[first] > 0:
            running += steps[first] * (running[last] - running[first]) / (steps[last] - steps[first])
    return running
