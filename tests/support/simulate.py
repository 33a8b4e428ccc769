"""Simulated runs for the tests of curves."""

import numpy as np

START, CEILING, NOISE = 0.4, 0.6, 0.004


def sigmoid(compute, ceiling=CEILING, exponent=1.9, midpoint=1.0, start=START):
    return start + (ceiling - start) / (1 + (midpoint / np.asarray(compute, dtype=float)) ** exponent)


def run(seed: int, *, reach: float = 4.0, num: int = 40, noise: float = NOISE, **params):
    """Evenly spaced evaluations from a tenth of the reach, in units of the midpoint."""
    rng = np.random.default_rng(seed)
    compute = np.linspace(0.1 * reach, reach, num)
    return compute, np.clip(sigmoid(compute, **params) + noise * rng.standard_normal(num), 0, 1)
