"""The shipped recipes with tools: they load, hold a conversation before the run, and learn."""

from contextlib import closing
from pathlib import Path

import pytest

from scalerl.recipe.load import load_recipe
from scalerl.runfolder import store
from scalerl.study.plan import make_plan
from scalerl.study.spec import load_study
from scalerl.training.run.run import TrainingRun
from scalerl.training.run.trial import try_parts

SMALL = ("pipeline.groups_per_batch=4", "evaluation.num_prompts=4", "rollout.slots=16", "task.num_problems=40")


def test_tiny_tools_is_checked_with_a_conversation(tmp_path: Path):
    with closing(TrainingRun(load_recipe("tiny-tools", SMALL), tmp_path / "run")) as run:
        first, *_ = try_parts(run.parts, run.recipe)
    assert first.startswith("A conversation of main with calculator")


@pytest.mark.parametrize(("name", "num_warnings"), [("Wordy", 1), ("Nudge", 0)])
def test_observation_that_the_model_cannot_read_is_a_warning(name: str, num_warnings: int, tmp_path: Path):
    recipe = load_recipe("tiny-cpu", [*SMALL, f"task.environment=own_environments:{name}"])
    with closing(TrainingRun(recipe, tmp_path / "run")) as run:
        lines = try_parts(run.parts, run.recipe)
    warnings = [line for line in lines if line.startswith("Warning: the model reads nothing of")]
    assert len(warnings) == num_warnings


def test_the_arms_of_the_study_differ_in_the_tool_alone():
    plan = make_plan(*load_study("tools"), gpu=False)
    environments = {arm.name: arm.recipe.task.environment.name for arm in plan.arms}
    assert environments == {"calculator": "calculator", "no-calculator": ""}


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_tiny_tools_learns_to_ask(tmp_path: Path):
    small = ["evaluation.num_prompts=50", "evaluation.samples_per_prompt=2", "evaluation.every=20", "budget.steps=20"]
    TrainingRun(load_recipe("tiny-tools", small), tmp_path / "run").train()
    first, last = store.read_evals(tmp_path / "run")
    assert last["reward"] > first["reward"] + 0.2
    assert last["tool_calls_mean"] > first["tool_calls_mean"]
