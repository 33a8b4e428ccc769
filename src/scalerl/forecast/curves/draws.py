"""Summaries of draws: medians with intervals, probabilities, and how much future evaluations will explain."""

from dataclasses import dataclass

import numpy as np

from scalerl.forecast.curves.forms import Array

NUM_PAIRED = 200
"""Draws of each of two quantities that are paired with each other: enough for three digits of an interval."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Value:
    """A number and the ends of its interval. `high` may be infinite."""

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        """Show two digits of the interval's width: 0.611 [0.590, 0.630]."""
        if np.isnan(self.low):
            return f"{self.value:.4g}"
        width = self.high - self.low
        if not np.isfinite(width):
            return f"{self.value:.4g} [{self.low:.4g}, {self.high:.4g}]"
        digits = 4
        if width > 0:
            digits = int(np.clip(1 - np.floor(np.log10(width)), 0, 6))
        return f"{self.value:,.{digits}f} [{self.low:,.{digits}f}, {self.high:,.{digits}f}]"


def tails(level: float) -> tuple[float, float]:
    """Return the probabilities below the two ends of a central interval."""
    if not 0 < level < 1:
        raise ValueError(f"level must lie between 0 and 1, not {level:g}")
    return (0.5 - level / 2, 0.5 + level / 2)


def summary(draws: Array, level: float) -> Value:
    """Return the median and the central interval of draws; these may be infinite."""
    below, up_to = tails(level)
    low, middle, high = np.quantile(draws, [below, 0.5, up_to], method="nearest")
    return Value(value=float(middle), low=float(low), high=float(high))


def share_below(draws: Array, levels: Array) -> Array:
    """Return the share of draws below each level; one at the level counts half."""
    ordered = np.sort(draws)
    num_below = np.searchsorted(ordered, levels, "left")
    num_up_to = np.searchsorted(ordered, levels, "right")
    return (num_below + num_up_to) / (2.0 * len(draws))


def p_above(mine: Array, theirs: Array) -> float:
    """Return the probability that a draw of one lies above a draw of the other, over all pairs; a tie counts half."""
    return float(share_below(theirs, mine).mean())


def all_pairs(mine: Array, theirs: Array) -> tuple[Array, Array]:
    """Return the pairs of draws of two independent quantities: the first of every pair, and the second.

    Evenly spaced quantiles stand for the draws: `NUM_PAIRED` of each quantity.
    """
    places = (np.arange(NUM_PAIRED) + 0.5) / NUM_PAIRED
    my_quantiles = np.quantile(mine, places, method="nearest")
    their_quantiles = np.quantile(theirs, places, method="nearest")
    return np.repeat(my_quantiles, NUM_PAIRED), np.tile(their_quantiles, NUM_PAIRED)


def explained_share(wanted: Array, later: Array, noise_variance: float) -> float:
    """Return the share of a quantity's variance that future evaluations will explain.

    `later` holds the draws (rows) of the curve at the future evaluations (columns), each with that noise variance. The
    share is that of a linear regression of the quantity on the evaluations.
    """
    num_draws = len(wanted)
    wanted = wanted - wanted.mean()
    later = later - later.mean(axis=0)
    with_wanted = later.T @ wanted / num_draws
    of_evaluations = later.T @ later / num_draws + noise_variance * np.eye(later.shape[1])
    explained = float(with_wanted @ np.linalg.solve(of_evaluations, with_wanted))
    variance = float(np.mean(wanted**2))
    return explained / max(variance, 1e-300)
