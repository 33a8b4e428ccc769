import itertools
import math
import re
import time
from collections.abc import Iterable
from typing import Any

import pytest

from scalerl.errors import TaskError
from scalerl.training.graders.rules import GRADERS
from scalerl.training.tasks.arithmetic import arithmetic
from scalerl.training.tasks.problems import TASKS
from scalerl.training.tasks.procedural import distinct, is_withheld
from scalerl.training.types import Problem

SMALL: dict[str, Any] = {"num_problems": 300}


def contents(problems: tuple[Problem, ...]) -> set[str]:
    return {problem.content_hash for problem in problems}


def test_each_seed_moves_its_own_problems_alone():
    task, again = (arithmetic(50, 0, seed=0, **SMALL) for _ in range(2))
    assert (task.training, task.evaluation) == (again.training, again.evaluation)
    for problems in (task.training, task.evaluation):
        assert len({problem.id for problem in problems}) == len(contents(problems)) == len(problems)
    other_training, other_evaluation = arithmetic(50, 0, seed=1, **SMALL), arithmetic(50, 1, seed=0, **SMALL)
    assert task.evaluation == other_training.evaluation != other_evaluation.evaluation
    assert task.training == other_evaluation.training != other_training.training
    assert task.demonstrations is not None
    assert again.demonstrations is not None
    assert task.demonstrations(20, 7) == again.demonstrations(20, 7) != task.demonstrations(20, 8)


def test_evaluation_problems_are_never_trained_or_shown():
    evaluated = set().union(
        *(contents(arithmetic(100, seed, num_problems=1, max_number=8).evaluation) for seed in range(3))
    )
    task = arithmetic(1, 0, num_problems=700, max_number=8)
    assert task.demonstrations is not None
    demonstrated = {item.problem.content_hash for item in task.demonstrations(700, 0)}
    assert not evaluated & contents(task.training)
    assert not evaluated & demonstrated
    assert demonstrated


MIXED = {"guess_share": 0.45, "guess_growth": 0.15, "slip_rate": 0.15}


@pytest.mark.parametrize(
    # Mixed ones: 0.26 reasoned without a slip, and one guess in 19 of the other 0.6.
    ("settings", "rate"),
    [({}, 1.0), (MIXED, 0.29)],
)
def test_demonstrations_are_right_at_a_rate(settings: dict[str, Any], rate: float):
    task = arithmetic(1, 0, num_problems=1, **settings)
    assert task.demonstrations is not None
    made = task.demonstrations(1000, 0)
    right = sum(GRADERS[task.grader](item.completion, item.problem.answer) is True for item in made)
    assert right / 1000 == (rate if rate == 1 else pytest.approx(rate, abs=0.04))


CANNOT_BE = [
    ("arithmetic", {"min_terms": 1}, "min_terms is 1 but must be at least 2"),
    ("arithmetic", {"min_terms": 4, "max_terms": 3}, "max_terms is 3 but must be at least 4"),
    ("arithmetic", {"max_number": 0}, "max_number is 0"),
    ("arithmetic", {"operations": "+/"}, 'operations is "+/" but must be one or more of +, -, *'),
    ("arithmetic", {"operations": ""}, 'operations is ""'),
    ("arithmetic", {"slip_rate": 1.5}, "slip_rate is 1.5 but must be in [0, 1]"),
    ("arithmetic", {"guess_share": 0.9, "guess_growth": 0.1}, "must stay in [0, 1]"),
    ("arithmetic", {"tool_format": "chats"}, 'tool_format is "chats"'),
    ("arithmetic", {"min_terms": 2, "max_terms": 2, "max_number": 3}, "give about 14"),
    ("arithmetic", {"operations": "-", "min_terms": 5, "max_terms": 5, "num_problems": 30_000}, "rarely stay"),
    ("arithmetic", {"operations": "-", "min_terms": 7, "max_terms": 7}, "rarely stay above zero"),
    ("arithmetic", {"operations": "*", "max_number": 3, "max_terms": 3}, "give about 2"),
    ("programs", {"kinds": "numbers trees"}, "must be one or more of numbers, lists, strings"),
    ("programs", {"kinds": ""}, "must be one or more of"),
    ("programs", {"min_steps": 0}, "min_steps is 0 but must be at least 1"),
    ("programs", {"min_steps": 4}, "max_steps is 3 but must be at least 4"),
    ("programs", {"slip_rate": 2.0}, "slip_rate is 2 but must be in [0, 1]"),
    ("programs", {"slip_rate": math.nan}, "slip_rate is nan but must be in [0, 1]"),
    ("programs", {"kinds": "numbers", "max_steps": 1}, "raise max_steps or allow more kinds"),
]


@pytest.mark.parametrize(("name", "settings", "message"), CANNOT_BE)
def test_settings_that_cannot_be_fail_soon(name: str, settings: dict[str, Any], message: str):
    start = time.process_time()
    with pytest.raises(TaskError, match=re.escape(message)) as caught:
        TASKS[name](10, 0, **settings)
    # A second on an idle core; the rest is for a busy machine.
    assert time.process_time() - start < 3
    assert str(caught.value).startswith(f"{name}: ")


def problem(number: int) -> Problem:
    return Problem(id=str(number), prompt=f"question {number}", answer="", task="t")


@pytest.mark.parametrize(
    ("draws", "num", "there_are", "most_draws"),
    [
        (itertools.cycle(range(40)), 50, 40, 10_000),
        (itertools.cycle(range(5000)), 10_000, 5000, 15_000),
        # All of a space, its last problem a long time in coming.
        ([*range(299), *([0] * 4000), 299], 300, 300, 4300),
    ],
    ids=["few", "half", "last"],
)
def test_a_search_for_distinct_problems_ends_with_what_there_is(
    draws: Iterable[int], num: int, there_are: int, most_draws: int
):
    drawn = map(problem, itertools.islice(draws, most_draws))
    assert len(distinct(lambda: next(drawn), num, wanted=lambda problem: True)) == there_are


def test_one_problem_in_sixteen_is_withheld():
    share = sum(is_withheld(problem(number)) for number in range(8000)) / 8000
    assert share == pytest.approx(1 / 16, abs=0.01)
