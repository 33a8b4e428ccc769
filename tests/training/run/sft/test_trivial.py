"""Which prompts are trivial for a model, and that a resumed run leaves out the same ones."""

import dataclasses

import torch

from scalerl.recipe.load import load_recipe
from scalerl.training.run.sft.trivial import solved_once, solved_problems, without_trivial
from scalerl.training.tasks.build import build_tasks
from scalerl.training.tasks.task import Demonstration
from scalerl.training.types import Problem


def problem(prompt, name="p", answer="1"):
    return Problem(id=name, prompt=prompt, answer=answer, task="t")


def shown(prompt, name="p"):
    return Demonstration(problem=problem(prompt, name), completion="1")


def test_demonstrations_of_solved_problems_are_left_out():
    drawn = {"main": [shown("1+1=", "a"), shown("1+2=", "b"), shown("1+1=", "a")]}
    kept, removed = without_trivial(drawn, {problem("1+1=", "a")}, 4)
    assert [item.problem.id for item in kept["main"]] == ["b"]
    assert (removed.kind, removed.num, removed.limit, removed.example) == ("trivial", 2, 4, "1+1=")


def test_prompts_are_trivial_if_the_model_always_answers_right():
    torch.set_num_threads(1)
    recipe = load_recipe("tiny-cpu", ["rollout.temperature=0.01", "evaluation.num_prompts=2", "rollout.slots=32"])
    tasks = build_tasks(recipe.task, {}, recipe.evaluation)
    task = tasks["main"]
    assert task.demonstrations is not None
    items = task.demonstrations(12, 0)
    # The same problems with references that no sum is equal to.
    wrong = [dataclasses.replace(item, problem=dataclasses.replace(item.problem, answer="-1")) for item in items]
    solved = solved_problems(recipe, tasks, {"main": [*items, *wrong]}, 2)
    assert 0 < len(solved) < len(items)
    assert solved < {item.problem for item in items}


def test_resumed_run_leaves_out_the_same_problems(tmp_path):
    """The second call samples nothing: its model does not exist."""
    torch.set_num_threads(1)
    recipe = load_recipe("tiny-cpu", ["rollout.temperature=0.01", "evaluation.num_prompts=2", "rollout.slots=32"])
    tasks = build_tasks(recipe.task, {}, recipe.evaluation)
    assert tasks["main"].demonstrations is not None
    drawn = {"main": tasks["main"].demonstrations(12, 0)}
    file = tmp_path / "checkpoints" / "solved.json"
    first = solved_once(file, recipe, tasks, drawn, 1)
    assert first
    elsewhere = load_recipe("tiny-cpu", ["model.path=no-such-model"])
    assert solved_once(file, elsewhere, tasks, drawn, 1) == first
