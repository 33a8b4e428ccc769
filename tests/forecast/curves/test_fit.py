"""`fit`: intervals, options and what it refuses."""

import numpy as np
import pytest
from simulate import NOISE, run, sigmoid

from scalerl.forecast.curves import Kind, Prior, fit, refit


def width(curve, param: str = "ceiling") -> float:
    low, high = curve.interval(param)
    return high - low


def test_a_long_run_gives_its_curve():
    result = fit(*run(0, reach=20.0, num=60), start=0.4)
    low, high = result.interval("ceiling")
    assert low < 0.6 < high
    assert low < result.params["ceiling"] < high
    assert high - low < 0.03
    assert result.noise_sd == pytest.approx(NOISE, rel=0.4)
    assert result.gain == pytest.approx(0.2, abs=0.02)


@pytest.mark.parametrize(
    ("compute", "options", "what", "num"),
    [
        ([1.0, 2.0, 3.0], {}, "points", 4),
        ([], {}, "points", 1),
        ([1.0] * 10 + [2.0] * 10, {}, "computes", 2),
        (np.linspace(1, 4, 20), {"skip_before": 1e9}, "points", 1),
    ],
)
def test_too_few_points_lack_something_and_raise_nothing(compute, options, what: str, num: int):
    result = fit(compute, np.linspace(0.4, 0.5, len(compute)), start=0.4, **options)
    assert result.lack is not None
    assert (result.lack.what, result.lack.num) == (what, num)
    assert result.lack.num_left_out == (len(compute) if options else 0)
    assert not result.usable
    assert not result.has_intervals


def test_kinds_of_curves_have_probabilities():
    plain = fit(*run(0), start=0.4)
    assert sum(plain.probability(kind) for kind in Kind) == pytest.approx(1.0)
    assert plain.probability(Kind.rise) > plain.probability(Kind.fall)
    flat = fit(np.linspace(1, 10, 30), 0.4 + 0.01 * np.random.default_rng(0).standard_normal(30), start=0.4)
    assert flat.probability(Kind.flat) > 5 * plain.probability(Kind.flat)
    assert flat.drawn.draws.seen.mean() < 0.2
    assert plain.drawn.draws.seen.mean() > 0.99


def test_a_late_take_off_is_within_the_intervals():
    """Flat to two fifths of the run: no curve has that shape, and the forecast still holds its end."""
    compute = np.linspace(0.5, 40, 120)
    truth = np.where(compute > 8, sigmoid(np.maximum(compute - 8, 1e-9), midpoint=3.0), 0.4)
    reward = truth + 0.004 * np.random.default_rng(0).standard_normal(120)
    early = fit(compute[:60], reward[:60], start=0.4)
    low, high = early.new_interval([40.0])
    assert low[0] < truth[-1] < high[0]


# Intervals ------------------------------------------------------------------------------------------------------------


def test_intervals_cover():
    """The ceiling, and new evaluations at twice the compute, of 30 small runs."""
    ceilings, new = [], []
    for seed in range(30):
        reach = (1.0, 2.0, 4.0)[seed % 3]
        result = fit(*run(seed, num=20, reach=reach, noise=0.008), start=0.4)
        low, high = result.interval("ceiling")
        ceilings.append(low <= 0.6 <= high)
        later = 2 * reach
        ends = result.new_interval([later])
        reward = sigmoid(later) + 0.008 * np.random.default_rng([seed, 1]).standard_normal()
        new.append(ends[0][0] <= reward <= ends[1][0])
    assert np.mean(ceilings) >= 0.8
    assert np.mean(new) >= 0.8


def test_higher_levels_and_new_evaluations_are_wider():
    result = fit(*run(0), start=0.4)
    assert np.diff(result.interval("ceiling", 0.5)) < np.diff(result.interval("ceiling", 0.9))
    curve, new = result.curve_interval([8.0]), result.new_interval([8.0])
    assert new[0] < curve[0] < result.predict([8.0]) < curve[1] < new[1]


def test_several_seeds_have_a_spread():
    logs = [run(seed, num=25, noise=0.003, ceiling=ceiling) for seed, ceiling in enumerate((0.57, 0.6, 0.63))]
    compute, reward = (np.concatenate(parts) for parts in zip(*logs, strict=True))
    apart = fit(compute, reward, start=0.4, run=np.repeat(["a", "b", "c"], 25))
    assert (apart.num_runs, apart.num_points) == (3, 75)
    assert apart.run_sd == pytest.approx(0.03, rel=0.7)
    assert fit(compute, reward, start=0.4).run_sd is None
    low, high = apart.interval("ceiling")
    assert low < 0.6 < high


def test_counts_give_the_noise():
    compute = np.linspace(0.2, 4, 30)
    rng = np.random.default_rng(0)
    few, many = (
        fit(compute, rng.binomial(num, sigmoid(compute)) / num, start=0.4, num_samples=num) for num in (200, 20_000)
    )
    assert width(many) < width(few)
    assert many.noise_sd == pytest.approx(0.0035, rel=0.5)


def test_a_noisy_start_is_worth_what_its_noise_says():
    runs = [run(seed, reach=2.0) for seed in range(8)]
    widths = [np.mean([width(fit(*each, start=0.4, start_sd=sd)) for each in runs]) for sd in (0.0, 0.01, 0.1)]
    assert widths[0] < widths[1] < widths[2]


def test_long_logs_are_summed_up():
    compute, reward = run(0, num=900, noise=0.02)
    long = fit(compute, reward, start=0.4)
    assert long.num_points == 900
    low, high = long.interval("ceiling")
    assert low < 0.6 < high
    assert high - low < width(fit(compute[::15], reward[::15], start=0.4))
    assert long.noise_sd == pytest.approx(0.02, rel=0.2)


def test_a_fit_is_the_same_each_time():
    compute, reward = run(0, num=20)
    one, other = fit(compute, reward), fit(compute, reward)
    assert one.params == other.params
    assert np.array_equal(one.param_draws("ceiling"), other.param_draws("ceiling"))


# Options --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("fixed", [{"ceiling": 0.62}, {"exponent": 1.9}, {"midpoint": 1.1}, {"start": 0.41}])
def test_what_is_held_fixed_stays(fixed: dict[str, float]):
    result = fit(*run(0, num=20), fixed=fixed)
    ((name, value),) = fixed.items()
    assert result.params[name] == pytest.approx(value, abs=2e-3)
    assert width(result, name) < 2e-3
    assert refit(result).params == result.params


def test_a_prior_narrows_and_the_fit_without_it_is_kept():
    curve = fit(*run(0, num=12, reach=1.2), start=0.4)
    told = Prior(log_exponent=(np.log(1.9), 0.1), log_midpoint=(0.0, 0.1), log_share=(np.log(1 / 3), 0.05), scale=1.0)
    pooled = refit(curve, pool=told)
    assert pooled.alone is curve
    assert pooled.prior == told
    assert width(pooled) < 0.5 * width(curve)
    assert pooled.params["ceiling"] == pytest.approx(0.6, abs=0.02)


@pytest.mark.parametrize("form", ["power", "exponential", "log-linear"])
def test_other_forms(form: str):
    compute, reward = run(0, reach=8.0, num=25)
    result = fit(compute, reward, start=0.4, form=form)
    assert result.usable
    assert set(result.params) == set(result.own_form.params)
    assert result.predict([6.0])[0] == pytest.approx(0.6, abs=0.05)


@pytest.mark.parametrize(("skip", "first"), [(2.0, 2.0), ("20%", 2.0), (None, 1.0)])
def test_skipping_early_compute(skip, first):
    assert fit(*run(0, reach=10.0, num=50), start=0.4, skip_before=skip).compute.min() == pytest.approx(first, abs=0.2)


@pytest.mark.parametrize(
    ("keywords", "words"),
    [
        ({"form": "sigmoidal"}, ["'sigmoidal'", "sigmoid, power"]),
        ({"form": "log-linear", "bounds": None}, ["without limits"]),
        ({"method": "grid"}, ["'grid'", "paper"]),
        ({"method": "paper"}, ["start="]),
        ({"fixed": {"celing": 0.6}}, ["'celing'", "ceiling, exponent, midpoint, start"]),
        ({"fixed": {"exponent": -1.0}}, ["exponent", "-1"]),
        ({"fixed": {"ceiling": 1.2}}, ["ceiling = 1.2"]),
        ({"form": "power", "fixed": {"shortfall": 0.1}}, ["shortfall", "cannot be held fixed"]),
        ({"start": 1.4}, ["start = 1.4", "(0.0, 1.0)"]),
        ({"start": 0.4, "start_sd": -0.1}, ["start_sd", "-0.1"]),
        ({"level": 90}, ["level", "90"]),
        ({"skip_before": "early"}, ["'early'"]),
        ({"fit_until": -1.0}, ["fit_until", "-1"]),
        ({"num_samples": 0}, ["num_samples", "0"]),
        ({"run": ["a"]}, ["run has 1 labels"]),
    ],
)
def test_a_wrong_argument_is_named_with_its_value(keywords, words):
    with pytest.raises(ValueError) as error:  # noqa: PT011
        fit(*run(0), **keywords)
    for word in words:
        assert word in str(error.value)


@pytest.mark.parametrize(
    ("compute", "reward", "word"),
    [
        ([1.0, 2.0], [0.1], "pair up"),
        ([1.0, np.nan], [0.1, 0.2], "positions [1]"),
        ([1.0, 2.0], [0.1, np.inf], "reward holds NaN or infinite"),
        ([0.0, 2.0], [0.1, 0.2], "start="),
        ([1.0, 2.0], [0.1, 1.2], "bounds=None"),
    ],
)
def test_unusable_data_raise_a_clear_error(compute, reward, word):
    with pytest.raises(ValueError, match=None) as error:  # noqa: PT011
        fit(compute, reward)
    assert word in str(error.value)


def test_a_share_that_is_skipped_is_of_all_points_also_of_those_after_the_end():
    compute, reward = run(0, num=40, reach=4.0)
    curve = fit(compute, reward, start=0.4, skip_before="10%", fit_until=2.0)
    assert curve.compute.min() >= 0.4
    assert curve.compute.min() == fit(compute, reward, start=0.4, skip_before=0.4, fit_until=2.0).compute.min()
