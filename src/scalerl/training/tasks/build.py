"""Build tasks from the tables of a recipe."""

import dataclasses
import functools
from collections.abc import Mapping

from scalerl.errors import RecipeError
from scalerl.recipe.choose import choose
from scalerl.recipe.parts import EvalSetSettings, EvaluationSettings, TaskSettings
from scalerl.training.tasks.files import DEFAULT_EVALUATION, function_task
from scalerl.training.tasks.problems import FROM_ROWS, TASKS
from scalerl.training.tasks.task import Task, named, with_settings

MAIN = "main"
"""Name of the only task of a run, and of its evaluation set."""


def build_tasks(
    only: TaskSettings, several: Mapping[str, TaskSettings], evaluation: EvaluationSettings
) -> dict[str, Task]:
    """Return the tasks of [tasks.NAME] by name; if there are none, the task of [task] by the name main."""
    if several:
        return {name: named(build_task(part, evaluation), name) for name, part in several.items()}
    return {MAIN: build_task(only, evaluation)}


def build_task(part: TaskSettings, evaluation: EvaluationSettings, *, whole: bool = False) -> Task:
    """Return the task of a table in the recipe; a further evaluation set may set its own size.

    With `whole`, no rows are withheld for evaluation, except those that the task itself keeps apart.
    """
    if not part.name:
        raise RecipeError("task.name is not set, so there is nothing to train on: add --set task=FILE.jsonl or a name")
    make = choose(TASKS, part)
    num = evaluation.num_prompts
    if whole or isinstance(part, EvalSetSettings):
        is_of_rows = ":" in part.name or part.name in FROM_ROWS
        num = None if is_of_rows else DEFAULT_EVALUATION
    if isinstance(part, EvalSetSettings) and part.num_prompts:
        num = part.num_prompts
    if ":" in part.name:
        make = functools.partial(function_task, make, part.name)
    return with_settings(make(num, evaluation.seed), part)


def build_whole_task(part: TaskSettings, evaluation: EvaluationSettings) -> Task:
    """Return a task that withholds only the rows that it keeps apart itself."""
    task = build_task(part, evaluation, whole=True)
    return task if task.training else dataclasses.replace(task, training=task.evaluation, evaluation=())
