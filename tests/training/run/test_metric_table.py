"""The tables of columns in docs/math.md, against the rows that runs write and against sums over their batches."""

import itertools
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from small_runs import small

from scalerl.runfolder import store
from scalerl.training.loop.pipeline import StepDone
from scalerl.training.run.run import TrainingRun

TEXT = (Path(__file__).parents[3] / "docs" / "math.md").read_text().partition("### Metrics\n")[2]
OWN = re.compile(r"\b[A-Z]{4,}\b")
"""What stands for a name of the user's own."""
LONG = ("length.thinking_min=36", "length.thinking_max=42")
MORE = ("pipeline.completions_per_group=4", "optimizer.warmup_steps=0", "pipeline.groups_per_batch=3")
RUNS = {
    "plain": (*LONG, "checkpoint.every=1"),
    "algorithm": (
        *LONG, "tasks.a.num_problems=20", "tasks.b.num_problems=20",
        "tasks.a.name=arithmetic", "tasks.a.max_terms=3", "tasks.b.name=arithmetic", "tasks.b.max_terms=3",
        'task.name=""', "correction=band", "entropy=clip_cov", "filter.refill=2", "kl.coefficient=0.1",
        "tasks.a.graders={good={name='exact'}, number={name='numeric', weight=0.5}}",
    ),
    "critic": (*LONG, "advantage.credit=gae", "filter.zero_variance=false"),
    "tools": ("task.environment=calculator", "rollout.context=128", 'length={name="none", max_length=24}'),
}  # fmt: skip
UNWRITTEN = {
    "loss/router_disagreement", "generators/ready", "generators/slots", "generators/lost", "lost", "generators/chunks",
    "generators/busy_s", "generators/active_mean", "generators/copy_s", "gpu/memory_gb", "grader/REASON",
    "environment/REASON", "outcome/NAME", "outcome/stopped_frac", "rollout/branches_mean", "branches_mean",
    "time/checkpoint_written_s",
}  # fmt: skip
"""Columns that need a GPU, experts, generators, programs, branches, failures, or a write that ends in time."""


def documented(file: str) -> set[str]:
    """Return the columns in the table of a file."""
    table = TEXT.partition(f"| `{file}` | numerator |")[2].partition("\n\n")[0]
    heads = [row.split("|")[1] for row in table.splitlines()[2:]]
    return {name for head in heads for name in re.findall(r"`([^`]+)`", head)}


def matching(column: str, names: set[str]) -> str | None:
    """Return the name in the table that stands for a column."""
    if column in names:
        return column
    patterns = {name: OWN.sub("[^/]+", name) for name in names if OWN.search(name)}
    return next((name for name, pattern in patterns.items() if re.fullmatch(pattern, column)), None)


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, list[dict[str, Any]]]]:
    """Rows of each run, by file."""
    rows = {}
    for name, settings in RUNS.items():
        folder = tmp_path_factory.mktemp("runs") / name
        TrainingRun(small("budget.steps=2", "evaluation.every=2", *MORE, *settings), folder).train()
        rows[name] = {store.METRICS: store.read_metrics(folder), store.EVALS: store.read_evals(folder)}
    return rows


@pytest.mark.parametrize("file", [store.METRICS, store.EVALS])
def test_runs_write_the_columns_of_the_table(written: Any, file: str):
    names = documented(file)
    assert len(names) > 15
    columns = {column for files in written.values() for row in files[file] for column in row}
    assert {column for column in columns if matching(column, names) is None} == set()
    found = {matching(column, names) for column in columns}
    assert names - found - UNWRITTEN == set()


def test_engine_is_timed_apart_in_evaluations(written: Any):
    (row,) = (row for row in written["plain"][store.METRICS] if row["step"] == 1)
    assert row["time/eval_prefill_s"] > 0
    assert row["time/eval_decode_s"] > 0


def test_shares_and_means_have_the_denominators_of_the_table(tmp_path: Path):
    settings = ("filter.drop_truncated=false", "correction=band", "correction.low=0.9", "correction.high=1.05")
    run = TrainingRun(small("budget.steps=3", "evaluation.every=3", *LONG, *MORE, *settings), tmp_path / "run")
    with_lags = 0
    for done in itertools.islice(run.pipeline.steps(), 3):
        row, expected = done.metrics, by_hand(done)
        assert {key: row.get(key) for key in expected} == pytest.approx(expected)
        with_lags += row["rollout/lag_max"] > 0
    run.close()
    assert with_lags


def by_hand(done: StepDone) -> dict[str, float]:
    """Return columns of a step as sums over the completions of its batch."""
    groups = done.batch.groups
    completions = [each for group in groups for each in group.completions]
    num = len(completions)
    graded = [(group, place) for group in groups for place, value in enumerate(group.values) if value is not None]
    lags = np.concatenate([done.batch.version - each.versions[~each.forced] for each in completions])
    left = [[value for value in group.values if value is not None] for group in groups]
    comparable = [values for values in left if len(values) > 1]
    kept = [group for group, values in zip(groups, left, strict=True) if len(set(values)) > 1]
    of_kept = [
        each for group in kept for each, value in zip(group.completions, group.values, strict=True) if value is not None
    ]
    return {
        "rollout/length_mean": sum(map(len, completions)) / num,
        "rollout/length_max": max(map(len, completions)),
        "rollout/truncated_frac": sum(each.truncated for each in completions) / num,
        "rollout/interrupted_frac": sum(each.interrupted_at is not None for each in completions) / num,
        "rollout/lag_mean": lags.mean(),
        "rollout/lag_max": lags.max(),
        "reward/mean": sum(group.rewards[place] for group, place in graded) / len(graded),
        "reward/correct_frac": sum(group.correct[place] is True for group, place in graded) / len(graded),
        "batch/no_verdict_frac": (num - len(graded)) / num,
        "batch/zero_variance_frac": sum(len(set(values)) == 1 for values in comparable) / len(comparable),
        "batch/effective": len(of_kept),
        "batch/effective_groups": len(kept),
        "batch/trained_tokens": sum(int((~each.forced).sum()) for each in of_kept),
    }
