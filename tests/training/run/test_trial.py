"""What `scalerl train --check` tries: every grader on an answer, and a step on made-up completions."""

from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from small_runs import small

from scalerl.errors import GraderError, RecipeError
from scalerl.training.run.run import TrainingRun
from scalerl.training.run.trial import NUM_SHOWN, try_answers, try_parts

TINY = ("pipeline.groups_per_batch=2", "evaluation.num_prompts=2", "evaluation.samples_per_prompt=1", "budget.steps=1")


def tried(folder: Path, *settings: str) -> list[str]:
    recipe = small(*TINY, *settings)
    run = TrainingRun(recipe, folder / "run")
    try:
        return try_parts(run.parts, run.recipe)
    finally:
        run.close()


def test_a_trial_takes_a_real_step_and_writes_nothing(tmp_path: Path):
    length = 'length={name="penalty", max_length=32, cache=8}'
    run = TrainingRun(small(*TINY, "optimizer.warmup_steps=0", "kl.coefficient=0.1", length), tmp_path / "run")
    before = {name: weight.detach().clone() for name, weight in run.learner.weights().items()}
    first, *answers = try_parts(run.parts, run.recipe)
    assert first.startswith("main: exact gives ")
    assert len(answers) == 2  # of the two problems of the set
    after = run.learner.weights()
    run.close()
    assert any(not torch.equal(after[name], weight) for name, weight in before.items())
    assert list(tmp_path.iterdir()) == []


def test_one_answer_per_problem_is_tried_with_a_critic(tmp_path: Path):
    one = ('advantage.credit="gae"', "filter.zero_variance=false", "pipeline.completions_per_group=1")
    run = TrainingRun(small(*TINY, *one, "optimizer.warmup_steps=0"), tmp_path / "run")
    before = {name: weight.detach().clone() for name, weight in run.learner.weights().items()}
    try_parts(run.parts, run.recipe)
    after = run.learner.weights()
    run.close()
    assert any(not torch.equal(after[name], weight) for name, weight in before.items())


OBJECT = r"TypeError: the grader returned .*verdict.*a grader returns"
SEVERAL = ('task.graders.good.name="exact"', 'task.graders.bad.name="own_code:never"', "task.graders.bad.weight=0")


@pytest.mark.parametrize(
    "settings, error, message",
    [
        (['task.grader="own_code:never"'], GraderError, r'"own_code:never" fails on an answer of main: KeyError'),
        (['task.grader="own_code:reply"'], GraderError, rf"fails on an answer of main: {OBJECT}"),
        (SEVERAL, GraderError, r'"own_code:never" fails'),
        (["loss=own_code:misspelt_loss"], RecipeError, r"fails on a few tokens: AttributeError.*own_code.py, line"),
        (["loss=own_code:bare_loss"], RecipeError, r"returns Tensor but must return a TokenLoss, whose fields are"),
        (["loss=own_code:summed_loss"], RecipeError, r'loss "own_code:summed_loss" (fails|returns shape)'),
        (["loss=own_code:infinite_loss"], RecipeError, r"changes no weight, because the loss .* is not finite"),
        (["weights=own_code:misshapen_weights"], RecipeError, r"own_code:misshapen_weights: IndexError.*own_code.py"),
    ],
)
def test_failure_in_a_trial_is_one_sentence(
    tmp_path: Path, settings: Sequence[str], error: type[Exception], message: str
):
    with pytest.raises(error, match=message) as caught:
        tried(tmp_path, *settings)
    assert "\n" not in str(caught.value)


def test_trial_shows_the_values_of_a_users_grader(tmp_path: Path):
    half, *_ = tried(tmp_path, 'task.grader="own_code:half"')
    assert half == (
        "own_code:half gives 0.5 to a reference answer of main, 0 to nonsense; only values from reward.threshold = 1 "
        "on count as correct"
    )
    wrong, graded, *_ = tried(tmp_path, 'task.grader="own_code:wrong"')
    assert wrong.endswith("gives 0 to a reference answer of main, and the same to nonsense, so it teaches nothing")
    assert graded.startswith("main: own_code:wrong gives 0 on average to 2 answers of the untrained model; check that")


def test_answers_of_the_model_are_graded_with_their_reference(tmp_path: Path):
    more = ("evaluation.num_prompts=12", "length.thinking_min=36", "length.thinking_max=42", "task.max_terms=3")
    first, *answers = tried(tmp_path, *more)
    assert "to 8 answers" in first
    assert len(answers) == NUM_SHOWN
    values = [float(line.split("|")[0]) for line in answers]
    assert values == sorted(values, reverse=True)
    assert values[0] == 1
    text, reference = answers[0].split("|")[1:]
    assert text.strip().endswith(f"</think>{reference.split()[1].strip(chr(39))}'")


def test_grader_that_raises_on_answers_of_the_model_is_reported(tmp_path: Path):
    # Thinking that is interrupted early makes the model write other things than numbers.
    more = ("evaluation.num_prompts=12", "rollout.temperature=4.0", "evaluation.temperature=4.0")
    *_, last = tried(tmp_path, 'task.grader="own_code:integers"', *more)
    assert "own_code:integers failed on" in last
    assert "ValueError" in last


def test_model_without_an_answer_in_time_is_reported(tmp_path: Path):
    run = TrainingRun(small(*TINY), tmp_path / "run")
    try:
        (line,) = try_answers(run.parts, limit_s=0.0)
    finally:
        run.close()
    assert line.startswith("main: the model did not finish an answer")
