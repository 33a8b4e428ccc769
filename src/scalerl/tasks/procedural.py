"""Tasks whose problems are generated: how they are split into training and evaluation, and when to stop drawing.

One problem in sixteen, chosen by its content, is never trained on and never demonstrated. A base model that was taught
with one seed therefore has not seen the evaluation problems of any other seed.
"""

import random
from collections.abc import Callable, Sequence
from typing import TypeVar

from scalerl.errors import TaskError
from scalerl.tasks.task import Demonstration, Task
from scalerl.types import Problem, derive_seed

Item = TypeVar("Item")

_WITHHELD_ONE_IN = 16

_MOST_MISSES = 5000
"""Draws in a row without a new problem after which there are assumed to be no more."""

_RARE, _TRIED = 0.02, 500
"""Share of successful attempts below which a size counts as impossible, and how many are made to see it."""

_BLOCK = 2000
"""Draws over which the rate of new problems is measured."""


def drawn_task(
    name: str,
    num_evaluation: int,
    evaluation_seed: int,
    *,
    num_problems: int,
    seed: int,
    draw: Callable[[random.Random], Item],
    problem_of: Callable[[Item], Problem],
    demonstrate: Callable[[Item, random.Random], str | tuple[str, ...]],
    grader: str,
    remedy: str,
) -> Task:
    """Build a task from items that `draw` returns; `remedy` is what an error tells the user to change."""

    def demonstrations(num: int, stream_seed: int) -> list[Demonstration]:
        stream = random.Random(derive_seed(f"{name} demonstrations", stream_seed))
        result: list[Demonstration] = []
        while len(result) < num:
            item = draw(stream)
            problem, said = problem_of(item), demonstrate(item, stream)
            if not is_withheld(problem):
                result.append(Demonstration.of(problem, said))
        return result

    def drawn(purpose: str, purpose_seed: int, num: int) -> tuple[Problem, ...]:
        stream = random.Random(derive_seed(f"{name} {purpose}", purpose_seed))
        withheld = purpose == "evaluation"
        problems = distinct(
            lambda: problem_of(draw(stream)), num, wanted=lambda problem: is_withheld(problem) == withheld
        )
        return enough(problems, num, name=name, purpose=purpose, remedy=remedy)

    return Task(
        name=name,
        training=drawn("training", seed, num_problems),
        evaluation=drawn("evaluation", evaluation_seed, num_evaluation),
        grader=grader,
        demonstrations=demonstrations,
    )


def distinct(
    draw: Callable[[], Problem], num: int, *, wanted: Callable[[Problem], bool], most_misses: int = _MOST_MISSES
) -> tuple[Problem, ...]:
    """Return `num` wanted problems that differ in content, or fewer if more cannot be drawn in reasonable time.

    Drawing uniformly from S >= num problems needs at most about S further draws at the current rate of new ones; with
    too few problems the number grows without bound. A forecast far beyond num therefore ends the search early.
    """
    problems: dict[str, Problem] = {}
    misses = draws = new_in_block = 0
    while len(problems) < num and misses < most_misses:
        problem = draw()
        key = problem.content_hash
        misses += 1
        if not wanted(problem):
            continue
        draws += 1
        if key not in problems:
            problems[key] = problem
            misses = 0
            new_in_block += 1
        if draws % _BLOCK == 0:
            further_draws = (num - len(problems)) * _BLOCK / (new_in_block + 1)
            if further_draws > max(5 * num, 10 * _BLOCK):
                break
            new_in_block = 0
    return tuple(problems.values())


def enough(problems: tuple[Problem, ...], num: int, *, name: str, purpose: str, remedy: str) -> tuple[Problem, ...]:
    """Return the problems; TaskError if they are fewer than were asked for."""
    if len(problems) < num:
        raise TaskError(
            f"{name}: {num} different problems for {purpose} were asked for, but these settings give hardly more than "
            f"{len(problems)}: {remedy}, or ask for fewer"
        )
    return problems


def retried(
    attempt: Callable[[random.Random, int], Item | None], least: int, most: int, rare: Callable[[int], str]
) -> Callable[[random.Random], Item]:
    """Return a draw that attempts an item of a size from `least` to `most` until there is one.

    Where hardly any attempt at a size gives something, drawing thousands would take forever: TaskError says `rare`.
    """
    for size in range(least, most + 1):
        stream = random.Random(0)
        if sum(attempt(stream, size) is not None for _ in range(_TRIED)) < _RARE * _TRIED:
            raise TaskError(rare(size))

    def draw(stream: random.Random) -> Item:
        size = stream.randint(least, most)
        while (drawn := attempt(stream, size)) is None:
            pass
        return drawn

    return draw


def is_withheld(problem: Problem) -> bool:
    """Return whether a problem is reserved for evaluation, under every seed."""
    return int(problem.content_hash, 16) % _WITHHELD_ONE_IN == 0


def check_least(name: str, **settings: tuple[int, int]) -> None:
    """Raise TaskError if a setting, given as (value, least), is below its least value."""
    for setting, (value, least) in settings.items():
        if value < least:
            raise TaskError(f"{name}: {setting} is {value} but must be at least {least}")


def check_shares(name: str, **settings: float) -> None:
    """Raise TaskError if a setting is not a share."""
    for setting, value in settings.items():
        if not 0 <= value <= 1:
            raise TaskError(f"{name}: {setting} is {value:g} but must be in [0, 1]")


def check_chosen(name: str, setting: str, value: str, chosen: Sequence[str], choices: Sequence[str]) -> None:
    """Raise TaskError unless some of the choices were made, and nothing else."""
    if not chosen or set(chosen) - set(choices):
        raise TaskError(f'{name}: {setting} is "{value}" but must be one or more of {", ".join(choices)}')
