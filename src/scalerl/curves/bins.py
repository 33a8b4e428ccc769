"""Noisy rewards of many steps as means along compute, with the errors of the means."""

from dataclasses import dataclass

import numpy as np

from scalerl.curves.forms import Array

AUTO_BINS = 60  # as many points as a curve needs to show its shape
AUTO_SPAN = 1.5  # ratio of compute from which a bin is halved: early on a curve may rise within a few steps
LEAST_PER_BIN = 4  # below that, a mean's own scatter says little of its error


@dataclass(frozen=True, slots=True, kw_only=True)
class Bins:
    """Means of neighbouring rewards of one run, in order of compute."""

    compute: Array
    reward: Array
    error: Array
    """Standard error of each mean, the autocorrelation of the rewards taken into account."""
    count: np.ndarray
    autocorrelation: float
    """Autocorrelation of neighbouring rewards about the means of their bins."""


def num_bins(num_points: int, rule: int | str) -> int:
    """Return the number of bins that a rule asks for: a number, or "auto"."""
    if rule == "auto":
        return max(min(AUTO_BINS, num_points // LEAST_PER_BIN), 1)
    num = int(rule)
    if num < 1:
        raise ValueError(f"the number of bins must be 1 or more, not {num}")
    return min(num, num_points)


def bin_rewards(compute, reward, rule: int | str = "auto") -> Bins:
    """Average the rewards of one run in bins with the same number of points each.

    With "auto" the early bins, which span a large ratio of compute, have fewer.
    """
    compute, reward = np.asarray(compute, dtype=float).ravel(), np.asarray(reward, dtype=float).ravel()
    if compute.shape != reward.shape:
        raise ValueError(f"compute has {compute.size} values and reward {reward.size}")
    if not compute.size:
        empty = np.empty(0)
        return Bins(compute=empty, reward=empty, error=empty, count=np.empty(0, dtype=int), autocorrelation=0.0)
    order = np.argsort(compute, kind="stable")
    compute, reward = compute[order], reward[order]
    parts = np.array_split(np.arange(len(reward)), num_bins(len(reward), rule))
    if rule == "auto":
        parts = [half for part in parts for half in _narrow(part, compute)]
    count = np.array([len(part) for part in parts])
    means = np.array([reward[part].mean() for part in parts])
    residual = reward - np.repeat(means, count)
    spare = max(len(reward) - len(parts), 1)
    rho = _lag_one(residual, count)
    variance = float(residual @ residual) / spare
    # Of a mean of m autocorrelated rewards: (1 + rho) / (1 - rho) times that of independent ones, at most their own.
    together = np.minimum((1 + rho) / (1 - rho) / count, 1.0)
    return Bins(
        compute=np.array([compute[part].mean() for part in parts]),
        reward=means,
        error=np.sqrt(variance * together),
        count=count,
        autocorrelation=rho,
    )


def _narrow(part: np.ndarray, compute: Array) -> list[np.ndarray]:
    """Halve a bin until it spans a small ratio of compute, or has too few points for that."""
    half = len(part) // 2
    if half < LEAST_PER_BIN or compute[part[-1]] <= AUTO_SPAN * compute[part[0]]:
        return [part]
    return [*_narrow(part[:half], compute), *_narrow(part[half:], compute)]


def _lag_one(residual: Array, count: np.ndarray) -> float:
    """Autocorrelation of neighbours within a bin, freed from what taking out the bin's mean does to it."""
    first = np.zeros(len(residual), dtype=bool)
    first[np.cumsum(count)[:-1]] = True
    total, pairs = float(residual @ residual), ~first[1:]
    if total <= 0 or not pairs.any():
        return 0.0
    crossed = float((residual[1:] * residual[:-1])[pairs].sum()) / pairs.sum()
    size = float(np.mean(count))
    raw = crossed / (total / max(len(residual) - len(count), 1))
    # Independent rewards about the mean of their bin correlate at -1 / (m - 1).
    return float(np.clip(raw + 1.0 / size, 0.0, 0.9))
