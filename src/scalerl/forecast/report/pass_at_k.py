"""pass@k over training, from the right answers per problem. Pure."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scalerl.forecast.report.metrics import MOST_POINTS

Array = NDArray[np.float64]

MOST_K = 64


def pass_at(num_correct: Array, num_samples: int, k: int) -> Array:
    """Return the unbiased estimate of pass@k of each problem (arXiv 2107.03374): 1 - C(n - c, k) / C(n, k)."""
    counts, places = np.unique(num_correct, return_inverse=True)
    left = num_samples - counts[:, None] - np.arange(k)
    passed = 1.0 - np.prod(np.maximum(left, 0.0) / (num_samples - np.arange(k)), axis=1)
    return passed[places].reshape(num_correct.shape)


def ks_of(num_samples: int) -> list[int]:
    """Return the k that are shown: powers of two up to the samples of a problem, and all of them."""
    powers = [2**power for power in range(20) if 2**power < min(num_samples, MOST_K)]
    if num_samples > 1:
        return [*powers, min(num_samples, MOST_K)]
    return [1]


def _asked(row: Mapping[str, Any]) -> tuple[Any, int, Any]:
    """Return what an evaluation asked: its prompts, their number, and the samples of all."""
    return row.get("prompts_hash"), len(row["num_correct"]), row.get("num_samples")


def pass_curves(rows: Sequence[Mapping[str, Any]]) -> tuple[list[float], dict[int, list[float]]]:
    """Return the steps of evaluations of one set, and pass@k at each by k; empty where problems were sampled once."""
    usable = [row for row in rows if isinstance(row.get("num_correct"), list) and row["num_correct"]]
    if not usable:
        return [], {}
    # Only those that asked the same as the last one can be compared.
    last = _asked(usable[-1])
    alike = [row for row in usable if _asked(row) == last]
    alike.sort(key=lambda row: row["step"])
    _, num_problems, num_samples = last
    if not isinstance(num_samples, int) or num_samples % num_problems or num_samples < 2 * num_problems:
        return [], {}
    every = math.ceil(len(alike) / MOST_POINTS)
    shown = alike[(len(alike) - 1) % every :: every]  # the last one too
    correct = np.array([row["num_correct"] for row in shown], dtype=float)
    num = num_samples // num_problems
    curves = {k: pass_at(correct, num, k).mean(axis=1).tolist() for k in ks_of(num)}
    return [row["step"] for row in shown], curves
