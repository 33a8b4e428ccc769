"""Tasks with generated problems: split them into training and evaluation, and decide when to stop drawing.

One problem in sixteen, chosen by its content, is never trained on or demonstrated. So a base model that was trained
with one seed has not seen the evaluation problems of any other seed.
"""

import functools
import inspect
import itertools
import math
import random
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

from scalerl.errors import TaskError
from scalerl.training.tasks.task import Demonstration, Task
from scalerl.training.types import Problem, derive_seed

_WITHHELD_ONE_IN = 16

_MOST_MISSES = 5000
"""Number of consecutive draws without a new problem after which no more are expected."""

_LEAST = 10
_TRIED = 500
"""A size counts as impossible if fewer than the first number of attempts succeed among the second number."""


class Drawn(NamedTuple):
    """A problem, and a function that draws a completion or conversation to imitate (model and environment in turn)."""

    problem: Problem
    demonstrate: Callable[[random.Random], str | tuple[str, ...]]


Draw = Callable[[random.Random], Drawn]


def generated(*, grader: str, num_problems: int, remedy: str) -> Callable[[Callable[..., Draw]], Callable[..., Task]]:
    """Turn a function from settings to a draw into a task; `remedy` is advice for errors.

    The task has two more settings: `num_problems` for training, with this default, and the `seed` of the draws.
    """

    def decorated(function: Callable[..., Draw]) -> Callable[..., Task]:
        name = function.__name__
        most = num_problems

        def task(
            num_evaluation: int, evaluation_seed: int, /, *, num_problems: int = most, seed: int = 0, **settings: Any
        ) -> Task:
            with faults_of(name):
                draw = function(**settings)
                training = _drawn_problems(draw, name, "training", seed, num_problems, remedy)
                evaluation = _drawn_problems(draw, name, "evaluation", evaluation_seed, num_evaluation, remedy)
            demonstrations = functools.partial(_demonstrations, draw, name)
            return Task(
                name=name, training=training, evaluation=evaluation, grader=grader, demonstrations=demonstrations
            )

        own = inspect.signature(function)
        made: Any = functools.update_wrapper(task, function)
        shared = list(inspect.signature(task, follow_wrapped=False).parameters.values())[:-1]
        made.__signature__ = own.replace(parameters=[*shared, *own.parameters.values()])
        return made

    return decorated


@contextmanager
def faults_of(name: str) -> Iterator[None]:
    """Begin errors about a task's settings with the name of the task."""
    try:
        yield
    except TaskError as error:
        raise TaskError(f"{name}: {error}") from error


def _demonstrations(draw: Draw, name: str, num: int, seed: int) -> list[Demonstration]:
    stream = random.Random(derive_seed(f"{name} demonstrations", seed))
    result: list[Demonstration] = []
    while len(result) < num:
        problem, demonstrate = draw(stream)
        turns = demonstrate(stream)
        if not is_withheld(problem):
            result.append(Demonstration.of(problem, turns))
    return result


def _drawn_problems(draw: Draw, name: str, purpose: str, seed: int, num: int, remedy: str) -> tuple[Problem, ...]:
    stream = random.Random(derive_seed(f"{name} {purpose}", seed))
    withheld = purpose == "evaluation"
    problems = distinct(lambda: draw(stream).problem, num, wanted=lambda problem: is_withheld(problem) == withheld)
    return enough(problems, num, purpose=purpose, remedy=remedy)


def distinct(
    draw: Callable[[], Problem], num: int, *, wanted: Callable[[Problem], bool], most_misses: int = _MOST_MISSES
) -> tuple[Problem, ...]:
    """Return `num` wanted problems that differ in content, or fewer if many draws in a row give no new one."""
    problems: dict[str, Problem] = {}
    misses = 0
    while len(problems) < num and misses < most_misses:
        problem = draw()
        misses += 1
        if wanted(problem) and problem.content_hash not in problems:
            problems[problem.content_hash] = problem
            misses = 0
    return tuple(problems.values())


def enough(problems: tuple[Problem, ...], num: int, *, purpose: str, remedy: str) -> tuple[Problem, ...]:
    """Return the problems; TaskError if they are fewer than requested."""
    if len(problems) < num:
        raise TaskError(
            f"{num} different problems for {purpose} are needed, but these settings give about "
            f"{len(problems)}: {remedy}, or use fewer"
        )
    return problems


def retried(attempt: Callable[[random.Random, int], Drawn | None], least: int, most: int, rare: str) -> Draw:
    """Return a draw that attempts problems of a random size from `least` to `most` until one succeeds.

    If hardly any attempt at a size succeeds, drawing would take too long: raise TaskError with the size and `rare`.
    """
    for size in range(least, most + 1):
        stream = random.Random(0)
        drawn = (True for _ in range(_TRIED) if attempt(stream, size) is not None)
        if sum(itertools.islice(drawn, _LEAST)) < _LEAST:
            raise TaskError(f"{size} {rare}")

    def draw(stream: random.Random) -> Drawn:
        size = stream.randint(least, most)
        while (drawn := attempt(stream, size)) is None:
            pass
        return drawn

    return draw


def is_withheld(problem: Problem) -> bool:
    """Return whether a problem is reserved for evaluation, for any seed."""
    return int(problem.content_hash, 16) % _WITHHELD_ONE_IN == 0


def check_ranges(**settings: tuple[float, ...]) -> None:
    """Raise TaskError if a setting, given as (value, least) or (value, least, most), is out of range."""
    for setting, (value, least, *most) in settings.items():
        if not least <= value <= max(most, default=math.inf):
            bounds = f"in [{least}, {most[0]}]" if most else f"at least {least}"
            raise TaskError(f"{setting} is {value:g} but must be {bounds}")


def check_chosen(setting: str, value: str, chosen: Iterable[str], choices: Iterable[str]) -> None:
    """Raise TaskError unless `chosen` has at least one item and all are choices."""
    if not set(chosen) or set(chosen) - set(choices):
        raise TaskError(f'{setting} is "{value}" but must be one or more of {", ".join(choices)}')
