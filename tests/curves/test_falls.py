"""A run that falls after its peak: what is found, what the curve is fitted to, and what is promised beyond."""

import numpy as np
import pytest
from simulate import run, sigmoid

from scalerl.curves import Fit, compare, compute_for, fit, note_json, note_text, reward_at, stopping, stopping_text
from scalerl.curves.pairs.notes import PastPeak

NOISE = 0.003


def slow_fall(seed: int, *, num: int = 80, drop: float = 0.02, ceiling: float = 0.6) -> tuple[np.ndarray, np.ndarray]:
    """A run that levels off, and from compute 12 of 20 on loses `drop` along a straight line."""
    rng = np.random.default_rng(seed)
    compute = np.linspace(20 / num, 20, num)
    reward = sigmoid(np.minimum(compute, 12.0), ceiling=ceiling) - drop * np.maximum(compute - 12.0, 0.0) / 8.0
    return compute, reward + NOISE * rng.standard_normal(num)


@pytest.fixture(scope="module")
def slow() -> Fit:
    return fit(*slow_fall(0), start=0.4)


def test_a_slow_fall_is_measured(slow: Fit):
    assert slow.verdict == "past its peak"
    (fall,) = slow.falls
    assert fall.best == pytest.approx(0.6, abs=0.004)
    assert 8.0 < fall.compute < 14.0
    assert fall.drop == pytest.approx(0.02, abs=0.006)
    assert fall.drop == pytest.approx(fall.best - fall.mean)
    assert 0.0005 < fall.drop_error < 0.005
    assert fall.drop > 4 * fall.drop_error
    assert fall.statistic > fall.limit
    assert fall.last == 20.0
    assert fall.num_after == round((20 - fall.compute) / 0.25)
    assert note_json(fall)["kind"] == "fall"


def test_the_sentence_advises_the_checkpoint_at_the_peak(slow: Fit):
    text = note_text(slow.falls[0], "GPU-hours")
    assert text.startswith("The reward fell by 0.0")
    assert "GPU-hours, to 0.58" in text
    assert text.endswith(
        "choose the checkpoint there. A ceiling after a decline is not defined; the curve is fitted up to the peak. A "
        "change of task, grader or length limit there would look the same."
    )


def test_a_run_that_rises_again_is_not_told_to_stop(slow: Fit):
    compute = np.arange(1, 61) / 60
    noise = np.random.default_rng(3).normal(size=60) * 0.006
    # Harder problems from half of the run on: the reward drops at once and rises from there.
    reward = 0.2 + 0.4 / (1 + (0.1 / compute) ** 2) - np.where(compute > 0.5, 0.15 - 0.2 * (compute - 0.5), 0) + noise
    fitted = fit(compute, reward)
    when = stopping(fitted)
    assert fitted.falls[0].regained == pytest.approx(0.07, abs=0.03)
    assert when is not None
    assert when.rising_again
    text = stopping_text(when)
    assert "and is rising again" in text
    assert "stop" not in text
    assert "it has regained 0.0" in note_text(fitted.falls[0])
    assert slow.falls[0].regained == 0
    # Of two runs, one of which stays down, it is not said.
    down = 0.2 + 0.4 / (1 + (0.1 / compute) ** 2) - np.where(compute > 0.5, 0.15, 0) + noise[::-1]
    both = fit(np.tile(compute, 2), np.concatenate([reward, down]), run=np.repeat([0, 1], 60))
    when = stopping(both)
    assert sorted(fall.regained > 0 for fall in both.falls) == [False, True]
    assert when is not None
    assert not when.rising_again


def test_the_curve_ends_at_the_peak(slow: Fit):
    (fall,) = slow.falls
    assert fall.until_peak
    assert slow.scale == fall.compute == slow.compute.max()
    low, high = slow.interval("ceiling")
    assert low < 0.6 < high
    assert high - low < 0.02


def test_no_ceiling_is_promised_beyond_the_peak(slow: Fit):
    (fall,) = slow.falls
    near, far = reward_at(slow, [20.0, 80.0])
    assert near.reward.value == far.reward.value == pytest.approx(fall.mean)
    assert near.reward.high < far.reward.high
    assert near.reward.low > far.reward.low
    assert far.reward.low < fall.mean - fall.drop
    assert [note.kind for note in near.notes] == ["after_fall"]
    assert "no ceiling is promised" in near.message
    reached, never = compute_for(slow, [0.5, 0.7])
    assert reached.compute is not None
    assert never.compute is None
    assert [note.kind for note in never.notes] == ["after_fall"]


def test_stopping_names_the_peak(slow: Fit):
    when = stopping(slow)
    assert when is not None
    assert when.fell_after == slow.scale
    assert when.doubling is None
    assert when.num_without_gain == slow.falls[0].num_after
    assert stopping_text(when).startswith("The reward has fallen since compute ")


def test_runs_past_their_peak_are_compared_at_it(slow: Fit):
    """Its curve would go on to the higher ceiling; but the run never got there."""
    compute, reward = run(3, reach=20.0, num=60, ceiling=0.5)
    pair = compare({"fallen": slow, "steady": fit(compute, reward, start=0.4)}).pairs[0]
    assert (pair.kind, pair.winner) == ("higher_ceiling", "fallen")
    (peak,) = [note for note in pair.notes if isinstance(note, PastPeak)]
    assert (peak.name, peak.compute) == ("fallen", slow.scale)
    alike = compare({"fallen": slow, "steady": fit(*run(4, reach=20.0, num=60), start=0.4)}).pairs[0]
    assert alike.kind == "not_separable"
    ranking = dict(compare({"a": slow, "b": fit(compute, reward, start=0.4)}, at=40.0).ranking)
    assert ranking["a"] > 0.9


@pytest.mark.parametrize("rho", [0.0, 0.5])
def test_runs_that_have_levelled_off_do_not_fall(rho: float):
    """0 to 1 % of 600 runs of each kind (benchmarks/simulated_verdicts.py): of 30, seldom one."""
    wrong = 0
    for seed in range(30):
        rng = np.random.default_rng(seed)
        num = (12, 40, 100)[seed % 3]
        compute = np.linspace(20 / num, 20, num)
        noise = rng.standard_normal(num)
        for index in range(1, num):
            noise[index] = rho * noise[index - 1] + np.sqrt(1 - rho**2) * noise[index]
        wrong += bool(fit(compute, sigmoid(compute) + 0.005 * noise, start=0.4, intervals=False, mend=False).falls)
    assert wrong <= 1


def test_slow_falls_are_mostly_found():
    seen = [fit(*slow_fall(seed, drop=0.01), start=0.4, intervals=False, mend=False).falls for seed in range(12)]
    assert sum(map(bool, seen)) >= 9


def test_a_drop_far_smaller_than_the_rise_does_not_matter():
    compute, reward = slow_fall(0, drop=0.0)
    reward = sigmoid(compute) - np.where(compute > 12.0, 0.001, 0.0)
    assert not fit(compute, reward, start=0.4, intervals=False).falls


def test_a_run_that_only_falls_has_no_rising_part():
    compute = np.linspace(1, 10, 30)
    reward = 0.6 - 0.02 * compute + 0.002 * np.random.default_rng(0).standard_normal(30)
    done = fit(compute, reward)
    (fall,) = done.falls
    assert not fall.until_peak
    assert done.num_points == 30
    assert "fitted through all points" in note_text(fall)
    assert reward_at(done, [20.0])[0].reward.value == pytest.approx(fall.mean)


def test_the_paper_method_keeps_all_points():
    compute, reward = slow_fall(0, drop=0.1)
    done = fit(1000 * compute, reward, start=0.4, method="paper")
    assert done.verdict == "unstable"
    assert done.num_points == 80
    assert not done.falls[0].until_peak


def test_a_seed_that_falls_leaves_the_others_their_curve():
    parts = [slow_fall(0), *(slow_fall(seed, drop=0.0) for seed in (1, 2))]
    compute, reward = (np.concatenate(values) for values in zip(*parts, strict=True))
    done = fit(compute, reward, start=0.4, run=np.repeat(["a", "b", "c"], 80))
    (fall,) = done.falls
    assert fall.run == "a"
    assert not done.past_peak
    assert done.scale == 20.0
    assert done.num_points == 240 - fall.num_after
    assert done.predict(40.0) == pytest.approx(0.6, abs=0.005)
    low, _ = done.curve_interval([40.0])
    assert low[0] < 0.59  # a third of the runs fell, and a new one may


def test_when_most_seeds_fall_the_curve_ends():
    parts = [slow_fall(0), slow_fall(1), slow_fall(2, drop=0.0)]
    compute, reward = (np.concatenate(values) for values in zip(*parts, strict=True))
    done = fit(compute, reward, start=0.4, run=np.repeat(range(3), 80), intervals=False)
    assert done.past_peak
    assert done.predict(40.0) == pytest.approx(0.58, abs=0.006)


def test_long_logs_fall_too():
    done = fit(*slow_fall(0, num=600), start=0.4, intervals=False)
    (fall,) = done.falls
    assert done.num_points == 600 - fall.num_after
    assert fall.last == 20.0
