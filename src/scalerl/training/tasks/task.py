"""A task: problems for training, problems withheld for evaluation, and demonstrations for a base model.

A recipe names a function (num_evaluation, evaluation_seed, /, *, settings) -> Task and its settings. `with_settings`
applies the settings that all tasks have. No training problem or demonstration equals an evaluation problem in content.
"""

import dataclasses
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from scalerl.errors import TaskError
from scalerl.recipe.parts import EnvironmentSettings, GraderSettings, TaskSettings
from scalerl.training.answer_format import AnswerFormat
from scalerl.training.graders.rules import GRADERS, unknown_grader
from scalerl.training.tasks.prompts import PromptFormat
from scalerl.training.types import Problem

_TAGS = {"thinking_start", "thinking_end"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Demonstration:
    """A prompt and one completion to imitate, which need not be correct."""

    problem: Problem
    completion: str
    """The completion, or the last turn of a conversation."""
    earlier: tuple[str, ...] = ()
    """Earlier turns of a conversation, of the model and the environment in turn, the model first. Turns of the
    environment are context and not imitated."""

    @classmethod
    def of(cls, problem: Problem, turns: str | tuple[str, ...]) -> "Demonstration":
        """Return a demonstration of a completion, or of a conversation (model and environment in turn)."""
        turns = (turns,) if isinstance(turns, str) else turns
        if len(turns) % 2 == 0:
            raise TaskError(f"a conversation about {problem.id} ends with the environment, but must end with the model")
        return cls(problem=problem, completion=turns[-1], earlier=turns[:-1])


Demonstrate = Callable[[int, int], Sequence[Demonstration]]
"""(number, seed) -> demonstrations; a task with a fixed number of them may return fewer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """Problems for training and evaluation, with their grader, prompt format and demonstrations."""

    name: str
    training: tuple[Problem, ...]
    evaluation: tuple[Problem, ...]
    grader: str
    """A name in GRADERS or an import path; unused if there are `graders`."""
    graders: Mapping[str, GraderSettings] = field(default_factory=dict)
    """Several graders with weights instead of one, by the name of their columns."""
    answer: AnswerFormat = field(default_factory=AnswerFormat)
    prompt: PromptFormat = field(default_factory=PromptFormat)
    demonstrations: Demonstrate | None = None
    """Returns demonstrations; None if there are none."""
    environment: EnvironmentSettings = field(default_factory=EnvironmentSettings)
    """The environment that answers the model's turns; without a name, a single completion is the answer."""
    notice: str = ""
    """A message for the user about how the problems were read."""

    def __post_init__(self) -> None:
        for name in [used.name for used in self.graders.values()] or [self.grader]:
            if ":" not in name and name not in GRADERS:
                raise TaskError(unknown_grader(name))
        for kind, problems in (("training", self.training), ("evaluation", self.evaluation)):
            for problem_id, num in Counter(problem.id for problem in problems).most_common(1):
                if num > 1:
                    raise TaskError(
                        f'the task "{self.name}" has {num} {kind} problems with the id "{problem_id}": give each '
                        f"a different id"
                    )


def without(problems: Iterable[Problem], withheld: Iterable[Problem]) -> tuple[Problem, ...]:
    """Return the problems that differ in content from all withheld problems."""
    hashes = {problem.content_hash for problem in withheld}
    return tuple(problem for problem in problems if problem.content_hash not in hashes)


def with_settings(task: Task, part: TaskSettings) -> Task:
    """Return the task with a recipe's prompt format, grader, tags and environment.

    An empty grader, None tags and an environment without a name keep the task's.
    """
    return dataclasses.replace(
        task,
        prompt=PromptFormat(template=part.template, chat=part.chat, system=part.system),
        grader=part.grader or task.grader,
        graders=part.graders,
        answer=dataclasses.replace(task.answer, **part.model_dump(include=_TAGS, exclude_none=True)),
        environment=part.environment if part.environment.name else task.environment,
    )


def shared_answer(tasks: Mapping[str, Task]) -> AnswerFormat:
    """Return the tags around thinking, which all tasks of a model share."""
    answers = {task.answer for task in tasks.values()}
    if len(answers) > 1:
        raise TaskError(
            f"the tasks {', '.join(tasks)} have different thinking_start or thinking_end, but a model has one pair"
        )
    return answers.pop()


def named(task: Task, name: str) -> Task:
    """Return the task as one of several: its problems have the name, and their ids begin with it."""

    def renamed(problem: Problem) -> Problem:
        return dataclasses.replace(problem, id=f"{name}/{problem.id}", task=name)

    demonstrate = task.demonstrations

    def demonstrations(num: int, seed: int) -> list[Demonstration]:
        assert demonstrate is not None
        return [dataclasses.replace(made, problem=renamed(made.problem)) for made in demonstrate(num, seed)]

    return dataclasses.replace(
        task,
        name=name,
        training=tuple(map(renamed, task.training)),
        evaluation=tuple(map(renamed, task.evaluation)),
        demonstrations=demonstrations if demonstrate else None,
    )
