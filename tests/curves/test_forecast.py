import numpy as np
import pytest
from scalerl.curves.fitted import _mixed_quantiles, with_noise
from simulate import run, sigmoid

from scalerl.curves import backtest, compute_for, doubling, fit, note_text, rank_forms, reward_at
from scalerl.curves.forecast import inverse, score
from scalerl.curves.forms import FORMS
from scalerl.curves.notes import NothingToScore, TooFewPoints

FIT = fit(*run(0, reach=4.0), start=0.4)


def test_interval_at_a_compute_holds_the_truth():
    (row,) = reward_at(FIT, [8.0])
    assert row.compute == 8.0
    assert row.reward.low < sigmoid(8.0) < row.reward.high
    assert row.reward.low < row.reward.value < row.reward.high


@pytest.mark.parametrize("form", FORMS)
def test_inverse_undoes_the_curve(form: str):
    result = fit(*run(1, reach=4.0), form=form, intervals=False)
    compute = np.array([0.5, 2.0, 5.0])
    rewards = result.predict(compute)
    back = [float(inverse(result, result.own_form, float(reward), result.params)) for reward in rewards]
    np.testing.assert_allclose(back, compute, rtol=1e-9)


def test_compute_for_a_reward_or_above_the_ceiling():
    reached, next_one, never = compute_for(FIT, [0.5, 0.59, 0.8])
    assert reached.compute is not None
    assert reached.compute.value == pytest.approx(1.0, rel=0.05)
    assert "lready reached" in reached.message
    assert next_one.compute is not None
    assert next_one.compute.low < next_one.compute.value < next_one.compute.high
    assert never.compute is None
    assert "above the ceiling" in never.message


def test_probability_of_lying_above_the_ceiling():
    unsure = fit(*run(0, reach=1.5), start=0.4)
    (row,) = compute_for(unsure, [round(unsure.params["ceiling"] - 0.003, 4)])
    assert row.compute is not None
    assert np.isinf(row.compute.high)
    assert "bove the ceiling with probability" in row.message


def test_doubling_is_the_difference_of_the_curve():
    gain = doubling(FIT)
    assert gain.value == pytest.approx(float(FIT.predict(8.0) - FIT.predict(4.0)))
    assert gain.low < gain.value < gain.high


def test_backtest_scores_what_was_not_fitted():
    compute, reward = run(3, reach=6.0, num=60)
    done = backtest(compute[:40], reward[:40], holdout=(compute[40:], reward[40:]), start=0.4, fractions=(0.5,))
    by_hand = fit(compute[:40], reward[:40], start=0.4)
    error = by_hand.predict(compute[40:]) - reward[40:]
    assert done.holdout is not None
    assert done.holdout.num_points == 20
    assert done.holdout.rmse == pytest.approx(np.sqrt(np.mean(error**2)))
    assert done.holdout.bias == pytest.approx(error.mean())
    assert done.holdout.coverage > 0.6
    ((share, half),) = done.fractions
    assert share == 0.5
    assert half is not None
    assert half.num_points == int((compute > 3.0).sum())  # held-out points lie after the fraction too


def test_a_fraction_with_too_few_points_has_no_score():
    done = backtest(*run(0, num=20), start=0.4, fractions=(0.05, 0.2))
    assert [result for _, result in done.fractions] == [None, None]


def test_coverage_is_a_share_of_the_points_within_the_interval():
    low, high = FIT.new_interval([5.0])
    inside, outside = float((low + high)[0] / 2), float(high[0] + 0.05)
    result = score(FIT, np.array([5.0, 5.0]), np.array([inside, outside]))
    assert result is not None
    assert result.coverage == 0.5


def test_coverage_of_many_points_is_that_of_the_interval_at_each():
    compute, reward = run(9, reach=12.0, num=300, noise=0.008)
    low, high = FIT.new_interval(compute)
    result = score(FIT, compute, reward)
    assert result is not None
    assert result.coverage == pytest.approx(np.mean((reward >= low) & (reward <= high)), abs=0.01)


def test_forms_are_ranked_by_their_error_on_unseen_points():
    compute, reward = run(0, reach=8.0, num=80, noise=0.002)
    ranked = rank_forms(compute, reward)
    assert {name for name, _ in ranked} == set(FORMS)
    assert ranked == sorted(ranked, key=lambda row: row[1])
    assert ranked[0][0] == "sigmoid"


def test_impossible_questions_are_refused():
    with pytest.raises(ValueError, match="must be positive"):
        reward_at(FIT, [0.0])
    with pytest.raises(ValueError, match="between 0 and 1"):
        backtest(*run(0), fractions=(1.5,))


def test_compute_for_inverts_the_curve_of_several_ways():
    """A run in two phases, whose curve is averaged over ways to fit it."""
    compute = np.arange(1, 61) * 100.0
    reward = 0.3 + 0.2 / (1 + (300 / compute) ** 3) + 0.3 / (1 + (6000 / compute) ** 2.5)
    done = fit(compute, reward + np.random.default_rng(0).normal(0, 0.004, 60), start=0.3)
    assert done.parts
    for row in compute_for(done, [0.52, 0.62, 0.7]):
        assert row.compute is not None
        assert done.predict(row.compute.value) == pytest.approx(row.reward, abs=1e-4)
        assert row.compute.low < row.compute.value < row.compute.high


def test_quantiles_of_a_mixture_are_those_of_its_parts():
    values, others = np.random.default_rng(0).normal(0.4, 0.05, 4000), np.linspace(0.5, 1.0, 101)
    for weight in (0.0, 0.1, 0.5, 1.0):
        # The obvious way: as many copies of each number as its weight asks for.
        copies = np.concatenate(
            [np.repeat(values, round(1010 * (1 - weight))), np.repeat(others, round(40000 * weight))]
        )
        expected = np.quantile(copies, [0.05, 0.5, 0.95])
        assert _mixed_quantiles(values, others, weight, [0.05, 0.5, 0.95]) == pytest.approx(expected, abs=0.003)


def test_a_guess_allows_for_a_rise_that_nothing_shows():
    open_ended, known = fit(*run(0, reach=0.6), start=0.4), fit(*run(0, reach=6.0), start=0.4)
    assert (open_ended.good_until, known.good_until) == (1.2, np.inf)
    without = fit(*run(0, reach=1.0), start=0.4, bounds=None)
    assert without.verdict == open_ended.verdict
    for each, widens in ((open_ended, True), (known, False), (without, True)):
        places = each.scale * np.array([1.0, 2.0, 2.01, 4.0, 10.0, 100.0])
        curves, spreads = zip(*(each._new(form, draws, places) for form, draws in each.ways()), strict=True)
        values = with_noise(np.concatenate(curves), np.sqrt(np.concatenate(spreads)))
        _, plain = np.clip(np.quantile(values, [0.05, 0.95], axis=0), *each.bounds)
        low, high = each.new_interval(places)
        assert high[:2] == pytest.approx(plain[:2])
        assert high[2] == pytest.approx(plain[2], abs=0.005)
        assert ((high[3:] > plain[3:] + 0.005) == widens).all()
        assert (low <= each.predict(places)).all()
    assert open_ended.new_interval([60.0])[1] > 0.9


def test_far_forecast_without_a_ceiling_is_a_guess():
    open_ended, known = fit(*run(0, reach=0.6), start=0.4), fit(*run(0, reach=6.0), start=0.4)
    assert (open_ended.verdict, known.verdict) == ("ceiling not identifiable yet", "ok")
    near, far = reward_at(open_ended, [1.2, 1.21])
    assert near.message == ""
    assert far.message == (
        "A guess: more than 2 times the compute fitted, and the ceiling is not known, so the interval allows for a "
        "rise that the data do not show"
    )
    assert not any(one.message for one in reward_at(known, [12.0, 60.0]))


def test_a_ceiling_at_its_bound_is_known():
    compute = np.linspace(1, 40, 40)
    result = fit(compute, np.clip(0.2 + 0.8 / (1 + (3 / compute) ** 4), 0, 1), start=0.2)
    assert result.verdict == "at a bound"
    assert reward_at(result, [1000.0])[0].message == ""


def test_a_part_without_a_score_has_a_reason():
    compute, reward = run(0, num=12)
    done = backtest(compute, reward, start=0.4, fractions=(0.05, 0.3, 0.75))
    assert [score is None for _, score in done.fractions] == [True, True, False]
    reasons = dict(done.unscored)
    assert isinstance(reasons[0.05], NothingToScore)
    assert isinstance(reasons[0.3], TooFewPoints)
    assert note_text(reasons[0.05]) == "There are no points before compute 0.2."
