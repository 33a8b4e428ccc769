"""Metrics of a run by step: the columns that the page shows, their names in other trainers, and compact storage."""

import math
from array import array
from collections.abc import Mapping, Sequence
from math import isfinite
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

MOST_POINTS = 300
"""Largest number of points of a line that are sent to the page; a screen cannot show more."""

MOST_COLUMNS = 500
"""Logged columns of one run that are kept."""

# Our key of a column, and what others call it: TRL, verl, prime-rl and tinker-cookbook, the likeliest name first.
COLUMNS: dict[str, tuple[str, ...]] = {
    "step": ("global_step", "training/global_step", "_step"),
    "attempt": (),
    "gpu_hours": (),
    "flops": ("total_flos",),
    "tokens": ("num_tokens", "progress/total_tokens", "num_input_tokens_seen"),
    "hours": (),
    "reward/mean": (
        "reward", "train/reward", "critic/rewards/mean", "critic/score/mean", "reward/all/mean", "reward/mean",
        "env/all/reward/total", "rewards/mean",
    ),
    "reward/correct_frac": ("env/all/correct", "solve_all", "correct"),
    "loss/entropy": (
        "entropy", "train/entropy", "actor/entropy", "entropy/all/mean", "entropy/mean", "optim/entropy",
        "actor/entropy_loss",
    ),
    "loss/kl": ("mismatch_kl/all/mean", "mismatch_kl/mean", "rollout_corr/kl", "optim/kl_sample_train_v1"),
    "loss/clip_frac": ("clip_ratio/region_mean", "actor/pg_clipfrac", "clip_ratio", "is_masked/mean"),
    "rollout/length_mean": (
        "completions/mean_length", "train/completions/mean_length", "completion_length", "response_length/mean",
        "seq_len/all/mean", "decode_len/all/mean", "env/all/ac_tokens_per_turn",
    ),
    "rollout/length_max": ("completions/max_length", "response_length/max", "seq_len/all/max", "decode_len/all/max"),
    "rollout/truncated_frac": (
        "completions/clipped_ratio", "response_length/clip_ratio", "is_truncated/all/mean", "is_truncated/mean",
    ),
    "rollout/lag_mean": ("off_policy_level/all/mean", "off_policy_level/mean", "fully_async/staleness/mean"),
    "rollout/lag_max": ("off_policy_level/all/max", "off_policy_level/max", "async_level", "scheduler/async_level"),
    "optim/grad_norm": ("grad_norm", "train/grad_norm", "actor/grad_norm", "optim/grad_norm"),
    "optim/skipped": (),
    "batch/no_verdict_frac": (),
    "batch/effective": (),
    "curriculum/retired_frac": (),
    "time/step_s": ("timing_s/update_actor", "time/forward_backward", "time/train"),
    "time/wait_s": ("timing_s/gen", "time/wait_for_batch", "time/generate_completions", "time/sampling"),
    "time/push_s": ("timing_s/update_weights", "time/update_weights", "time/broadcast_weights"),
    "time/whole_step_s": ("step_time", "timing_s/step", "time/step", "time/total"),
    "time/training_s": (),
    "time/evaluation_s": ("timing_s/testing",),
    "time/checkpoint_s": ("timing_s/save_checkpoint",),
    "time/compilation_s": (),
    "time/stalled_s": (),
    "time/start_up_s": (),
}  # fmt: skip


def number(value: object) -> float:
    """Return a finite number unchanged, and NaN for any other value."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return math.nan
    try:
        return float(value) if math.isfinite(value) else math.nan
    except OverflowError:
        return math.nan


class Columns:
    """Rows of numbers, appended one by one; a missing number is NaN."""

    def __init__(self) -> None:
        self._values: dict[str, array[float]] = {}
        self.num_rows = 0

    def append(self, row: Mapping[str, Any]) -> None:
        """Add the numbers of a row; of very many columns the first are kept."""
        for key, value in row.items():
            if key in self._values or (isinstance(value, int | float) and len(self._values) < MOST_COLUMNS):
                self._column(key).append(value if type(value) is float and isfinite(value) else number(value))
        self.num_rows += 1

    def _column(self, key: str) -> "array[float]":
        """Return a column, filled with NaN up to the row that is being added."""
        values = self._values.get(key)
        if values is None:
            values = self._values[key] = array("d")
        if len(values) < self.num_rows:
            values.extend(array("d", [math.nan]) * (self.num_rows - len(values)))
        return values

    def clear(self) -> None:
        self._values.clear()
        self.num_rows = 0

    def arrays(self, origins: Mapping[int, float] | None = None) -> dict[str, Array]:
        """Return the rows that count, by step; `origins` has the step from which each attempt of a run started."""
        columns = {key: np.frombuffer(self._column(key), dtype=np.float64).copy() for key in self._values}
        steps = columns.get("step")
        if steps is None or not len(steps):
            return columns
        keep = _counting(steps, columns.get("attempt"), origins or {})
        return {key: values[keep] for key, values in columns.items()}


def _counting(steps: Array, attempts: Array | None, origins: Mapping[int, float]) -> NDArray[np.intp]:
    """Return the places of the rows that no later attempt has replaced, one for each step, sorted by step."""
    keep = np.isfinite(steps)
    if attempts is not None:
        for attempt, origin in origins.items():
            keep &= ~((attempts < attempt) & (attempts > 0) & (steps > origin))
    places = np.flatnonzero(keep)
    # Of rows with the same step the last one counts.
    _, last = np.unique(steps[places][::-1], return_index=True)
    return places[len(places) - 1 - last]


def renamed(columns: Sequence[str]) -> dict[str, str]:
    """Return, for each of our keys, the column of another trainer's log that holds it."""
    names: dict[str, str] = {}
    taken: set[str] = set()
    for key, others in COLUMNS.items():
        name = next((name for name in (key, *others) if name in columns and name not in taken), None)
        if name is not None:
            names[key] = name
            taken.add(name)
    return names


def thinned(values: Array, num: int = MOST_POINTS, *, largest: bool = False) -> list[float | None]:
    """Return the means (or maxima) of at most `num` blocks of neighbouring values; None for a block without numbers."""
    if not len(values):
        return []
    num = min(num, len(values))
    begins = np.arange(num) * len(values) // num
    if largest:
        blocks = np.fmax.reduceat(values, begins)
    else:
        known = np.isfinite(values)
        count = np.add.reduceat(known, begins, dtype=int)
        total = np.add.reduceat(np.where(known, values, 0.0), begins)
        blocks = np.where(count > 0, total / np.maximum(count, 1), np.nan)
    return short(blocks)


def short(values: Any, digits: int = 5) -> list[float | None]:
    """Return numbers with as many digits as a screen shows; None where not finite."""
    return [float(f"{value:.{digits}g}") if math.isfinite(value) else None for value in np.asarray(values, float)]
