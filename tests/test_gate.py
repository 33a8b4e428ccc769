"""The gate of the curve model: its simulated truths, its scores and what it counts as missed."""

import importlib
from dataclasses import replace

import numpy as np
import pytest

gate, fitters, populations, measured = map(importlib.import_module, ("gate", "gate_fitters", "populations", "measured"))


@pytest.mark.parametrize("population", populations.POPULATIONS)
def test_case_repeats_and_its_cuts_hide_what_comes_later(population):
    (case,) = populations.cases(population, "quarter", 1)
    (again,) = populations.cases(population, "quarter", 1)
    assert np.array_equal(case.run.reward, again.run.reward)
    compute, reward = case.scored
    assert len(compute) == len(reward) >= 2
    assert compute.min() > case.run.compute.max()
    assert len(np.unique(case.run.compute)) >= populations.LEAST
    for values in (case.run.num_samples, case.run.label):
        assert values is None or len(values) == len(case.run.reward)


def test_the_whole_run_is_scored_up_to_twice_its_compute():
    (case,) = populations.cases("sigmoid", "whole", 1)
    assert case.scored[0].max() == pytest.approx(2 * case.run.compute.max())
    assert len(case.scored[0]) == populations.NUM_BEYOND


class Oracle:
    """Knows the truth, and says it with a given error."""

    def __init__(self, case, error=0.0):
        self.case, self.error = case, error

    def fit(self, run):
        rewards = dict(zip(*map(np.ndarray.tolist, self.case.scored), strict=True))

        def new(compute):
            values = np.array([rewards[place] for place in compute.tolist()]) + self.error
            return values - 0.01, values + 0.01

        middle = self.case.ceiling + self.error
        ends = {"ceiling_low": middle - 0.01, "ceiling_high": middle + 0.01}
        return fitters.Judged(**ends, is_known=True, is_flat=False, is_fallen=False, new=new)


@pytest.mark.parametrize(("error", "covered", "expected"), [(0.0, 1.0, 0.02), (0.03, 0.0, 0.02 + 20 * 0.02)])
def test_a_score_is_the_width_plus_twenty_times_the_miss(error, covered, expected):
    (case,) = populations.cases("binomial", "half", 1)
    scored = gate.score(Oracle(case, error), case)
    assert (scored.ceiling_covered, scored.new_covered) == (covered, covered)
    assert (scored.ceiling_score, scored.new_score) == pytest.approx((expected, expected))


def test_scores_are_in_units_of_the_gain_where_rewards_have_no_limits():
    (case,) = populations.cases("unbounded", "half", 1)
    larger = replace(case, unit=2 * case.unit)
    assert gate.score(Oracle(larger), larger).new_score == pytest.approx(gate.score(Oracle(case), case).new_score / 2)


def test_a_fitter_that_raises_is_counted(capsys):
    class Raises:
        def fit(self, run):
            raise ValueError("no")

    (case,) = populations.cases("flat", "whole", 1)
    row = gate.summarise("flat", "whole", [gate.try_score(Raises(), case, "flat")])
    assert row["raised"] == 1.0
    assert gate.show([row], {}) == ([row], 1)


@pytest.mark.parametrize(("name", "population", "least"), [
    ("least-squares", "sigmoid", 0.5), ("least-squares", "unbounded", 0.5), ("least-squares", "flat", 0.7),
    ("carried-on", "levelled", 0.5), ("carried-on", "flat", 0.7),
])  # fmt: skip
def test_the_peers_forecast_what_they_are_made_for(name, population, least):
    scored = [gate.score(fitters.find(name), case) for case in populations.cases(population, "half", 10)]
    assert np.mean([each.new_covered for each in scored]) > least


def test_a_miss_within_noise_is_not_one():
    limit = gate.Limit(low=0.85, high=0.95)
    assert [limit.mark(value, 0.04) for value in (0.9, 0.8, 0.7, 0.97, None)] == ["", "?", "!", "?", ""]


TAKE, OTHER, EITHER = (
    fitters.Decision(answer=a, leader=n, efficiency=0) for a, n in (("take", 1), ("take", -1), ("either", 0))
)


@pytest.mark.parametrize(("decision", "lead", "expected", "loss"), [
    (TAKE, 0.1, "right", 0.0), (OTHER, 0.1, "wrong", 0.1), (fitters.UNDECIDED, 0.1, "undecided", 0.05),
    (EITHER, 0.0, "right", 0.0), (EITHER, 0.1, "wrong", 0.05), (TAKE, -0.005, "right", 0.005),
])  # fmt: skip
def test_what_becomes_of_a_decision(decision, lead, expected, loss):
    pair = populations.Pair(first=None, second=None, lead=lead, efficiency=None)
    assert gate.outcome(decision, pair, False) == expected
    assert gate.lost(decision, pair) == pytest.approx(loss)


def test_one_of_two_alike_runs_is_not_to_be_taken():
    alike = populations.Pair(first=None, second=None, lead=0.0, efficiency=None)
    assert [gate.outcome(each, alike, True) for each in (TAKE, EITHER)] == ["wrong", "right"]


@pytest.mark.parametrize("kind", populations.PAIRS)
def test_both_orders_of_a_pair_are_drawn(kind):
    pairs = list(populations.pairs(kind, False, 20))
    signs = {np.sign(pair.lead) for pair in pairs}
    assert signs in ({0.0}, {-1.0, 1.0})
    is_behind = "late" in kind
    for pair in pairs:
        late = [run.reward[-5:].mean() for run in (pair.first, pair.second)]
        if abs(pair.lead) > 0.1 and len(pair.first.reward) == len(pair.second.reward) and not is_behind:
            assert np.sign(late[0] - late[1]) == np.sign(pair.lead)


@pytest.mark.parametrize(("difference", "expected"), [(0.1, "clear"), (-0.1, "clear"), (0.0, "alike")])
def test_a_late_difference_is_clear_beyond_its_standard_error(difference, expected):
    rng = np.random.default_rng(3)
    compute = np.arange(1.0, 61.0)
    runs = [
        populations.Run(compute=compute, reward=0.5 + more + 0.01 * rng.standard_normal(60))
        for more in (difference, 0.0)
    ]
    kind, lead = measured.compared(*runs)
    assert kind == expected
    assert lead == pytest.approx(difference, abs=0.01)
    assert measured.compared(runs[0], replace(runs[1], compute=100 * compute)) is None


def test_our_runs_are_read_each_once():
    cases = measured.cases("our runs", 0.5)
    assert len(cases) > 30
    assert len({tuple(case.later_reward) for case in cases}) == len(cases)
    assert all(np.isfinite(case.reached) and case.run.num_samples is not None for case in cases)


def test_logs_of_others_are_read():
    if not measured.DATA.is_dir():
        pytest.skip("the shared data are not here")
    for source in (measured.PUBLISHED, *measured.SOURCES):
        assert len(measured.cases(source, 0.5)) >= 6, source
    kinds = {kind for kind, _ in measured.pairs()}
    assert {"published, clear", "our runs, alike", "our runs, two seeds"} <= kinds
