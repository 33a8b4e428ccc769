"""Sums with written-out reasoning: "37+58-16=" and "<think>37+58=95;95-16=79</think>79".

Pure functions of a random stream: an expression, its steps, and three kinds of demonstrations: correct steps, steps
with errors, or a guess. The last two imitate real demonstrations, which contain mistakes and shortcuts. A model trained
on the mixture knows the good method but uses it too rarely, which RL can improve. A fourth kind is a conversation with
the calculator of training/environments/tools.py, which answers "?37+58" with "95;".
"""

import functools
import operator
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from scalerl.errors import TaskError
from scalerl.training.answer_format import THINKING_END, THINKING_START
from scalerl.training.tasks.procedural import Draw, Drawn, check_chosen, check_ranges, generated, retried
from scalerl.training.types import Problem

_OPERATIONS: Mapping[str, Callable[[int, int], int]] = {"+": operator.add, "-": operator.sub, "*": operator.mul}
_CALLS = {
    "plain": ("?%s", "%s;"),
    "chat": ('<tool_call>\n{"name": "calculator", "arguments": {"expression": "%s"}}\n</tool_call>', "%s"),
}
"""The format of a call of the calculator, and of its result."""

_SLIPS = (-10, -1, 1, 10)
_GUESS_RANGE = 9


@generated(grader="exact", num_problems=20_000, remedy="raise max_number or max_terms")
def arithmetic(
    *,
    min_terms: int = 3,
    max_terms: int = 5,
    max_number: int = 20,
    operations: str = "+-",
    guess_share: float = 0.0,
    guess_growth: float = 0.0,
    slip_rate: float = 0.0,
    tool_share: float = 0.0,
    tool_format: str = "plain",
) -> Draw:
    """Sums with written-out reasoning, graded exactly.

    The last five settings affect only demonstrations. A share of tool_share calls a calculator for each step, in the
    format of environments/tools.py ("plain") or of chat models ("chat"). A share of guess_share + guess_growth x
    (terms - min_terms) of the others are guesses. A written step, or an operand of a call, is wrong with probability
    slip_rate.
    """
    check_ranges(min_terms=(min_terms, 2), max_terms=(max_terms, min_terms), max_number=(max_number, 1))
    check_ranges(tool_share=(tool_share, 0, 1), slip_rate=(slip_rate, 0, 1), guess_share=(guess_share, 0, 1))
    check_chosen("operations", operations, operations, _OPERATIONS)
    check_chosen("tool_format", tool_format, [tool_format], _CALLS)
    most_guesses = guess_share + guess_growth * (max_terms - min_terms)
    if not 0 <= most_guesses <= 1:
        raise TaskError(
            f"guess_share + guess_growth x (terms - min_terms) must stay in [0, 1], not reach {most_guesses}"
        )

    def attempt(stream: random.Random, num_terms: int) -> Drawn | None:
        expression = try_expression(stream, num_terms, max_number=max_number, operations=operations)
        return expression and Drawn(_problem(expression), functools.partial(demonstration, expression))

    def demonstration(expression: Expression, stream: random.Random) -> str | tuple[str, ...]:
        if tool_share and stream.random() < tool_share:
            return calls(expression, stream, slip_rate=slip_rate, tool_format=tool_format)
        guesses = guess_share + guess_growth * (len(expression.numbers) - min_terms)
        return demonstrate(expression, stream, guess_share=guesses, slip_rate=slip_rate)

    rare = (
        f'numbers up to {max_number} with "{operations}" rarely stay above zero: raise max_number, lower '
        f"max_terms, or allow +"
    )
    return retried(attempt, min_terms, max_terms, rare)


class Operation(NamedTuple):
    """One operation with its result: "37+58=95"."""

    left: int
    operation: str
    right: int
    result: int

    @classmethod
    def of(cls, left: int, operation: str, right: int) -> "Operation":
        return cls(left, operation, right, _OPERATIONS[operation](left, right))

    def __str__(self) -> str:
        return f"{self.left}{self.operation}{self.right}={self.result}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Expression:
    """Numbers with operations between them."""

    numbers: tuple[int, ...]
    operations: tuple[str, ...]

    def __str__(self) -> str:
        rest = zip(self.operations, self.numbers[1:], strict=True)
        return str(self.numbers[0]) + "".join(f"{operation}{number}" for operation, number in rest)


def try_expression(stream: random.Random, num_terms: int, *, max_number: int, operations: str) -> Expression | None:
    """Draw numbers from 1 to `max_number`, of one digit after a *; None if an intermediate result is negative."""
    chosen = tuple(stream.choice(operations) for _ in range(num_terms - 1))
    numbers = [stream.randint(1, max_number)]
    for operation in chosen:
        largest = min(max_number, 9) if operation == "*" else max_number
        numbers.append(stream.randint(1, largest))
    drawn = Expression(numbers=tuple(numbers), operations=chosen)
    # Negative results would need a sign in every later step, which adds length but nothing to learn.
    return drawn if "-" not in chosen or all(step.result >= 0 for step in solve(drawn)) else None


def solve(expression: Expression, slip: Callable[[Operation], Operation] = lambda step: step) -> list[Operation]:
    """Return the steps that reduce an expression to a number: products first, then from left to right.

    `slip` may change a step; later steps use its result.
    """
    numbers = list(expression.numbers)
    operations = list(expression.operations)
    steps: list[Operation] = []
    while operations:
        place = operations.index("*") if "*" in operations else 0
        steps.append(slip(Operation.of(numbers[place], operations.pop(place), numbers[place + 1])))
        numbers[place : place + 2] = [steps[-1].result]
    return steps


def demonstrate(
    expression: Expression, stream: random.Random, *, guess_share: float = 0.0, slip_rate: float = 0.0
) -> str:
    """Return a completion to imitate: a guess near the value, or steps that are wrong with probability slip_rate."""
    right = solve(expression)
    if stream.random() < guess_share:
        guess = max(0, right[-1].result + stream.randint(-_GUESS_RANGE, _GUESS_RANGE))
        return f"{THINKING_START}{THINKING_END}{guess}"

    def slip(step: Operation) -> Operation:
        if stream.random() >= slip_rate:
            return step
        return step._replace(result=step.result + stream.choice(_SLIPS))

    slipped = solve(expression, slip)
    steps = right if any(step.result < 0 for step in slipped) else slipped
    return f"{THINKING_START}{';'.join(map(str, steps))}{THINKING_END}{steps[-1].result}"


def calls(
    expression: Expression, stream: random.Random, *, slip_rate: float = 0.0, tool_format: str = "plain"
) -> tuple[str, ...]:
    """Return a conversation to imitate: a call and its result for each step, and finally the last result.

    With probability slip_rate, the second operand of a call is wrong.
    """

    def slip(step: Operation) -> Operation:
        if stream.random() >= slip_rate:
            return step
        return Operation.of(step.left, step.operation, max(step.right + stream.choice(_SLIPS), 0))

    steps = solve(expression, slip)
    call, answer = _CALLS[tool_format]
    turns: list[str] = []
    for step in steps:
        question = str(step).partition("=")[0]
        turns += call % question, answer % step.result
    return (*turns, str(steps[-1].result))


def _problem(expression: Expression) -> Problem:
    answer = str(solve(expression)[-1].result)
    return Problem(id=str(expression), prompt=f"{expression}=", answer=answer, task="arithmetic")
