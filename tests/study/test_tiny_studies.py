"""Every study for two cores really runs: each arm to its end, and a report on all of them."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from scalerl.recipe.load import shipped

STEPS = 3
# One seed, few steps and small evaluations; batches, lengths and arms are those of the study.
SHORT = (
    "seeds=[0]",
    f"budget.steps={STEPS}",
    "evaluation.every=1",
    "evaluation.num_prompts=8",
    "evaluation.samples_per_prompt=1",
)
# A CPU without bfloat16 arithmetic takes a hundred times as long for it.
SMALLER = {
    "tiny-precision": (
        "pipeline.groups_per_batch=2",
        "pipeline.completions_per_group=2",
        "evaluation.num_prompts=2",
        "evaluation.every=3",
    )
}


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("name", [name for name in shipped("study") if name.startswith("tiny-")])
def test_a_tiny_study_runs_to_its_report(name: str, tmp_path: Path):
    if name == "tiny-scheme":
        pytest.importorskip("ray", reason="its generator is a Ray actor")
    changes = [word for change in (*SHORT, *SMALLER.get(name, ())) for word in ("--set", change)]
    ended = subprocess.run(
        [sys.executable, "-m", "scalerl", "study", name, "--out", str(tmp_path / "out"), *changes, "--json"],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""},
    )
    assert ended.returncode == 0, ended.stderr
    summary = json.loads(ended.stdout)
    assert len(summary["runs"]) > 1
    assert {(run["state"], run["step"]) for run in summary["runs"]} == {("done", STEPS)}
    assert summary["skipped"] == {}
    page = Path(summary["report"]).read_text(encoding="utf-8")
    assert all(run["arm"] in page for run in summary["runs"])
