"""The layout of `scalerl-8b-node`, on CPUs with a narrow model: 3 ranks of the learner, 5 generators, and kills."""

import os
import signal
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import forked
import pytest
import torch
from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM

from scalerl import store
from scalerl.config import Recipe, load_recipe
from scalerl.errors import RankLost
from scalerl.models.load import load_model, model_folder
from scalerl.run.resume import export
from scalerl.run.run import Run, RunObserver

STEPS, GENERATOR_AT, RANK_AT = 100, 20, 53


def narrow_eight_billion(folder: Path) -> Path:
    """Llama-3.1-8B's 32 layers, 4 queries per key-value head and untied head, with a hidden size of 32."""
    tokenizer: Any = AutoTokenizer.from_pretrained(model_folder("tiny-base"))
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=32,
        intermediate_size=112,
        num_hidden_layers=32,
        num_attention_heads=8,
        num_key_value_heads=2,
        max_position_embeddings=64,
        tie_word_embeddings=False,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    LlamaForCausalLM(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def node(model: Path) -> Recipe:
    """The recipe for a node with its ranks, sharding, generators and lag; sizes are those of a CPU."""
    settings = {
        "model.path": model,
        "model.dtype": "float32",
        "task.name": "arithmetic",
        "task.num_problems": 4000,
        "rollout.engine": "torch",
        "rollout.slots": 40,
        "rollout.context": 32,
        "rollout.max_prompt_tokens": 16,
        "length.thinking_min": 5,
        "length.thinking_max": 8,
        "length.marker": "</think>",
        "length.answer_budget": 3,
        "pipeline.groups_per_batch": 2,
        "pipeline.completions_per_group": 4,
        "learner.micro_batch_tokens": 512,
        "curriculum.name": "uniform",
        # Random weights give no sums, and do not end their answers.
        "task.grader": "own_code:starts_with_a_digit",
        "filter.drop_truncated": "false",
        "optimizer.warmup_steps": 0,
        "optimizer.lr": 1e-3,
        "evaluation.every": 50,
        "evaluation.num_prompts": 10,
        "evaluation.samples_per_prompt": 2,
        "checkpoint.every": 10,
        "budget.steps": STEPS,
    }
    return load_recipe("scalerl-8b-node", [f"{key}={value}" for key, value in settings.items()])


class Killer(RunObserver):
    """Kills a generator after one step and a rank after another."""

    def __init__(self, **at: int) -> None:
        self._at = at

    def started(self, run: Run) -> None:
        self._run: Any = run

    def stepped(self, row: Mapping[str, Any]) -> None:
        if row["step"] == self._at.get("generator"):
            os.kill(self._run.parts.meter._fleet._seats[2].peer.link.pid, signal.SIGKILL)
        if row["step"] == self._at.get("rank"):
            os.kill(self._run.learner._ranks[1].link.pid, signal.SIGKILL)


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_layout_of_a_node_trains_through_kills(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """100 steps; a generator killed after 20 is replaced, and a rank killed after 53 ends the run, which is resumed."""
    forked.children(monkeypatch)
    recipe, folder = node(narrow_eight_billion(tmp_path / "model")), tmp_path / "run"
    assert (recipe.learner.ranks, recipe.learner.sharding, recipe.rollout.generators) == (3, "full", 5)
    with pytest.raises(RankLost, match="rank 1 of the learner was ended by SIGKILL"):
        Run(recipe, folder, observer=Killer(generator=GENERATOR_AT, rank=RANK_AT)).train()
    resumed = Run(recipe, folder, resume=True)
    assert resumed.train().kind == "budget"

    rows = store.read_metrics(folder)
    assert [row["step"] for row in rows] == list(range(1, STEPS + 1))
    assert {row["attempt"] for row in rows} == {1, 2}
    groups = [key for row in rows for key in row["groups"]]
    assert len(groups) == len(set(groups)) == 2 * STEPS, "every group is trained once"
    assert max(row["rollout/lag_max"] for row in rows) <= recipe.pipeline.max_lag
    lost = [loss for row in rows for loss in row.get("lost", ())]
    assert [loss["generator"] for loss in lost] == [2]
    assert rows[-1]["generators/ready"] == 5
    # What the five engines sample with is what the three ranks hold.
    assert rows[0]["loss/kl"] < 1e-9
    rewards = [row["reward/correct_frac"] for row in rows]
    assert sum(rewards[-20:]) > sum(rewards[:20]) + 4, "it learns"

    export(folder, tmp_path / "exported")
    trained = load_model(tmp_path / "exported", dtype=torch.float32, device="cpu").model.state_dict()
    first = load_model(tmp_path / "model", dtype=torch.float32, device="cpu").model.state_dict()
    assert all(weight.isfinite().all() for weight in trained.values())
    assert sum(not torch.equal(weight, first[name]) for name, weight in trained.items()) > 200, "32 layers were trained"
