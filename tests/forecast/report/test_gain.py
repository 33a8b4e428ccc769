"""Whether a run has learned is decided by its counts, not by two means."""

from typing import Any

import numpy as np
import pytest

from scalerl.forecast.report.gain import Gain, measure_gain

UPDATED = {"optim/skipped": 0.0, "batch/effective": 30.0}


def evaluations(rates: list[float], *, prompts: int = 100, samples: int = 4, seed: int = 0) -> list[dict[str, Any]]:
    """One evaluation per rate, in which every prompt has the same pass rate."""
    rng = np.random.default_rng(seed)
    rows = []
    for place, rate in enumerate(rates):
        correct = rng.binomial(samples, rate, prompts).tolist()
        num = prompts * samples
        rows.append(
            {"step": 10 * place, "reward": sum(correct) / num, "num_samples": num, "num_correct": correct}
            | {"prompts_hash": "same"}
        )
    return rows


def measured(rows: list[dict[str, Any]], metrics: list[dict[str, float]]) -> Gain:
    gain = measure_gain(rows, metrics)
    assert gain is not None
    return gain


RESULTS = [
    ([0.2, 0.3, 0.4, 0.4, 0.4], "rose"),
    ([0.5, 0.3, 0.3, 0.3], "fell"),
    ([0.3, 0.3, 0.3, 0.3], "within_noise"),
]


@pytest.mark.parametrize(("rates", "kind"), RESULTS)
def test_rise_fall_and_noise_are_distinguished(rates: list[float], kind: str):
    gain = measured(evaluations(rates), [UPDATED] * 40)
    assert gain.kind == kind
    assert gain.say("main").kind == f"gain_{kind}"


def test_run_that_breaks_down_at_its_end_has_not_learned():
    # Rewards of a run whose learning rate was too high.
    gain = measured(evaluations([0.4, 0.49, 0.5, 0.49, 0.38], prompts=1000, samples=1), [UPDATED] * 40)
    assert (gain.kind, gain.num_last) == ("within_noise", 1)
    gain = measured(evaluations([0.4, 0.55, 0.55, 0.55, 0.28], prompts=1000, samples=1), [UPDATED] * 40)
    assert (gain.kind, gain.num_last) == ("fell", 1)


def test_few_samples_prove_nothing():
    # 6 of 30 and 11 of 30: what a run without a single update once called learned.
    rows = [
        {"step": 0, "reward": 0.2, "num_samples": 30, "num_correct": [1] * 6 + [0] * 24, "prompts_hash": "a"},
        {"step": 8, "reward": 11 / 30, "num_samples": 30, "num_correct": [0] * 19 + [1] * 11, "prompts_hash": "a"},
    ]
    assert measured(rows, [UPDATED] * 8).kind == "within_noise"
    assert measured([row | {"prompts_hash": str(row["step"])} for row in rows], [UPDATED] * 8).kind == "within_noise"


@pytest.mark.parametrize("prompts", [10, 100])
def test_noise_alone_is_seldom_called_learned(prompts: int):
    kinds = [measured(evaluations([0.3] * 4, prompts=prompts, seed=seed), [UPDATED]).kind for seed in range(400)]
    assert kinds.count("within_noise") >= 0.87 * len(kinds)


def test_run_without_an_update_has_learned_nothing():
    rising = evaluations([0.2, 0.5, 0.6, 0.6])
    skipped = [UPDATED | {"optim/skipped": 1.0}] * 5 + [UPDATED | {"batch/effective": 0.0}] * 3
    gain = measured(rising, skipped)
    assert (gain.kind, gain.num_skipped, gain.num_empty) == ("no_update", 5, 3)
    assert gain.say("main").values["num_steps"] == 8
    assert measured(rising, [*skipped, UPDATED]).kind == "rose"


def test_no_gain_without_a_start():
    assert measure_gain(evaluations([0.2]), []) is None
    assert measure_gain(evaluations([0.2, 0.3])[1:], []) is None
