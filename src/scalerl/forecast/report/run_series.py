"""The curves of one of our runs, from its rows of evals.jsonl: their columns are known, so nothing is guessed."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from scalerl.forecast.logs import Series
from scalerl.forecast.logs.axes import UNEVEN_TIME, disagreement
from scalerl.forecast.logs.facts import Fact, fact
from scalerl.forecast.logs.frame import Floats
from scalerl.forecast.logs.start import start_noise
from scalerl.forecast.report.metrics import number

AXES = ("gpu_hours", "flops", "tokens", "step")
"""Columns of compute, the first of which counts."""
BOUNDS = (0.0, 1.0)


def run_series(rows: Sequence[Mapping[str, Any]], device: str) -> dict[str, Series]:
    """Return the curve of each evaluation set of a run, by set; `device` is cpu or another.

    Compute is GPU-hours, or FLOPs if the time per FLOP changed during the run. A set without an evaluation after the
    start is left out.
    """
    share = disagreement(_column(rows, "gpu_hours"), _column(rows, "flops"))
    facts: list[Fact] = [fact("counted_in_flops", share=share)] if share > UNEVEN_TIME else []
    axis = "flops" if facts else "gpu_hours"
    if device == "cpu":
        facts.append(fact("cpu_time"))
    found = {}
    for name in dict.fromkeys(row["set"] for row in rows):
        series = _series_of_set([row for row in rows if row["set"] == name], axis, tuple(facts))
        if len(series.compute):
            found[name] = series
    return found


def _series_of_set(rows: Sequence[Mapping[str, Any]], axis: str, facts: tuple[Fact, ...]) -> Series:
    compute, reward, samples = (_column(rows, name) for name in (axis, "reward", "num_samples"))
    is_known = np.isfinite(compute) & np.isfinite(reward)
    is_start = is_known & (compute == 0)
    points = np.flatnonzero(is_known & (compute > 0))
    points = points[np.argsort(compute[points], kind="stable")]
    has_start, has_samples = bool(is_start.any()), bool((samples[points] >= 1).all())
    return Series(
        name="",
        compute=compute[points],
        reward=reward[points],
        x_label=axis,
        y_label="reward",
        num_samples=samples[points].astype(np.int64) if has_samples else None,
        start=float(reward[is_start].mean()) if has_start else None,
        start_sd=start_noise(reward[is_start], samples[is_start], BOUNDS) if has_start else 0.0,
        facts=facts,
        axes={name: _column(rows, name)[points] for name in AXES},
    )


def _column(rows: Sequence[Mapping[str, Any]], name: str) -> Floats:
    """Return a column of rows; NaN where a row has no number."""
    return np.array([number(row.get(name)) for row in rows], dtype=float)
