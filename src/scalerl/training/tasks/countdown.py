"""Countdown: make a target from given numbers. "Make 64 from 2, 7, 25", "<think>25+7=32;32*2=64</think>(25+7)*2".

Targets are generated from the numbers, so every problem has an answer. Many expressions may be correct, so the grader
evaluates the model's.
"""

import json
import random
from dataclasses import dataclass

from scalerl.training.answer_format import THINKING_END, THINKING_START
from scalerl.training.tasks.procedural import OPERATIONS, Draw, Drawn, check_chosen, check_ranges, generated, retried
from scalerl.training.types import Problem

_PRECEDENCE = {"+": 1, "-": 1, "*": 2, "/": 2}


@generated(grader="countdown", num_problems=10_000, remedy="raise max_number, max_numbers or max_target")
def countdown(
    *,
    min_numbers: int = 3,
    max_numbers: int = 4,
    max_number: int = 25,
    max_target: int = 100,
    operations: str = "+-*/",
) -> Draw:
    """Reach a target up to `max_target` with numbers up to `max_number`, each used at most once.

    More numbers, more operations and larger targets are harder. Demonstrations show the steps that generated the
    problem.
    """
    check_ranges(min_numbers=(min_numbers, 2), max_number=(max_number, 2), max_target=(max_target, 1))
    check_ranges(max_numbers=(max_numbers, min_numbers))
    check_chosen("operations", operations, operations, OPERATIONS)

    def attempt(stream: random.Random, num_numbers: int) -> Drawn | None:
        numbers = [stream.randint(1, max_number) for _ in range(num_numbers)]
        solved = _combine(stream, numbers, operations)
        if not solved or solved.target > max_target or solved.target in numbers:
            return None
        shown = f"{THINKING_START}{';'.join(solved.steps)}{THINKING_END}{solved.expression}"
        return Drawn(_problem(solved), lambda stream: shown)

    rare = (
        f'numbers up to {max_number} with "{operations}" hardly ever make a target up to {max_target}: raise '
        f"max_target or allow more operations"
    )
    return retried(attempt, min_numbers, max_numbers, rare)


@dataclass(frozen=True, slots=True, kw_only=True)
class Solved:
    """A problem and the steps that generated it."""

    numbers: tuple[int, ...]
    target: int
    steps: tuple[str, ...]
    """Operations with their results: "25+7=32"."""
    expression: str


def _combine(stream: random.Random, numbers: list[int], operations: str) -> Solved | None:
    """Combine numbers until one is left; None if the results cannot all be positive and whole."""
    # Each value with its expression and that expression's precedence.
    remaining = [(number, str(number), 3) for number in numbers]
    steps: list[str] = []
    while len(remaining) > 1:
        stream.shuffle(remaining)
        (left, left_text, left_precedence), (right, right_text, right_precedence) = remaining.pop(), remaining.pop()
        allowed = [sign for sign in operations if (sign != "-" or left > right) and (sign != "/" or left % right == 0)]
        if not allowed:
            return None
        operation = stream.choice(allowed)
        value, precedence = OPERATIONS[operation](left, right), _PRECEDENCE[operation]
        left_text = f"({left_text})" if left_precedence < precedence else left_text
        # The right operand of - and / needs brackets even at equal precedence.
        right_text = f"({right_text})" if right_precedence < precedence + (operation in "-/") else right_text
        steps.append(f"{left}{operation}{right}={value}")
        remaining.append((value, f"{left_text}{operation}{right_text}", precedence))
    ((target, expression, _),) = remaining
    return Solved(numbers=tuple(sorted(numbers)), target=target, steps=tuple(steps), expression=expression)


def _problem(solved: Solved) -> Problem:
    numbers = ", ".join(map(str, solved.numbers))
    return Problem(
        id=f"{numbers} to {solved.target}".replace(", ", ","),
        prompt=f"Make {solved.target} from {numbers}: write one expression with + - * / and brackets that uses each "
        f"number at most once.",
        answer=json.dumps({"target": solved.target, "numbers": solved.numbers}),
        task="countdown",
    )
