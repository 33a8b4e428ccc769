"""Hours of training from a log's clocks: seconds per step, seconds since the beginning, or the time of day.

Only time spent training counts. A clock that begins anew goes on from where it was, and a pause, such as a night before
a restart, is left out.
"""

import re
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import numpy as np

from scalerl.logs.columns import run_labels
from scalerl.logs.table import Table
from scalerl.logs.units import NOTHING, Cells, Floats, column_of, is_number, logged, number

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


def _seconds(cells: Cells, read: Callable[[Any], float | None]) -> Floats:
    """Return a clock in seconds, NaN where it has none."""
    seconds = np.array([read(cell) for cell in cells], dtype=float)
    return np.where(np.isfinite(seconds), seconds, np.nan)


def wall_times(table: Table) -> Floats:
    """Return the time of day of each row, NaN where it has none; a date and a time may stand in two columns."""
    times, date = table[table.find("wall_clock")], table[table.find("date")]
    seconds = _seconds(times, time_of_day)
    if np.isnan(seconds).all() and logged(date).any():
        seconds = _seconds(column_of(f"{day} {time}" for day, time in zip(date, times, strict=True)), time_of_day)
    return seconds


def with_hours(table: Table) -> Table:
    """Add the hours until each row, counted in each run; pauses are left out. Without a clock the table stays."""
    kind = next(filter(table.find, _CLOCKS), "")
    clock = table.find(kind) if kind else None
    if clock is None or "hours" in table.cells:
        return table
    seconds = wall_times(table) if kind == "wall_clock" else _seconds(table[clock], _CLOCKS[kind])
    step = table.step
    steps, hours, pauses = table.numbers(step), np.full(len(table), np.nan), np.zeros(len(table))
    for run in table.groups(run_labels(table.cells, clock)).values():
        steps[run] = steps[run] if step else np.arange(1.0, len(run) + 1)
        if kind == "step_time":
            hours[run] = _summed(steps[run], seconds[run])
            continue
        own = run[~np.isnan(seconds[run])]
        if kind == "wall_clock":
            own = own[np.argsort(seconds[own], kind="stable")]
            seconds[own] -= seconds[own[:1]].sum()
        hours[own], pauses[own] = _on_clock(steps[own], seconds[own])
    is_timed = ~np.isnan(hours)
    if len(np.unique(hours[is_timed])) < min(len(table), 2):
        return table  # a clock that stands still
    table = table.with_column("hours", np.where(is_timed, hours, NOTHING))
    found = np.flatnonzero(pauses)
    if not found.size:
        return table
    return table.noting("clock_gaps", num=len(found), hours=float(pauses.sum()), place=table.places[found[0]])


def _summed(steps: Floats, seconds: Floats) -> Floats:
    """Return the sum of step times. One stands for every step since the row before it: trainers log their mean."""
    known = ~np.isnan(steps) & ~np.isnan(seconds)
    spent = dict(zip(steps[known], seconds[known], strict=True))
    ordered = np.array(sorted(spent))
    # A first row at step 0 is one step; one at step 10 stands for the ten before it.
    lengths = np.diff(ordered, prepend=min(ordered[0] - 1, 0.0)) if len(ordered) else ordered
    totals = np.concatenate([[0.0], np.cumsum(lengths * np.array([spent[at] for at in ordered])) / 3600])
    return np.where(np.isnan(steps), np.nan, totals[np.searchsorted(ordered, steps, side="right")])


def _on_clock(steps: Floats, seconds: Floats) -> tuple[Floats, Floats]:
    """Return the hours on a clock, which add up over restarts, and the hours of the pause before each row.

    A clock that begins with the first row gets what the steps before that row took.
    """
    gaps = np.diff(seconds)
    usual = float(np.median(gaps[gaps > 0])) if (gaps > 0).any() else 0.0
    is_pause = gaps > max(_PAUSE * usual, _MIN_PAUSE_S)
    # A clock that falls began anew; by less than a step it was corrected.
    began = np.where(seconds[1:] < 0.5 * seconds[:-1], seconds[1:], 0.0)
    spent = np.where(is_pause, usual, np.where(gaps < 0, began, gaps))
    hours = np.cumsum([*np.maximum(seconds[:1], 0.0), *spent]) / 3600
    placed = sorted((step, hour) for step, hour in zip(steps, hours, strict=True) if step == step)
    if placed and min(hours) == 0 and placed[-1][0] > placed[0][0] > 0:
        (first, begin), (last, end) = placed[0], placed[-1]
        hours += first * (end - begin) / (last - first)
    return hours, np.concatenate([np.zeros(min(len(seconds), 1)), np.where(is_pause, gaps - usual, 0.0) / 3600])


# Kinds of clocks in the order in which they are tried, and how a cell is read.
_CLOCKS: dict[str, Callable[[Any], float | None]] = {
    "step_time": number,
    "elapsed": duration,
    "wall_clock": time_of_day,
}
