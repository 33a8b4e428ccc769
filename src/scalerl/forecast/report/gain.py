"""Whether a run has learned: its last evaluations against the model it started from, beyond noise or not. Pure.

With the same prompts at both ends the difference is paired: d_i is the change of prompt i's pass rate, and its standard
error is sd(d) / sqrt(prompts). Otherwise, and with few prompts, it is that of two rates, each with one success and one
failure added (Agresti and Caffo 2000).
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from scalerl.forecast.report.document import Say, say

NUM_LAST = 3  # evaluations at the end whose mean is compared with the start, if they agree
Z_AGREE = 2.58  # 99 %: a last evaluation that is further from the two before it is the end by itself
FEWEST_PAIRS = 20  # prompts from which the spread of paired differences is a good estimate
Z = 1.645  # 90 %, two-sided


@dataclass(frozen=True, slots=True, kw_only=True)
class Gain:
    """What a run changed on one evaluation set."""

    kind: Literal["rose", "fell", "within_noise", "no_update"]
    first: float
    last: float
    """Mean of the last `num_last` evaluations, or the last one if it is far from those before it."""
    num_last: int
    low: float
    """90 % interval of last - first."""
    high: float
    num_steps: int
    num_skipped: int
    """Steps whose loss or gradient was not finite."""
    num_empty: int
    """Steps whose batch had nothing to train on."""

    def say(self, name: str) -> Say:
        """Return what a run changed on an evaluation set, in words."""
        return say(f"gain_{self.kind}", self, name=name)


def measure_gain(evals: Sequence[Mapping[str, Any]], metrics: Sequence[Mapping[str, Any]]) -> Gain | None:
    """Return what a run changed, from its rows of one evaluation set; None without a start and a later evaluation."""
    rows = [row for row in evals if row.get("reward") is not None]
    rows.sort(key=lambda row: row["step"])
    start = next((row for row in rows if row["step"] == 0), None)
    later = _end([row for row in rows if row["step"] > 0][-NUM_LAST:])
    if start is None or not later:
        return None
    last = float(np.mean([row["reward"] for row in later]))
    change = last - start["reward"]
    margin = Z * _standard_error(start, later)
    num_skipped = sum(row.get("optim/skipped") == 1 for row in metrics)
    num_empty = sum(row.get("batch/effective") == 0 for row in metrics)
    if metrics and num_skipped + num_empty == len(metrics):
        kind = "no_update"
    elif abs(change) <= margin:
        kind = "within_noise"
    else:
        kind = "fell"
        if change > 0:
            kind = "rose"
    return Gain(
        kind=kind,
        first=start["reward"],
        last=last,
        num_last=len(later),
        low=change - margin,
        high=change + margin,
        num_steps=len(metrics),
        num_skipped=num_skipped,
        num_empty=num_empty,
    )


def _end(later: list[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Return the evaluations that are the end of a run: all of these, or the last if the run changed before it.

    A run that breaks down at its end has not learned, whatever it was before.
    """
    if len(later) < 2:
        return later
    *before, last = later
    change = last["reward"] - float(np.mean([row["reward"] for row in before]))
    if abs(change) > Z_AGREE * _standard_error(last, before):
        return [last]
    return later


def _standard_error(start: Mapping[str, Any], later: Sequence[Mapping[str, Any]]) -> float:
    """Return the standard error of the mean reward of `later` less that of `start`."""
    rows = (start, *later)
    same_prompts = len({row.get("prompts_hash") for row in rows}) == 1
    num_prompts = {len(row.get("num_correct") or ()) for row in rows}
    if same_prompts and len(num_prompts) == 1 and max(num_prompts) >= FEWEST_PAIRS:
        rates = [np.asarray(row["num_correct"]) * len(row["num_correct"]) / row["num_samples"] for row in rows]
        differences = np.mean(rates[1:], axis=0) - rates[0]
        return float(differences.std(ddof=1) / math.sqrt(len(differences)))
    return math.sqrt(_variance([start]) + _variance(later))


def _variance(rows: Sequence[Mapping[str, Any]]) -> float:
    """Return the variance of the mean reward of these evaluations, as a rate."""
    num = sum(row["num_samples"] for row in rows)
    successes = sum(row["reward"] * row["num_samples"] for row in rows)
    rate = (successes + 1) / (num + 2)
    return rate * (1 - rate) / (num + 2)
