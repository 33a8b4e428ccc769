"""What more compute buys, and scores on the run's own past."""

import numpy as np
import pytest
from known import known
from simulate import run, sigmoid

from scalerl.forecast.curves import State, compute_for, decide, fit, most_of_gain, reward_at, score

COMPUTE, REWARD = run(0, reach=4.0)


@pytest.fixture(scope="module")
def curve():
    return fit(COMPUTE, REWARD, start=0.4)


@pytest.fixture(scope="module")
def fallen():
    reward = REWARD.copy()
    reward[28:] -= 0.08
    return fit(COMPUTE, reward, start=0.4)


def test_the_interval_at_a_compute_holds_the_truth_and_widens(curve):
    rows = reward_at(curve, [8.0, 40.0])
    for row in rows:
        assert row.reward.low < sigmoid(row.compute) < row.reward.high
        assert row.reward.low < row.reward.value < row.reward.high
    assert rows[0].reward.high - rows[0].reward.low <= rows[1].reward.high - rows[1].reward.low + 1e-3


def test_compute_for_a_reward_or_above_the_ceiling(curve):
    reached, ahead, never = compute_for(curve, [0.5, 0.59, 0.8])
    assert reached.compute is not None
    assert reached.compute.value == pytest.approx(1.0, rel=0.05)
    assert reached.compute.high < curve.scale
    assert ahead.compute is not None
    assert ahead.compute.low < ahead.compute.value <= ahead.compute.high
    assert never.compute is None
    assert known(never.p_never) > 0.9
    assert reached.p_never == 0.0


@pytest.mark.parametrize("form", ["sigmoid", "power"])
def test_compute_for_undoes_the_curve(form: str):
    curve = fit(COMPUTE, REWARD, form=form)
    for place, row in zip((1.0, 3.0), compute_for(curve, list(curve.predict([1.0, 3.0]))), strict=True):
        assert row.compute is not None
        assert row.compute.value == pytest.approx(place, rel=0.03)


def test_doubling_is_the_difference_of_the_curve(curve):
    gain = known(decide(curve).doubling)
    assert gain.value == pytest.approx(float(np.diff(curve.predict([4.0, 8.0]))[0]), abs=1e-3)
    assert gain.low < gain.value < gain.high


def test_a_fall_is_forecast_onward_from_the_fall(fallen):
    assert decide(fallen).state == State.PAST_PEAK
    now, later = reward_at(fallen, [4.0, 16.0])
    assert later.reward.value == pytest.approx(sigmoid(4.0) - 0.08, abs=0.03)
    # It may recover or fall further.
    assert later.reward.high - later.reward.low > 2 * (now.reward.high - now.reward.low)


def test_most_of_the_gain_has_a_compute(curve):
    place = most_of_gain(curve)
    assert place.low < 19 ** (1 / 1.9) < place.high


def test_a_score_tells_the_error_on_points_that_were_not_fitted():
    compute, reward = run(3, reach=6.0, num=60)
    early = fit(compute[:40], reward[:40], start=0.4)
    error = early.predict(compute[40:]) - reward[40:]
    result = score(early, compute[40:], reward[40:])
    assert result is not None
    assert result.num_points == 20
    assert result.rmse == pytest.approx(np.sqrt(np.mean(error**2)))
    assert result.bias == pytest.approx(error.mean())
    assert known(result.coverage) > 0.6
    assert score(early, compute[:0], reward[:0]) is None


def test_coverage_is_the_share_of_the_points_within_the_interval(curve):
    low, high = curve.new_interval([5.0])
    inside, outside = float((low + high)[0] / 2), float(high[0] + 0.05)
    result = score(curve, np.array([5.0, 5.0]), np.array([inside, outside]))
    assert result is not None
    assert result.coverage == 0.5
    compute, reward = run(9, reach=12.0, num=300, noise=0.008)
    low, high = curve.new_interval(compute)
    many = score(curve, compute, reward)
    assert many is not None
    assert many.coverage == pytest.approx(np.mean((reward >= low) & (reward <= high)), abs=0.02)


def test_impossible_questions_are_refused(curve):
    with pytest.raises(ValueError, match="must be positive"):
        reward_at(curve, [0.0])
