"""Summaries of draws: medians with intervals, probabilities, and how much future evaluations will explain."""

import zlib
from dataclasses import dataclass

import numpy as np

from scalerl.forecast.curves.forms import Array


@dataclass(frozen=True, slots=True, kw_only=True)
class Value:
    """A number and the ends of its interval. `high` may be infinite."""

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        """Show two digits of the interval's width: 0.611 [0.590, 0.630]."""
        width = self.high - self.low
        if not np.isfinite(width):
            return f"{self.value:.4g}" if np.isnan(self.low) else f"{self.value:.4g} [{self.low:.4g}, {self.high:.4g}]"
        digits = 4 if width <= 0 else int(np.clip(1 - np.floor(np.log10(width)), 0, 6))
        return f"{self.value:,.{digits}f} [{self.low:,.{digits}f}, {self.high:,.{digits}f}]"


def tails(level: float) -> tuple[float, float]:
    if not 0 < level < 1:
        raise ValueError(f"level must lie between 0 and 1, not {level:g}")
    return (0.5 - level / 2, 0.5 + level / 2)


def summary(draws: Array, level: float) -> Value:
    """Return the median and the central interval of draws; these may be infinite."""
    low, high = tails(level)
    low, middle, high = np.quantile(draws, [low, 0.5, high], method="nearest")
    return Value(value=float(middle), low=float(low), high=float(high))


def stream_of(name: str) -> np.random.Generator:
    """Return a random generator that depends only on the curve's name, whatever it is compared with."""
    return np.random.default_rng(zlib.crc32(name.encode()))


def p_above(mine: Array, theirs: Array) -> float:
    """Return the probability that one draw lies above the other; a tie counts half for each."""
    return float(np.mean(mine > theirs) + 0.5 * np.mean(mine == theirs))


def explained_share(wanted: Array, later: Array, noise_variance: float) -> float:
    """Return the share of a quantity's variance that future evaluations will explain.

    `later` holds the draws (rows) of the curve at the future evaluations (columns), each with that noise variance.
    """
    wanted, later = wanted - wanted.mean(), later - later.mean(axis=0)
    cross = later.T @ wanted / len(wanted)
    joint = later.T @ later / len(wanted) + noise_variance * np.eye(later.shape[1])
    return float(cross @ np.linalg.solve(joint, cross)) / max(float(np.mean(wanted**2)), 1e-300)
