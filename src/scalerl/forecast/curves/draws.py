"""Summaries of draws: medians with intervals, probabilities, and how much future evaluations will explain."""

from dataclasses import dataclass

import numpy as np

from scalerl.forecast.curves.forms import Array

NUM_MET = 200
"""Number of draws of each of two quantities that meet each other: enough for three digits of an interval."""


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


def share_below(draws: Array, levels: Array) -> Array:
    """Return the share of draws below each level; one at the level counts half."""
    ordered = np.sort(draws)
    below, up_to = (np.searchsorted(ordered, levels, side) for side in ("left", "right"))
    return (below + up_to) / (2.0 * len(draws))


def p_above(mine: Array, theirs: Array) -> float:
    """Return the probability that a draw of one lies above a draw of the other, over all pairs; a tie counts half."""
    return float(share_below(theirs, mine).mean())


def met(mine: Array, theirs: Array) -> tuple[Array, Array]:
    """Return draws of two independent quantities in pairs: of each `NUM_MET`, all of which meet all of the other."""
    places = (np.arange(NUM_MET) + 0.5) / NUM_MET
    some, others = (np.quantile(draws, places, method="nearest") for draws in (mine, theirs))
    return np.repeat(some, NUM_MET), np.tile(others, NUM_MET)


def explained_share(wanted: Array, later: Array, noise_variance: float) -> float:
    """Return the share of a quantity's variance that future evaluations will explain.

    `later` holds the draws (rows) of the curve at the future evaluations (columns), each with that noise variance.
    """
    wanted, later = wanted - wanted.mean(), later - later.mean(axis=0)
    cross = later.T @ wanted / len(wanted)
    joint = later.T @ later / len(wanted) + noise_variance * np.eye(later.shape[1])
    return float(cross @ np.linalg.solve(joint, cross)) / max(float(np.mean(wanted**2)), 1e-300)
