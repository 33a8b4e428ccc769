"""Rules that end training, and the forecast they are applied to."""

import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from scalerl.callbacks import Forecast, LiveForecast, StopRule, replay
from scalerl.callbacks.forecast import FEWEST_REWARDS, describe, is_due, make_forecast
from scalerl.errors import UsageError
from scalerl.forecast.curves import Action, Decision, State, Value
from scalerl.forecast.logs import Series
from scalerl.forecast.report.words import to_do


def forecast(state: State = State.RISING, *, p_worth: float = 0.05, p_seen: float = 1.0, num: int = 8) -> Forecast:
    decision = Decision(state=state, action=Action.STOP, worth=0.01, p_worth=p_worth, p_seen=p_seen)
    ceiling = Value(value=0.6, low=0.55, high=0.66)
    p_reach = ((0.7, 0.01), (0.5, 0.9))
    return Forecast(
        num_points=num, compute=100.0, decision=decision, to_do="go on", ceiling=ceiling, doubling=None, end=None,
        p_reach=p_reach,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("rule", "stops"),
    [
        ("p_worth < 0.1", True),
        ("p_worth<.01", False),
        ("p_worth < 0.1 and evaluations >= 8", True),
        ("p_worth < 0.1 and evaluations > 8", False),
        ("evaluations > 8 or p_worth <= 5e-2", True),
        ("p_reach(0.7) < 0.05", True),
        ("p_reach(0.5) < 0.05", False),
        ("state == 'rising'", True),
        ('state == "past its peak" or action == "stop"', True),
        ("state != 'rising'", False),
        ("p_nearly_all >= 0", False),  # not known here
        (lambda decision: decision.p_worth < 0.1, True),
        (lambda decision: decision.state == State.PAST_PEAK, False),
    ],
)
def test_rules_hold_or_not(rule, stops: bool):
    assert (StopRule(rule).reason(forecast()) is not None) == stops


@pytest.mark.parametrize("rule", ["p_worth < 0.1", lambda decision: decision.p_worth < 0.1])
def test_run_without_a_rise_is_ended_only_after_the_stated_patience(rule):
    flat = forecast(State.FLAT, p_seen=0.1)
    assert StopRule(rule).reason(flat) is None
    assert StopRule(rule, give_up_after=9).reason(flat) is None
    assert StopRule(rule, give_up_after=8).reason(flat) is not None


def test_too_early_ends_nothing():
    early = forecast(State.TOO_EARLY, p_worth=float("nan"), p_seen=float("nan"))
    assert StopRule("evaluations >= 1", give_up_after=1).reason(early) is None


@pytest.mark.parametrize(
    "rule",
    [
        "gain < 0.1", "ceiling < 0.6", "p_reach < 0.1", "p_worth(2) < 0.1", "p_worth", "p_worth < x", "",
        "__import__('os') < 1", "state < 'rising'", "state == 'ok'", "p_worth == 'rising'", "state == 'flat'",
    ],
)  # fmt: skip
def test_rules_that_cannot_be_used(rule: str):
    with pytest.raises(UsageError):
        StopRule(rule)


def test_rules_of_the_page_can_be_read():
    """Those of docs/from-trl.md, the example of a callback and each row of the table."""
    page = (Path(__file__).parents[2] / "docs" / "from-trl.md").read_text()
    (example,) = re.findall(r'ForecastCallback\(stop_when="(.*)"\)', page)
    rules = page.partition("### Stop rules")[2].partition("`stop_when`")[0]
    rows = re.findall(r"^\| `([^`]*)` \|", rules, flags=re.MULTILINE)
    assert len(rows) == 6
    assert [len(StopRule(rule).groups) for rule in (example, *rows)] == [2, 1, 1, 1, 1, 1, 1]


def test_flat_runs_can_be_ended_with_a_patience():
    assert StopRule("state == 'flat'", give_up_after=20).reason(forecast(State.FLAT, p_seen=0.1, num=20))


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


# Rules on logs that are complete


def series(reward: np.ndarray) -> Series:
    compute = np.arange(1.0, len(reward) + 1)
    noise = 0.005 * np.random.default_rng(1).normal(size=len(reward))
    return Series(
        name="run", compute=compute, reward=np.clip(reward + noise, 0, 1), x_label="step", y_label="eval", start=0.2
    )


def test_replay_counts_what_a_stop_saves_and_costs():
    steps = np.arange(1.0, 41)
    done = replay(series(0.2 + 0.4 / (1 + (4 / steps) ** 3)), StopRule("p_worth < 0.1"))
    assert done.stopped_at is not None
    assert 8 < done.stopped_at < 40
    assert done.saved == 40 - done.stopped_at
    assert done.lost is not None
    assert 0 <= done.lost < 0.03


def test_replay_lets_a_late_riser_go_on():
    steps = np.arange(1.0, 41)
    late = series(0.2 + 0.4 / (1 + np.exp(-(steps - 28) / 1.5)))
    done = replay(late, StopRule("p_worth < 0.1"))
    assert done.stopped_at is None or done.stopped_at > 30
    hasty = replay(late, StopRule("evaluations >= 1", give_up_after=12))
    assert hasty.lost is not None
    assert hasty.lost > 0.3
