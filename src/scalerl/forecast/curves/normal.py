"""The normal distribution and a Student-t in numpy, because importing scipy.special takes longer than a fit.

Everything follows from one function of the upper tail, P(Z > z) = exp(-z^2 / 2) * `_scaled_tail(z)`.
"""

import numpy as np

from scalerl.forecast.curves.forms import Array

TAIL = (
    6.7797696255966976e-9, 1.2864124437671246e-8, -5.6725512264071205e-8, -1.471442919551754e-7,
    2.3512944795308879e-7, 1.0079851973866683e-6, -6.0028487421910279e-7, -5.9082255301931407e-6,
    7.0139632223318874e-7, 3.5138451588461981e-5, -1.9031365263494378e-6, -0.00023109295282961134,
    0.00013334323640921144, 0.0016308180841548285, -0.0034796922350576356, -0.0075401889283738599,
    0.06039657488256644, -0.18652185796145454, 0.38713740074242146, -0.60789664197186738,
    0.75528513041575065,
)  # fmt: skip
"""Chebyshev expansion of (z + 4) exp(z^2 / 2) P(Z > z) in (z - 4) / (z + 4), highest power first."""
GUESS = (
    -0.0896976, 0.14457774, -0.14820755, 0.15067229, -0.25476223, 0.34036851, -0.84579178, 0.71337446,
)  # fmt: skip
"""Expansion of r - z, with r = sqrt(-2 log P(Z > z)), in (r - 3) / (r + 3): within 2e-5, and refined from there."""
FARTHEST = 1e150
"""Used for infinity, because its square is finite."""
FAR = 9.0
"""The tail beyond this is 1e-19, which does not change a probability near 1."""


def _polynomial(coefficients: tuple[float, ...], x: Array) -> Array:
    value = np.full_like(x, coefficients[0])
    for coefficient in coefficients[1:]:
        value *= x
        value += coefficient
    return value


def _scaled_tail(z: Array) -> Array:
    """Return exp(z^2 / 2) P(Z > z) for z >= 0."""
    return _polynomial(TAIL, (z - 4.0) / (z + 4.0)) / (z + 4.0)


def normal_cdf(x) -> Array:
    """Return P(Z <= x) of a standard normal Z."""
    x = np.asarray(x, dtype=float)
    z = np.minimum(np.abs(x), FARTHEST)
    tail = np.exp(-0.5 * z * z) * _scaled_tail(z)
    return np.where(x > 0.0, 1.0 - tail, tail)


def log_normal_cdf(x) -> Array:
    """Return log P(Z <= x), even if the probability underflows; 0 for a large x."""
    x = np.asarray(x, dtype=float)
    value, is_near = np.zeros_like(x), x < FAR
    near = x[is_near]
    z = np.minimum(np.abs(near), FARTHEST)
    log_tail = np.log(_scaled_tail(z)) - 0.5 * z * z
    value[is_near] = np.where(near > 0.0, np.log1p(-np.exp(log_tail)), log_tail)
    return value


def log_normal_between(low: Array, high: Array) -> Array:
    """Return log P(low < Z < high), at least log 1e-300; 0 if both ends are far out."""
    value, is_near = np.zeros_like(low), (low > -FAR) | (high < FAR)
    inside = normal_cdf(high[is_near]) - normal_cdf(low[is_near])
    value[is_near] = np.log(np.maximum(inside, 1e-300))
    return value


def normal_quantile(p) -> Array:
    """Return x with P(Z <= x) = p, for p from 1e-300 to 1 - 1e-16."""
    p = np.asarray(p, dtype=float)
    log_tail = np.log(np.minimum(p, 1.0 - p))
    root = np.sqrt(-2.0 * log_tail)
    z = root - _polynomial(GUESS, (root - 3.0) / (root + 3.0))
    # One step of Halley's method for the logarithm of the tail, whose slope is the hazard.
    scaled = _scaled_tail(z)
    hazard = 1.0 / (np.sqrt(2.0 * np.pi) * scaled)
    off = np.log(scaled) - 0.5 * z * z - log_tail
    z = z + off / (hazard + 0.5 * off * (hazard - z))
    return np.where(p > 0.5, z, -z)


def student_quantile(p) -> Array:
    """Return the quantile of a Student-t with three degrees of freedom.

    Its tail has a closed form: P(T > sqrt(3) / tan(a / 2)) = (a - sin a) / (2 pi). That is solved for a.
    """
    p = np.asarray(p, dtype=float)
    wanted = 2.0 * np.pi * np.minimum(p, 1.0 - p)
    root = np.cbrt(6.0 * wanted)
    a = root * (1.0 + root**2 / 60.0 + root**4 / 1400.0 + root**6 / 25200.0)
    for _ in range(3):
        off, slope = _less_sine(a) - wanted, 2.0 * np.sin(0.5 * a) ** 2
        a = a - off / (slope - 0.5 * off * np.sin(a) / slope)
    return np.where(p > 0.5, 1.0, -1.0) * np.sqrt(3.0) / np.tan(0.5 * a)


def _less_sine(a: Array) -> Array:
    """Return a - sin a for a from 0 to pi by its series, because subtracting loses all digits of a small a."""
    square, value = a * a, np.ones_like(a)
    for k in range(28, 2, -2):
        value = 1.0 - square / (k * (k + 1.0)) * value
    return a * square / 6.0 * value


def truncated_normal_quantile(mean: Array, sd: Array, high: float, share: Array) -> Array:
    """Return quantiles, at these shares, of normals truncated to 0 .. `high`."""
    # Compute from the nearer tail, where small probabilities are exact.
    sign = np.where(mean < 0.0, -1.0, 1.0)
    below_zero = normal_cdf(sign * (0.0 - mean) / sd)
    below_high = normal_cdf(sign * (high - mean) / sd)
    probability = np.clip(below_zero + (below_high - below_zero) * share, 1e-300, 1.0 - 1e-15)
    return np.clip(mean + sign * sd * normal_quantile(probability), 0.0, high)


def chi_squared_quantile(df: float, p: Array) -> Array:
    """Return quantiles of a chi-squared, by the approximation of Wilson and Hilferty.

    From 8 degrees of freedom it is within 0.5 % between the quantiles of 5 and 95 %, and within 4 % at that of 1 %.
    """
    off = 2.0 / (9.0 * df)
    return df * np.maximum(1.0 - off + np.sqrt(off) * normal_quantile(p), 0.05) ** 3
