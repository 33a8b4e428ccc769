import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from simulate import run, sigmoid

from scalerl.curves import fit
from scalerl.curves.forms import EXPONENT, MIDPOINT
from scalerl.curves.intervals import AUTOCORRELATIONS


def slow_reference(compute, reward, start: float, levels):
    """Quantiles of the ceiling by brute force: every ceiling, exponent and midpoint of a dense grid, every
    autocorrelation with its covariance matrix written out, the noise's size integrated in closed form."""
    log_compute = np.log(compute / compute.max())
    ceilings = np.linspace(start, 1.0, 1200)
    exponents, midpoints = np.meshgrid(np.linspace(-1.0, 2.2, 120), np.linspace(-4.0, 4.0, 160), indexing="ij")
    shape = 1 / (1 + np.exp(-np.exp(exponents.ravel())[:, None] * (log_compute - midpoints.ravel()[:, None])))
    prior = -0.5 * ((exponents - EXPONENT.prior_mean) / EXPONENT.prior_sd) ** 2
    prior = (prior - 0.5 * ((midpoints - MIDPOINT.prior_mean) / MIDPOINT.prior_sd) ** 2).ravel()
    share = (ceilings - start) / (1 - start)
    prior_share = np.log(1 - share / 2) - np.log(share + 0.01)
    num = len(reward)
    lags = np.abs(np.subtract.outer(np.arange(num), np.arange(num)))
    terms = []
    for rho, weight in AUTOCORRELATIONS:
        covariance = np.where(lags == 0, 1.0, rho**lags)
        inverse, log_det = np.linalg.inv(covariance), np.linalg.slogdet(covariance)[1]
        y = reward - start
        hh, hy, yy = np.einsum("ki,ij,kj->k", shape, inverse, shape), shape @ inverse @ y, y @ inverse @ y
        gain = ceilings - start
        squares = yy - 2 * np.outer(hy, gain) + np.outer(hh, gain**2)
        terms.append(-0.5 * num * np.log(squares) - 0.5 * log_det + prior[:, None] + prior_share + np.log(weight))
    top = max(term.max() for term in terms)
    total = np.sum([np.exp(term - top).sum(axis=0) for term in terms], axis=0)
    cumulative = np.cumsum(total) / total.sum()
    return [float(np.interp(level, cumulative, ceilings)) for level in levels]


@pytest.mark.parametrize(
    ("seed", "reach", "noise"),
    [
        (0, 1.2, 0.012),
        pytest.param(1, 2.5, 0.008, marks=pytest.mark.slow),
        pytest.param(2, 0.8, 0.01, marks=pytest.mark.slow),
    ],
)
def test_the_grid_agrees_with_brute_force(seed: int, reach: float, noise: float):
    compute, reward = run(seed, reach=reach, num=14, noise=noise)
    result = fit(compute, reward, start=0.4)
    assert result.draws is not None
    levels = (0.05, 0.25, 0.5, 0.75, 0.95)
    ours = np.quantile(result.draws.params["ceiling"], levels)
    slow = slow_reference(compute, reward, 0.4, levels)
    width = slow[-1] - slow[0]
    np.testing.assert_allclose(ours, slow, atol=0.02 * width)


def test_equal_input_gives_equal_output():
    compute, reward = run(5)
    a, b = fit(compute, reward), fit(compute, reward)
    assert a.params == b.params
    assert a.interval("ceiling") == b.interval("ceiling")


@pytest.mark.parametrize("factor", [1e-6, 1e6])
@pytest.mark.parametrize("reach", [0.8, 3.0])
def test_rescaling_compute_changes_neither_ceiling_nor_verdict(factor: float, reach: float):
    compute, reward = run(7, reach=reach)
    here, there = fit(compute, reward, start=0.4), fit(compute * factor, reward, start=0.4)
    assert there.verdict == here.verdict
    assert there.params["ceiling"] == pytest.approx(here.params["ceiling"], abs=1e-6)
    assert there.interval("ceiling") == pytest.approx(here.interval("ceiling"), abs=1e-6)
    assert there.params["midpoint"] == pytest.approx(here.params["midpoint"] * factor, rel=1e-5)


def test_exponent_midpoint_and_ceiling_are_kept_jointly():
    compute, reward = run(1, reach=1.5)
    result = fit(compute, reward, start=0.4)
    assert result.draws is not None
    params = result.draws.params
    assert np.corrcoef(params["ceiling"], np.log(params["exponent"]))[0, 1] < -0.8
    # Because they are joint, the curve is known where the data are, however open its parameters.
    low, high = result.curve_interval([1.0])
    assert float((high - low)[0]) < 0.006
    assert np.diff(result.interval("ceiling"))[0] > 0.04


def test_forecasts_far_beyond_the_data_widen():
    compute, reward = run(2, reach=1.5)
    result = fit(compute, reward, start=0.4)
    low, high = result.new_interval([1.5, 3.0, 6.0, 12.0])
    assert (np.diff(high - low) > 0).all()


def test_a_higher_level_holds_a_lower_one():
    compute, reward = run(3)
    result = fit(compute, reward, start=0.4)
    inner, outer = result.interval("ceiling", 0.5), result.interval("ceiling", 0.99)
    assert outer[0] < inner[0] < inner[1] < outer[1]


def test_noisy_start_lies_between_given_and_fitted():
    compute, reward = run(4, reach=2.0)
    width = lambda one: float(np.diff(one.interval("start"))[0])  # noqa: E731
    given_start, noisy, fitted = (
        fit(compute, reward, start=0.4),
        fit(compute, reward, start=0.4, start_sd=0.01),
        fit(compute, reward),
    )
    assert width(given_start) == 0 < width(noisy) < width(fitted)


def test_start_is_fitted_below_a_fixed_ceiling():
    compute, reward = run(4)
    result = fit(compute, reward, fixed={"ceiling": 0.6})
    low, high = result.interval("start")
    assert low < 0.4 < high < 0.45
    assert result.params["start"] == pytest.approx(result.least_squares["start"], abs=0.01)
    # A flat run has the start anywhere near the ceiling, but not above it.
    flat = fit(compute, np.full(40, 0.6) + reward - sigmoid(compute), fixed={"ceiling": 0.6})
    assert flat.draws is not None
    assert flat.draws.params["start"].max() <= 0.6


def test_autocorrelated_noise_widens_the_interval():
    compute = np.linspace(0.4, 4.0, 60)
    widths = []
    for seed in range(9):
        white = 0.004 * np.random.default_rng(seed).standard_normal(60)
        drifting = white.copy()
        for index in range(1, 60):
            drifting[index] = 0.8 * drifting[index - 1] + 0.6 * white[index]
        widths.append(
            [
                float(np.diff(fit(compute, sigmoid(compute) + noise, start=0.4).interval("ceiling"))[0])
                for noise in (white, drifting)
            ]
        )
    white_width, drifting_width = np.median(widths, axis=0)
    assert drifting_width > 1.4 * white_width


def test_the_number_of_samples_weighs_the_points():
    compute, reward = run(6, noise=0.0)
    bad = reward.copy()
    bad[::2] += 0.03
    samples = np.where(np.arange(40) % 2 == 0, 50, 50_000)
    weighted, plain = fit(compute, bad, start=0.4, num_samples=samples), fit(compute, bad, start=0.4)
    assert abs(weighted.params["ceiling"] - 0.6) < 0.003 < abs(plain.params["ceiling"] - 0.6)


def test_spread_between_runs_is_not_noise():
    compute = np.linspace(0.4, 4.0, 30)
    rng = np.random.default_rng(1)
    offsets = [-0.015, 0.0, 0.012, 0.018]
    rewards = [sigmoid(compute, ceiling=0.6 + offset) + 0.004 * rng.standard_normal(30) for offset in offsets]
    labels = np.repeat(np.arange(4), 30)
    result = fit(np.tile(compute, 4), np.concatenate(rewards), start=0.4, run=labels)
    assert result.num_runs == 4
    assert result.noise_sd == pytest.approx(0.004, rel=0.25)
    assert result.run_sd is not None
    assert 0.006 < result.run_sd < 0.04
    pooled = fit(np.tile(compute, 4), np.concatenate(rewards), start=0.4)
    assert np.diff(result.interval("ceiling"))[0] > 1.3 * np.diff(pooled.interval("ceiling"))[0]
    low, high = result.new_interval([8.0])
    assert high[0] - low[0] > 0.03  # of a new run, whose own ceiling is not known


@pytest.mark.parametrize("exponent", [2.2, 2.3])
def test_narrow_posterior_is_not_cut_off(exponent: float):
    compute, rng = np.linspace(0.0128, 2.56, 200), np.random.default_rng(9)
    rewards = [
        sigmoid(compute, ceiling=ceiling, exponent=exponent, start=0.3) + 0.006 * rng.standard_normal(200)
        for ceiling in (0.635, 0.645)
    ]
    result = fit(
        np.tile(compute, 2), np.concatenate(rewards), start=0.3, start_sd=None, run=np.repeat(np.arange(2), 200)
    )
    assert result.draws is not None
    low, middle, high = np.log(np.quantile(result.draws.params["exponent"], (0.05, 0.5, 0.95)))
    assert 0.8 < (high - middle) / (middle - low) < 1.25
    assert low < np.log(exponent) < high


def test_exact_data_do_not_break_it():
    compute = np.linspace(0.4, 4.0, 30)
    result = fit(compute, sigmoid(compute), start=0.4)
    assert result.verdict == "ok"
    assert result.params["ceiling"] == pytest.approx(0.6, abs=2e-3)


@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 10_000),
    num=st.integers(5, 60),
    noise=st.sampled_from([0.0, 0.001, 0.02, 0.2]),
    reach=st.sampled_from([0.05, 0.5, 2.0, 50.0]),
    start=st.sampled_from([None, 0.4, 0.0, 1.0]),
    form=st.sampled_from(["sigmoid", "power", "exponential", "log-linear"]),
)
def test_any_data_give_a_finite_answer_within_bounds(seed, num, noise, reach, start, form):
    compute, reward = run(seed, reach=reach, num=num, noise=noise)
    result = fit(compute, reward, start=start, form=form)
    if result.verdict == "too few points":
        return
    assert result.draws is not None
    for name, values in result.draws.params.items():
        assert np.isfinite(values).all(), name
    assert (result.draws.params["ceiling"] >= 0).all()
    assert (result.draws.params["ceiling"] <= 1 + 1e-9).all()
    low, high = result.new_interval(np.array([reach, 10 * reach]))
    assert (low <= high).all()
    assert np.isfinite(result.predict(compute)).all()
