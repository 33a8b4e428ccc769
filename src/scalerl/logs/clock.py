"""Hours of training from a log's clocks: seconds per step, seconds since the beginning, or the time of day.

Only time spent training counts. A clock that begins anew goes on from where it was, and a pause, such as a night before
a restart, is left out.
"""

import itertools
import re
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from statistics import median
from typing import Any

from scalerl.logs.columns import ELAPSED, STEP, STEP_TIME, WALL_CLOCK, find, run_keys, run_labels
from scalerl.logs.facts import Fact
from scalerl.logs.units import is_number, number

Row = Mapping[str, Any]
Pause = tuple[int, float]
"""The row after a pause, and its hours."""

# Seconds, milli-, micro- and nanoseconds since 1970, between 2001 and 2065.
_UNITS = tuple((1e9 * scale, 3e9 * scale, scale) for scale in (1.0, 1e3, 1e6, 1e9))
_DURATION = re.compile(
    r"(?:(\d+)d\w*)?\s*(?:(\d+)h\w*)?\s*(?:(\d+)m\w*)?\s*(?:(\d+(?:\.\d+)?)s\w*)?|(\d+):(\d\d):(\d\d(?:\.\d+)?)"
)
# A pause is this many times longer than the usual time between rows, and at least this many seconds.
_PAUSE = 10.0
_MIN_PAUSE_S = 600.0


def time_of_day(value: Any) -> float | None:
    """Return seconds since 1970 from a number or an ISO date and time; None for anything else."""
    seconds = number(value)
    if seconds is not None:
        return next((seconds / scale for low, high, scale in _UNITS if low <= seconds < high), None)
    if not isinstance(value, str) or not 10 <= len(value) <= 40:
        return None
    try:
        moment = datetime.fromisoformat(value.strip())
    except ValueError:
        return None
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()


def duration(value: Any) -> float | None:
    """Return seconds from a number, '1h 3m 20s' or '1:03:20'; None for anything else."""
    match = _DURATION.fullmatch(value.strip()) if isinstance(value, str) and 0 < len(value.strip()) <= 40 else None
    if match is None:
        return value if is_number(value) else None
    parts = [float(part or 0) for part in match.groups()]
    return sum(part * unit for part, unit in zip(parts, (86400, 3600, 60, 1, 3600, 60, 1), strict=True))


def wall_times(rows: Sequence[Row], columns: Sequence[str]) -> list[float] | None:
    """Return the time of day of each row, None unless every row has one."""
    column = find(WALL_CLOCK, columns)
    times = [] if column is None else [time_of_day(row.get(column)) for row in rows]
    known = [time for time in times if time is not None]
    return known if known and len(known) == len(rows) else None


def hours_of_training(
    rows: Sequence[Row], columns: Sequence[str], places: Sequence[str]
) -> tuple[list[float | None] | None, list[Fact]]:
    """Return the hours until each row, counted in each run, and the pauses left out; None without a clock."""
    step, step_time, elapsed, wall = (find(names, columns) for names in (STEP, STEP_TIME, ELAPSED, WALL_CLOCK))
    times = [time_of_day(row.get(wall or "")) for row in rows]
    if step_time is None and elapsed is None and not any(times):
        return None, []
    runs: dict[tuple[str, ...], list[int]] = {}
    for index, key in enumerate(run_keys(rows, run_labels(rows, step_time or elapsed or wall or ""))):
        runs.setdefault(key, []).append(index)
    hours: list[float | None] = [None] * len(rows)
    pauses: list[Pause] = []
    for indices in runs.values():
        steps = [rows[index].get(step) for index in indices] if step else list(range(1, len(indices) + 1))
        if step_time is not None:
            own = _summed(steps, [rows[index].get(step_time) for index in indices])
        elif elapsed is not None:
            own = _on_clock(
                steps, [(at, rows[index].get(elapsed)) for at, index in enumerate(indices)], indices, pauses
            )
        else:
            known = sorted((time, at) for at, index in enumerate(indices) if (time := times[index]) is not None)
            own = _on_clock(steps, [(at, time - known[0][0]) for time, at in known], indices, pauses)
        for index, value in zip(indices, own, strict=True):
            hours[index] = value
    if len(rows) > 1 and len(set(hours) - {None}) < 2:
        return None, []  # a clock that stands still
    values = {"num": len(pauses), "hours": sum(length for _, length in pauses)}
    return hours, [Fact(kind="clock_gaps", values=values | {"place": places[pauses[0][0]]})] if pauses else []


def _summed(steps: Sequence[Any], seconds: Sequence[Any]) -> list[float | None]:
    """Return the sum of step times. One stands for every step since the row before it: trainers log their mean."""
    spent = {at: value for at, value in zip(steps, seconds, strict=True) if is_number(at) and is_number(value)}
    ordered = sorted(spent)
    totals = [0.0]
    # A first row at step 0 is one step; one at step 10 stands for the ten before it.
    last = min(ordered[0] - 1, 0) if ordered else 0
    for at in ordered:
        totals.append(totals[-1] + spent[at] * (at - last) / 3600)
        last = at
    return [totals[bisect_right(ordered, at)] if is_number(at) else None for at in steps]


def _on_clock(
    steps: Sequence[Any], clock: Sequence[tuple[int, Any]], indices: Sequence[int], pauses: list[Pause]
) -> list[float | None]:
    """Return the hours at each row of a clock, given as (row, seconds); they add up over restarts, without pauses.

    A clock that begins with the first row gets what the steps before that row took.
    """
    known = [(at, value) for at, given in clock if (value := duration(given)) is not None]
    values: list[float | None] = [None] * len(steps)
    if not known:
        return values
    gaps = [after - before for (_, before), (_, after) in itertools.pairwise(known)]
    usual = median([gap for gap in gaps if gap > 0] or [0.0])
    total = values[known[0][0]] = max(known[0][1], 0.0)
    for (at, now), gap in zip(known[1:], gaps, strict=True):
        if gap > max(_PAUSE * usual, _MIN_PAUSE_S):
            pauses.append((indices[at], (gap - usual) / 3600))
            gap = usual
        # A clock that falls began anew; by less than a step it was corrected.
        total += gap if gap >= 0 else now if now < 0.5 * (now - gap) else 0.0
        values[at] = total
    placed = [(steps[at], value) for at, value in enumerate(values) if is_number(steps[at]) and value is not None]
    missing = 0.0
    if placed and min(value for _, value in placed) == 0:
        (first, begin), (last, end) = min(placed), max(placed)
        if first > 0 and last > first:
            missing = first * (end - begin) / (last - first)
    return [None if value is None else (value + missing) / 3600 for value in values]
