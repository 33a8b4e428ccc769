"""Sums with written-out reasoning: "37+58-16=" and "<think>37+58=95;95-16=79</think>79".

Pure functions of a random stream: an expression, its steps, and the three ways a demonstration may go about it: with
care, with slips, or by a guess. The last two are there because real demonstrations hold mistakes and shortcuts: a model
that imitates the mixture knows the good way and uses it too rarely, which is what RL can select from.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass

from scalerl.tasks.graders import THINKING_END, THINKING_START

OPERATIONS = "+-*"

_SLIPS = (-10, -1, 1, 10)
_GUESS_RANGE = 9
_MOST_DRAWS = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One operation carried out: "37+58=95"."""

    left: int
    operation: str
    right: int
    result: int

    def __str__(self) -> str:
        return f"{self.left}{self.operation}{self.right}={self.result}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Expression:
    """Numbers with an operation between each two."""

    numbers: tuple[int, ...]
    operations: tuple[str, ...]

    def __str__(self) -> str:
        rest = zip(self.operations, self.numbers[1:], strict=True)
        return str(self.numbers[0]) + "".join(f"{operation}{number}" for operation, number in rest)


def draw_expression(stream: random.Random, *, num_terms: int, max_number: int, operations: str) -> Expression:
    """Numbers from 1 to `max_number` (after a * of one digit) whose intermediate results are never negative."""
    for _ in range(_MOST_DRAWS):
        chosen = tuple(stream.choice(operations) for _ in range(num_terms - 1))
        largest = [max_number, *(min(max_number, 9) if operation == "*" else max_number for operation in chosen)]
        numbers = [stream.randint(1, number) for number in largest]
        expression = Expression(numbers=tuple(numbers), operations=chosen)
        # Negative results would need a sign in every later step: longer to write and nothing new to learn.
        if all(step.result >= 0 for step in solve(expression)):
            return expression
    raise ValueError(
        f'arithmetic: {num_terms} numbers up to {max_number} with "{operations}" hardly ever stay above zero: '
        f"raise max_number, lower max_terms, or allow +"
    )


def solve(expression: Expression, slips: Sequence[int] = ()) -> list[Step]:
    """The steps that reduce an expression to a number, products first, then from left to right.

    `slips` are added to the results, one a step: what follows builds on the wrong number, as it does on paper.
    """
    numbers, operations = list(expression.numbers), list(expression.operations)
    steps: list[Step] = []
    while operations:
        place = operations.index("*") if "*" in operations else 0
        operation, (left, right) = operations.pop(place), numbers[place : place + 2]
        slip = slips[len(steps)] if slips else 0
        result = _apply(left, operation, right) + slip
        numbers[place : place + 2] = [result]
        steps.append(Step(left=left, operation=operation, right=right, result=result))
    return steps


def value(expression: Expression) -> int:
    return solve(expression)[-1].result if expression.operations else expression.numbers[0]


def demonstrate(
    expression: Expression, stream: random.Random, *, guess_share: float = 0.0, slip_rate: float = 0.0
) -> str:
    """A completion to imitate: a guess near the value, or the steps written out, each of them wrong by `slip_rate`."""
    if stream.random() < guess_share:
        guess = max(0, value(expression) + stream.randint(-_GUESS_RANGE, _GUESS_RANGE))
        return f"{THINKING_START}{THINKING_END}{guess}"
    slips = [stream.choice(_SLIPS) if stream.random() < slip_rate else 0 for _ in expression.operations]
    steps = solve(expression, slips)
    if any(step.result < 0 for step in steps):
        steps = solve(expression)
    return f"{THINKING_START}{';'.join(map(str, steps))}{THINKING_END}{steps[-1].result}"


def _apply(left: int, operation: str, right: int) -> int:
    if operation == "*":
        return left * right
    return left + right if operation == "+" else left - right
