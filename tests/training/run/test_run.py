"""Whole runs of the embedded base: equal seeds, kills, resumes, and what a user can get wrong."""

import itertools
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from small_runs import USUAL, StopsAfter, check_lineage, small, without_time

from scalerl.errors import RunFolderError
from scalerl.forecast.logs import Selection, read_log, series_from
from scalerl.recipe.import_path import ANNOUNCED
from scalerl.runfolder import store
from scalerl.training.models.load import load_model
from scalerl.training.models.lora import merged_weights
from scalerl.training.run import checkpoint as checkpoints
from scalerl.training.run.export import export
from scalerl.training.run.run import TrainingRun
from scalerl.training.run.start_up import StartUp


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> TrainingRun:
    """A run that has ended by itself, after six steps."""
    recipe, folder = small("budget.steps=6", "budget.flops=1e30"), tmp_path_factory.mktemp("runs") / "done"
    start_up = StartUp()
    start_up.done("settings")
    before = time.monotonic()
    run = TrainingRun(recipe, folder, start_up=start_up)
    took_s = time.monotonic() - before
    assert [*run.start_up.seconds][:3] == ["imports", "settings", "recipe"]
    # Not so if the clock began when all was loaded.
    assert run.clock.row()["time/start_up_s"] > 0.9 * took_s
    assert run.budget.share == 0
    assert run.train().reason == "budget of 6 steps spent"
    return run


def test_another_seed_gives_other_rows(tmp_path: Path, done: TrainingRun):
    TrainingRun(small("budget.steps=1", "seed=1", "evaluation.num_prompts=1"), tmp_path / "run").train()
    (row,) = without_time(store.read_metrics(tmp_path / "run"))
    assert row != without_time(store.read_metrics(done.folder))[0]


def test_the_run_folder_is_what_the_predictive_half_reads(done: TrainingRun):
    evals = store.read_evals(done.folder)
    assert [row["step"] for row in evals] == [0, 3, 6]
    assert evals[0]["gpu_hours"] == 0
    for row in evals:
        assert row["reward"] == pytest.approx(sum(row["num_correct"]) / row["num_samples"])
        assert len(row["num_correct"]) == 6
    (series,) = series_from([read_log(str(done.folder))], Selection())
    assert series.start == evals[0]["reward"]
    assert len(series.compute) == 2
    metrics = store.read_metrics(done.folder)
    assert [row["step"] for row in metrics] == [1, 2, 3, 4, 5, 6]
    assert all(row["rollout/lag_max"] <= 2 for row in metrics)
    for key in ("gpu_hours", "flops", "tokens"):
        values = [row[key] for row in metrics]
        assert values == sorted(values)
        assert values[0] > 0
    assert store.read_status(done.folder) == {"status": "done", "reason": "budget of 6 steps spent"}
    assert (done.folder / store.SAMPLES).is_file()


def test_clock_counts_training_and_share_the_first_limit(done: TrainingRun):
    assert done.budget.share == 1
    spent = done.clock.row()
    # CPU time, of one thread or several: not wall time.
    assert 0 < spent["gpu_hours"] <= (os.cpu_count() or 1) * spent["time/training_s"] / 3600
    assert min(spent[f"time/{kind}_s"] for kind in ("training", "evaluation", "checkpoint", "start_up")) > 0
    # Between two steps nothing but evaluations and checkpoints is left out.
    for before, after in itertools.pairwise(store.read_metrics(done.folder)):
        worked = sum(after[f"time/{part}_s"] for part in ("wait", "step", "push"))
        assert after["time/training_s"] - before["time/training_s"] >= worked


def test_clock_continues_from_what_all_attempts_spent(tmp_path: Path, done: TrainingRun):
    folder = shutil.copytree(done.folder, tmp_path / "run")
    # The first attempt got to step 9, the second came from the checkpoint at 6 as well and died at step 7.
    for step, attempt, hours in ((9, 1, 5.0), (7, 2, 7.0)):
        store.append_row(folder / store.METRICS, {"step": step, "attempt": attempt, "gpu_hours": hours})
    store.append_row(folder / store.EVALS, {"step": 9, "attempt": 1, "set": "main", "reward": 0.9, "gpu_hours": 5.0})
    run = TrainingRun(small("budget.steps=7"), folder, resume=True)
    assert run.clock.row()["gpu_hours"] == 7.0
    assert run.attempt == 3
    # What is shown follows the steps that led to the checkpoint.
    assert [row["step"] for row in run.rows.metrics] == list(range(1, 7))
    assert [row["step"] for row in run.rows.evals] == [0, 3, 6]
    run.train()
    metrics = [(row["step"], row["attempt"]) for row in store.read_metrics(folder)]
    assert metrics == [*((step, 1) for step in range(1, 7)), (7, 3)]


def test_run_is_locked_saved_by_the_minute_and_resumed(tmp_path: Path):
    class Impatient(StopsAfter):
        has_tried = False

        def stepped(self, row: Mapping[str, Any]) -> None:
            super().stepped(row)
            with pytest.raises(RunFolderError, match="another process is training into"):
                TrainingRun(small("budget.steps=8"), folder, resume=True)
            self.has_tried = True

    folder, observer = tmp_path / "run", Impatient(4)
    often = ("checkpoint.every=100", "checkpoint.keep=9", "checkpoint.every_minutes=1e-9")
    end = TrainingRun(small("budget.steps=8", *often), folder, observer=observer).train()
    assert (end.kind, end.reason) == ("stopped", "asked to stop")
    assert observer.has_tried
    assert list(checkpoints.steps(folder / store.CHECKPOINTS)) == [1, 2, 3, 4]
    assert (store.read_status(folder) or {})["status"] == "stopped"
    assert TrainingRun(small("budget.steps=8"), folder, resume=True).train().kind == "budget"
    check_lineage(folder, 8)
    assert [row["attempt"] for row in store.read_metrics(folder)] == [1] * 4 + [2] * 4


def test_clock_that_is_set_back_in_a_run_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """The wall clock goes back by an hour each time that somebody asks it."""
    asked = itertools.count(1)
    wall = time.time
    monkeypatch.setattr(time, "time", lambda: wall() - 3600.0 * next(asked))
    grader = "task.graders={main={name='numeric'}, other={name='own_code:chatty'}}"
    monkeypatch.setenv(ANNOUNCED, "own_code:chatty")
    run = TrainingRun(small("budget.steps=6", "budget.flops=1e30", grader), tmp_path / "run")
    assert run.train().reason == "budget of 6 steps spent"
    rows = store.read_metrics(run.folder)
    assert [row["step"] for row in rows] == [1, 2, 3, 4, 5, 6]
    counted = [(key, value) for row in rows for key, value in row.items() if key.startswith(("time/", "gpu_hours"))]
    assert counted
    assert not [(key, value) for key, value in counted if value < 0]
    hours = [row["gpu_hours"] for row in rows]
    assert hours == sorted(hours)


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_the_demo_learns_with_every_seed(tmp_path: Path, seed: int):
    folder = tmp_path / "run"
    command = [sys.executable, "-c", "from scalerl.cli import main; main()", "train", "tiny-cpu", "--out", str(folder)]
    done = subprocess.run([*command, "--set", f"seed={seed}"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    base, *later = (row["reward"] for row in store.read_evals(folder))
    last = sum(later[-3:]) / 3
    print(f"seed {seed}: {base:.3f} -> {last:.3f}")
    assert last >= base + 0.20


@pytest.mark.parametrize(
    "mode",
    [
        ("pipeline.max_lag=0", "loss=dapo", "weights=sample", "advantage.normalisation=prompt"),
        (
            *("pipeline.max_lag=1", "pipeline.push_every=2", "pipeline.drain=true"),
            *("loss=gspo", 'length={name="none", max_length=16}'),
        ),
        ("loss=tis", 'length={name="penalty", max_length=16, cache=8}'),
    ],
    ids=["synchronous", "drained", "pipelined"],
)
def test_every_regime_runs_through_the_same_loop(tmp_path: Path, mode: tuple[str, ...]):
    run = TrainingRun(small("budget.steps=3", *mode), tmp_path / "run")
    assert run.train().reason == "budget of 3 steps spent"
    lags = [row["rollout/lag_max"] for row in store.read_metrics(tmp_path / "run")]
    assert max(lags) <= run.recipe.pipeline.max_lag


SAMPLED = ("length.thinking_min=36", "length.thinking_max=42", "pipeline.completions_per_group=4")
"""Some answers are right."""


@pytest.mark.parametrize(
    "settings, columns",
    [
        (
            ("correction=band", "entropy=clip_cov", "imitation=correct", "filter.refill=2"),
            {"loss/corrected_frac", "entropy/clipped_frac", "batch/replaced_groups", "rollout/correct_frac"},
        ),
        (("correction=sequence_mask", "entropy=bonus"), {"loss/corrected_frac"}),
        (
            ("loss=none", "filter.zero_variance=false", 'kl={coefficient=1.0, estimator="reverse"}',
             'kl.reference={name="teacher", path="tiny-base"}'),
            {"loss/reference_kl"},
        ),
        (
            ("loss=none", "filter.zero_variance=false", 'kl={coefficient=1.0, estimator="reverse"}',
             'kl.reference={name="self", hint="{answer}={prompt}"}'),
            {"loss/reference_kl"},
        ),
    ],
    ids=["corrected", "by sequence", "teacher", "hint"],
)  # fmt: skip
def test_choices_of_an_algorithm_have_their_columns(tmp_path: Path, settings: tuple[str, ...], columns: set[str]):
    recipe = small("budget.steps=2", "evaluation.every=2", *SAMPLED, *settings)
    TrainingRun(recipe, tmp_path / "run").train()
    rows = store.read_metrics(tmp_path / "run")
    others = {"entropy/clipped_frac", "batch/replaced_groups", "loss/reference_kl"}
    assert all(columns <= row.keys() for row in rows)
    assert all(not (others - columns) & row.keys() for row in rows)
    corrects = "loss/corrected_frac" in columns
    assert all(row["loss/corrected_frac"] == 0 for row in rows) or corrects
    assert rows[0]["optim/grad_norm"] > 0 or settings[0] == "loss=none"


@pytest.mark.parametrize("bits", [16, 4])
def test_adapters_are_resumed_and_exported_merged(tmp_path: Path, bits: int):
    # Adapters begin at random, and some of the answers must be right for the weights to change.
    lora = ("model.lora.rank=4", f"model.lora.bits={bits}", "optimizer.lr=0.01", "optimizer.warmup_steps=0")
    settings = (*lora, "pipeline.completions_per_group=8", *USUAL)
    folder = tmp_path / "run"
    first: Any = TrainingRun(small("budget.steps=1", *settings), folder)
    first.train()
    run: Any = TrainingRun(small("budget.steps=2", *settings), folder, resume=True)
    halfway = {name: weight.clone() for name, weight in merged_weights(run.learner.policy.model).items()}
    assert all(
        torch.equal(weight, halfway[name]) for name, weight in merged_weights(first.learner.policy.model).items()
    )
    run.train()
    rows = store.read_metrics(folder)
    assert [row["attempt"] for row in rows] == [1, 2]
    # Learner and engine multiply with the same weights.
    assert (rows[0]["rollout/lag_max"], rows[0]["loss/kl"]) == (0, pytest.approx(0, abs=1e-8))
    exported = load_model(str(export(folder, tmp_path / "model").folder), dtype=torch.float32, device="cpu").model
    base = load_model("tiny-base", dtype=torch.float32, device="cpu").model
    # Of weights in 4 bits the rounded ones, which the adapters were trained on.
    merged = merged_weights(run.learner.policy.model)
    for name, weight in exported.named_parameters():
        assert torch.equal(weight, merged[name]), name
        adapted = name.endswith("_proj.weight")
        assert torch.equal(weight, base.get_parameter(name)) != adapted, name
        assert torch.equal(weight, halfway[name]) != adapted, name
