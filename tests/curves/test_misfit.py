"""Lack of fit, no rise, what mends a fit, and what is averaged then."""

import json
from pathlib import Path

import numpy as np
import pytest
from simulate import run, sigmoid

from scalerl.curves import fit
from scalerl.curves.notes import LackOfFit, MendedFit, NoRiseSeen


def autocorrelated(num: int, rho: float, rng: np.random.Generator) -> np.ndarray:
    noise = rng.standard_normal(num)
    for index in range(1, num):
        noise[index] = rho * noise[index - 1] + np.sqrt(1 - rho**2) * noise[index]
    return noise


def two_phases(num: int, rho: float, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Two sigmoids, midpoints 64 times apart, the early one a third of the gain."""
    compute = np.linspace(4 / num, 4, num)
    early = sigmoid(compute, ceiling=0.2 / 3, exponent=1.5, midpoint=1 / 64, start=0.0)
    late = sigmoid(compute, ceiling=0.4 / 3, exponent=1.5, start=0.0)
    return compute, 0.4 + early + late + 0.004 * autocorrelated(num, rho, np.random.default_rng(seed))


def fast_then_slow(seed: int, num: int = 60) -> tuple[np.ndarray, np.ndarray]:
    compute = np.linspace(1 / num, 1, num)
    reward = 0.2 + 0.2 * (1 - np.exp(-compute / 0.05)) + 0.05 * compute
    return compute, reward + 0.004 * np.random.default_rng(seed).standard_normal(num)


@pytest.mark.parametrize("rho", [0.0, 0.5])
def test_lack_of_fit_is_seen_in_two_phases(rho: float):
    claimed = [fit(*two_phases(60, rho, seed), start=0.4, intervals=False).misfit for seed in range(20)]
    assert sum(misfit is not None and misfit.claimed for misfit in claimed) >= 16


@pytest.mark.parametrize("rho", [0.0, 0.5])
def test_true_sigmoids_seldom_lack_fit(rho: float):
    claimed, rng, (compute, _) = 0, np.random.default_rng(0), run(0)
    for _ in range(100):
        reward = sigmoid(compute) + 0.004 * autocorrelated(40, rho, rng)
        misfit = fit(compute, reward, start=0.4, intervals=False).misfit
        claimed += misfit is not None and misfit.claimed
    assert claimed <= 8


def test_mended_fit_names_the_option_that_gives_it():
    compute, reward = fast_then_slow(0)
    done = fit(compute, reward)
    (note,) = [note for note in done.notes if isinstance(note, MendedFit)]
    assert note.statistic > note.limit
    assert note.skip_before is not None
    text = next(message for message in done.messages if "--skip-before" in message)
    option = float(text.split("--skip-before ")[1].split()[0].rstrip(","))
    again = fit(compute, reward, skip_before=option, intervals=False)
    assert np.array_equal(again.compute, done.compute)
    assert again.misfit is not None
    assert not again.misfit.claimed


def test_a_form_that_was_asked_for_is_kept():
    compute, reward = fast_then_slow(0)
    done = fit(compute, reward, mend=False)
    assert done.verdict == "lack of fit"
    assert done.num_points == len(compute)
    assert any(isinstance(note, LackOfFit) for note in done.notes)


def test_a_misfitting_run_is_averaged_and_its_forecast_wide():
    compute, reward = fast_then_slow(1, num=160)
    half = compute <= 0.75
    done = fit(compute[half], reward[half])
    assert len(done.parts) > 1
    assert sum(part.weight for part in done.parts) == pytest.approx(1.0)
    low, high = done.new_interval(compute[~half])
    assert np.mean((reward[~half] >= low) & (reward[~half] <= high)) > 0.7
    low, high = done.interval("ceiling")
    assert low <= done.params["ceiling"] <= high


@pytest.mark.parametrize("folder", ["model-size/runs/40m-seed0", "loo/runs/uniform-sampling-seed0"])
def test_late_points_that_seem_to_drift_lie_on_both_sides(folder: str):
    """Both runs level off sooner than any form: with slow noise alone, every late point lay below the curve."""
    file = Path(__file__).parents[2] / "docs/results/principles" / folder / "evals.jsonl"
    rows = [json.loads(line) for line in file.read_text().splitlines()]
    rows = [row for row in rows if row["flops"] <= 4.1e15]
    before, *rows = rows
    compute, reward, num = (np.array([row[key] for row in rows]) for key in ("flops", "reward", "num_samples"))
    done = fit(compute, reward, num_samples=num, start=before["reward"], start_sd=None)
    late = compute > compute.max() / 2
    assert done.parts
    assert 0.25 < np.mean(reward[late] < done.predict(compute[late])) < 0.75


@pytest.mark.parametrize("rho", [0.0, 0.5])
def test_a_flat_run_has_no_rise(rho: float):
    flat = 0
    for seed in range(30):
        noise = 0.01 * autocorrelated(40, rho, np.random.default_rng(seed))
        done = fit(np.arange(1.0, 41.0), 0.5 + noise, intervals=False)
        flat += done.verdict == "no rise seen"
    assert flat >= 26


def test_a_constant_run_has_no_rise_and_no_advice_on_compute():
    done = fit(np.arange(1.0, 31.0), np.full(30, 0.5))
    assert done.verdict == "no rise seen"
    assert [type(note) for note in done.notes if isinstance(note, NoRiseSeen)] == [NoRiseSeen]
    assert not any("should settle it" in message for message in done.messages)


def test_a_rise_of_five_standard_errors_is_seen():
    missed = 0
    for seed in range(30):
        rng = np.random.default_rng(seed)
        compute = np.linspace(0.1, 4, 40)
        shape = sigmoid(compute, ceiling=1.0, exponent=rng.uniform(1, 3), start=0.0)
        design = np.stack([shape, np.ones(40)], axis=1)
        error = 0.01 * np.sqrt(np.linalg.inv(design.T @ design)[0, 0])
        reward = 0.3 + 5 * error * shape + 0.01 * rng.standard_normal(40)
        missed += fit(compute, reward, intervals=False).verdict == "no rise seen"
    assert missed <= 1


def test_noise_matters_for_what_would_have_been_noticed():
    compute, noise = np.arange(1.0, 41.0), np.random.default_rng(0).standard_normal(40)
    small, large = (fit(compute, 0.5 + sd * noise, intervals=False).rise for sd in (0.001, 0.01))
    assert small is not None
    assert large is not None
    assert large.noticeable == pytest.approx(10 * small.noticeable, rel=0.05)


def test_a_jump_above_the_given_start_is_a_rise():
    noise = 0.005 * np.random.default_rng(0).standard_normal(30)
    assert fit(np.arange(1.0, 31.0), 0.6 + noise, start=0.4, intervals=False).verdict != "no rise seen"


def test_a_rise_that_was_half_over_at_the_first_point_is_seen():
    """A real run on programs, with 64 answers per evaluation; the start has a standard error of 0.06."""
    compute = [8.0, 16.0, 24.0, 32.0, 40.0, 48.0, 56.0, 60.0]
    right = np.array([56, 63, 64, 63, 64, 64, 64, 63])
    done = fit(compute, right / 64, start=42 / 64, start_sd=0.06, num_samples=np.full(8, 64), intervals=False)
    assert done.verdict != "no rise seen"


def test_a_constant_reward_has_one_plain_note():
    done = fit(np.arange(1.0, 31.0), np.ones(30), intervals=False)
    assert done.messages == ("No rise seen: the reward is the same in every evaluation.",)
    # On any scale.
    assert fit(np.arange(1.0, 31.0), np.full(30, -1000.0), bounds=None, intervals=False).messages == done.messages
