"""What right answers per problem say besides their mean: pass@k over training, and whether variety is lost. Pure."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scalerl.report.alarms import Alarm, AlarmKind
from scalerl.report.columns import MOST_POINTS

Array = NDArray[np.float64]

WINDOW = 3  # evaluations whose mean is compared
FEWEST = 8  # evaluations from which a trend is looked for
SURE = 3.0  # standard errors of a fall; it is measured from the highest window, which is high by chance too
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
    usable = [row for row in rows if isinstance(row.get("num_correct"), list) and row["num_correct"]]
    if not usable:
        return [], np.empty((0, 0)), 0
    alike = lambda row: (row.get("prompts_hash"), len(row["num_correct"]), row.get("num_samples"))  # noqa: E731
    usable = sorted((row for row in usable if alike(row) == alike(usable[-1])), key=lambda row: row["step"])
    samples = usable[-1].get("num_samples")
    num = len(usable[-1]["num_correct"])
    if not isinstance(samples, int) or samples % num:
        return [], np.empty((0, 0)), 0
    return usable, np.array([row["num_correct"] for row in usable], dtype=float), samples // num


def pass_curves(rows: Sequence[Mapping[str, Any]]) -> tuple[list[float], dict[int, list[float]]]:
    """Return the steps of evaluations of one set, and pass@k at each by k; empty where problems were sampled once."""
    usable, correct, num = counted(rows)
    if num < 2:
        return [], {}
    every = -(-len(usable) // MOST_POINTS)
    shown = slice((len(usable) - 1) % every, None, every)  # the last one too
    curves = {k: pass_at(correct[shown], num, k).mean(axis=1).tolist() for k in ks_of(num)}
    return [row["step"] for row in usable[shown]], curves


def overtrained(rows: Sequence[Mapping[str, Any]], name: str) -> list[Alarm]:
    """Return the alarm if pass@1 rose while pass@k fell, for the largest k; differences are paired by problem."""
    usable, correct, num = counted(rows)
    if len(usable) < FEWEST or num < 2 or correct.shape[1] < 2:
        return []
    k = ks_of(num)[-1]
    many, one = pass_at(correct, num, k), correct / num
    last = len(usable) - WINDOW
    peak = int(np.convolve(many.mean(axis=1), np.ones(WINDOW), mode="valid")[: last - WINDOW + 1].argmax())
    changes = []
    for values in (many, one):
        difference = values[last:].mean(axis=0) - values[peak : peak + WINDOW].mean(axis=0)
        changes.append((float(difference.mean()), float(difference.std(ddof=1) / np.sqrt(len(difference)))))
    (change_k, error_k), (change_1, error_1) = changes
    if not (change_k < -SURE * error_k and change_1 > error_1):
        return []
    since = float(usable[peak + WINDOW // 2]["step"])
    values = {"value": -change_k, "before": change_1, "detail": str(k), "began": since}
    return [Alarm(kind=AlarmKind.OVERTRAINED, subject=name, **values)]
