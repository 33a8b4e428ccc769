"""The curves of our own runs, from their rows of evals.jsonl: their columns are known, so nothing is guessed."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from scalerl.errors import InputError, option
from scalerl.forecast.logs import Series
from scalerl.forecast.logs.axes import UNEVEN_TIME, disagreement
from scalerl.forecast.logs.facts import Fact, fact
from scalerl.forecast.logs.frame import Floats, grouped
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
        if axis == "gpu_hours" and len(runs) == 1:
            changed = disagreement(_column(runs[0].rows, "gpu_hours"), _column(runs[0].rows, "flops"))
            if changed > UNEVEN_TIME:
                axis = "flops"
                facts = (fact("counted_in_flops", share=changed),)
    elif axis not in AXES:
        raise InputError(f"{option:x} {axis}: runs count their compute in {', '.join(AXES)}.")
    sets: dict[str, None] = {}
    for run in runs:
        sets |= dict.fromkeys(map(_set_of, run.rows))
    made: list[Series] = []
    for members in grouped(runs, lambda run: run.arm):
        own = facts
        if all(run.device == "cpu" for run in members):
            own = (*own, fact("cpu_time"))
        for run in members:
            own = (*own, *run.facts)
        for name in sets:
            rows: list[tuple[str, Mapping[str, Any]]] = []
            for run in members:
                rows += [(run.run, row) for row in run.rows if _set_of(row) == name]
            if rows:
                made.append(_series(members[0].arm, name if len(sets) > 1 else None, rows, axis, own))
    return made


def _first_axis(runs: Sequence[Evaluations]) -> str:
    """Return the first column of compute that grows in every run."""
    for axis in AXES:
        if all(np.nanmax(_column(run.rows, axis), initial=0.0) > 0 for run in runs):
            return axis
    return "step"


def _set_of(row: Mapping[str, Any]) -> str:
    return str(row.get("set", ""))


def _series(
    name: str, evaluation_set: str | None, labelled: Sequence[tuple[str, Mapping[str, Any]]], axis: str, facts: Any
) -> Series:
    """Return the curve of these evaluations, each with the name of its run."""
    labels = np.array([run for run, _ in labelled])
    rows = [row for _, row in labelled]
    reward = _column(rows, "reward")
    samples = _column(rows, "num_samples")
    samples[(samples < 1) | (samples > MOST_SAMPLES)] = np.nan
    compute = _column(rows, axis)
    is_known = np.isfinite(compute) & np.isfinite(reward)
    is_start = is_known & (compute == 0)
    points = np.flatnonzero(is_known & (compute > 0))
    points = points[np.lexsort((reward[points], compute[points], labels[points]))]
    is_share = (reward[is_known] >= 0) & (reward[is_known] <= 1)
    scale: YScale = "1" if is_share.all() else "none"
    bounds = SCALES[scale]
    axes: dict[str, Floats] = {}
    for each in AXES:
        spent = _column(rows, each)[points]
        if np.isfinite(spent).any():
            axes[each] = spent
    made = Series(
        name=name,
        compute=compute[points],
        reward=reward[points],
        x_label=axis,
        y_label="reward",
        evaluation_set=evaluation_set,
        y_scale=scale,
        facts=facts,
        axes=axes,
        problem=None if len(points) else f"{name} has no evaluation after its start.",
    )
    if len(set(labels[points])) > 1:
        made = replace(made, run=labels[points])
    if bounds is not None and np.isfinite(samples[points]).all():
        made = replace(made, num_samples=samples[points].astype(np.int64))
    # 'prompts_hash@step', where all prompts are known.
    if len(points) and all(rows[place].get("prompts_hash") for place in points):
        prompts = [f"{rows[place]['prompts_hash']}@{rows[place]['step']:g}" for place in points]
        made = replace(made, evaluation=np.array(prompts, dtype=str))
    if is_start.any():
        noise = start_noise(reward[is_start], samples[is_start], bounds)
        made = replace(made, start=float(reward[is_start].mean()), start_sd=noise)
    return made


def _column(rows: Sequence[Mapping[str, Any]], name: str) -> Floats:
    """Return a column of rows; NaN where a row has no number."""
    return np.array([number(row.get(name)) for row in rows], dtype=float)
