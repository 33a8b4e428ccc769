"""Whole runs whose learner is divided among ranks."""

import shutil
from pathlib import Path

import pytest
import torch

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


def check_same_rows(folder: Path, reference: Path) -> None:
    rows, expected = store.read_metrics(folder), store.read_metrics(reference)
    assert [row["step"] for row in rows] == list(range(1, 21))
    for row, other in zip(rows, expected, strict=True):
        assert row["groups"] == other["groups"]
        assert row["tokens"] == other["tokens"]
        assert row["flops"] == pytest.approx(other["flops"])
        for key in ("loss/value", "loss/entropy", "loss/kl", "optim/grad_norm", "reward/mean"):
            assert row.get(key) == pytest.approx(other.get(key), abs=1e-5), (row["step"], key)


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_ranks_train_as_one_process_and_resume_as_others(tmp_path: Path):
    """20 steps on two ranks, and 10 steps on two ranks resumed on three, in one process, or on two that divide each
    pass, all give the same run."""
    Run(small(20), tmp_path / "one").train()
    assert store.read_metrics(tmp_path / "one")[-1]["optim/grad_norm"] > 0
    Run(small(20, *ranks(2, "full")), tmp_path / "two").train()
    check_same_rows(tmp_path / "two", tmp_path / "one")

    Run(small(10, *ranks(2, "full")), tmp_path / "three").train()
    shutil.copytree(tmp_path / "three", tmp_path / "again")
    shutil.copytree(tmp_path / "three", tmp_path / "together")
    Run(small(20, *ranks(3, "replicate")), tmp_path / "three", resume=True).train()
    check_same_rows(tmp_path / "three", tmp_path / "one")
    Run(small(20), tmp_path / "again", resume=True).train()
    check_same_rows(tmp_path / "again", tmp_path / "one")
    together = small(20, *ranks(2, "full"), "learner.context_ranks=2")
    Run(together, tmp_path / "together", resume=True).train()
    check_same_rows(tmp_path / "together", tmp_path / "one")

    models = {}
    for name in ("one", "two", "three"):
        export(tmp_path / name, tmp_path / f"{name}-model")
        models[name] = load_model(tmp_path / f"{name}-model", dtype=torch.float32, device="cpu").model.state_dict()
    for name in ("two", "three"):
        for key, weight in models["one"].items():
            torch.testing.assert_close(models[name][key], weight, rtol=0, atol=1e-4, msg=f"{name} {key}")


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_ranks_and_generators_train_as_one_process(tmp_path: Path):
    """20 steps on two ranks with two generators beside them: without lag, groups, tokens and losses are the same."""
    Run(small(20), tmp_path / "one").train()
    Run(small(20, *ranks(2, "replicate"), "rollout.generators=2"), tmp_path / "four").train()
    rows, expected = (store.read_metrics(tmp_path / name) for name in ("four", "one"))
    assert [sorted(row["groups"]) for row in rows] == [sorted(row["groups"]) for row in expected]
    for row, other in zip(rows, expected, strict=True):
        assert row["tokens"] == other["tokens"]
        for key in ("loss/value", "loss/entropy", "optim/grad_norm", "reward/mean"):
            assert row.get(key) == pytest.approx(other.get(key), abs=1e-5), (row["step"], key)
