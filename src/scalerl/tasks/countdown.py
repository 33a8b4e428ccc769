"""Countdown: make a number of a few others. "Make 64 from 2, 7, 25" and "<think>25+7=32;32*2=64</think>(25+7)*2".

Every target is made from its own numbers, so each problem has an answer. Many expressions may be right, so the grader
works the given one out, by a parser of its own: nothing a model writes is ever run.
"""

import json
import operator
import random
import re
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from scalerl.tasks.graders import THINKING_END, THINKING_START, answer_part
from scalerl.tasks.procedural import check_least, drawn_task
from scalerl.tasks.task import Task, TaskError
from scalerl.types import Problem

OPERATIONS = "+-*/"
GRADER = f"{__name__}:grade"

_NUM_TRIALS = 500
_LEAST_SHARE = 0.02

# Longer than any answer: what a model may fill its budget with is not worked out.
_LONGEST = 500

_SPELLINGS = {
    "**": " ",
    "\u00d7": "*",
    "\u22c5": "*",
    "\u00b7": "*",
    "\u00f7": "/",
    "\u2212": "-",
    "\\times": "*",
    "\\cdot": "*",
    "\\div": "/",
    "\\left": "",
    "\\right": "",
}
_RUN = re.compile(r"[\d+\-*/() ]*\d[\d+\-*/() ]*")
_OPERATION_BETWEEN = re.compile(r"\d[) ]*[-+*/][( ]*\d")
_TOKEN = re.compile(r"\d+|[-+*/()]")
_BINDS = {"+": 1, "-": 1, "*": 2, "/": 2}
_CARRY_OUT: Mapping[str, Callable[[Any, Any], Any]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "/": operator.truediv,
}


def countdown(
    num_evaluation: int,
    evaluation_seed: int,
    /,
    *,
    num_problems: int = 10_000,
    seed: int = 0,
    min_numbers: int = 3,
    max_numbers: int = 4,
    max_number: int = 25,
    max_target: int = 100,
    operations: str = OPERATIONS,
) -> Task:
    """Reach a target up to `max_target` with numbers up to `max_number`, each used at most once.

    More numbers, more operations and larger targets are harder. The demonstrations write out the way by which the
    problem was made.
    """
    check_least("countdown", min_numbers=(min_numbers, 2), max_number=(max_number, 2), max_target=(max_target, 1))
    if max_numbers < min_numbers:
        raise TaskError(f"countdown: max_numbers is {max_numbers}, below min_numbers = {min_numbers}")
    if not operations or set(operations) - set(OPERATIONS):
        raise TaskError(f'countdown: operations is "{operations}" but must be one or more of "{OPERATIONS}"')

    def attempt(stream: random.Random, num_numbers: int) -> Solved | None:
        numbers = [stream.randint(1, max_number) for _ in range(num_numbers)]
        solved = _combined(stream, numbers, operations)
        return solved if solved and solved.target <= max_target and solved.target not in numbers else None

    def draw(stream: random.Random) -> Solved:
        num_numbers = stream.randint(min_numbers, max_numbers)
        while (solved := attempt(stream, num_numbers)) is None:
            pass
        return solved

    # Tried out first: where hardly any attempt works, drawing thousands of problems would not end.
    for num_numbers in range(min_numbers, max_numbers + 1):
        stream = random.Random(0)
        if sum(attempt(stream, num_numbers) is not None for _ in range(_NUM_TRIALS)) < _LEAST_SHARE * _NUM_TRIALS:
            raise TaskError(
                f'countdown: {num_numbers} numbers up to {max_number} with "{operations}" hardly ever make a target up '
                f"to {max_target}: raise max_target or allow more operations"
            )

    return drawn_task(
        "countdown",
        num_evaluation,
        evaluation_seed,
        num_problems=num_problems,
        seed=seed,
        draw=draw,
        pose=_pose,
        demonstrate=lambda solved, stream: f"{THINKING_START}{';'.join(solved.steps)}{THINKING_END}{solved.expression}",
        grader=GRADER,
        remedy="raise max_number, max_numbers or max_target",
    )


def grade(
    text: str, answer: str, /, *, thinking_start: str = THINKING_START, thinking_end: str = THINKING_END
) -> bool | None:
    """The last expression of the answer has the target's value and uses no number more often than it is given."""
    try:
        wanted = json.loads(answer)
        target, numbers = Fraction(wanted["target"]), Counter[int](wanted["numbers"])
    except (ValueError, KeyError, TypeError):
        return None
    given = answer_part(text, thinking_start=thinking_start, thinking_end=thinking_end)
    expression = None if given is None else last_expression(given)
    if expression is None:
        return False
    try:
        value, used = work_out(expression)
    except (ValueError, ZeroDivisionError):
        return False
    return value == target and Counter(used) <= numbers


def last_expression(text: str) -> str | None:
    """The last stretch of a text that is an expression, else its last number: "so (25+7)*2 = 64." gives "(25+7)*2"."""
    for spelling, sign in _SPELLINGS.items():
        text = text.replace(spelling, sign)
    runs = _RUN.findall(text[-2 * _LONGEST :])
    expressions = [run for run in runs if _OPERATION_BETWEEN.search(run)]
    return (expressions or runs)[-1].strip() if runs else None


def work_out(expression: str) -> tuple[Fraction, list[int]]:
    """The value of an expression of whole numbers, exactly, and the numbers in it; ValueError if it is none.

    Two stacks and no recursion, so that no depth of brackets can overflow it.
    """
    if len(expression) > _LONGEST:
        raise ValueError("too long")
    values: list[Fraction] = []
    waiting: list[str] = []
    used: list[int] = []
    number_next = True
    for token in _TOKEN.findall(expression):
        if number_next != (token.isdigit() or token == "("):
            raise ValueError(f"{token} is out of place")
        if token.isdigit():
            used.append(int(token))
            values.append(Fraction(used[-1]))
            number_next = False
        elif token == "(":
            waiting.append(token)
        else:
            while waiting and waiting[-1] != "(" and (token == ")" or _BINDS[waiting[-1]] >= _BINDS[token]):
                _reduce(values, waiting)
            if token != ")":
                waiting.append(token)
            elif not waiting or waiting.pop() != "(":
                raise ValueError("a bracket is closed that was never opened")
            number_next = token != ")"
    if number_next or "(" in waiting:
        raise ValueError("the expression breaks off")
    while waiting:
        _reduce(values, waiting)
    return values[0], used


def _reduce(values: list[Fraction], waiting: list[str]) -> None:
    right, left, operation = values.pop(), values.pop(), waiting.pop()
    values.append(_CARRY_OUT[operation](left, right))


@dataclass(frozen=True, slots=True, kw_only=True)
class Solved:
    """A problem together with the way by which it was made."""

    numbers: tuple[int, ...]
    target: int
    steps: tuple[str, ...]
    """Each with its result: "25+7=32"."""
    expression: str


def _combined(stream: random.Random, numbers: list[int], operations: str) -> Solved | None:
    """Join two of what is left until one is left, within the positive whole numbers; None where that ends nowhere."""
    # Each with how it is written and how tightly that binds.
    left_over = [(number, str(number), 3) for number in numbers]
    steps: list[str] = []
    while len(left_over) > 1:
        stream.shuffle(left_over)
        (left, left_text, left_binds), (right, right_text, right_binds) = left_over.pop(), left_over.pop()
        allowed = [one for one in operations if (one != "-" or left > right) and (one != "/" or left % right == 0)]
        if not allowed:
            return None
        operation = stream.choice(allowed)
        value = int(_CARRY_OUT[operation](left, right))
        binds = _BINDS[operation]
        left_text = f"({left_text})" if left_binds < binds else left_text
        # The right side of - and / needs its brackets even where both bind alike.
        right_text = f"({right_text})" if right_binds < binds + (operation in "-/") else right_text
        steps.append(f"{left}{operation}{right}={value}")
        left_over.append((value, f"{left_text}{operation}{right_text}", binds))
    ((target, expression, _),) = left_over
    return Solved(numbers=tuple(sorted(numbers)), target=target, steps=tuple(steps), expression=expression)


def _pose(solved: Solved) -> Problem:
    numbers = ", ".join(map(str, solved.numbers))
    return Problem(
        id=f"{numbers} to {solved.target}".replace(", ", ","),
        prompt=f"Make {solved.target} from {numbers}: write one expression with + - * / and brackets that uses each "
        f"number at most once.",
        answer=json.dumps({"target": solved.target, "numbers": solved.numbers}),
        task="countdown",
    )
