"""Numbers over the steps of a run: compact storage, what other trainers call them, and the charts of a page."""

import math
from array import array
from collections.abc import Iterable, Mapping, Sequence
from math import isfinite
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scalerl.forecast.logs.columns import METRICS, with_role
from scalerl.forecast.logs.formats import Log
from scalerl.forecast.report.json_values import rounded

Array = NDArray[np.float64]

MOST_POINTS = 300
"""Largest number of points of a line that are sent to a page; a screen cannot show more."""
MOST_COLUMNS = 500
"""Logged columns of one run that are kept."""


def number(value: object) -> float:
    """Return a finite number unchanged, and NaN for any other value."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return math.nan
    try:
        if math.isfinite(value):
            return float(value)
        return math.nan
    except OverflowError:
        return math.nan


class NumberColumns:
    """The numbers of rows by column, NaN where a row has none; of very many columns the first are kept."""

    def __init__(self) -> None:
        self._columns: dict[str, array[float]] = {}
        self.num_rows = 0

    def add(self, row: Mapping[str, Any]) -> None:
        for key, value in row.items():
            if key not in self._columns and isinstance(value, int | float) and len(self._columns) < MOST_COLUMNS:
                self._columns[key] = array("d", [math.nan]) * self.num_rows
        for key, column in self._columns.items():
            value = row.get(key)
            column.append(value if type(value) is float and isfinite(value) else number(value))
        self.num_rows += 1

    def __len__(self) -> int:
        return len(self._columns)

    def arrays(self) -> dict[str, Array]:
        return {key: np.array(column) for key, column in self._columns.items()}


def number_columns(rows: Iterable[Mapping[str, Any]]) -> dict[str, Array]:
    columns = NumberColumns()
    for row in rows:
        columns.add(row)
    return columns.arrays()


def replaced(columns: Mapping[str, Array], kept: NDArray[np.intp]) -> dict[str, float]:
    """Return the number of steps that a later attempt took again, and what they cost; empty if there are none."""
    num_rows = len(columns.get("step", ()))
    if len(kept) == num_rows:
        return {}
    lost = np.delete(np.arange(num_rows), kept)
    found: dict[str, float] = {"num_steps": len(lost)}
    for key in ("gpu_hours", "flops"):
        spent = np.diff(columns.get(key, np.zeros(num_rows)), prepend=0.0)
        found[key] = float(np.nansum(np.maximum(spent, 0.0)[lost]))
    return found


def thinned(key: str, values: Array, num: int = MOST_POINTS, digits: int = 5) -> list[float | None]:
    """Return the means of at most `num` blocks of neighbouring values, of a column `*_max` the largest."""
    if not len(values):
        return []
    num = min(num, len(values))
    begins = np.arange(num) * len(values) // num
    if key.endswith("_max"):
        return rounded(np.fmax.reduceat(values, begins), digits)
    known = np.isfinite(values)
    count = np.add.reduceat(known, begins, dtype=int)
    total = np.add.reduceat(np.where(known, values, 0.0), begins)
    return rounded(np.where(count > 0, total / np.maximum(count, 1), np.nan), digits)


# Of another trainer's log ---------------------------------------------------------------------------------------------


def renamed(columns: Sequence[str]) -> dict[str, str]:
    """Return, for each of our keys, the column of another trainer's log that holds it."""
    names: dict[str, str] = {}
    for key in ("step", "flops", "tokens", *METRICS):
        left = [name for name in columns if name not in names.values()]
        for name in with_role(left, key)[:1]:
            names[key] = name
    return names


def log_columns(log: Log) -> tuple[dict[str, Array], bool]:
    """Return the columns of numbers of a log, with one entry per step in order, and whether it has a column of steps.

    Columns that we log too get our names. In a log without a column of steps, rows are counted; rows whose step is
    missing, or that have no number, are skipped.
    """
    frame = log.frame
    names = renamed(list(frame.columns))
    step_name = names.pop("step", None)
    taken = {*names.values(), step_name, *METRICS}
    others = [name for name in frame.columns if name not in taken]
    names |= {name: name for name in others[:MOST_COLUMNS]}
    names.pop("attempt", None)
    if step_name is None:
        steps = np.arange(1.0, len(frame) + 1)
    else:
        steps = frame.numbers(step_name)
    columns: dict[str, Array] = {}
    has_number = np.zeros(len(frame), dtype=bool)
    for key, name in names.items():
        values = np.where(np.isfinite(steps), frame.numbers(name), np.nan)
        if np.isfinite(values).any():
            columns[key] = values
            has_number |= np.isfinite(values)
    every, place_of_row = np.unique(steps[has_number], return_inverse=True)
    made = {"step": every}
    for key, values in columns.items():
        known = np.isfinite(values[has_number])
        # A trainer may write several rows for one step, such as one of losses and one of times: the last counts.
        made[key] = np.full(len(every), np.nan)
        made[key][place_of_row[known]] = values[has_number][known]
    return made, step_name is not None


# What a page draws ----------------------------------------------------------------------------------------------------

PACE = "tokens per second"
CHARTS = {
    "reward/mean": "Training reward",
    "reward/correct_frac": "Correct answers in training",
    "rollout/length_mean": "Answer length, mean",
    "rollout/length_max": "Answer length, largest",
    "loss/clip_frac": "Clipped tokens",
    "optim/grad_norm": "Gradient norm",
    "rollout/truncated_frac": "Truncated answers",
    "loss/entropy": "Entropy",
    "loss/kl": "Mismatch (KL of generator and learner)",
    "loss/corrected_frac": "Tokens that the correction masks or bounds",
    "rollout/lag_mean": "Lag, mean",
    "rollout/lag_max": "Lag, largest",
    "rollout/tool_calls_mean": "Tool calls per conversation",
    "outcome/stopped_frac": "Programs stopped by the sandbox",
    "batch/no_verdict_frac": "Answers without a verdict",
    "optim/skipped": "Steps without an update",
    "curriculum/solved_frac": "Solved problems",
    PACE: "Tokens per second",
}
"""Columns that are drawn unasked: what is learned, then what shows whether the run is healthy."""


def with_pace(columns: Mapping[str, Array]) -> dict[str, Array]:
    """Add the tokens per second of each step, where tokens and time are logged."""
    tokens = columns.get("tokens")
    seconds = columns.get("time/training_s")
    if seconds is None and "time/whole_step_s" in columns:
        seconds = np.nancumsum(columns["time/whole_step_s"])
    if tokens is None or seconds is None or len(tokens) < 3:
        return dict(columns)
    spent = np.diff(seconds, prepend=np.nan)
    made = np.diff(tokens, prepend=np.nan)
    with np.errstate(divide="ignore", invalid="ignore"):
        return {**columns, PACE: np.where((spent > 0) & (made >= 0), made / spent, np.nan)}
