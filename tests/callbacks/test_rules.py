"""Rules that end training, and the forecast they are applied to."""

import numpy as np
import pytest

from scalerl.callbacks import Forecast, LiveForecast, StopRule
from scalerl.callbacks.forecast import describe, make_forecast
from scalerl.curves import Value
from scalerl.errors import UsageError


def forecast(gain: float = 0.01, p_reach: tuple[tuple[float, float], ...] = ()) -> Forecast:
    value = Value(value=gain, low=gain / 2, high=2 * gain)
    return Forecast(
        num_points=8, compute=100.0, verdict="ok", ceiling=Value(value=0.6, low=0.55, high=0.66), end=None,
        gain_per_doubling=value, p_reach=p_reach,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("rule", "stops"),
    [
        ("gain_per_doubling < 0.005", False),
        ("gain_per_doubling < 0.02", True),
        ("gain_per_doubling_high<=0.02", True),
        ("ceiling_high < 0.7 and evaluations >= 8", True),
        ("ceiling_high < 0.7 and evaluations > 8", False),
        ("evaluations > 8 or gain_per_doubling < 2e-2", True),
        ("p_reach(0.7) < 0.05", True),
        ("p_reach(0.5) < 0.05", False),
        ("end < 1.0", False),
    ],
)
def test_rules_hold_or_not(rule: str, stops: bool):
    reason = StopRule(rule).reason(forecast(p_reach=((0.7, 0.01), (0.5, 0.9))))
    assert (reason is not None) == stops


@pytest.mark.parametrize(
    ("rule", "message"),
    [
        ("gain < 0.1", "names 'gain'"),
        ("p_reach < 0.1", "needs a reward"),
        ("ceiling(2) < 0.1", "takes nothing"),
        ("gain_per_doubling", "cannot be read"),
        ("gain_per_doubling < x", "cannot be read"),
        ("", "cannot be read"),
        ("__import__('os') < 1", "cannot be read"),
    ],
)
def test_rules_that_cannot_be_read(rule: str, message: str):
    with pytest.raises(UsageError, match=message):
        StopRule(rule)


def points(num: int, scale: float = 1.0) -> list[tuple[float, float]]:
    compute = np.linspace(5, 100, num)
    noise = np.random.default_rng(0).normal(size=num)
    return [
        (float(c), float(scale * (0.2 + 0.4 / (1 + (20 / c) ** 2) + 0.004 * n)))
        for c, n in zip(compute, noise, strict=True)
    ]


def test_forecast_is_that_of_live_forecast():
    live = LiveForecast(end_compute=200)
    for compute, reward in points(12):
        live.add(compute, reward)
    outlook = live.outlook()
    assert outlook is not None
    made = make_forecast(points(12), 200, rewards=(0.5, 0.99))
    assert made == describe(outlook, 200, (0.5, 0.99))
    assert made is not None
    assert made.end is not None
    assert dict(made.p_reach)[0.5] > 0.95
    assert dict(made.p_reach)[0.99] < 0.05
    assert "At the end of the budget" in made.text
    assert {"forecast/ceiling", "forecast/ceiling_low", "forecast/end", "forecast/verdict"} <= made.metrics().keys()


def test_rewards_beyond_one_are_fitted_without_bounds():
    made = make_forecast(points(20, scale=5.0), None)
    assert made is not None
    assert made.ceiling is not None
    assert made.ceiling.value == pytest.approx(3.0, rel=0.1)
    assert make_forecast(points(3), None) is None
