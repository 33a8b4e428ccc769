"""A study on the tiny base really runs: each arm to its end, and a report on all of them."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

STEPS = 3
# One seed, few steps and small evaluations; batches, lengths and arms are those of the study.
SHORT = (
    f"budget.steps={STEPS}",
    "evaluation.every=1",
    "evaluation.num_prompts=8",
    "evaluation.samples_per_prompt=1",
)


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("name", ["loo", "loss", "off-policy", "algorithms", "critic", "prevalent-recipes", "tools"])
def test_study_runs_to_its_report(name: str, tmp_path: Path):
    base = "tiny-tools" if name == "tools" else "tiny-cpu"
    changes = [word for change in (f"base={base}", *SHORT) for word in ("--set", change)]
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
    # A CPU computes in FP32 anyway.
    assert set(summary["skipped"]) <= {"no-fp32-head"}
    page = Path(summary["report"]).read_text(encoding="utf-8")
    assert all(run["arm"] in page for run in summary["runs"])
