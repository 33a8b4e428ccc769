"""Runs of the embedded base that take seconds, and what the rows of a run must be after any number of resumes."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from scalerl.recipe.load import load_recipe
from scalerl.recipe.recipe import Recipe
from scalerl.runfolder import store
from scalerl.training.loop.grading import GraderRunner
from scalerl.training.run import checkpoint as checkpoints
from scalerl.training.run.observer import RunObserver

SHORT = ("length.thinking_min=6", "length.thinking_max=8")
"""Limits of thinking for runs that need not solve anything: most of a small run is sampling."""
USUAL = ("length.thinking_min=36", "length.thinking_max=42")
"""Those of tiny-cpu."""

SMALL = (
    "task.num_problems=24",
    "pipeline.groups_per_batch=4",
    "pipeline.completions_per_group=2",
    "pipeline.max_lag=2",
    "pipeline.waits_for=groups",
    "rollout.slots=16",
    "evaluation.num_prompts=6",
    "evaluation.samples_per_prompt=2",
    "evaluation.every=3",
    "checkpoint.every=2",
    "curriculum=uniform",
)


def small(*more: str) -> Recipe:
    lengths = () if any(setting.startswith("length") for setting in more) else SHORT
    return load_recipe("tiny-cpu", [*SMALL, *lengths, *more])


def without_time(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    timed = ("time/", "gpu_hours", "host/", "gpu/")
    return [{key: value for key, value in row.items() if not key.startswith(timed)} for row in rows]


def check_lineage(folder: Path, steps: int) -> None:
    """The rows that count: none missing, every problem of a finished epoch trained once, time never backwards."""
    metrics = store.read_metrics(folder)
    assert [row["step"] for row in metrics] == list(range(1, steps + 1))
    keys = [key for row in metrics for key in row["groups"]]
    assert len(keys) == len(set(keys)) == 4 * steps
    epochs: dict[str, set[str]] = {}
    for key in keys:
        epoch, problem = key.split("/", 1)
        epochs.setdefault(epoch, set()).add(problem)
    # Groups that a refill replaced are in no row.
    num_replaced = sum(row.get("batch/replaced_groups", 0) for row in metrics)
    assert num_replaced or any(len(problems) == 24 for problems in epochs.values())
    check_accounts(folder)
    written = [json.loads(line) for line in (folder / store.METRICS).read_text().splitlines()]
    hours = [row["gpu_hours"] for row in written]
    assert hours == sorted(hours)


def check_accounts(folder: Path) -> None:
    """Every group that was issued up to the newest checkpoint was trained once, was replaced, or still waits."""
    checkpoint = checkpoints.latest(folder / store.CHECKPOINTS)
    assert checkpoint is not None
    state = checkpoint.meta["pipeline"]
    rows = [row for row in store.read_metrics(folder) if row["step"] <= checkpoint.step]
    num_trained = sum(len(row["groups"]) for row in rows)
    num_replaced = sum(row.get("batch/replaced_groups", 0) for row in rows) + state["refill"]["replaced"]
    num_waiting = sum(len(state["curriculum"][name]) for name in ("in_flight", "untrained"))
    assert sum(state["curriculum"]["num_issued"].values()) == num_trained + num_replaced + num_waiting


def check_same_steps(folder: Path, reference: Path, num: int) -> None:
    """Check that the first steps of two runs have the same groups, tokens and losses."""
    rows, expected = store.read_metrics(folder)[:num], store.read_metrics(reference)[:num]
    assert [row["step"] for row in rows] == list(range(1, num + 1))
    for row, other in zip(rows, expected, strict=True):
        assert sorted(row["groups"]) == sorted(other["groups"])
        if row["attempt"] == 1:
            # A later one has also spent what was lost after a checkpoint.
            assert row["tokens"] == other["tokens"]
            assert row["flops"] == pytest.approx(other["flops"])
        for key in ("loss/value", "loss/entropy", "loss/kl", "reward/mean"):
            assert row.get(key) == pytest.approx(other.get(key), abs=1e-5), (row["step"], key)
        # Unlikely tokens multiply the rounding of weights in a gradient: a single process whose weights differ by 1e-8
        # has a norm that differs by 1.7e-5 of 1.3 in step 11, and by 1e-7 before and after it.
        norms = [each.get("optim/grad_norm", -1.0) for each in (row, other)]
        assert norms[0] == pytest.approx(norms[1], rel=1e-4, abs=1e-5), row["step"]


def graders_are_over(graders: GraderRunner) -> bool:
    """Whether graders had processes of their own, and all of them have ended."""
    assert graders.pids
    return not any(Path(f"/proc/{pid}").exists() for pid in graders.pids)


class StopsAfter(RunObserver):
    """Asks a run to stop after a step."""

    def __init__(self, last_step: int) -> None:
        self._last_step = last_step
        self._step = 0

    def stepped(self, row: Mapping[str, Any]) -> None:
        self._step = row["step"]

    def stopping(self) -> bool:
        return self._step >= self._last_step
