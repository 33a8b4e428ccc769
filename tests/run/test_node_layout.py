"""The layout of `scalerl-8b-node` on one machine without GPUs: every rank and engine in place, a hundred steps, kills.

The model has the 32 layers of a Llama of 8B and is narrow. What this leaves unproven: NCCL between ranks, CUDA IPC, and
memory; on CPUs ranks speak gloo, weights pass through host memory, and the engines are torch's, since vLLM has an
environment of its own.
"""

import os
import signal
import subprocess
import sys
from importlib.resources import files
from pathlib import Path

import pytest
import torch
from ray_processes import alive, command_line, descendants, wait_until

from scalerl import store
from scalerl.config import load_recipe

SETTINGS = (
    "task={name='arithmetic', num_problems=400}",
    "length={name='none', max_length=8}",
    "model.dtype=float32",
    "rollout.engine=torch",
    "rollout.context=32",
    "rollout.max_prompt_tokens=16",
    "rollout.silent_s=120",
    "rollout.slots=20",
    "pipeline.groups_per_batch=2",
    "pipeline.completions_per_group=2",
    "filter.zero_variance=false",
    "curriculum=uniform",
    "learner.micro_batch_tokens=64",
    "evaluation.num_prompts=4",
    "evaluation.samples_per_prompt=1",
    "evaluation.every=50",
    "checkpoint.every=10",
    "optimizer.warmup_steps=0",
)


def narrow_model(folder: Path) -> Path:
    from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM

    tokenizer = AutoTokenizer.from_pretrained(str(files("scalerl") / "assets" / "tiny-base"))
    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "intermediate_size": 32, "num_attention_heads": 4, "num_key_value_heads": 1}
    config = LlamaConfig(
        vocab_size=len(tokenizer), num_hidden_layers=32, max_position_embeddings=64, eos_token_id=1, **sizes
    )
    LlamaForCausalLM(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_every_rank_and_engine_of_the_node_takes_a_hundred_steps_with_kills(tmp_path: Path):
    """Two generators are killed and replaced; a rank is killed, which ends the run; resumed, it ends at step 100."""
    folder, recipe = tmp_path / "run", load_recipe("scalerl-8b-node")
    settings = [*SETTINGS, f"model.path={narrow_model(tmp_path / 'model')}"]

    def start() -> "subprocess.Popen[str]":
        words = [word for setting in (*settings, "budget.steps=100") for word in ("--set", setting)]
        command = [sys.executable, "-m", "scalerl.cli", "train", "scalerl-8b-node", "--no-plots", "--out", str(folder)]
        command += [*words, *["--resume"] * (folder / store.RECIPE).exists()]
        return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)

    def has_rows(num: int, run: "subprocess.Popen[str]") -> bool:
        assert run.poll() is None, run.communicate()[1]
        return (folder / store.METRICS).is_file() and len(store.read_metrics(folder)) >= num

    def members(run: "subprocess.Popen[str]", kind: str) -> list[int]:
        return sorted(pid for pid in descendants(run.pid) if kind in command_line(pid))

    with start() as run:
        wait_until(lambda: has_rows(3, run), 1500, "step 3")
        everyone = descendants(run.pid)
        ranks, generators = members(run, "spawn_main"), members(run, "exec(eval(")
        print({pid: command_line(pid)[:90] for pid in everyone})
        assert len(ranks) >= recipe.learner.ranks == 3
        for step, victim in ((20, generators[0]), (40, generators[-1])):
            wait_until(lambda step=step: has_rows(step, run), 1500, f"step {step}")
            os.kill(victim, signal.SIGKILL)
        wait_until(lambda: has_rows(60, run), 1500, "step 60")
        everyone |= descendants(run.pid)
        os.kill(members(run, "spawn_main")[-1], signal.SIGKILL)
        _, error = run.communicate(timeout=300)
    assert run.returncode == 1
    assert "of the learner was ended by SIGKILL" in error
    wait_until(lambda: not alive(everyone), 30, "the end of all processes")
    with start() as run:
        _, error = run.communicate(timeout=1500)
    assert run.returncode == 0, error
    rows = store.read_metrics(folder)
    assert [row["step"] for row in rows] == list(range(1, 101))
    assert sum(row["generators/lost"] for row in rows) == 2
    groups = [key for row in rows for key in row["groups"]]
    assert len(groups) == len(set(groups)) == 200
    assert max(row["rollout/lag_max"] for row in rows) <= recipe.pipeline.max_lag
