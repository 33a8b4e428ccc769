"""A short run equals the one on file, number by number, so that a change of behaviour is always deliberate.

After such a change, say so in CHANGELOG.md and write the file anew:

    PYTHONPATH=tests/support python tests/training/run/test_golden.py
"""

import json
import tempfile
from pathlib import Path
from typing import Any

import pytest
from small_runs import without_time

from scalerl.recipe.load import load_recipe
from scalerl.runfolder import store
from scalerl.training.run.run import TrainingRun

GOLDEN = Path(__file__).parents[2] / "data" / "golden_run.json"
SETTINGS = (
    "seed=5",
    "budget.steps=3",
    "pipeline.groups_per_batch=8",
    "evaluation.every=3",
    "evaluation.num_prompts=12",
    "evaluation.samples_per_prompt=2",
)


def rows_of_a_run(folder: Path) -> dict[str, Any]:
    """Train, and return metrics and evaluations without what depends on the clock or the machine."""
    TrainingRun(load_recipe("tiny-cpu", SETTINGS), folder).train()
    return {
        "metrics": without_time(store.read_metrics(folder)),
        "evals": without_time(store.read_evals(folder)),
    }


def test_run_equals_the_one_on_file(tmp_path: Path):
    golden, now = json.loads(GOLDEN.read_text()), rows_of_a_run(tmp_path / "run")
    for kind, rows in golden.items():
        assert len(now[kind]) == len(rows)
        for row, expected in zip(now[kind], rows, strict=True):
            for key, value in expected.items():
                # Processors round differently; one other sampled token changes far more than this.
                close = pytest.approx(value, rel=1e-3, abs=1e-6) if isinstance(value, float) else value
                assert row[key] == close, f"{kind}, step {row['step']}: {key}"


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as temporary:
        text = json.dumps(rows_of_a_run(Path(temporary, "run")), indent=1)
    GOLDEN.write_text(text + "\n", encoding="utf-8")
