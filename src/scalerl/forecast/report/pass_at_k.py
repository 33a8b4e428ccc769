"""What right answers per problem say besides their mean: pass@k over training. Pure."""

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
    return [*powers, min(num_samples, MOST_K)] if num_samples > 1 else [1]


def counted(rows: Sequence[Mapping[str, Any]]) -> tuple[list[Mapping[str, Any]], Array, int]:
    """Return the rows on the same problems, as often sampled, as the last one; right answers per problem; samples."""
    of_problems = lambda row: (row.get("prompts_hash"), len(row["num_correct"]), row.get("num_samples"))  # noqa: E731
    usable = [row for row in rows if isinstance(row.get("num_correct"), list) and row["num_correct"]]
    _, num, samples = of_problems(usable[-1]) if usable else (None, 1, None)
    if not isinstance(samples, int) or samples % num:
        return [], np.empty((0, 0)), 0
    alike = sorted((row for row in usable if of_problems(row) == of_problems(usable[-1])), key=lambda row: row["step"])
    return alike, np.array([row["num_correct"] for row in alike], dtype=float), samples // num


def pass_curves(rows: Sequence[Mapping[str, Any]]) -> tuple[list[float], dict[int, list[float]]]:
    """Return the steps of evaluations of one set, and pass@k at each by k; empty where problems were sampled once."""
    usable, correct, num = counted(rows)
    if num < 2:
        return [], {}
    every = -(-len(usable) // MOST_POINTS)
    shown = slice((len(usable) - 1) % every, None, every)  # the last one too
    curves = {k: pass_at(correct[shown], num, k).mean(axis=1).tolist() for k in ks_of(num)}
    return [row["step"] for row in usable[shown]], curves
