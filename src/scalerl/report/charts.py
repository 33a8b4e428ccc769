"""What a page shows of a run besides its curve: columns over the steps, and time per part of a step. Pure."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from scalerl.report.alarms import ALARM_STEPS, SIGNALS
from scalerl.report.columns import Array, rounded, thinned

LAST_STEPS = 200
"""Steps at the end over which times are summed up."""
_LIMITS = {signal.key: signal.limit for signal in SIGNALS}

# Columns that are drawn unasked: what is learned, then what shows whether the run is healthy.
LINES = {
    "reward/mean": "Training reward",
    "reward/correct_frac": "Correct answers in training",
    "rollout/length_mean": "Answer length, mean",
    "rollout/length_max": "Answer length, largest",
    "loss/clip_frac": "Clipped tokens",
    "optim/grad_norm": "Gradient norm",
    **{signal.key: signal.label for signal in SIGNALS},
}
# Seconds of one step, by what they were spent on.
STEP_PARTS = {
    "time/wait_s": "sampling and waiting for answers",
    "time/step_s": "learning",
    "time/push_s": "pushing weights",
}
# Seconds since the beginning of a run.
TOTAL_PARTS = {
    "time/training_s": "training",
    "time/evaluation_s": "evaluation",
    "time/checkpoint_s": "checkpoints",
    "time/compilation_s": "compilation",
    "time/stalled_s": "standing still",
    "time/start_up_s": "starting up",
}


def _known(columns: Mapping[str, Array], key: str, num: int | None = None) -> Array:
    """Return the finite numbers of a column, or of its last `num` rows; empty where it was not logged."""
    values = columns.get(key, np.empty(0))[-num if num else None :]
    return values[np.isfinite(values)]


def lines_json(columns: Mapping[str, Array]) -> dict[str, Any]:
    """Return the usual lines over the steps, each with its mean over the last, and the names of all other columns."""
    if not len(columns.get("step", ())):
        return {"step": [], "lines": [], "columns": []}
    lines = [
        {
            "key": key,
            "label": label,
            "limit": _LIMITS.get(key),
            "values": thinned(key, columns[key]),
            "last": thinned(key, known[-ALARM_STEPS:], 1)[0],
        }
        for key, label in LINES.items()
        if len(known := _known(columns, key))
    ]
    others = sorted(key for key in columns if key not in (*LINES, "step", "attempt") and len(_known(columns, key)))
    return {"step": thinned("step", columns["step"]), "lines": lines, "columns": others}


def times_json(columns: Mapping[str, Array], *, per_step: bool) -> dict[str, Any]:
    """Return where the time goes: seconds per step over the last steps, and since the beginning.

    `per_step` says that columns such as time/evaluation_s hold the seconds of one step, as other trainers log them.
    """
    step_parts = [
        {"label": label, "seconds": float(known.mean())}
        for key, label in STEP_PARTS.items()
        if len(known := _known(columns, key, LAST_STEPS))
    ]
    if len(whole := _known(columns, "time/whole_step_s", LAST_STEPS)):
        rest = float(whole.mean()) - sum(part["seconds"] for part in step_parts)
        if rest > 0.005 * max(float(whole.mean()), 1e-9):
            step_parts.append({"label": "everything else" if step_parts else "a step", "seconds": rest})
    totals = [
        {"label": label, "seconds": float(known.sum() if per_step else known[-1])}
        for key, label in TOTAL_PARTS.items()
        if len(known := _known(columns, key)) and (known.sum() if per_step else known[-1]) > 0
    ]
    return {"step": step_parts, "total": totals, "throughput": _throughput(columns)}


def _throughput(columns: Mapping[str, Array]) -> dict[str, Any] | None:
    """Return tokens per second over the steps; None where tokens or time are not logged."""
    tokens, seconds = columns.get("tokens"), columns.get("time/training_s")
    if seconds is None and "time/whole_step_s" in columns:
        seconds = np.nancumsum(columns["time/whole_step_s"])
    if tokens is None or seconds is None or len(tokens) < 3:
        return None
    ends = np.unique(np.linspace(0, len(tokens) - 1, min(len(tokens), 121)).round().astype(int))
    spent, made = np.diff(seconds[ends]), np.diff(tokens[ends])
    with np.errstate(divide="ignore", invalid="ignore"):
        pace = np.where((spent > 0) & (made >= 0), made / spent, np.nan)
    known = pace[np.isfinite(pace)]
    if not len(known):
        return None
    return {"step": rounded(columns["step"][ends[1:]]), "values": rounded(pace), "last": rounded(known[-1:])[0]}
