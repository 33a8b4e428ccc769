"""Data for the page besides the curve: metrics by step, and time per part of a step. Pure functions."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from scalerl.report.alarms import SIGNALS
from scalerl.report.board.columns import MOST_POINTS, Array, short, thinned

LAST_STEPS = 200
"""Steps at the end over which times are summed up."""
_LIMITS = {signal.key: signal.limit for signal in SIGNALS}

# Columns that are drawn unasked.
LINES = {
    "reward/mean": "Training reward",
    "reward/correct_frac": "Correct answers in training",
    "loss/entropy": "Entropy",
    "rollout/length_mean": "Answer length, mean",
    "rollout/length_max": "Answer length, largest",
    "rollout/truncated_frac": "Truncated answers",
    "loss/kl": "Mismatch (KL of generator and learner)",
    "rollout/lag_mean": "Lag, mean",
    "rollout/lag_max": "Lag, largest",
    "loss/clip_frac": "Clipped tokens",
    "curriculum/retired_frac": "Retired problems",
    "optim/grad_norm": "Gradient norm",
}
# Seconds of one step, by what they were spent on; the words are for people.
STEP_PARTS = (
    ("time/wait_s", "sampling and waiting for answers"),
    ("time/step_s", "learning"),
    ("time/push_s", "pushing weights"),
)
# Seconds since the beginning of a run.
TOTAL_PARTS = (
    ("time/training_s", "training"),
    ("time/evaluation_s", "evaluation"),
    ("time/checkpoint_s", "checkpoints"),
    ("time/compilation_s", "compilation"),
    ("time/stalled_s", "standing still"),
    ("time/start_up_s", "starting up"),
)


def lines_json(columns: Mapping[str, Array], num: int = MOST_POINTS) -> dict[str, Any]:
    """Return the usual lines over the steps, and the names of all other columns, which a page may ask for."""
    steps = columns.get("step")
    if steps is None or not len(steps):
        return {"step": [], "lines": [], "columns": []}
    lines = [
        {"key": key, "label": label, "limit": _LIMITS.get(key), "values": _values(key, columns[key], num),
         "last": _last(columns[key])}
        for key, label in LINES.items()
        if key in columns and np.isfinite(columns[key]).any()
    ]  # fmt: skip
    others = sorted(
        key for key in columns if key not in (*LINES, "step", "attempt") and np.isfinite(columns[key]).any()
    )
    return {"step": thinned(steps, num), "lines": lines, "columns": others}


def columns_json(columns: Mapping[str, Array], names: Sequence[str], num: int = MOST_POINTS) -> dict[str, Any]:
    """Return some columns over the steps, as far as they were logged."""
    steps = columns.get("step", np.empty(0))
    return {
        "step": thinned(steps, num),
        "columns": {name: _values(name, columns[name], num) for name in names if name in columns},
    }


def _values(key: str, values: Array, num: int) -> list[float | None]:
    return thinned(values, num, largest=key.endswith("_max"))


def _last(values: Array) -> float | None:
    known = values[np.isfinite(values)]
    return short(known[-1:])[0] if len(known) else None


def times_json(columns: Mapping[str, Array], *, per_step: bool) -> dict[str, Any]:
    """Return where the time goes: seconds per step over the last steps, and since the beginning.

    `per_step` says that columns such as time/evaluation_s hold the seconds of one step, as other trainers log them.
    """
    step_parts = [
        {"label": label, "seconds": float(np.nanmean(columns[key][-LAST_STEPS:]))}
        for key, label in STEP_PARTS
        if key in columns and np.isfinite(columns[key][-LAST_STEPS:]).any()
    ]
    whole = columns.get("time/whole_step_s")
    if whole is not None and np.isfinite(whole[-LAST_STEPS:]).any():
        rest = float(np.nanmean(whole[-LAST_STEPS:])) - sum(part["seconds"] for part in step_parts)
        if rest > 0.005 * max(float(np.nanmean(whole[-LAST_STEPS:])), 1e-9):
            step_parts.append({"label": "everything else" if step_parts else "a step", "seconds": rest})
    totals = []
    for key, label in TOTAL_PARTS:
        values = columns.get(key)
        if values is None or not np.isfinite(values).any():
            continue
        known = values[np.isfinite(values)]
        seconds = float(known.sum() if per_step else known[-1])
        if seconds > 0:
            totals.append({"label": label, "seconds": seconds})
    return {"step": step_parts, "total": totals, "throughput": _throughput(columns)}


def _throughput(columns: Mapping[str, Array]) -> dict[str, Any] | None:
    """Return tokens per second over the steps; None where tokens or time are not logged."""
    tokens, seconds = columns.get("tokens"), columns.get("time/training_s")
    if tokens is None:
        return None
    if seconds is None:
        whole = columns.get("time/whole_step_s")
        seconds = None if whole is None else np.nancumsum(whole)
    if seconds is None or len(tokens) < 3:
        return None
    num = min(len(tokens) - 1, 120)
    ends = np.unique(np.linspace(0, len(tokens) - 1, num + 1).round().astype(int))
    spent, made = np.diff(seconds[ends]), np.diff(tokens[ends])
    with np.errstate(divide="ignore", invalid="ignore"):
        pace = np.where((spent > 0) & (made >= 0), made / spent, np.nan)
    if not np.isfinite(pace).any():
        return None
    return {"step": short(columns["step"][ends[1:]]), "values": short(pace), "last": _last(pace)}
