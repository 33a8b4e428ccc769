"""The curves of our own runs, from their rows of evals.jsonl: their columns are known, so nothing is guessed."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from scalerl.errors import InputError, option
from scalerl.forecast.logs import Series
from scalerl.forecast.logs.axes import UNEVEN_TIME, disagreement
from scalerl.forecast.logs.facts import Fact, fact
from scalerl.forecast.logs.frame import Floats
from scalerl.forecast.logs.selection import SCALES, YScale
from scalerl.forecast.logs.start import start_noise
from scalerl.forecast.report.metrics import number

AXES = ("gpu_hours", "flops", "tokens", "step")
"""Columns of compute, the first of which counts."""
MOST_SAMPLES = 2**53


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluations:
    """The evaluations of one run."""

    rows: Sequence[Mapping[str, Any]]
    device: object = None
    """The device that it ran on, as env.json names it; cpu has hours of its own."""
    arm: str = ""
    """The curve that it belongs to: runs that differ in their seed share one."""
    run: str = ""
    facts: tuple[Fact, ...] = ()


def run_series(runs: Sequence[Evaluations], axis: str | None = None) -> list[Series]:
    """Return the curve of each arm and evaluation set.

    Compute is counted on `axis`. Without it, in the first of AXES that the runs have; of a single run in FLOPs if the
    time per FLOP changed while it ran.
    """
    facts: tuple[Fact, ...] = ()
    if axis is None:
        axis = _first_axis(runs)
        changed = _uneven_time(runs[0].rows) if len(runs) == 1 else 0.0
        if axis == "gpu_hours" and changed > UNEVEN_TIME:
            axis = "flops"
            facts = (fact("counted_in_flops", share=changed),)
    elif axis not in AXES:
        raise InputError(f"{option:x} {axis}: runs count their compute in {', '.join(AXES)}.")
    sets: list[str] = []
    for run in runs:
        sets += [_set_of(row) for row in run.rows]
    sets = list(dict.fromkeys(sets))
    made: list[Series] = []
    for arm in dict.fromkeys(run.arm for run in runs):
        members = [run for run in runs if run.arm == arm]
        made.extend(_series_of_arm(members, sets, axis, facts))
    return made


def _first_axis(runs: Sequence[Evaluations]) -> str:
    """Return the first column of compute that grows in every run."""
    for axis in AXES:
        if all(np.nanmax(_column(run.rows, axis), initial=0.0) > 0 for run in runs):
            return axis
    return "step"


def _uneven_time(rows: Sequence[Mapping[str, Any]]) -> float:
    """Return how far GPU-hours and FLOPs of a run disagree."""
    return disagreement(_column(rows, "gpu_hours"), _column(rows, "flops"))


def _set_of(row: Mapping[str, Any]) -> str:
    return str(row.get("set", ""))


def _series_of_arm(
    runs: Sequence[Evaluations], sets: Sequence[str], axis: str, facts: tuple[Fact, ...]
) -> Iterator[Series]:
    """Yield the curve of each set that was evaluated in these runs."""
    if all(run.device == "cpu" for run in runs):
        facts = (*facts, fact("cpu_time"))
    for run in runs:
        facts = (*facts, *run.facts)
    for name in sets:
        rows: list[Mapping[str, Any]] = []
        labels: list[str] = []
        for run in runs:
            own = [row for row in run.rows if _set_of(row) == name]
            rows += own
            labels += [run.run] * len(own)
        if rows:
            evaluation_set = name if len(sets) > 1 else None
            yield _series(runs[0].arm, evaluation_set, rows, np.array(labels), axis, facts)


def _series(
    name: str,
    evaluation_set: str | None,
    rows: Sequence[Mapping[str, Any]],
    labels: Any,
    axis: str,
    facts: tuple[Fact, ...],
) -> Series:
    """Return the curve of these evaluations; `labels` has the run of each."""
    compute = _column(rows, axis)
    reward = _column(rows, "reward")
    samples = _column(rows, "num_samples")
    samples[(samples < 1) | (samples > MOST_SAMPLES)] = np.nan
    is_known = np.isfinite(compute) & np.isfinite(reward)
    is_start = is_known & (compute == 0)
    points = np.flatnonzero(is_known & (compute > 0))
    order = np.lexsort((reward[points], compute[points], labels[points]))
    points = points[order]
    is_share = (reward[is_known] >= 0) & (reward[is_known] <= 1)
    scale: YScale = "1" if is_share.all() else "none"
    bounds = SCALES[scale]
    start = None
    start_sd = 0.0
    if is_start.any():
        start = float(reward[is_start].mean())
        start_sd = start_noise(reward[is_start], samples[is_start], bounds)
    has_samples = bounds is not None and bool(np.isfinite(samples[points]).all())
    evaluation = np.array([_prompts_at_step(rows[place]) for place in points], dtype=str)
    axes: dict[str, Floats] = {}
    for each in AXES:
        spent = _column(rows, each)[points]
        if np.isfinite(spent).any():
            axes[each] = spent
    return Series(
        name=name,
        compute=compute[points],
        reward=reward[points],
        x_label=axis,
        y_label="reward",
        run=labels[points] if len(set(labels[points])) > 1 else None,
        num_samples=samples[points].astype(np.int64) if has_samples else None,
        start=start,
        start_sd=start_sd,
        evaluation=evaluation if len(points) and evaluation.astype(bool).all() else None,
        evaluation_set=evaluation_set,
        y_scale=scale,
        facts=facts,
        axes=axes,
        problem=None if len(points) else f"{name} has no evaluation after its start.",
    )


def _prompts_at_step(row: Mapping[str, Any]) -> str:
    """Return 'prompts_hash@step'; "" where the prompts are not known."""
    prompts = row.get("prompts_hash")
    return f"{prompts}@{row['step']:g}" if prompts else ""


def _column(rows: Sequence[Mapping[str, Any]], name: str) -> Floats:
    """Return a column of rows; NaN where a row has no number."""
    return np.array([number(row.get(name)) for row in rows], dtype=float)
