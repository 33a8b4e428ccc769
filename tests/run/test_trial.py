"""What `scalerl train --check` tries: every grader on an answer, and a step on made-up completions."""

from pathlib import Path

import pytest
import torch

from scalerl.config import load_recipe
from scalerl.errors import GraderError, RecipeError
from scalerl.run.run import Run
from scalerl.run.trial import try_parts

TINY = (
    "task.num_problems=8",
    "pipeline.groups_per_batch=2",
    "pipeline.completions_per_group=2",
    "pipeline.max_lag=1",
    "rollout.slots=4",
    "evaluation.num_prompts=2",
    "evaluation.samples_per_prompt=1",
    "budget.steps=1",
)


def tried(folder: Path, *settings: str) -> list[str]:
    recipe = load_recipe("tiny-cpu", [*TINY, *settings])
    run = Run(recipe, folder / "run")
    try:
        return try_parts(run.parts, recipe)
    finally:
        run.close()


def test_recipe_passes_its_trial_and_writes_nothing(tmp_path: Path):
    assert tried(tmp_path) == []
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("loss", ["dapo", "gspo", "tis"])
def test_every_loss_passes_its_trial(tmp_path: Path, loss: str):
    length = 'length={name="penalty", max_length=32, cache=8}'
    assert tried(tmp_path, f"loss={loss}", "learner.start_kl=0.1", length) == []


def test_trial_takes_a_step_that_changes_the_weights(tmp_path: Path):
    recipe = load_recipe("tiny-cpu", [*TINY, "optimizer.warmup_steps=0"])
    run = Run(recipe, tmp_path / "run")
    before = {name: weight.detach().clone() for name, weight in run.learner.weights().items()}
    try_parts(run.parts, recipe)
    after = run.learner.weights()
    run.close()
    assert any(not torch.equal(after[name], weight) for name, weight in before.items())


@pytest.mark.parametrize(
    "grader, message",
    [
        ("own_code:never", r'the grader "own_code:never" fails on an answer of main: KeyError'),
        (
            "own_code:reply",
            r"fails on an answer of main: TypeError: the grader returned .*verdict.*a grader returns",
        ),
    ],
)
def test_failing_grader_is_one_sentence(tmp_path: Path, grader: str, message: str):
    with pytest.raises(GraderError, match=message) as caught:
        tried(tmp_path, f'task.grader="{grader}"')
    assert "\n" not in str(caught.value)


def test_every_one_of_several_graders_is_tried(tmp_path: Path):
    settings = ('task.graders.good.name="exact"', 'task.graders.bad.name="own_code:never"', "task.graders.bad.weight=0")
    with pytest.raises(GraderError, match=r'"own_code:never" fails'):
        tried(tmp_path, *settings)


def test_trial_shows_what_an_own_grader_returned(tmp_path: Path):
    (half,) = tried(tmp_path, 'task.grader="own_code:half"')
    assert half == (
        "own_code:half gives 0.5 to a reference answer of main, 0 to nonsense; only values from reward.threshold = 1 "
        "on count as correct"
    )
    (wrong,) = tried(tmp_path, 'task.grader="own_code:wrong"')
    assert wrong == "own_code:wrong gives 0 to a reference answer of main, and the same to nonsense"


@pytest.mark.parametrize(
    "setting, message",
    [
        (
            "loss=own_code:misspelt_loss",
            r"fails on a few tokens: AttributeError.*own_code.py, line",
        ),
        (
            "loss=own_code:bare_loss",
            r"returns Tensor but must return a TokenLoss, whose fields are loss",
        ),
        ("loss=own_code:summed_loss", r'loss "own_code:summed_loss" (fails|returns shape)'),
        ("loss=own_code:infinite_loss", r"changes no weight, because the loss .* is not finite"),
        ("weights=own_code:misshapen_weights", r"fails with own_code:misshapen_weights: IndexError.*own_code.py, line"),
    ],
)
def test_failing_loss_is_one_sentence(tmp_path: Path, setting: str, message: str):
    with pytest.raises(RecipeError, match=message) as caught:
        tried(tmp_path, setting)
    assert "\n" not in str(caught.value)
