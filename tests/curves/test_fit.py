"""`fit`: verdicts, intervals, options and what it refuses."""

import csv
import gzip
from pathlib import Path

import numpy as np
import pytest
from simulate import NOISE, run, sigmoid

from scalerl.curves import Kind, NoteKind, Prior, Verdict, find_note, fit, refit
from scalerl.curves.fit import MARGIN


def with_fall(seed: int, drop: float, *, since: float = 0.7, num: int = 40) -> tuple[np.ndarray, np.ndarray]:
    compute, reward = run(seed, num=num)
    reward[int(since * num) :] -= drop
    return compute, reward


def width(curve, param: str = "ceiling") -> float:
    low, high = curve.interval(param)
    return high - low


# Verdicts -------------------------------------------------------------------------------------------------------------


def test_a_long_run_has_a_known_ceiling():
    result = fit(*run(0, reach=20.0, num=60), start=0.4)
    low, high = result.interval("ceiling")
    assert result.verdict == Verdict.KNOWN
    assert low < 0.6 < high
    assert low < result.params["ceiling"] < high
    assert result.noise_sd == pytest.approx(NOISE, rel=0.4)
    assert result.gain == pytest.approx(0.2, abs=0.02)
    assert result.margin == pytest.approx(MARGIN * result.gain)


def test_a_short_run_is_wide_and_says_what_would_decide():
    result = fit(*run(0, reach=0.8), start=0.4)
    assert result.verdict == Verdict.WIDE
    reason = find_note(result.notes, NoteKind.WIDE_CEILING)
    assert reason is not None
    assert reason.high - reason.low > 2 * reason.margin
    assert reason.times is None or reason.times > 1


@pytest.mark.parametrize(("margin", "verdict"), [(0.2, Verdict.KNOWN), (0.001, Verdict.WIDE)])
def test_the_margin_decides_what_counts_as_known(margin: float, verdict: Verdict):
    assert fit(*run(0, reach=3.0), start=0.4, margin=margin).verdict == verdict


@pytest.mark.parametrize("noise", [0.002, 0.02])
def test_flat_runs_are_flat(noise: float):
    verdicts = []
    for seed in range(10):
        reward = 0.4 + noise * np.random.default_rng(seed).standard_normal(30)
        verdicts.append(fit(np.linspace(1, 10, 30), reward, start=0.4, start_sd=None).verdict)
    assert verdicts.count(Verdict.FLAT) >= 9


@pytest.mark.parametrize("since", [0.5, 0.7, 0.85])
def test_a_clear_fall_is_found_where_it_happened(since: float):
    compute, reward = with_fall(1, 0.08, since=since)
    result = fit(compute, reward, start=0.4)
    assert result.verdict == Verdict.FALLEN
    assert result.fall is not None
    place = int(since * 40)
    assert compute[place - 2] <= result.fall.compute <= compute[place + 1]
    assert result.fall.drop == pytest.approx(0.08, abs=0.02)
    assert result.fall.num_after == np.sum(compute > result.fall.compute)
    # It is ranked by where it stands, not by its peak.
    assert np.median(result.standing_draws) == pytest.approx(reward[-5:].mean(), abs=0.02)
    assert fit(compute, reward, start=0.4, fit_until=compute[place - 1]).fall is None


def test_a_run_that_reaches_everything_and_stays_has_not_fallen():
    """It levels off more sharply than any curve. Under a large misfit a plain rise is likelier than one that ends."""
    table = Path(__file__).parents[2] / "docs" / "results" / "forward" / "runs.csv.gz"
    with gzip.open(table, "rt") as rows:
        own = [row for row in csv.DictReader(rows) if (row["arm"], row["seed"]) == ("calculator", "0")]
    start, *later = [(float(row["flops"]), float(row["reward"]), int(row["num_samples"])) for row in own]
    compute, reward, num_samples = np.array(later).T
    assert reward[-40:].min() > 0.99
    start_sd = np.sqrt(start[1] * (1 - start[1]) / start[2])
    result = fit(compute, reward, start=start[1], start_sd=start_sd, num_samples=num_samples)
    assert result.verdict == Verdict.AT_BOUND
    assert result.probability(Kind.rise) > 0.5
    assert result.params["ceiling"] > 0.99


def test_clean_runs_do_not_fall():
    assert not [seed for seed in range(12) if fit(*run(seed, num=30), start=0.4).verdict == Verdict.FALLEN]


def test_a_ceiling_at_the_largest_reward_is_at_a_bound():
    compute = np.linspace(1.0, 60.0, 40)
    reward = np.clip(sigmoid(compute, ceiling=1.0, exponent=2.5, midpoint=3.0), 0, 1)
    assert fit(compute, reward, start=0.4).verdict == Verdict.AT_BOUND


@pytest.mark.parametrize(
    ("compute", "options", "kind"),
    [
        ([1.0, 2.0, 3.0], {}, NoteKind.TOO_FEW_POINTS),
        ([], {}, NoteKind.TOO_FEW_POINTS),
        ([1.0] * 10 + [2.0] * 10, {}, NoteKind.TOO_FEW_COMPUTES),
        (np.linspace(1, 4, 20), {"skip_before": 1e9}, NoteKind.TOO_FEW_POINTS),
    ],
)
def test_too_few_points_are_a_verdict_and_not_an_exception(compute, options, kind):
    result = fit(compute, np.linspace(0.4, 0.5, len(compute)), start=0.4, **options)
    assert result.verdict == Verdict.TOO_FEW
    assert [note.kind for note in result.notes] == [kind]
    assert not result.usable
    assert not result.has_intervals


def test_kinds_of_curves_are_told_by_their_probability():
    compute = np.linspace(0.5, 20, 60)
    noise = 0.004 * np.random.default_rng(0).standard_normal(60)
    late = fit(compute, np.where(compute > 8, sigmoid(np.maximum(compute - 8, 1e-9), midpoint=3.0), 0.4) + noise)
    assert late.probability(Kind.late) > 0.5
    assert find_note(late.notes, NoteKind.LATE_START) is not None
    plain = fit(*run(0), start=0.4)
    assert sum(plain.probability(kind) for kind in Kind) == pytest.approx(1.0)
    assert plain.probability(Kind.rise) > plain.probability(Kind.fall)


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
    compute, reward = run(3, reach=2.0)
    widths = [width(fit(compute, reward, start=0.4, start_sd=sd)) for sd in (0.0, 0.01, 0.1)]
    assert widths[0] < 1.02 * widths[1] < 1.05 * widths[2]


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
    assert pooled.unpooled is curve
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
