"""Tasks whose problems are drawn from a random stream instead of read: how they are split, and when to give up.

One problem in sixteen, picked by its content, is never trained on and never demonstrated, so that a base model taught
under one seed has not seen the evaluation problems of any other.
"""

import random
from collections.abc import Callable
from typing import TypeVar

from scalerl.errors import TaskError
from scalerl.tasks.task import Demonstration, Task
from scalerl.types import Problem, derive_seed

Item = TypeVar("Item")

_WITHHELD_ONE_IN = 16

# Draws in a row without a new problem before their space is held to be used up.
_MOST_MISSES = 5000

# Draws over which the rate of new problems is taken.
_BLOCK = 2000


def drawn_task(
    name: str,
    num_evaluation: int,
    evaluation_seed: int,
    *,
    num_problems: int,
    seed: int,
    draw: Callable[[random.Random], Item],
    pose: Callable[[Item], Problem],
    demonstrate: Callable[[Item, random.Random], str],
    grader: str,
    remedy: str,
    most: int | None = None,
) -> Task:
    """A task over what `draw` gives: `pose` makes a problem of it, `demonstrate` a completion to imitate.

    `most` is how many different problems there can be, where that is known: asking for more then fails at once.
    `remedy` is what an error tells the user to change.
    """
    if most is not None and num_problems + num_evaluation > most:
        raise TaskError(
            f"{name}: {num_problems} different problems for training and {num_evaluation} for evaluation were asked "
            f"for, but these settings give only {most}: {remedy}, or ask for fewer"
        )

    def demonstrations(num: int, stream_seed: int) -> list[Demonstration]:
        stream = random.Random(derive_seed(f"{name} demonstrations", stream_seed))
        made: list[Demonstration] = []
        while len(made) < num:
            item = draw(stream)
            problem, completion = pose(item), demonstrate(item, stream)
            if not is_withheld(problem):
                made.append(Demonstration(problem=problem, completion=completion))
        return made

    def drawn(purpose: str, purpose_seed: int, num: int) -> tuple[Problem, ...]:
        stream = random.Random(derive_seed(f"{name} {purpose}", purpose_seed))
        side = purpose == "evaluation"
        found = distinct(lambda: pose(draw(stream)), num, wanted=lambda problem: is_withheld(problem) == side)
        if len(found) < num:
            raise TaskError(
                f"{name}: {num} different problems for {purpose} were asked for, but these settings give hardly "
                f"more than {len(found)}: {remedy}, or ask for fewer"
            )
        return found

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
    """`num` wanted problems that differ in content, or fewer where more cannot be found in reasonable time.

    Drawing evenly from a space of S >= num problems never needs more than about S further draws at the rate of the
    moment; from a space that is too small it needs ever more. So a forecast far beyond num ends the search early.
    """
    found: dict[str, Problem] = {}
    misses = draws = new_in_block = 0
    while len(found) < num and misses < most_misses:
        problem = draw()
        key = problem.content_hash
        misses += 1
        if not wanted(problem):
            continue
        draws += 1
        if key not in found:
            found[key] = problem
            misses = 0
            new_in_block += 1
        if draws % _BLOCK == 0:
            further_draws = (num - len(found)) * _BLOCK / (new_in_block + 1)
            if further_draws > max(5 * num, 10 * _BLOCK):
                break
            new_in_block = 0
    return tuple(found.values())


def is_withheld(problem: Problem) -> bool:
    return int(problem.content_hash, 16) % _WITHHELD_ONE_IN == 0


def check_least(name: str, **settings: tuple[int, int]) -> None:
    """Every setting, given with the least it may be, is at least that."""
    for setting, (found, least) in settings.items():
        if found < least:
            raise TaskError(f"{name}: {setting} is {found} but must be at least {least}")
