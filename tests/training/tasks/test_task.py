import dataclasses
import re

import pytest

from scalerl.errors import PromptError, TaskError
from scalerl.recipe.parts import TaskSettings
from scalerl.training.answer_format import AnswerFormat
from scalerl.training.tasks.arithmetic import arithmetic
from scalerl.training.tasks.prompts import PromptFormat
from scalerl.training.tasks.task import Task, named, with_settings, without
from scalerl.training.types import Problem


@pytest.fixture(scope="module")
def task() -> Task:
    return arithmetic(5, 0, num_problems=20)


def test_without_goes_by_content():
    problem = Problem(id="a", prompt="1 +  1", answer="2", task="t")
    same = Problem(id="b", prompt="1 + 1", answer="2", task="u")
    other = Problem(id="c", prompt="1 + 2", answer="3", task="t")
    assert without([problem, other], [same]) == (other,)


def test_recipe_sets_prompt_format_and_grader(task: Task):
    changed = with_settings(
        task,
        TaskSettings(
            template="Q: {prompt}", chat=True, system="Be brief.", grader="numeric", thinking_end="</thought>"
        ),
    )
    assert changed.prompt == PromptFormat(template="Q: {prompt}", chat=True, system="Be brief.")
    assert changed.grader == "numeric"
    assert changed.answer == AnswerFormat(thinking_start="<think>", thinking_end="</thought>")
    assert changed.training == task.training
    assert with_settings(task, TaskSettings(thinking_start="")).answer.thinking_start == ""
    assert with_settings(task, TaskSettings()) == task


def test_a_grader_is_known_or_an_import_path(task: Task):
    with pytest.raises(TaskError, match=r'there is no grader "nummeric"; choices: exact, .*or "package.module:func'):
        with_settings(task, TaskSettings(grader="nummeric"))
    with pytest.raises(TaskError, match=r'did you mean "mine:FUNCTION"\?'):
        with_settings(task, TaskSettings(grader="mine.py"))
    assert with_settings(task, TaskSettings(grader="my.graders:lenient")).grader == "my.graders:lenient"
    with pytest.raises(PromptError, match=re.escape("must contain {prompt}")):
        with_settings(task, TaskSettings(template="no place"))


@pytest.mark.parametrize("kind", ["training", "evaluation"])
def test_two_problems_with_one_id_are_refused(task: Task, kind: str):
    first, *rest = getattr(task, kind)
    twin = dataclasses.replace(rest[0], id=first.id)
    with pytest.raises(TaskError, match=re.escape(f'has 2 {kind} problems with the id "{first.id}": give each a diff')):
        dataclasses.replace(task, **{kind: (first, twin, *rest)})


def test_named_task_renames_problems_and_keeps_content(task: Task):
    sums = named(task, "sums")
    assert sums.name == "sums"
    assert task.demonstrations is not None
    assert sums.demonstrations is not None
    made = [item.problem for item in sums.demonstrations(3, 0)]
    was = [item.problem for item in task.demonstrations(3, 0)]
    renamed, before = (*sums.training, *sums.evaluation, *made), (*task.training, *task.evaluation, *was)
    expected = [dataclasses.replace(problem, id=f"sums/{problem.id}", task="sums") for problem in before]
    assert list(renamed) == expected
    assert [problem.content_hash for problem in renamed] == [problem.content_hash for problem in before]
