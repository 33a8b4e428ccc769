"""A whole run whose answers are run as programs."""

import json
from pathlib import Path

from sandbox_support import needs_bubblewrap

from scalerl import store
from scalerl.config import load_recipe
from scalerl.graders.sandbox.job import Reference
from scalerl.run.run import Run

SMALL = (
    "pipeline.groups_per_batch=4",
    "pipeline.completions_per_group=2",
    "pipeline.max_lag=2",
    "rollout.slots=24",
    "evaluation.num_prompts=3",
    "evaluation.samples_per_prompt=2",
    "evaluation.every=2",
    "curriculum=uniform",
    "budget.steps=2",
)


@needs_bubblewrap
def test_answers_of_a_run_are_run_as_programs(tmp_path: Path):
    # The tiny model answers with a number: a program that writes nothing. Two minuses in a row are no program.
    reference = Reference(streams=(("", ""),)).to_text()
    problems = tmp_path / "problems.jsonl"
    prompts = [f"{first}+{second}=" for first in range(2, 8) for second in range(3, 9)]
    problems.write_text("".join(json.dumps({"prompt": prompt, "answer": reference}) + "\n" for prompt in prompts))
    task = ('task="file"', f"task.path={json.dumps(str(problems))}", 'task.grader="code"', "grading.timeout_s=120")
    Run(load_recipe("tiny-cpu", [*SMALL, *task]), tmp_path / "run").train()
    (first, *_) = store.read_evals(tmp_path / "run")
    assert first["reward"] > 0.5
    assert first["outcome/passed"] == sum(first["num_correct"])
    rows = store.read_metrics(tmp_path / "run")
    assert len(rows) == 2
    for row in rows:
        # Groups are counted when they are graded, which may be a step before they are trained on.
        counted = sum(value for key, value in row.items() if key.startswith("outcome/") and not key.endswith("_frac"))
        assert counted > 0
        assert counted % 2 == 0
        assert row["outcome/stopped_frac"] == 0
