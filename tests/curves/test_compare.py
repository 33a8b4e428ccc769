"""Pairs and sets: ceilings first, then efficiency, and what would decide."""

import numpy as np
import pytest
from simulate import run, sigmoid

from scalerl.curves import NoteKind, PairKind, compare, find_note, fit, linearise, refit


def fitted(seed: int, **params):
    return fit(*run(seed, **{"reach": 4.0, "num": 30, **params}), start=0.4)


def verdict(fits, **options) -> tuple[PairKind, str | None]:
    (pair,) = compare(fits, **options).pairs
    return pair.kind, pair.winner


def test_ceilings_decide_first():
    (pair,) = compare({"low": fitted(2, reach=8.0), "high": fitted(1, ceiling=0.68, reach=8.0)}).pairs
    assert (pair.kind, pair.winner, pair.loser) == (PairKind.HIGHER_CEILING, "high", "low")
    assert pair.p_higher_ceiling < 0.05
    assert pair.p_higher_by_margin <= pair.p_higher_ceiling
    d = pair.ceiling_difference
    assert d.low < -0.08 < d.high < 0


def test_equal_ceilings_of_other_exponents_differ_in_efficiency():
    result = compare({"slow": fitted(0, exponent=1.5, reach=8.0), "fast": fitted(1, exponent=2.6, reach=8.0)})
    (pair,) = result.pairs
    assert (pair.kind, pair.winner) == (PairKind.MORE_EFFICIENT, "fast")
    assert pair.p_larger_exponent < 0.05
    assert result.shared_ceiling == pytest.approx(0.6, abs=0.01)
    assert result.shared_exponents["fast"].value == pytest.approx(2.6, abs=0.3)
    assert result.shared_exponents["slow"].value == pytest.approx(1.5, abs=0.2)
    for one in result.shared_fits.values():
        assert one.params["ceiling"] == pytest.approx(result.shared_ceiling, abs=1e-3)


def test_a_midpoint_at_half_the_compute_is_more_efficient():
    (pair,) = compare({"late": fitted(0, reach=6.0), "early": fitted(1, midpoint=0.5, reach=6.0)}).pairs
    assert (pair.kind, pair.winner) == (PairKind.MORE_EFFICIENT, "early")
    assert [target.reward for target in pair.targets] == sorted(target.reward for target in pair.targets)
    target = pair.targets[1]
    assert target.ratio.low < 2.0 < target.ratio.high
    assert target.p_less < 0.05


def test_a_recipe_and_its_repeat_are_not_separable():
    (pair,) = compare({"a": fitted(0), "b": fitted(1)}).pairs
    assert (pair.kind, pair.winner) == (PairKind.NOT_SEPARABLE, None)
    assert find_note(pair.notes, NoteKind.DECIDED_BY) is not None
    spread = find_note(pair.notes, NoteKind.RUN_SPREAD)
    assert spread is not None
    assert spread.sd == pytest.approx(0.03 * 0.2, rel=0.2)


def test_a_swapped_pair_says_the_same():
    one, two = fitted(0), fitted(1, ceiling=0.62, exponent=2.3)
    (here,), (there,) = compare({"a": one, "b": two}).pairs, compare({"b": two, "a": one}).pairs
    assert (here.kind, here.winner) == (there.kind, there.winner)
    assert here.p_higher_ceiling == pytest.approx(1 - there.p_higher_ceiling, abs=0.03)
    assert here.p_ahead == pytest.approx(1 - there.p_ahead, abs=0.03)
    assert here.ceiling_difference.value == pytest.approx(-there.ceiling_difference.value, abs=2e-3)
    assert here.p_larger_exponent == pytest.approx(1 - there.p_larger_exponent, abs=0.03)
    for mine, theirs in zip(here.targets, there.targets, strict=True):
        assert mine.ratio.value == pytest.approx(1 / theirs.ratio.value, rel=0.03)


def test_margin_and_spread_between_runs_are_options():
    fits = {"a": fitted(2, reach=10.0, num=50, ceiling=0.63), "b": fitted(1, reach=10.0, num=50, ceiling=0.68)}
    assert verdict(fits, run_sd=0.001) == (PairKind.HIGHER_CEILING, "b")
    assert verdict(fits, run_sd=0.08)[0] != PairKind.HIGHER_CEILING
    assert verdict(fits, run_sd=0.001, margin=0.1)[0] != PairKind.HIGHER_CEILING


def test_several_seeds_give_the_spread_between_runs():
    compute, rng = np.linspace(0.5, 12.0, 20), np.random.default_rng(0)

    def seeds(ceilings):
        rewards = [sigmoid(compute, ceiling=ceiling) + 0.003 * rng.standard_normal(20) for ceiling in ceilings]
        return fit(np.tile(compute, 4), np.concatenate(rewards), start=0.4, run=np.repeat(range(4), 20))

    (tight,) = compare({"a": seeds([0.6, 0.601, 0.599, 0.6]), "b": seeds([0.66, 0.661, 0.659, 0.66])}).pairs
    (loose,) = compare({"a": seeds([0.55, 0.65, 0.6, 0.6]), "b": seeds([0.58, 0.68, 0.62, 0.64])}).pairs
    assert (tight.kind, tight.winner) == (PairKind.HIGHER_CEILING, "b")
    assert loose.kind != PairKind.HIGHER_CEILING
    assert find_note(tight.notes, NoteKind.RUN_SPREAD) is None
    (coarse,) = compare({"a": seeds([0.57, 0.63, 0.6, 0.61]), "b": seeds([0.58, 0.64, 0.61, 0.62])}, margin=0.1).pairs
    more = find_note(coarse.notes, NoteKind.DECIDED_BY)
    assert more is not None
    assert more.seeds == 5


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
    assert paired.correlation > 0.8
    assert apart.correlation == 0
    assert find_note(paired.notes, NoteKind.SAME_PROMPTS) is not None


def test_standings_add_up_and_can_differ_at_a_compute():
    fits = {
        "slow": fitted(0, ceiling=0.75, exponent=1.5, midpoint=2.0, reach=8.0),
        "fast": fitted(1, ceiling=0.6, exponent=3.0, midpoint=0.5, reach=8.0),
    }
    by_ceiling, early = compare(fits), compare(fits, at=0.8)
    assert by_ceiling.ranking[0][0] == "slow"
    assert early.ranking[0][0] == "fast"
    assert sum(row.p_best for row in by_ceiling.standings) == pytest.approx(1)
    assert by_ceiling.standings[0].regret < by_ceiling.standings[1].regret
    compute = np.geomspace(0.5, 8, 4000)
    gap = sigmoid(compute, 0.75, 1.5, 2.0) - sigmoid(compute, 0.6, 3.0, 0.5)
    crossing = find_note(by_ceiling.pairs[0].notes, NoteKind.CROSSING)
    assert crossing is not None
    assert crossing.compute == pytest.approx(compute[np.flatnonzero(np.diff(np.sign(gap)))[0]], rel=0.15)


def test_a_curve_that_could_not_be_fitted_does_not_stop_the_rest():
    result = compare({"a": fitted(0), "short": fit([1.0, 2.0], [0.4, 0.5], start=0.4), "b": fitted(1)})
    pairs = {(pair.a, pair.b): pair for pair in result.pairs}
    missing = pairs["a", "short"]
    assert (missing.kind, missing.winner) == (PairKind.NO_CURVE, None)
    assert [note.name for note in missing.notes] == ["short"]
    assert np.isnan(missing.p_higher_ceiling)
    assert {name for name, _ in result.ranking} == {"a", "b"}


def test_a_collapsed_run_does_not_win():
    compute, reward = run(1, num=30, ceiling=0.7)
    reward[18:] -= 0.2
    fallen = fit(compute, reward, start=0.4)
    assert verdict({"good": fitted(0), "fallen": fallen}) == (PairKind.HIGHER_CEILING, "good")
    assert compare({"good": fitted(0), "fallen": fallen}).standings[0].name == "good"


def test_a_flat_run_loses_to_one_that_rises():
    reward = 0.4 + 0.004 * np.random.default_rng(0).standard_normal(30)
    flat = fit(np.linspace(0.1, 4, 30), reward, start=0.4)
    assert verdict({"flat": flat, "rises": fitted(1)}) == (PairKind.HIGHER_CEILING, "rises")


def test_a_run_is_never_better_than_a_part_of_itself():
    compute, reward = run(0, num=40, reach=3.0)
    for num in (8, 30):
        (pair,) = compare({"run": fit(compute, reward), "part": fit(compute[:num], reward[:num])}).pairs
        assert (pair.kind, pair.winner) == (PairKind.NOT_SEPARABLE, None)
        assert [note.kind for note in pair.notes] == [NoteKind.SAME_RUN]


@pytest.mark.parametrize(("low", "high"), [("a", "b"), ("b", "a")])
def test_a_verdict_states_what_was_measured(low: str, high: str):
    fits = {low: fitted(0, ceiling=0.60), high: fitted(1, ceiling=0.70)}
    (pair,) = compare({name: fits[name] for name in "ab"}).pairs
    assert pair.winner == high
    fact = find_note(pair.notes, NoteKind.MEASURED)
    assert fact is not None
    assert (fact.difference > 0) == (high == "a")
    assert abs(fact.difference) > 5 * fact.error


@pytest.mark.parametrize(("scale", "zero"), [(0.001, 0.0), (100.0, 10.0)])
def test_a_verdict_does_not_depend_on_the_unit_of_the_reward(scale: float, zero: float):
    fits = {
        name: fit(compute, zero + scale * reward, start=zero + scale * 0.4, bounds=(zero, zero + scale))
        for name, (compute, reward) in {
            "slow": run(0, exponent=1.3, reach=8.0),
            "fast": run(1, exponent=3.0, reach=8.0),
        }.items()
    }
    assert verdict(fits) == (PairKind.MORE_EFFICIENT, "fast")


def test_linearised_the_sigmoid_is_a_straight_line_of_slope_b():
    compute = np.geomspace(0.1, 20, 40)
    exact = refit(fit(compute, sigmoid(compute), start=0.4), ceiling=0.6)
    log_compute, log_f = linearise(exact)
    slope, intercept = np.polyfit(log_compute, log_f, 1)
    assert slope == pytest.approx(1.9, rel=0.02)
    assert intercept == pytest.approx(0.0, abs=0.03)  # F = C^B
    with pytest.raises(ValueError, match="not power"):
        linearise(fit(*run(0, num=10), form="power"))
