"""Comparisons: which recipe at a budget, with the paper's measures beside it."""

import numpy as np
import pytest
from known import known
from simulate import run, sigmoid

from scalerl.forecast.curves import Answer, compare, fit, linearise, refit
from scalerl.forecast.curves.draws import all_pairs, p_above


def fitted(seed: int, **params):
    return fit(*run(seed, **{"reach": 4.0, "num": 30, **params}), start=0.4)


def answered(fits, **options) -> tuple[Answer | None, str | None]:
    (pair,) = compare(fits, **options).pairs
    return pair.answer, pair.winner


def test_the_higher_one_is_taken():
    result = compare({"low": fitted(2, reach=8.0), "high": fitted(1, ceiling=0.68, reach=8.0)})
    (pair,) = result.pairs
    assert (pair.answer, pair.winner, result.winner) == (Answer.TAKE, "high", "high")
    assert pair.p_ahead == pytest.approx(1 - known(result.pick).probability)
    assert pair.p_higher_ceiling < 0.05
    d = pair.ceiling_difference
    assert d.low < -0.08 < d.high < 0
    assert pair.losses[0] == pytest.approx(0.08, abs=0.02)
    assert pair.losses[1] < result.worth


def test_the_budget_is_four_times_the_largest_compute():
    result = compare({"a": fitted(0), "b": fitted(1, reach=8.0)})
    assert (result.at, result.is_default_budget) == (pytest.approx(32.0), True)
    assert not compare({"a": fitted(0), "b": fitted(1)}, at=5.0).is_default_budget


def test_either_will_do_at_one_ceiling():
    """The exponents surely differ, and at the budget that is worth nothing."""
    result = compare(
        {"slow": fitted(0, exponent=1.6, reach=12.0, num=120), "fast": fitted(1, exponent=2.6, reach=12.0, num=120)},
        run_sd=0.001,
    )
    (pair,) = result.pairs
    assert (pair.answer, pair.winner) == (Answer.EITHER, None)
    assert set(result.chosen) == {"slow", "fast"}
    assert pair.p_close >= 0.9
    assert pair.p_larger_exponent < 0.05
    assert result.shared_ceiling == pytest.approx(0.6, abs=0.01)
    assert result.shared_exponents["fast"].value == pytest.approx(2.6, abs=0.4)
    assert result.shared_exponents["slow"].value == pytest.approx(1.6, abs=0.3)
    for one in result.shared_fits.values():
        assert one.params["ceiling"] == pytest.approx(result.shared_ceiling, abs=1e-3)


def test_the_faster_one_is_taken_at_an_early_budget():
    fits = {"late": fitted(0, reach=6.0), "early": fitted(1, midpoint=0.5, reach=6.0)}
    assert answered(fits, at=1.0) == (Answer.TAKE, "early")
    (pair,) = compare(fits).pairs
    assert [target.reward for target in pair.targets] == sorted(target.reward for target in pair.targets)
    target = known(pair.target)
    assert target.ratio is not None
    assert target.ratio.low < 2.0 < target.ratio.high
    assert target.p_less < 0.05


def test_a_recipe_and_its_repeat_have_no_winner():
    (pair,) = compare({"a": fitted(0), "b": fitted(1)}).pairs
    assert pair.answer in (Answer.OPEN, Answer.EITHER)
    assert pair.winner is None


def test_an_open_choice_has_what_would_settle_it():
    (pair,) = compare({"a": fitted(0, reach=1.5), "b": fitted(1, reach=1.5, ceiling=0.62)}).pairs
    assert (pair.answer, pair.winner) == (Answer.OPEN, None)
    assert pair.settling is not None
    assert pair.settling.times is None or pair.settling.times > 1
    assert compare({"a": fitted(0), "b": fitted(1, ceiling=0.8)}).pairs[0].settling is None


def test_a_swapped_pair_says_the_same():
    one, two = fitted(0), fitted(1, ceiling=0.62, exponent=2.3)
    (here,), (there,) = compare({"a": one, "b": two}).pairs, compare({"b": two, "a": one}).pairs
    assert (here.answer, here.winner) == (there.answer, there.winner)
    assert here.p_higher_ceiling == pytest.approx(1 - there.p_higher_ceiling, abs=0.03)
    assert here.p_ahead == pytest.approx(1 - there.p_ahead, abs=0.03)
    assert here.ceiling_difference.value == pytest.approx(-there.ceiling_difference.value, abs=2e-3)
    assert here.p_larger_exponent == pytest.approx(1 - there.p_larger_exponent, abs=0.03)
    for mine, theirs in zip(here.targets, there.targets, strict=True):
        assert mine.ratio.value == pytest.approx(1 / theirs.ratio.value, rel=0.08)


def test_pairs_and_standings_have_one_probability():
    result = compare({"a": fitted(0), "b": fitted(1, ceiling=0.61)})
    (pair,) = result.pairs
    by_name = {row.name: row for row in result.standings}
    assert by_name["a"].p_best == pytest.approx(pair.p_ahead)
    assert by_name["b"].p_best == pytest.approx(1 - pair.p_ahead)
    assert (by_name["a"].loss, by_name["b"].loss) == pytest.approx(pair.losses)


def test_the_level_that_is_shown_changes_no_answer():
    results = []
    for level in (0.5, 0.95):
        fits = {
            name: fit(*run(seed, ceiling=ceiling), start=0.4, level=level)
            for name, seed, ceiling in (("a", 0, 0.6), ("b", 1, 0.63))
        }
        results.append(compare(fits))
    one, other = results
    assert one.pick == other.pick
    assert one.pairs[0].p_higher_ceiling == other.pairs[0].p_higher_ceiling
    assert one.pairs[0].settling == other.pairs[0].settling


def test_worth_and_spread_between_runs_are_options():
    fits = {"a": fitted(2, reach=10.0, num=50, ceiling=0.63), "b": fitted(1, reach=10.0, num=50, ceiling=0.68)}
    assert answered(fits, run_sd=0.001) == (Answer.TAKE, "b")
    assert answered(fits, run_sd=0.08) == (Answer.OPEN, None)
    assert answered(fits, run_sd=0.001, worth=0.1) == (Answer.EITHER, None)


def test_several_seeds_give_the_spread_between_runs():
    compute, rng = np.linspace(0.5, 12.0, 20), np.random.default_rng(0)

    def seeds(ceilings):
        rewards = [sigmoid(compute, ceiling=ceiling) + 0.003 * rng.standard_normal(20) for ceiling in ceilings]
        return fit(np.tile(compute, 4), np.concatenate(rewards), start=0.4, run=np.repeat(range(4), 20))

    tight = compare({"a": seeds([0.6, 0.601, 0.599, 0.6]), "b": seeds([0.66, 0.661, 0.659, 0.66])})
    loose = compare({"a": seeds([0.55, 0.65, 0.6, 0.6]), "b": seeds([0.58, 0.68, 0.62, 0.64])})
    assert tight.winner == "b"
    assert loose.winner is None
    assert tight.standings[0].assumed_spread is None
    assert compare({"a": fitted(0), "b": fitted(1)}).standings[0].assumed_spread == pytest.approx(0.006, rel=0.3)


def test_common_noise_cancels_in_a_paired_comparison():
    compute, _ = run(0, reach=6.0)
    common = 0.01 * np.random.default_rng(3).standard_normal(40)
    own = 0.001 * np.random.default_rng(4).standard_normal((2, 40))
    labels = np.array([f"prompts@{step}" for step in range(40)])
    rewards = [sigmoid(compute, ceiling) + common + noise for ceiling, noise in zip((0.6, 0.625), own, strict=True)]

    def compared(evaluation):
        fits = {
            name: fit(compute, reward, start=0.4, evaluation=evaluation)
            for name, reward in zip("ab", rewards, strict=True)
        }
        return compare(fits, run_sd=0.0)

    paired, apart = compared(labels), compared(None)
    assert paired.pairs[0].p_higher_ceiling < apart.pairs[0].p_higher_ceiling
    assert paired.pairs[0].p_ahead < apart.pairs[0].p_ahead
    assert paired.correlation > 0.8
    assert apart.correlation == 0


def test_the_answer_depends_on_the_budget():
    fits = {
        "slow": fitted(0, ceiling=0.75, exponent=1.5, midpoint=2.0, reach=8.0),
        "fast": fitted(1, ceiling=0.6, exponent=3.0, midpoint=0.5, reach=8.0),
    }
    late, early = compare(fits), compare(fits, at=0.8)
    assert (late.winner, early.winner) == ("slow", "fast")
    assert sum(row.p_best for row in late.standings) == pytest.approx(1)
    assert late.standings[0].loss < late.standings[1].loss
    compute = np.geomspace(0.5, 8, 4000)
    gap = sigmoid(compute, 0.75, 1.5, 2.0) - sigmoid(compute, 0.6, 3.0, 0.5)
    crossing = compute[np.flatnonzero(np.diff(np.sign(gap)))[0]]
    assert late.pairs[0].crossing == pytest.approx(crossing, rel=0.15)


def test_a_curve_that_could_not_be_fitted_does_not_stop_the_rest():
    result = compare({"a": fitted(0), "short": fit([1.0, 2.0], [0.4, 0.5], start=0.4), "b": fitted(1)})
    pairs = {(pair.a, pair.b): pair for pair in result.pairs}
    assert pairs["a", "short"].answer is None
    assert np.isnan(pairs["a", "short"].p_higher_ceiling)
    assert pairs["a", "b"].answer is not None
    assert {row.name for row in result.standings} == {"a", "b"}


def test_a_collapsed_run_competes_with_its_best_checkpoint():
    compute, reward = run(1, num=30, ceiling=0.7)
    reward[18:] -= 0.2
    fallen = fit(compute, reward, start=0.4)
    result = compare({"good": fitted(0), "fallen": fallen}, at=4.0)
    by_name = {row.name: row for row in result.standings}
    assert by_name["fallen"].uses_best_checkpoint
    assert not by_name["good"].uses_best_checkpoint
    assert by_name["fallen"].reward.value == pytest.approx(sigmoid(compute[17], 0.7), abs=0.03)
    assert result.winner == "fallen"
    # A higher end of the other decides against it.
    assert compare({"good": fitted(0, ceiling=0.8), "fallen": fallen}).winner == "good"


def test_a_flat_run_loses_to_one_that_rises():
    reward = 0.4 + 0.004 * np.random.default_rng(0).standard_normal(30)
    flat = fit(np.linspace(0.1, 4, 30), reward, start=0.4)
    assert answered({"flat": flat, "rises": fitted(1)}) == (Answer.TAKE, "rises")


def test_a_run_is_never_better_than_a_part_of_itself():
    compute, reward = run(0, num=40, reach=3.0)
    for num in (8, 30):
        (pair,) = compare({"run": fit(compute, reward), "part": fit(compute[:num], reward[:num])}).pairs
        assert (pair.answer, pair.winner, pair.is_same_run) == (None, None, True)


@pytest.mark.parametrize(("low", "high"), [("a", "b"), ("b", "a")])
def test_what_was_measured_stands_beside_the_answer(low: str, high: str):
    fits = {low: fitted(0, ceiling=0.60), high: fitted(1, ceiling=0.70)}
    (pair,) = compare({name: fits[name] for name in "ab"}).pairs
    assert pair.winner == high
    seen = known(pair.measured)
    assert (seen.difference > 0) == (high == "a")
    assert abs(seen.difference) > 5 * seen.error


@pytest.mark.parametrize(("scale", "zero"), [(0.001, 0.0), (100.0, 10.0)])
def test_the_unit_of_the_reward_does_not_matter(scale: float, zero: float):
    runs = {"low": run(0, reach=8.0), "high": run(1, ceiling=0.68, reach=8.0)}
    fits = {
        name: fit(compute, zero + scale * reward, start=zero + scale * 0.4, bounds=(zero, zero + scale))
        for name, (compute, reward) in runs.items()
    }
    assert answered(fits) == (Answer.TAKE, "high")


def test_linearised_the_sigmoid_is_a_straight_line_of_slope_b():
    compute = np.geomspace(0.1, 20, 40)
    exact = refit(fit(compute, sigmoid(compute), start=0.4), ceiling=0.6)
    log_compute, log_f = linearise(exact)
    slope, intercept = np.polyfit(log_compute, log_f, 1)
    assert slope == pytest.approx(1.9, rel=0.02)
    assert intercept == pytest.approx(0.0, abs=0.03)  # F = C^B
    with pytest.raises(ValueError, match="not power"):
        linearise(fit(*run(0, num=10), form="power"))


def test_draws_of_two_recipes_all_meet():
    rng = np.random.default_rng(0)
    for shift in (0.3, 1.0, 1.8):
        one, other = shift + rng.standard_normal(2000), np.round(rng.standard_normal(2000), 1)
        other[:50] = one[:50]
        every = np.subtract.outer(one, other)
        exact = np.mean(every > 0) + 0.5 * np.mean(every == 0)
        assert p_above(one, other) == pytest.approx(exact)
        some, others = all_pairs(one, other)
        assert np.mean(some > others) == pytest.approx(exact, abs=0.003)
        for share in (0.05, 0.5, 0.95):
            assert np.quantile(some - others, share) == pytest.approx(np.quantile(every, share), abs=0.02)


def test_names_decide_nothing():
    """A recipe that is renamed has the same probabilities to the last digit."""
    fits = [fitted(seed, reach=1.5, ceiling=0.6 + 0.02 * seed) for seed in range(3)]
    one, other = (compare(dict(zip(names, fits, strict=True))) for names in ("abc", ("grpo", "cispo", "a")))
    assert known(one.pick) == known(other.pick)
    assert [pair.lead for pair in one.pairs] == [pair.lead for pair in other.pairs]
    assert [pair.targets for pair in one.pairs] == [pair.targets for pair in other.pairs]
