"""Whole runs whose learner is divided among ranks."""

import shutil
from importlib.util import find_spec
from pathlib import Path

import pytest
import small_runs
import torch
from small_runs import USUAL, check_same_steps

from scalerl.recipe.recipe import Recipe
from scalerl.runfolder import store
from scalerl.training.models.load import load_model
from scalerl.training.run.export import export
from scalerl.training.run.run import TrainingRun


def small(steps: int, *more: str) -> Recipe:
    exact = ("task.num_problems=48", "pipeline.completions_per_group=4", "pipeline.max_lag=0", *USUAL)
    own = ("evaluation.every=20", "checkpoint.every=10", "optimizer.warmup_steps=0", f"budget.steps={steps}")
    return small_runs.small(*exact, *own, *more)


def ranks(num: int, sharding: str) -> tuple[str, str]:
    return f"learner.ranks={num}", f"learner.sharding={sharding}"


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_ranks_train_as_one_process_and_resume_as_others(tmp_path: Path):
    """20 steps on two ranks, with generators beside them, on Ray, or neither, give the same run; so do 10 steps on two
    ranks resumed on three, or in one process."""
    TrainingRun(small(20), tmp_path / "one").train()
    assert store.read_metrics(tmp_path / "one")[-1]["optim/grad_norm"] > 0
    TrainingRun(small(10, *ranks(2, "full")), tmp_path / "three").train()
    shutil.copytree(tmp_path / "three", tmp_path / "again")
    for name, layout in {
        "two": ranks(2, "full"),
        "four": (*ranks(2, "replicate"), "rollout.generators=2"),
        "on ray": (*ranks(2, "full"), "rollout.generators=2", "cluster.address=local"),
        "three": ranks(3, "replicate"),
        "again": (),
    }.items():
        if "cluster.address=local" in layout and find_spec("ray") is None:
            continue
        TrainingRun(small(20, *layout), tmp_path / name, resume=(tmp_path / name).exists()).train()
        check_same_steps(tmp_path / name, tmp_path / "one", 20)

    models = {}
    for name in ("one", "two", "three"):
        export(tmp_path / name, tmp_path / f"{name}-model")
        models[name] = load_model(tmp_path / f"{name}-model", dtype=torch.float32, device="cpu").model.state_dict()
    for name in ("two", "three"):
        for key, weight in models["one"].items():
            torch.testing.assert_close(models[name][key], weight, rtol=0, atol=1e-4, msg=f"{name} {key}")
