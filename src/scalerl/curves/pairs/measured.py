"""What two runs measured at the same compute: the fact that a verdict on them rests on."""

from dataclasses import dataclass

import numpy as np

from scalerl.curves.fitted import Fit
from scalerl.curves.forms import Array

SEGMENTS = 4  # parts of the shared compute that are looked at one by one
LEAST_PLACES = 3  # evaluations of each run within the shared compute
CLEAR = 2.0  # standard errors that a difference must measure
SAME = 0.9  # share of equal evaluations from which two runs are one


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """Run a less run b, where both were measured."""

    low: float
    """From this compute ..."""
    high: float
    """... to this one."""
    num_places: int
    """Evaluations compared."""
    difference: float
    """Mean reward of a less that of b."""
    error: float
    """Standard error of the difference."""
    z: Array
    """Difference over its standard error in each part of the shared compute, in order."""
    same_run: bool
    """Whether the two hold the same evaluations: one is the other, or a part of it."""

    def lower_everywhere(self, sign: int) -> bool:
        """Return whether a (sign 1) or b (sign -1) is lower in every part, and by more than noise altogether."""
        return bool((sign * self.z < 0).all()) and sign * self.difference < -CLEAR * self.error

    def higher_somewhere(self, sign: int) -> bool:
        """Return whether a (sign 1) or b (sign -1) is measurably higher in some part, or altogether."""
        return bool((sign * self.z > CLEAR).any()) or sign * self.difference > CLEAR * self.error


def measure(a: Fit, b: Fit) -> Measured | None:
    """Compare the two runs' evaluations at shared compute; None where there are too few."""
    low, high = max(a.compute.min(), b.compute.min()), min(a.compute.max(), b.compute.max())
    inside_a, inside_b = ((curve.compute >= low) & (curve.compute <= high) for curve in (a, b))
    if min(inside_a.sum(), inside_b.sum()) < LEAST_PLACES:
        return None
    sparse, dense, sign = (a, b, 1.0) if inside_a.sum() <= inside_b.sum() else (b, a, -1.0)
    inside = inside_a if sparse is a else inside_b
    places = np.sort(sparse.compute[inside])
    difference = sign * (_reward_at(sparse, places) - _reward_at(dense, places))
    together = max(_inflation(a), _inflation(b))
    noise = float(np.hypot(a.noise_sd, b.noise_sd)) + 1e-12 * (a.bounds[1] - a.bounds[0])
    parts = np.array_split(np.arange(len(places)), min(SEGMENTS, len(places) // LEAST_PLACES))
    error = lambda num: noise * np.sqrt(min(together / num, 1.0))  # noqa: E731
    return Measured(
        low=float(low),
        high=float(high),
        num_places=len(places),
        difference=float(difference.mean()),
        error=error(len(places)),
        z=np.array([difference[part].mean() / error(len(part)) for part in parts]),
        same_run=_share_equal(a, b) >= SAME,
    )


def _reward_at(curve: Fit, places: Array) -> Array:
    """Return the measured rewards at these computes: means over runs, straight lines between evaluations."""
    compute, place = np.unique(curve.compute, return_inverse=True)
    reward = np.bincount(place, weights=curve.reward) / np.bincount(place)
    return np.interp(np.log(places), np.log(compute), reward)


def _inflation(curve: Fit) -> float:
    """Return (1 + rho) / (1 - rho), with rho the lag-one autocorrelation of the residuals, clipped to [0, 0.8]."""
    residual = curve.reward - curve.predict(curve.compute)
    linked = np.diff(curve.run) == 0
    total = float(residual @ residual)
    rho = float((residual[1:] * residual[:-1])[linked].sum()) / total if total > 0 else 0.0
    rho = min(max(rho, 0.0), 0.8)
    return (1 + rho) / (1 - rho)


def _share_equal(a: Fit, b: Fit) -> float:
    """Return the share of the shorter run's evaluations that the other holds too, up to rounding."""
    points = [
        {(f"{compute:.9g}", f"{reward:.9g}") for compute, reward in zip(curve.compute, curve.reward, strict=True)}
        for curve in (a, b)
    ]
    return len(points[0] & points[1]) / min(len(points[0]), len(points[1]))
