import numpy as np
import pytest
from simulate import NOISE, run, sigmoid

from scalerl.curves import fit
from scalerl.curves.notes import Fall


def test_a_long_run_is_ok_and_its_interval_holds_the_truth():
    compute, reward = run(0, reach=5.0)
    result = fit(compute, reward, start=0.4)
    low, high = result.interval("ceiling")
    assert result.verdict == "ok"
    assert result.messages == ()
    assert low < 0.6 < high
    assert low < result.params["ceiling"] < high


def test_short_run_reports_how_far_to_go():
    compute, reward = run(0, reach=0.8)
    result = fit(compute, reward, start=0.4)
    assert result.verdict == "ceiling not identifiable yet"
    assert "times the compute fitted" in result.messages[0]


def test_the_advised_compute_identifies_the_ceiling():
    settled = 0
    for seed in range(10):
        compute, reward = run(seed, reach=0.9)
        message = next(text for text in fit(compute, reward, start=0.4).messages if "times the compute" in text)
        times = float(message.split("about ")[1].split(" times")[0]) if "about" in message else 16.0
        longer = run(seed, reach=0.9 * times, num=int(40 * times))
        settled += fit(*longer, start=0.4).verdict == "ok"
    assert settled >= 7


def test_the_margin_decides_what_counts_as_known():
    compute, reward = run(0, reach=2.0)
    assert fit(compute, reward, start=0.4, margin=0.2).verdict == "ok"
    assert fit(compute, reward, start=0.4, margin=0.001).verdict == "ceiling not identifiable yet"


def test_a_run_that_falls_away_is_unstable():
    compute, reward = run(1, reach=4.0, num=24)
    reward[-4:] -= np.array([0.02, 0.03, 0.04, 0.05])
    result = fit(compute, reward, start=0.4)
    assert result.verdict == "unstable"
    assert result.messages[0].startswith("The reward fell by ")
    assert fit(compute, reward, start=0.4, fit_until=float(compute[-5])).verdict == "ok"


def test_a_collapsing_run_among_several_is_noticed():
    one, other = run(1, num=24), run(2, num=24)
    other[1][-4:] -= 0.05
    labels = np.repeat(["a", "b"], 24)
    result = fit(np.concatenate([one[0], other[0]]), np.concatenate([one[1], other[1]]), start=0.4, run=labels)
    assert result.verdict == "unstable"


@pytest.mark.parametrize("noise", [0.002, 0.01, 0.03])
def test_stable_runs_are_rarely_called_unstable(noise: float):
    wrong = sum(
        fit(*run(seed, reach=[1.0, 3.0, 10.0][seed % 3], num=30, noise=noise), intervals=False).verdict == "unstable"
        for seed in range(60)
    )
    assert wrong <= 1


def test_a_ceiling_at_the_largest_reward_is_at_a_bound():
    compute = np.linspace(1.0, 60.0, 40)
    reward = np.clip(sigmoid(compute, ceiling=1.0, exponent=2.5, midpoint=3.0), 0, 1)
    result = fit(compute, reward, start=0.4)
    assert result.verdict == "at a bound"
    assert "has its ceiling at 1, the highest reward there is" in result.messages[0]


def test_too_few_points_are_a_verdict_and_not_an_exception():
    result = fit([1.0, 2.0, 3.0], [0.4, 0.5, 0.55], start=0.4)
    assert result.verdict == "too few points"
    assert "3 points" in result.messages[0]
    assert not result.usable
    assert fit([], [], start=0.4).verdict == "too few points"


def test_fast_path_has_the_same_verdict_in_clear_cases():
    for reach, verdict in ((0.5, "ceiling not identifiable yet"), (6.0, "ok")):
        result = fit(*run(0, reach=reach), start=0.4, intervals=False)
        assert result.verdict == verdict
        assert result.draws is None
        # 40 points, and three numbers fitted to them; the noise is that of the simulation.
        assert result.noise_sd == pytest.approx(np.sqrt(result.sum_squares / 37))
        assert result.noise_sd == pytest.approx(NOISE, rel=0.3)


def test_power_law_has_no_use_for_a_start():
    compute, reward = run(0)
    without, given = (fit(compute, reward, form="power", start=start, intervals=False) for start in (None, 0.4))
    assert given.params == without.params
    assert not given.start_given


def test_skipping_early_compute_by_value_by_share_and_by_rule():
    compute, reward = run(0, reach=10.0, num=50)
    assert fit(compute, reward, start=0.4, skip_before=2.0).compute.min() >= 2.0
    assert fit(compute, reward, start=0.4, skip_before="20%").compute.min() >= 2.0
    assert fit(compute, reward, start=0.4, skip_before="auto").num_points == 50
    off = reward.copy()
    off[compute < 1.8] -= 0.05  # warm-up: below the curve that the rest follows
    result = fit(compute, off, start=0.4, skip_before="auto")
    assert result.num_points < 50
    assert "Skipped" in result.messages[0]
    assert result.params == fit(compute, off, start=0.4, skip_before=2.0).params


def test_percent_and_unbounded_rewards():
    compute, reward = run(0, reach=5.0)
    loose = fit(compute, 100 * reward - 300, start=-260.0, bounds=None)
    assert loose.params["ceiling"] == pytest.approx(-240, abs=1)


def test_flat_run_has_no_rise():
    rng = np.random.default_rng(0)
    result = fit(np.linspace(1, 10, 30), 0.4 + 0.004 * rng.standard_normal(30), start=0.4)
    assert result.predict(10.0) == pytest.approx(0.4, abs=0.004)


@pytest.mark.parametrize(
    ("keywords", "words"),
    [
        ({"form": "sigmoidal"}, ["'sigmoidal'", "sigmoid, power"]),
        ({"method": "grid"}, ["'grid'", "paper"]),
        ({"fixed": {"celing": 0.6}}, ["'celing'", "ceiling, exponent, midpoint, start"]),
        ({"fixed": {"exponent": -1.0}}, ["exponent", "-1"]),
        ({"form": "power", "fixed": {"shortfall": 0.1}}, ["shortfall", "cannot be held fixed"]),
        ({"start": 1.4}, ["start = 1.4", "(0.0, 1.0)"]),
        ({"start": 0.4, "start_sd": -0.1}, ["start_sd", "-0.1"]),
        ({"level": 90}, ["level", "90"]),
        ({"skip_before": "early"}, ["'early'", "auto"]),
        ({"num_samples": 0}, ["num_samples", "0"]),
        ({"method": "paper"}, ["start="]),
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


def test_thinned_log_gives_the_fit_of_every_point(monkeypatch: pytest.MonkeyPatch):
    compute, reward = run(0, reach=4.0, num=900, noise=0.02)
    short = fit(compute, reward, start=0.4)
    assert short.num_points == 900
    monkeypatch.setattr("scalerl.curves.points.MANY", 10_000)
    every = fit(compute, reward, start=0.4)
    width = float(np.diff(every.interval("ceiling"))[0])
    np.testing.assert_allclose(short.interval("ceiling"), every.interval("ceiling"), atol=0.15 * width)
    assert short.noise_sd == pytest.approx(0.02, rel=0.2)


def test_noise_of_long_logs_is_that_within_a_run():
    logs = [run(seed, reach=4.0, num=200, noise=0.005, ceiling=ceiling) for seed, ceiling in enumerate((0.55, 0.65))]
    compute, reward = (np.concatenate(parts) for parts in zip(*logs, strict=True))
    result = fit(compute, reward, start=0.4, run=np.repeat((0, 1), 200))
    assert result.noise_sd == pytest.approx(0.005, rel=0.2)
    # What is left of the common curve holds the distance between the runs too.
    left = reward - sigmoid(compute, **result.least_squares)
    assert result.sum_squares == pytest.approx(left @ left)


def test_fall_in_a_long_log_is_counted_in_its_own_points():
    compute, reward = run(0, num=2000, noise=0.01)
    reward[-400:] -= 0.15
    (fall,) = [note for note in fit(compute, reward, start=0.4, intervals=False).notes if isinstance(note, Fall)]
    assert fall.num_after == np.sum(compute > fall.compute * (1 + 1e-9)) == pytest.approx(400, abs=50)
    assert 100 < fall.num_points <= fall.num_after
    assert fall.last == pytest.approx(compute[-1])


@pytest.mark.parametrize("place", [0.5, 0.6, 0.8])
def test_a_collapse_long_before_the_end_is_unstable_too(place: float):
    for seed in range(5):
        compute, reward = run(seed, num=30)
        reward[int(place * 30) :] -= 0.1
        assert fit(compute, reward, start=0.4, intervals=False).verdict == "unstable"


@pytest.mark.parametrize("num", [9, 20, 60])
def test_cliff_is_not_noise(num: int):
    """The drop itself must not pass for noise, as in differences between neighbours it would."""
    for seed in range(5):
        compute, reward = run(seed, num=num)
        reward[-max(3, num // 5) :] -= 0.15
        assert fit(compute, reward, start=0.4, intervals=False).verdict == "unstable"


def test_a_run_that_only_falls_is_unstable():
    rng = np.random.default_rng(0)
    reward = np.linspace(0.6, 0.44, 30) + 0.004 * rng.standard_normal(30)
    result = fit(np.linspace(1, 10, 30), reward)
    assert result.verdict == "unstable"
    # Nothing rises, so there is no part to fit alone.
    assert result.num_points == 30
    assert not any(note.until_peak for note in result.notes if isinstance(note, Fall))


@pytest.mark.parametrize("rho", [0.5, 0.9])
def test_drifting_noise_is_not_a_fall(rho: float):
    wrong = 0
    for seed in range(40):
        noise = 0.006 * np.random.default_rng(seed).standard_normal(30)
        for index in range(1, 30):
            noise[index] = rho * noise[index - 1] + np.sqrt(1 - rho**2) * noise[index]
        compute = np.linspace(0.4, 4.0, 30)
        wrong += fit(compute, sigmoid(compute) + noise, start=0.4, intervals=False).verdict == "unstable"
    assert wrong <= 1


def test_few_samples_at_the_end_are_not_a_fall():
    wrong = 0
    for seed in range(30):
        rng = np.random.default_rng(seed)
        compute = np.linspace(0.4, 4.0, 30)
        samples = np.where(np.arange(30) >= 26, 100, 16_000)
        reward = rng.binomial(samples, sigmoid(compute)) / samples
        wrong += fit(compute, reward, start=0.4, num_samples=samples, intervals=False).verdict == "unstable"
    assert wrong <= 1


def test_a_noisy_start_is_worth_what_its_noise_says():
    compute, reward = run(3, reach=2.0)
    width = lambda **start: float(np.diff(fit(compute, reward, **start).interval("ceiling"))[0])  # noqa: E731
    widths = [width(start=0.4), width(start=0.4, start_sd=0.01), width(start=0.4, start_sd=0.06), width()]
    assert widths == sorted(widths)
    assert widths[2] < 1.15 * widths[3]  # so noisy a start says next to nothing
    off = fit(compute, reward, start=0.3, start_sd=0.05, intervals=False)
    assert off.verdict != "at a bound"
    assert off.params["start"] == pytest.approx(0.4, abs=0.02)


def test_a_start_as_noisy_as_the_rest_is_one_more_evaluation():
    compute, reward = run(3, reach=2.0)
    like = fit(compute, reward, start=0.404, start_sd=None)
    assert 0.001 < np.diff(like.interval("start"))[0] < 0.03
    assert like.start_given
    assert like.num_points == 40


def test_rewards_without_limits_have_no_log_linear_law():
    with pytest.raises(ValueError, match="without limits"):
        fit(*run(0), form="log-linear", bounds=None)


def test_all_points_at_one_compute_are_too_few():
    result = fit(np.full(20, 3.0), np.linspace(0.4, 0.5, 20), form="power")
    assert result.verdict == "too few points"
    assert "1 different computes" in result.messages[0]


def test_a_window_that_leaves_nothing_says_so():
    result = fit(*run(0), start=0.4, skip_before=1e9)
    assert result.verdict == "too few points"
    assert "left out 40 of 40" in result.messages[0]


@pytest.mark.parametrize("form", ["sigmoid", "power"])
def test_spread_between_runs_is_estimated_at_any_noise(form: str):
    compute = np.linspace(0.4, 4.0, 30)
    rng = np.random.default_rng(0)
    curve = {
        "sigmoid": lambda ceiling: sigmoid(compute, ceiling=ceiling),
        "power": lambda ceiling: ceiling - 0.05 * (compute / 4) ** -0.6,
    }[form]
    rewards = [curve(0.6 + offset) + 0.0005 * rng.standard_normal(30) for offset in (-0.03, 0.0, 0.03)]
    result = fit(
        np.tile(compute, 3),
        np.concatenate(rewards),
        start=0.4 if form == "sigmoid" else None,
        form=form,
        run=np.repeat(range(3), 30),
    )
    assert result.run_sd == pytest.approx(0.03, rel=0.5)
    low, high = result.interval("ceiling")
    assert low < 0.6 < high
    assert high - low > 0.04


def test_runs_that_differ_need_seeds_not_compute():
    compute = np.linspace(0.4, 4.0, 30)
    rng = np.random.default_rng(0)
    rewards = [sigmoid(compute, ceiling=0.6 + offset) + 0.002 * rng.standard_normal(30) for offset in (-0.04, 0.04)]
    result = fit(np.tile(compute, 2), np.concatenate(rewards), start=0.4, run=np.repeat(range(2), 30))
    assert result.verdict == "ceiling not identifiable yet"
    assert "more seeds" in result.messages[0]


def test_autocorrelated_noise_is_that_of_one_evaluation():
    rng = np.random.default_rng(0)
    noise = 0.02 * rng.standard_normal(2000)
    for index in range(1, 2000):
        noise[index] = 0.9 * noise[index - 1] + np.sqrt(1 - 0.81) * noise[index]
    compute = np.linspace(0.01, 4.0, 2000)
    reward = np.clip(sigmoid(compute) + noise, 0, 1)
    for intervals in (True, False):
        assert fit(compute, reward, start=0.4, intervals=intervals).noise_sd == pytest.approx(0.02, rel=0.25)


@pytest.mark.parametrize("reward", [0.0, 0.1, 1 / 3, 0.5, 0.7, 1.0])
@pytest.mark.parametrize("num_samples", [None, 64])
def test_a_reward_that_never_changes_does_not_fall(reward: float, num_samples: int | None):
    result = fit(np.linspace(1, 40, 40), np.full(40, reward), num_samples=num_samples)
    assert result.verdict != "unstable"


def test_few_lucky_answers_do_not_make_a_fall():
    rng = np.random.default_rng(0)
    compute = np.linspace(1, 40, 40)
    fallen = [
        fit(compute, rng.binomial(64, 0.002, 40) / 64, start=0.0, num_samples=64, intervals=False).verdict == "unstable"
        for _ in range(100)
    ]
    assert sum(fallen) <= 1


def test_a_fall_names_its_run_and_place():
    """Seed 7 of three breaks down at compute 3."""
    parts = [run(seed, num=24) for seed in range(3)]
    compute, reward = (np.concatenate(values) for values in zip(*parts, strict=True))
    labels = np.repeat(["seed 5", "seed 7", "seed 9"], 24)
    reward[(labels == "seed 7") & (compute > 3.0)] -= 0.15
    done = fit(compute, reward, start=0.4, run=labels, intervals=False)
    assert done.verdict == "unstable"
    (fall,) = [note for note in done.notes if isinstance(note, Fall)]
    assert fall.run == "seed 7"
    assert 2.5 < fall.compute < 3.3
    assert done.messages[0].startswith("The reward of run seed 7 fell by ")


def test_errors_of_means_weigh_points():
    compute, reward = run(0)
    bad, error = reward.copy(), np.full(40, 0.004)
    bad[30:] += 0.03
    error[30:] = 0.2
    weighed = fit(compute, bad, start=0.4, error=error, mend=False)
    assert abs(weighed.params["ceiling"] - 0.6) < abs(fit(compute, bad, start=0.4).params["ceiling"] - 0.6)
    with pytest.raises(ValueError, match="either num_samples= or error="):
        fit(compute, reward, error=error, num_samples=100)
    with pytest.raises(ValueError, match="error must be positive"):
        fit(compute, reward, error=np.zeros(40))
