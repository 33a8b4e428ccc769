import numpy as np
import pytest
from scalerl.curves.pairs.notes import MeasuredDifference, ProbablyHigher
from simulate import run, sigmoid

from scalerl.curves import compare, fit, linearise, refit


def fitted(seed: int, **params):
    return fit(*run(seed, **{"reach": 4.0, **params}), start=0.4)


def test_ceilings_decide_first():
    pair = compare({"low": fitted(0), "high": fitted(1, ceiling=0.68)}).pairs[0]
    assert pair.verdict == "high has the higher ceiling"
    assert pair.p_higher_ceiling < 0.01


def test_exponents_decide_where_ceilings_tie():
    pair = compare({"slow": fitted(0, exponent=1.3), "fast": fitted(1, exponent=3.0)}).pairs[0]
    assert pair.verdict == "fast is more efficient"
    assert pair.p_more_efficient < 0.01


@pytest.mark.parametrize(
    ("exponent", "verdict"), [(1.3, "high is more efficient"), (1.9, "not separable"), (3.0, "not separable")]
)
def test_probably_higher_ceiling_is_not_shared(exponent: float, verdict: str):
    """Then who is cheaper at a shared ceiling says nothing, unless it is the same one."""
    low, high = fitted(0, exponent=exponent), fitted(1, ceiling=0.635 - 0.005 * (exponent > 2))
    result = compare({"low": low, "high": high})
    (pair,) = result.pairs
    # The difference is stated as a size, whichever name comes first.
    (renamed,) = compare({"a": low, "b": high}).pairs
    differences = [
        note.difference for each in (pair, renamed) for note in each.notes if isinstance(note, ProbablyHigher)
    ]
    assert differences == pytest.approx([abs(pair.ceiling_difference)] * 2, rel=0.2)
    assert 0.015 < pair.p_higher_ceiling <= 0.1
    assert pair.probably_higher == "high"
    assert pair.verdict == verdict
    assert "The ceiling of high is probably 0.0" in pair.messages[0]
    assert result.shared_fits == {}


def test_midpoints_decide_where_ceilings_and_exponents_tie():
    result = compare({"late": fitted(0, reach=6.0), "early": fitted(1, midpoint=0.6, reach=6.0)})
    assert result.pairs[0].verdict == "early is more efficient"
    assert result.pairs[0].p_sooner < 0.01


def test_a_recipe_and_its_repeat_are_not_separable():
    pair = compare({"a": fitted(0), "b": fitted(1)}).pairs[0]
    assert pair.verdict == "not separable"
    assert any("0.01 between runs is assumed" in text for text in pair.messages)
    assert pair.assumed_run_sd == 0.01
    assert pair.shared


def test_swapped_comparison_gives_the_same_verdict():
    one, two = fitted(0), fitted(1, ceiling=0.62, exponent=2.3)
    here, there = compare({"a": one, "b": two}).pairs[0], compare({"b": two, "a": one}).pairs[0]
    assert here.p_higher_ceiling == pytest.approx(1 - there.p_higher_ceiling)
    assert here.p_more_efficient == pytest.approx(1 - there.p_more_efficient)
    assert here.p_sooner == pytest.approx(1 - there.p_sooner)
    assert here.ceiling_difference == pytest.approx(-there.ceiling_difference)
    assert here.ceiling_difference < 0
    assert here.verdict == there.verdict


def test_without_spread_between_runs_a_small_difference_is_seen():
    one, two = fitted(0, reach=8.0), fitted(1, reach=8.0, ceiling=0.625)
    assert compare({"a": one, "b": two}).pairs[0].verdict == "not separable"
    assert compare({"a": one, "b": two}, run_sd=0.0).pairs[0].verdict == "b has the higher ceiling"


def test_several_seeds_give_the_spread_between_runs():
    compute = np.linspace(0.4, 4.0, 30)
    rng = np.random.default_rng(0)

    def seeds(ceilings):
        rewards = [sigmoid(compute, ceiling=ceiling) + 0.003 * rng.standard_normal(30) for ceiling in ceilings]
        return fit(np.tile(compute, 4), np.concatenate(rewards), start=0.4, run=np.repeat(range(4), 30))

    tight = compare({"a": seeds([0.6, 0.601, 0.599, 0.6]), "b": seeds([0.63, 0.631, 0.629, 0.63])}).pairs[0]
    loose = compare({"a": seeds([0.57, 0.63, 0.6, 0.6]), "b": seeds([0.6, 0.66, 0.62, 0.64])}).pairs[0]
    assert tight.verdict == "b has the higher ceiling"
    assert loose.verdict == "not separable"
    assert not any("assumed" in text for text in tight.messages)


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
        return compare(fits, run_sd=0.0).pairs[0]

    paired, apart = compared(labels), compared(None)
    assert paired.p_higher_ceiling < apart.p_higher_ceiling
    assert any("same prompts" in text for text in paired.messages)


def test_ranking_at_a_compute_can_differ_from_ceilings():
    slow = fitted(0, ceiling=0.75, exponent=1.5, midpoint=2.0, reach=8.0)
    fast = fitted(1, ceiling=0.6, exponent=3.0, midpoint=0.5, reach=8.0)
    by_ceiling, early = compare({"slow": slow, "fast": fast}), compare({"slow": slow, "fast": fast}, at=0.8)
    assert by_ceiling.ranking[0][0] == "slow"
    assert early.ranking[0][0] == "fast"
    assert sum(share for _, share in by_ceiling.ranking) == pytest.approx(1)
    compute = np.geomspace(0.5, 8, 4000)
    gap = sigmoid(compute, 0.75, 1.5, 2.0) - sigmoid(compute, 0.6, 3.0, 0.5)
    crossing = by_ceiling.pairs[0].crossing
    assert crossing == pytest.approx(compute[np.flatnonzero(np.diff(np.sign(gap)))[0]], rel=0.1)


def test_equals_share_a_ceiling_and_are_refitted_with_it():
    result = compare({"a": fitted(0), "b": fitted(1), "far": fitted(2, ceiling=0.5)})
    assert set(result.shared_exponents) == {"a", "b"}
    assert result.shared_ceiling == pytest.approx(0.6, abs=0.01)
    for one in result.shared_fits.values():
        assert one.params["ceiling"] == pytest.approx(result.shared_ceiling)
    for value in result.shared_exponents.values():
        assert value.value == pytest.approx(1.9, abs=0.15)
        assert value.low < value.value < value.high


def test_a_curve_that_could_not_be_fitted_does_not_stop_the_rest():
    result = compare({"a": fitted(0), "short": fit([1.0, 2.0], [0.4, 0.5], start=0.4), "b": fitted(1)})
    verdicts = {(pair.a, pair.b): pair for pair in result.pairs}
    assert verdicts["a", "short"].verdict == "no curve"
    assert "too few points" in verdicts["a", "short"].messages[0]
    assert np.isnan(verdicts["a", "short"].p_higher_ceiling)
    assert {name for name, _ in result.ranking} == {"a", "b"}


def test_an_unstable_run_is_not_called_efficient():
    compute, reward = run(1, num=30, reach=4.0)
    reward[15:] -= 0.1
    pair = compare({"good": fitted(0), "fallen": fit(compute, reward, start=0.4)}).pairs[0]
    assert "efficient" not in pair.verdict


def test_independent_noise_is_rarely_called_paired():
    labels = np.array([f"prompts@{step}" for step in range(40)])
    called = 0
    for seed in range(20):
        fits = {
            name: fit(*run(2 * seed + offset), start=0.4, evaluation=labels) for name, offset in (("a", 0), ("b", 1))
        }
        called += any("same prompts" in text for text in compare(fits).pairs[0].messages)
    assert called <= 4


def test_only_a_sigmoid_can_be_linearised():
    with pytest.raises(ValueError, match="not power"):
        linearise(fit(*run(0), form="power"))


def test_linearised_the_sigmoid_is_a_straight_line_of_slope_b():
    compute = np.geomspace(0.1, 20, 40)
    exact = refit(fit(compute, sigmoid(compute), start=0.4), 0.6)
    log_compute, log_f = linearise(exact)
    slope, intercept = np.polyfit(log_compute, log_f, 1)
    assert slope == pytest.approx(1.9, rel=1e-3)
    assert intercept == pytest.approx(0.0, abs=0.01)  # F = C^B
    assert len(log_compute) <= 40


def early(seed: int, until: float, **params):
    """The first 30 evaluations of a run, evenly spaced."""
    rng = np.random.default_rng(seed)
    compute = np.linspace(until / 30, until, 30)
    return fit(compute, rng.binomial(1000, sigmoid(compute, **params)) / 1000, start=params["start"])


@pytest.mark.parametrize("seed", range(4))
def test_unknown_ceilings_are_not_treated_as_equal(seed: int):
    """The higher ceiling rises more slowly: who is ahead now says nothing of who will be."""
    high = early(seed, 1500.0, ceiling=0.9, exponent=1.3, midpoint=3000.0, start=0.1)
    low = early(seed + 10, 1500.0, ceiling=0.6, exponent=2.5, midpoint=800.0, start=0.1)
    (pair,) = compare({"high": high, "low": low}).pairs
    assert pair.verdict == "not separable"
    assert pair.messages[0].startswith("At one ceiling for both, low is more efficient; but it is not known yet")


@pytest.mark.parametrize("seed", range(4))
def test_a_run_that_is_not_half_way_up_is_not_called_lower(seed: int):
    """Both runs follow one law, and the shorter run must not be called the lower one."""
    law = {"ceiling": 0.9, "exponent": 1.8, "midpoint": 1000.0, "start": 0.05}
    (pair,) = compare({"long": early(seed, 3000.0, **law), "short": early(seed + 10, 500.0, **law)}).pairs
    assert pair.verdict == "not separable"
    if pair.probably_higher:
        assert "But short may not be half-way up yet, so its own is a guess." in pair.messages[0]


@pytest.mark.parametrize(("scale", "zero"), [(0.001, 0.0), (100.0, 0.0), (1.0, 10.0)])
def test_a_verdict_does_not_depend_on_the_unit_of_the_reward(scale: float, zero: float):
    runs = {"slow": run(0, exponent=1.3), "fast": run(1, exponent=3.0)}
    fits = {
        name: fit(compute, zero + scale * reward, start=zero + scale * 0.4, bounds=(zero, zero + scale))
        for name, (compute, reward) in runs.items()
    }
    pair = compare(fits).pairs[0]
    assert pair.verdict == "fast is more efficient"
    assert pair.assumed_run_sd == pytest.approx(0.01 * scale)


def test_runs_at_different_compute_were_not_measured_together():
    fits = {"early": fitted(0), "late": fitted(1, ceiling=0.8, midpoint=100.0, reach=600.0)}
    (pair,) = compare(fits).pairs
    assert pair.winner == "late"
    assert [note.kind for note in pair.notes if "measured" in note.kind] == ["not_measured_together"]


def test_a_run_is_never_better_than_a_part_of_itself():
    compute, reward = run(0, num=40, reach=3.0)
    for num in (8, 16, 30):
        pair = compare({"run": fit(compute, reward), "part": fit(compute[:num], reward[:num])}).pairs[0]
        assert pair.winner is None
        assert any(note.kind == "same_run" for note in pair.notes)


def test_a_run_lower_wherever_both_were_measured_never_wins():
    # The lower run bends earlier and so has a midpoint that lies first; its ceiling is unknown.
    compute = np.linspace(0.05, 1.0, 40)
    rng = np.random.default_rng(0)
    low = 0.40 + 0.10 / (1 + (0.1 / compute) ** 2) + 0.003 * rng.standard_normal(40)
    high = 0.45 + 0.30 / (1 + (0.8 / compute) ** 2) + 0.003 * rng.standard_normal(40)
    pair = compare({"low": fit(compute, low), "high": fit(compute, high)}).pairs[0]
    assert pair.winner != "low"
    assert any(note.kind == "measured_difference" for note in pair.notes)


@pytest.mark.parametrize(("low", "high"), [("a", "b"), ("b", "a")])
def test_a_verdict_states_the_measured_fact(low: str, high: str):
    compute = np.linspace(0.4, 4.0, 40)
    rng = np.random.default_rng(0)
    fits = {
        name: fit(compute, sigmoid(compute, ceiling) + 0.004 * rng.standard_normal(40), start=0.4)
        for name, ceiling in ((low, 0.60), (high, 0.70))
    }
    pair = compare(fits).pairs[0]
    assert pair.winner == high
    (fact,) = [note for note in pair.notes if isinstance(note, MeasuredDifference)]
    assert (fact.higher, fact.lower) == (high, low)
    assert fact.difference > 5 * fact.error
    assert (fact.low, fact.high) == pytest.approx((compute[0], compute[-1]))
