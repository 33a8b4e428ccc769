"""Whole runs whose learner is divided among ranks."""

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from ray_processes import alive, command_line, descendants, wait_until
from small_runs import check_same_steps

from scalerl import store
from scalerl.config import Recipe, load_recipe
from scalerl.models.load import load_model
from scalerl.run.resume import export
from scalerl.run.run import Run

SMALL = (
    "task.num_problems=48",
    "pipeline.groups_per_batch=4",
    "pipeline.completions_per_group=4",
    "pipeline.max_lag=0",
    "rollout.slots=16",
    "evaluation.num_prompts=6",
    "evaluation.samples_per_prompt=2",
    "evaluation.every=20",
    "checkpoint.every=10",
    "curriculum=uniform",
    "optimizer.warmup_steps=0",
)


def small(steps: int, *more: str) -> Recipe:
    return load_recipe("tiny-cpu", [*SMALL, f"budget.steps={steps}", *more])


def ranks(num: int, sharding: str) -> tuple[str, str]:
    return f"learner.ranks={num}", f"learner.sharding={sharding}"


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_ranks_train_as_one_process_and_resume_as_others(tmp_path: Path):
    """20 steps on two ranks, with two generators beside them or not, and 10 steps on two ranks resumed on three, in one
    process, or on two that divide each pass, all give the same run."""
    Run(small(20), tmp_path / "one").train()
    assert store.read_metrics(tmp_path / "one")[-1]["optim/grad_norm"] > 0
    Run(small(10, *ranks(2, "full")), tmp_path / "three").train()
    shutil.copytree(tmp_path / "three", tmp_path / "again")
    shutil.copytree(tmp_path / "three", tmp_path / "together")
    for name, layout in {
        "two": ranks(2, "full"),
        "four": (*ranks(2, "replicate"), "rollout.generators=2"),
        "three": ranks(3, "replicate"),
        "again": (),
        "together": (*ranks(2, "full"), "learner.context_ranks=2"),
    }.items():
        Run(small(20, *layout), tmp_path / name, resume=(tmp_path / name).exists()).train()
        check_same_steps(tmp_path / name, tmp_path / "one", 20)

    models = {}
    for name in ("one", "two", "three"):
        export(tmp_path / name, tmp_path / f"{name}-model")
        models[name] = load_model(tmp_path / f"{name}-model", dtype=torch.float32, device="cpu").model.state_dict()
    for name in ("two", "three"):
        for key, weight in models["one"].items():
            torch.testing.assert_close(models[name][key], weight, rtol=0, atol=1e-4, msg=f"{name} {key}")


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_run_with_a_stopped_rank_ends_and_is_resumed(tmp_path: Path):
    """Ranks of real processes: one is stopped wherever it is in a step; the learner has almost all of the time."""
    folder = tmp_path / "run"
    settings = [*SMALL[:-2], "learner.micro_batch_tokens=64", "checkpoint.every=2", *ranks(2, "full")]

    def start(*more: str) -> "subprocess.Popen[str]":
        words = [word for setting in (*settings, *more) for word in ("--set", setting)]
        command = [sys.executable, "-m", "scalerl", "train", "tiny-cpu", "--no-plots", "--out", str(folder)]
        command += [*words, *["--resume"] * (folder / store.RECIPE).exists()]
        return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)

    def has_rows(num: int, run: "subprocess.Popen[str]") -> bool:
        assert run.poll() is None, run.communicate()[1]
        return (folder / store.METRICS).is_file() and len(store.read_metrics(folder)) >= num

    with start("budget.steps=100000") as run:
        wait_until(lambda: has_rows(5, run), 600, "step 5")
        processes = descendants(run.pid)
        *_, victim = sorted(pid for pid in processes if "scalerl.remote.child" in command_line(pid))
        os.kill(victim, signal.SIGSTOP)
        begun = time.monotonic()
        _, error = run.communicate(timeout=600)
    print(f"the run ended {time.monotonic() - begun:.1f} s after SIGSTOP of a rank\n{error}")
    assert run.returncode == 1
    sentence = "of the learner has given no sign of life for 15 s: it was stopped (SIGSTOP)"
    assert sentence in error
    assert "Traceback" not in error
    status = store.read_status(folder)
    assert status is not None
    assert sentence in status["reason"]
    wait_until(lambda: not alive(processes), 600, "the end of all processes")

    steps = len(store.read_metrics(folder)) + 3
    with start(f"budget.steps={steps}") as run:
        _, error = run.communicate(timeout=600)
    assert run.returncode == 0, error
    assert [row["step"] for row in store.read_metrics(folder)] == list(range(1, steps + 1))
