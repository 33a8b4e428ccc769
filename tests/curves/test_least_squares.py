import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import least_squares as scipy_least_squares
from simulate import run, sigmoid

from scalerl.curves import fit
from scalerl.curves.forms import FORMS
from scalerl.curves.least_squares import least_squares
from scalerl.curves.notes import AtBound
from scalerl.curves.points import Known, make_points

FREE = Known(log_shape={})


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("reach", [0.8, 2.0, 6.0])
def test_it_finds_what_many_starts_of_a_general_solver_find(seed: int, reach: float):
    compute, reward = run(seed, reach=reach, num=25, exponent=1.3 + 0.3 * seed)
    ours = fit(compute, reward, start=0.4, intervals=False)

    def residual(params):
        return sigmoid(compute, params[0], np.exp(params[1]), np.exp(params[2]) * reach) - reward

    best = np.inf
    for ceiling in (0.45, 0.6, 0.9):
        for log_exponent in (-0.5, 0.5, 1.5):
            for log_midpoint in (-2.0, 0.0, 2.0):
                result = scipy_least_squares(
                    residual,
                    [ceiling, log_exponent, log_midpoint],
                    bounds=([0.4, np.log(0.1), np.log(1e-4)], [1.0, np.log(20.0), np.log(1e3)]),
                )
                best = min(best, 2 * result.cost)
    assert ours.sum_squares <= best * (1 + 1e-6)


@pytest.mark.parametrize("form", ["sigmoid", "power", "exponential", "log-linear"])
def test_it_recovers_each_form_from_exact_data(form: str):
    compute = np.geomspace(1.0, 300.0, 30)
    truths = {
        "sigmoid": {"ceiling": 0.7, "exponent": 1.7, "midpoint": 20.0, "start": 0.2},
        "power": {"ceiling": 0.7, "exponent": 0.6, "shortfall": 0.02},
        "exponential": {"ceiling": 0.7, "midpoint": 20.0, "start": 0.2},
        "log-linear": {"ceiling": 1.0, "exponent": 0.15, "shortfall": 0.3},
    }
    reward = FORMS[form].curve(compute, truths[form], scale=300.0)
    result = fit(compute, reward, form=form, intervals=False)
    for name, value in truths[form].items():
        assert result.params[name] == pytest.approx(value, rel=1e-3), name


def test_any_parameter_can_be_held_fixed():
    compute, reward = run(0)
    for name, value in {"ceiling": 0.58, "exponent": 2.5, "midpoint": 1.3, "start": 0.35}.items():
        result = fit(compute, reward, fixed={name: value})
        assert result.params[name] == pytest.approx(value)
        low, high = result.interval(name)
        assert low == pytest.approx(value)
        assert high == pytest.approx(value)
    everything = {"ceiling": 0.6, "exponent": 1.9, "midpoint": 1.0, "start": 0.4}
    np.testing.assert_allclose(fit(compute, reward, fixed=everything).predict(compute), sigmoid(compute))


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 10_000), factor=st.sampled_from([1e-6, 1e3, 1e18]))
def test_the_unit_of_compute_changes_nothing_but_the_midpoint(seed: int, factor: float):
    compute, reward = run(seed, reach=2.0, num=20)
    here, there = (fit(x, reward, start=0.4, intervals=False) for x in (compute, compute * factor))
    assert there.params["ceiling"] == pytest.approx(here.params["ceiling"], abs=1e-7)
    assert there.params["exponent"] == pytest.approx(here.params["exponent"], rel=1e-4)
    assert there.params["midpoint"] == pytest.approx(here.params["midpoint"] * factor, rel=1e-4)
    assert there.verdict == here.verdict


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 10_000))
def test_the_order_of_the_points_does_not_matter(seed: int):
    compute, reward = run(seed, num=20)
    shuffled = np.random.default_rng(seed).permutation(20)
    a, b = fit(compute, reward, intervals=False), fit(compute[shuffled], reward[shuffled], intervals=False)
    assert a.params == b.params


def test_bounds_are_respected_and_reported():
    compute = np.linspace(1, 10, 20)
    straight = least_squares(make_points(compute, 0.1 + 0.08 * compute), FORMS["power"], FREE)
    assert straight.level <= 1.0
    assert AtBound(param="ceiling", end="largest", value=1.0) in straight.at_bound


def test_papers_grid_is_never_better():
    compute, reward = run(3, reach=8000.0, midpoint=2500.0)
    paper, ours = fit(compute, reward, start=0.4, method="paper"), fit(compute, reward, start=0.4, intervals=False)
    assert np.abs(np.linspace(0.45, 0.8, 71) - paper.params["ceiling"]).min() < 1e-12
    assert np.abs(np.linspace(100, 4000, 100) - paper.params["midpoint"]).min() < 1e-9
    assert ours.sum_squares <= paper.sum_squares * 1.0001
    assert abs(paper.params["ceiling"] - ours.params["ceiling"]) < 0.006
