"""Tasks: what is asked in training, what is withheld for evaluation, and what a base model is taught from.

A task is a function (num_evaluation, evaluation_seed, /, *, settings) -> Task; a recipe names it and sets its settings.
No training problem and no demonstration equals an evaluation problem in content, whatever the seeds.
"""

import json
import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from scalerl.tasks.arithmetic import OPERATIONS, Expression, demonstrate, draw_expression, value
from scalerl.tasks.graders import GRADERS, THINKING_END, THINKING_START
from scalerl.types import Problem, derive_seed


class TaskError(ValueError):
    """A task cannot be used; one sentence says where and why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerFormat:
    """The texts between which a completion thinks; empty where it does not."""

    thinking_start: str = THINKING_START
    thinking_end: str = THINKING_END


@dataclass(frozen=True, slots=True, kw_only=True)
class Demonstration:
    """A prompt and one completion to imitate, which need not be correct."""

    problem: Problem
    completion: str


Demonstrate = Callable[[int, int], Sequence[Demonstration]]
"""Of how many are wanted and a seed; a task that holds a fixed number may give fewer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """What is asked, withheld and taught."""

    name: str
    training: tuple[Problem, ...]
    evaluation: tuple[Problem, ...]
    grader: str
    """A name in GRADERS, or an import path."""
    answer: AnswerFormat = AnswerFormat()
    demonstrations: Demonstrate | None = None
    """None where there is nothing to imitate."""


def without(problems: Iterable[Problem], withheld: Iterable[Problem]) -> tuple[Problem, ...]:
    """The problems that equal no withheld one in content."""
    hashes = {problem.content_hash for problem in withheld}
    return tuple(problem for problem in problems if problem.content_hash not in hashes)


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
    """Sums with written-out reasoning (arithmetic.py), graded exactly.

    `num_problems` are drawn for training from `seed`. The last three shape the demonstrations alone: a share of
    guess_share + guess_growth x (terms - min_terms) guesses, and a written step is wrong at slip_rate.
    """
    _check_arithmetic(min_terms, max_terms, max_number, operations, slip_rate)
    most_guesses = guess_share + guess_growth * (max_terms - min_terms)
    if not (0 <= guess_share <= 1 and 0 <= most_guesses <= 1):
        raise TaskError(
            f"guess_share + guess_growth x (terms - min_terms) must stay in [0, 1], not reach {most_guesses}"
        )

    def draw(stream: random.Random) -> Expression:
        num_terms = stream.randint(min_terms, max_terms)
        return draw_expression(stream, num_terms=num_terms, max_number=max_number, operations=operations)

    def demonstrations(num: int, stream_seed: int) -> list[Demonstration]:
        stream = random.Random(derive_seed("arithmetic demonstrations", stream_seed))
        made: list[Demonstration] = []
        while len(made) < num:
            expression = draw(stream)
            problem = _sum_problem(expression)
            guesses = guess_share + guess_growth * (len(expression.numbers) - min_terms)
            completion = demonstrate(expression, stream, guess_share=guesses, slip_rate=slip_rate)
            if not _withheld(problem):
                made.append(Demonstration(problem=problem, completion=completion))
        return made

    stream = random.Random(derive_seed("arithmetic training", seed))
    training = _distinct(lambda: _sum_problem(draw(stream)), num_problems, withheld=False)
    evaluation_stream = random.Random(derive_seed("arithmetic evaluation", evaluation_seed))
    evaluation = _distinct(lambda: _sum_problem(draw(evaluation_stream)), num_evaluation, withheld=True)
    return Task(
        name="arithmetic", training=training, evaluation=evaluation, grader="exact", demonstrations=demonstrations
    )


def jsonl(
    num_evaluation: int,
    evaluation_seed: int,
    /,
    *,
    path: str,
    evaluation_path: str = "",
    prompt_field: str = "prompt",
    answer_field: str = "answer",
    id_field: str = "id",
    demonstration_field: str = "",
    grader: str = "exact",
    thinking_start: str = THINKING_START,
    thinking_end: str = THINKING_END,
) -> Task:
    """Problems from a file of JSON lines; `num_evaluation` of them, or of a second file, are withheld.

    A line without the id field is called by its number. With a demonstration field, every line holds a completion.
    """
    if ":" not in grader and grader not in GRADERS:
        raise TaskError(f'no grader is called "{grader}"; choices: {", ".join(GRADERS)}, or "package.module:function"')
    fields = {"prompt": prompt_field, "answer": answer_field}
    rows = _read_rows(Path(path), fields | ({"demonstration": demonstration_field} if demonstration_field else {}))
    problems = _file_problems(Path(path), rows, id_field, prefix="")
    if evaluation_path:
        evaluation_rows = _read_rows(Path(evaluation_path), fields)
        pool = _file_problems(Path(evaluation_path), evaluation_rows, id_field, prefix="evaluation/")
    else:
        pool = problems
    evaluation = _withhold(pool, num_evaluation, evaluation_seed, Path(evaluation_path or path))
    training = without(problems, evaluation)
    if not training:
        raise TaskError(
            f"{path}: all of its {len(problems)} problems are withheld for evaluation, none are left to train on"
        )
    completions = {problem.id: row.get("demonstration", "") for problem, (_, row) in zip(problems, rows, strict=True)}

    def demonstrations(num: int, seed: int) -> list[Demonstration]:
        order = random.Random(derive_seed("file demonstrations", seed)).sample(training, min(num, len(training)))
        return [Demonstration(problem=problem, completion=completions[problem.id]) for problem in order]

    return Task(
        name="jsonl",
        training=training,
        evaluation=evaluation,
        grader=grader,
        answer=AnswerFormat(thinking_start=thinking_start, thinking_end=thinking_end),
        demonstrations=demonstrations if demonstration_field else None,
    )


# Procedural problems: one in this many, picked by its content, is never trained on, so that a base model taught under
# one seed has not seen the evaluation problems of any other.
_WITHHELD_ONE_IN = 16

# Draws in a row without a new problem before their space is held to be used up.
_MOST_MISSES = 5000


def _withheld(problem: Problem) -> bool:
    return int(problem.content_hash, 16) % _WITHHELD_ONE_IN == 0


def _distinct(draw: Callable[[], Problem], num: int, *, withheld: bool) -> tuple[Problem, ...]:
    """`num` different problems of one side of the split."""
    found: dict[str, Problem] = {}
    misses = 0
    while len(found) < num and misses < _MOST_MISSES:
        problem = draw()
        new = problem.id not in found and _withheld(problem) == withheld
        misses = 0 if new else misses + 1
        if new:
            found[problem.id] = problem
    if len(found) < num:
        side = "for evaluation" if withheld else "for training"
        raise TaskError(
            f"arithmetic: {num} different problems {side} were asked for, but these settings give only {len(found)}: "
            f"raise max_number or max_terms, or ask for fewer"
        )
    return tuple(found.values())


def _sum_problem(expression: Expression) -> Problem:
    return Problem(id=str(expression), prompt=f"{expression}=", answer=str(value(expression)), task="arithmetic")


def _check_arithmetic(min_terms: int, max_terms: int, max_number: int, operations: str, slip_rate: float) -> None:
    if not 2 <= min_terms <= max_terms:
        raise TaskError(f"arithmetic: min_terms is {min_terms} and max_terms {max_terms}, but must be 2 <= min <= max")
    if max_number < 1:
        raise TaskError(f"arithmetic: max_number is {max_number} but must be at least 1")
    if not operations or set(operations) - set(OPERATIONS):
        raise TaskError(f'arithmetic: operations is "{operations}" but must be one or more of "{OPERATIONS}"')
    if not 0 <= slip_rate <= 1:
        raise TaskError(f"arithmetic: slip_rate is {slip_rate} but must be in [0, 1]")


Rows = list[tuple[int, dict[str, Any]]]


def _read_rows(path: Path, fields: Mapping[str, str]) -> Rows:
    """(line number, row), with the fields under our names: text, not empty."""
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise TaskError(f"{path} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise TaskError(f"{path} is not UTF-8 text") from None
    rows = [(number, _row(path, number, line, fields)) for number, line in _filled_lines(text)]
    if not rows:
        raise TaskError(f"{path} holds no problems: it is empty")
    return rows


def _filled_lines(text: str) -> Iterator[tuple[int, str]]:
    # Not splitlines: that also splits at characters which JSON allows inside a string.
    return ((number, line) for number, line in enumerate(text.split("\n"), start=1) if line.strip())


def _row(path: Path, number: int, line: str, fields: Mapping[str, str]) -> dict[str, Any]:
    try:
        row = json.loads(line)
    except json.JSONDecodeError as error:
        raise TaskError(f"{path}, line {number}: not valid JSON: {error.msg} at column {error.colno}") from None
    if not isinstance(row, dict):
        raise TaskError(f"{path}, line {number}: a JSON object is needed, not {type(row).__name__}")
    for name, field in fields.items():
        if field not in row:
            raise TaskError(
                f'{path}, line {number}: the field "{field}" is missing; the line has {", ".join(row) or "none"} '
                f"(set task.{name}_field if it goes by another name)"
            )
        found = row[field]
        # A number is a fair answer; a list, a null or true is a slip in the file.
        if isinstance(found, bool) or not isinstance(found, str | int | float) or not str(found).strip():
            raise TaskError(
                f'{path}, line {number}: the field "{field}" must be text or a number, not {json.dumps(found)}'
            )
    return {**row, **{name: str(row[field]) for name, field in fields.items()}}


def _file_problems(path: Path, rows: Rows, id_field: str, prefix: str) -> tuple[Problem, ...]:
    line_of: dict[str, int] = {}
    problems: list[Problem] = []
    for number, row in rows:
        problem_id = str(row.get(id_field, f"line-{number}"))
        if problem_id in line_of:
            raise TaskError(
                f'{path}, line {number}: the id "{problem_id}" is that of line {line_of[problem_id]} already'
            )
        line_of[problem_id] = number
        problems.append(Problem(id=prefix + problem_id, prompt=row["prompt"], answer=row["answer"], task="jsonl"))
    return tuple(problems)


def _withhold(pool: Sequence[Problem], num: int, seed: int, path: Path) -> tuple[Problem, ...]:
    if num > len(pool):
        raise TaskError(f"{path} holds {len(pool)} problems, but {num} are to be evaluated on (evaluation.num_prompts)")
    return tuple(random.Random(derive_seed("withheld problems", seed)).sample(pool, num))


TASKS: Mapping[str, Callable[..., Task]] = {"arithmetic": arithmetic, "jsonl": jsonl}
