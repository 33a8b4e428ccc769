"""Simulated runs for the tests of curves."""

from typing import Any

import numpy as np

from scalerl.forecast.logs.series import Series

START, CEILING, NOISE = 0.4, 0.6, 0.004


def sigmoid(compute, ceiling=CEILING, exponent=1.9, midpoint=1.0, start=START):
    return start + (ceiling - start) / (1 + (midpoint / np.asarray(compute, dtype=float)) ** exponent)


def run(seed: int, *, reach: float = 4.0, num: int = 40, noise: float = NOISE, **params):
    """Evenly spaced evaluations from a tenth of the reach, in units of the midpoint."""
    rng = np.random.default_rng(seed)
    compute = np.linspace(0.1 * reach, reach, num)
    return compute, np.clip(sigmoid(compute, **params) + noise * rng.standard_normal(num), 0, 1)


def series(
    name: str = "a",
    *,
    reach: float = 3000.0,
    ceiling: float = 0.6,
    exponent: float = 1.9,
    noise: float = 0.004,
    num: int = 24,
    seed: int = 0,
    runs: int = 1,
    **fields: Any,
) -> Series:
    """A sigmoid from 0.3 with its midpoint at compute 1,000, as it is read from a log."""
    compute = np.tile(np.linspace(reach / 10, reach, num), runs)
    curve = sigmoid(compute, ceiling, exponent, 1000.0, 0.3)
    values: dict[str, Any] = {
        "compute": compute,
        "reward": curve + noise * np.random.default_rng(seed).normal(size=len(compute)),
        "run": np.repeat([f"seed{run}" for run in range(runs)], num) if runs > 1 else None,
        "start": 0.3,
        "x_label": "gpu_hours",
        "y_label": "pass_rate",
    }
    return Series(name=name, **(values | fields))


def broken(name: str = "broken") -> Series:
    """A curve without points: its log could not be read."""
    nothing = np.empty(0)
    return series(name, compute=nothing, reward=nothing, problem="'pass_rate' is NaN at line 3.")
