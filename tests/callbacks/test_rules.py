"""Rules that end training, and the forecast they are applied to."""

import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from scalerl.callbacks import Forecast, LiveForecast
from scalerl.callbacks.forecast import FEWEST_REWARDS, describe, is_due, make_forecast
from scalerl.callbacks.rules import RULES, StopRule
from scalerl.errors import UsageError
from scalerl.forecast.curves import Action, Decision, State, Value
from scalerl.forecast.report.words import to_do


def forecast(state: State = State.RISING, *, p_worth: float = 0.05, p_seen: float = 1.0, num: int = 8) -> Forecast:
    decision = Decision(state=state, action=Action.STOP, worth=0.01, p_worth=p_worth, p_seen=p_seen)
    ceiling = Value(value=0.6, low=0.55, high=0.66)
    return Forecast(
        num_points=num, compute=100.0, decision=decision, to_do="go on", ceiling=ceiling, doubling=None, end=None,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("rule", "state", "p_worth", "stops"),
    [
        ("little to gain", State.RISING, 0.05, True),
        ("little to gain", State.RISING, 0.2, False),
        ("past its peak", State.PAST_PEAK, 0.2, True),
        ("past its peak", State.RISING, 0.05, False),
        (lambda forecast: forecast.num_points >= 8, State.RISING, 0.2, True),
        (lambda forecast: forecast.num_points > 8, State.RISING, 0.05, False),
    ],
)
def test_rules_hold_or_not(rule, state: State, p_worth: float, stops: bool):
    assert StopRule(rule).holds(forecast(state, p_worth=p_worth)) == stops


@pytest.mark.parametrize("rule", ["little to gain", lambda forecast: forecast.decision.p_worth < 0.1])
def test_run_without_a_rise_is_ended_only_after_the_stated_patience(rule):
    flat = forecast(State.FLAT, p_seen=0.1)
    assert not StopRule(rule).holds(flat)
    assert not StopRule(rule, give_up_after=9).holds(flat)
    assert StopRule(rule, give_up_after=8).holds(flat)


def test_too_early_ends_nothing():
    early = forecast(State.TOO_EARLY, p_worth=float("nan"), p_seen=float("nan"))
    assert not StopRule(lambda forecast: True, give_up_after=1).holds(early)


@pytest.mark.parametrize(("rule", "after"), [("p_worth < 0.1", None), ("", None), ("past its peak", 0)])
def test_rules_that_cannot_be_used(rule, after: int | None):
    with pytest.raises(UsageError):
        StopRule(rule, after)


def test_rules_of_the_page_are_those_there_are():
    """Those of docs/other-frameworks.md: the example of a callback and each row of the table."""
    page = (Path(__file__).parents[2] / "docs" / "other-frameworks.md").read_text()
    (example,) = re.findall(r'ForecastCallback\(stop="(.*)"\)', page)
    described = page.partition("| `stop=` |")[2].partition("\n\n")[0]
    assert set(re.findall(r'^\| `"([^`]*)"` \|', described, flags=re.MULTILINE)) == set(RULES)
    assert example in RULES


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
    made = make_forecast(points(12), 200)
    assert made == describe(outlook)
    assert made is not None
    assert made.end is not None
    keys = {"ceiling", "ceiling_low", "end", "doubling", "p_worth", "state", "action"}
    assert {f"forecast/{key}" for key in keys} <= made.metrics().keys()


def test_forecast_of_a_flat_run_claims_no_ceiling():
    made = make_forecast([(float(step), 0.0) for step in range(1, 41)], 200)
    assert made is not None
    assert (made.decision.state, made.ceiling, made.doubling, made.end) == (State.FLAT, None, None, None)
    assert not {"forecast/ceiling", "forecast/end", "forecast/doubling"} & made.metrics().keys()


def test_fall_is_reported_in_the_unit_of_compute():
    fallen = [(compute, reward - 0.3 * (compute > 70)) for compute, reward in points(40)]
    made = make_forecast(fallen, 200, unit="step")
    assert made is not None
    assert made.decision.state == State.PAST_PEAK
    assert made.decision.fall is not None
    past = {"state": State.PAST_PEAK, "action": made.decision.action, "checkpoint": made.decision.fall.last_good}
    assert made.to_do == to_do(past)
    assert made.to_do in made.text


def test_rewards_beyond_one_are_fitted_without_bounds():
    made = make_forecast(points(20, scale=5.0), None)
    assert made is not None
    assert made.ceiling is not None
    assert made.ceiling.value == pytest.approx(3.0, rel=0.1)
    assert make_forecast(points(3), None) is None


def test_training_rewards_are_named_as_such():
    made = make_forecast(points(20), None, is_training=True)
    assert made is not None
    assert made.is_training
    assert "training rewards" in made.text
    assert "training rewards" not in replace(made, is_training=False).text


def test_fits_are_due_at_evaluations_and_rarely_for_training_rewards():
    assert [num for num in range(8) if is_due(num, num - 1, is_training=False)] == [5, 6, 7]
    assert not is_due(FEWEST_REWARDS - 1, 0, is_training=True)
    assert is_due(FEWEST_REWARDS, 0, is_training=True)
    assert not is_due(101, 100, is_training=True)
