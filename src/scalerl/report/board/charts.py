"""Data for the page besides the curve: metrics by step, time per part of a step, and lag. Pure functions."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from scalerl.report.alarms import SIGNALS
from scalerl.report.board.columns import MOST_POINTS, Array, short, thinned

LAST_STEPS = 200
"""Steps at the end over which lag and times are summed up."""
_LIMITS = {signal.key: signal.limit for signal in SIGNALS}

# Columns that are drawn as lines: key, label, group.
LINES: tuple[tuple[str, str, str], ...] = (
    ("reward/mean", "Training reward", "reward"),
    ("reward/correct_frac", "Correct answers in training", "reward"),
    ("loss/entropy", "Entropy", "entropy"),
    ("rollout/length_mean", "Answer length, mean", "length"),
    ("rollout/length_max", "Answer length, largest", "length"),
    ("rollout/truncated_frac", "Truncated answers", "health"),
    ("loss/kl", "Mismatch (KL of generator and learner)", "health"),
    ("rollout/lag_mean", "Lag, mean", "health"),
    ("rollout/lag_max", "Lag, largest", "health"),
    ("loss/clip_frac", "Clipped tokens", "health"),
    ("curriculum/retired_frac", "Retired problems", "health"),
    ("optim/grad_norm", "Gradient norm", "health"),
)
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
    """Return the lines over the steps."""
    steps = columns.get("step")
    if steps is None or not len(steps):
        return {"step": [], "lines": []}
    lines = [
        {
            "key": key,
            "label": label,
            "group": group,
            "limit": _LIMITS.get(key),
            "values": thinned(columns[key], num, largest=key.endswith("_max")),
            "last": _last(columns[key]),
        }
        for key, label, group in LINES
        if key in columns and np.isfinite(columns[key]).any()
    ]
    return {"step": thinned(steps, num), "lines": lines}


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


def lag_json(columns: Mapping[str, Array]) -> dict[str, Any] | None:
    """Return how many of the last steps had which mean lag; None where lag is not logged."""
    key = "rollout/lag_mean" if "rollout/lag_mean" in columns else "rollout/lag_max"
    values = columns.get(key)
    if values is None:
        return None
    values = values[-LAST_STEPS:]
    values = values[np.isfinite(values)]
    if not len(values):
        return None
    top = int(np.ceil(max(float(values.max()), 1.0)))
    width = max(1, int(np.ceil((top + 1) / 24)))
    edges = np.arange(0, top + 1 + width, width) - 0.5
    counts, _ = np.histogram(values, edges)
    largest = columns.get("rollout/lag_max")
    largest = None if largest is None or not np.isfinite(largest).any() else float(np.nanmax(largest[-LAST_STEPS:]))
    return {
        "what": "mean" if key == "rollout/lag_mean" else "largest",
        "from": [int(edge + 0.5) for edge in edges[:-1]],
        "width": width,
        "counts": counts.tolist(),
        "num_steps": len(values),
        "mean": float(values.mean()),
        "max": largest,
    }
