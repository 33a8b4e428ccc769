"""Sums with written-out reasoning: "37+58-16=" and "<think>37+58=95;95-16=79</think>79".

Pure functions of a random stream: an expression, its steps, and three kinds of demonstrations: correct steps, steps
with errors, or a guess. The last two imitate real demonstrations, which contain mistakes and shortcuts. A model trained
on the mixture knows the good method but uses it too rarely, which RL can improve.
"""

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate

from scalerl.answer_format import THINKING_END, THINKING_START
from scalerl.errors import TaskError
from scalerl.tasks.procedural import check_least, drawn_task
from scalerl.tasks.task import Task
from scalerl.types import Problem

OPERATIONS = "+-*"

_SLIPS = (-10, -1, 1, 10)
_GUESS_RANGE = 9
_MOST_DRAWS = 10_000

_LEAST_SHARE = 1e-3
"""Least share of expressions that never go below zero; with a smaller one, drawing them takes too long."""

_COUNTED_NUMBER = 1000
"""Expressions are counted up to this max_number; with larger numbers there are more than anyone needs."""


def arithmetic(
    num_evaluation: int,
    evaluation_seed: int,
    /,
    *,
    num_problems: int = 20_000,
    seed: int = 0,
    min_terms: int = 3,
    max_terms: int = 5,
    max_number: int = 20,
    operations: str = "+-",
    guess_share: float = 0.0,
    guess_growth: float = 0.0,
    slip_rate: float = 0.0,
) -> Task:
    """Sums with written-out reasoning, graded exactly.

    `num_problems` are drawn for training from `seed`. The last three settings affect only the demonstrations: a share
    of guess_share + guess_growth x (terms - min_terms) are guesses, and a written step is wrong with probability
    slip_rate.
    """
    _check_settings(min_terms, max_terms, max_number, operations, slip_rate)
    most_guesses = guess_share + guess_growth * (max_terms - min_terms)
    if not (0 <= guess_share <= 1 and 0 <= most_guesses <= 1):
        raise TaskError(
            f"guess_share + guess_growth x (terms - min_terms) must stay in [0, 1], not reach {most_guesses}"
        )

    def draw(stream: random.Random) -> Expression:
        num_terms = stream.randint(min_terms, max_terms)
        return draw_expression(stream, num_terms=num_terms, max_number=max_number, operations=operations)

    def demonstration(expression: Expression, stream: random.Random) -> str:
        guesses = guess_share + guess_growth * (len(expression.numbers) - min_terms)
        return demonstrate(expression, stream, guess_share=guesses, slip_rate=slip_rate)

    return drawn_task(
        "arithmetic",
        num_evaluation,
        evaluation_seed,
        num_problems=num_problems,
        seed=seed,
        draw=draw,
        pose=_pose,
        demonstrate=demonstration,
        grader="exact",
        remedy="raise max_number or max_terms",
        most=_num_problems(min_terms, max_terms, max_number, operations),
    )


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
    """Numbers with operations between them."""

    numbers: tuple[int, ...]
    operations: tuple[str, ...]

    def __str__(self) -> str:
        rest = zip(self.operations, self.numbers[1:], strict=True)
        return str(self.numbers[0]) + "".join(f"{operation}{number}" for operation, number in rest)


def draw_expression(stream: random.Random, *, num_terms: int, max_number: int, operations: str) -> Expression:
    """Draw numbers from 1 to `max_number` (one digit after a *) such that no intermediate result is negative."""
    for _ in range(_MOST_DRAWS):
        chosen = tuple(stream.choice(operations) for _ in range(num_terms - 1))
        largest = [max_number, *(min(max_number, 9) if operation == "*" else max_number for operation in chosen)]
        numbers = [stream.randint(1, number) for number in largest]
        # Negative results would need a sign in every later step, which adds length but nothing to learn.
        if _stays_above_zero(numbers, chosen):
            return Expression(numbers=tuple(numbers), operations=chosen)
    raise _below_zero(num_terms, max_number, operations)


def solve(expression: Expression, slips: Sequence[int] = ()) -> list[Step]:
    """Return the steps that reduce an expression to a number: products first, then from left to right.

    `slips` are errors added to the results, one per step; later steps use the wrong result.
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
    """Return a completion to imitate: a guess near the value, or the steps, each wrong with probability slip_rate."""
    if stream.random() < guess_share:
        guess = max(0, value(expression) + stream.randint(-_GUESS_RANGE, _GUESS_RANGE))
        return f"{THINKING_START}{THINKING_END}{guess}"
    slips = [stream.choice(_SLIPS) if stream.random() < slip_rate else 0 for _ in expression.operations]
    steps = solve(expression, slips)
    if any(step.result < 0 for step in steps):
        steps = solve(expression)
    return f"{THINKING_START}{';'.join(map(str, steps))}{THINKING_END}{steps[-1].result}"


def count_sums(max_terms: int, max_number: int, operations: str) -> Iterator[int]:
    """Yield, for 1 to max_terms numbers, how many expressions without products never go below zero."""
    ways = [0] + [1] * max_number
    for _ in range(max_terms):
        yield sum(ways)
        # How many expressions reach each value, by prefix sums over the numbers that may come next.
        below = [0, *accumulate(ways)]
        reached = [0] * (len(ways) + max_number)
        for value in range(len(reached)):
            if "+" in operations:
                reached[value] += below[min(value, len(ways))] - below[min(max(value - max_number, 0), len(ways))]
            if "-" in operations:
                reached[value] += below[min(value + max_number + 1, len(ways))] - below[min(value + 1, len(ways))]
        ways = reached


def _num_problems(min_terms: int, max_terms: int, max_number: int, operations: str) -> int | None:
    """Return the number of problems of these settings; None if it is hard to count or certainly large enough."""
    if "*" in operations:
        return None
    counted = min(max_number, _COUNTED_NUMBER)
    counts = list(count_sums(max_terms, counted, operations))[min_terms - 1 :]
    for num_terms, count in enumerate(counts, start=min_terms):
        if count < _LEAST_SHARE * counted * (len(set(operations)) * counted) ** (num_terms - 1):
            raise _below_zero(num_terms, max_number, operations)
    return sum(counts) if counted == max_number else None


def _stays_above_zero(numbers: Sequence[int], operations: Sequence[str]) -> bool:
    """Return whether no step of `solve` goes below zero; faster than `solve`, since it runs for every draw."""
    total, product, sign = 0, numbers[0], 1
    for operation, number in zip(operations, numbers[1:], strict=True):
        if operation == "*":
            product *= number
            continue
        total += sign * product
        if total < 0:
            return False
        product, sign = number, 1 if operation == "+" else -1
    return total + sign * product >= 0


def _below_zero(num_terms: int, max_number: int, operations: str) -> TaskError:
    return TaskError(
        f'arithmetic: {num_terms} numbers up to {max_number} with "{operations}" hardly ever stay above zero: '
        f"raise max_number, lower max_terms, or allow +"
    )


def _pose(expression: Expression) -> Problem:
    return Problem(id=str(expression), prompt=f"{expression}=", answer=str(value(expression)), task="arithmetic")


def _check_settings(min_terms: int, max_terms: int, max_number: int, operations: str, slip_rate: float) -> None:
    if not 2 <= min_terms <= max_terms:
        raise TaskError(f"arithmetic: min_terms is {min_terms} and max_terms {max_terms}, but must be 2 <= min <= max")
    check_least("arithmetic", max_number=(max_number, 1))
    if not operations or set(operations) - set(OPERATIONS):
        raise TaskError(f'arithmetic: operations is "{operations}" but must be one or more of "{OPERATIONS}"')
    if not 0 <= slip_rate <= 1:
        raise TaskError(f"arithmetic: slip_rate is {slip_rate} but must be in [0, 1]")


def _apply(left: int, operation: str, right: int) -> int:
    if operation == "*":
        return left * right
    return left + right if operation == "+" else left - right
