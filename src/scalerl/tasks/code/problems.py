"""Code problems from a file or a data set, in any of the formats of formats.py; graded by running the program."""

import random
from collections.abc import Sequence
from pathlib import Path

from scalerl.errors import TaskError
from scalerl.graders.code import close_sandboxes, run_program
from scalerl.graders.sandbox.job import RunLimits
from scalerl.tasks.code.formats import CodeProblem, read_problem
from scalerl.tasks.files import load_rows, read_rows
from scalerl.tasks.rows import Row
from scalerl.tasks.task import Demonstration, Task, without
from scalerl.types import Problem, derive_seed

# Faults that an error lists by name.
_MOST_LISTED = 5

# A reference solution is trusted to end; a busy machine may be slow.
_PATIENT = RunLimits(timeout_s=60.0, cpu_limit_s=30.0)


def code(
    num_evaluation: int | None,
    evaluation_seed: int,
    /,
    *,
    path: str = "",
    evaluation_path: str = "",
    dataset: str = "",
    subset: str = "",
    split: str = "train",
    evaluation_split: str = "",
    check_references: bool = False,
) -> Task:
    """Return programming problems with unit tests, of which `num_evaluation` are withheld for evaluation.

    With `check_references`, every reference solution must pass its own tests.
    """
    if bool(path) == bool(dataset):
        raise TaskError("code: set either path (a file) or dataset (of the Hugging Face hub), and not both")
    rows = read_rows(Path(path)) if path else load_rows(dataset, subset, split)
    evaluation_rows = None
    if evaluation_path:
        evaluation_rows = read_rows(Path(evaluation_path))
    elif evaluation_split:
        evaluation_rows = load_rows(dataset, subset, evaluation_split)
    problems = _read_all(rows)
    pool = problems if evaluation_rows is None else _read_all(evaluation_rows, prefix="evaluation/")
    if check_references:
        check_solutions({**problems, **pool})
    num = len(pool) if num_evaluation is None else num_evaluation
    if num > len(pool):
        raise TaskError(
            f"{(evaluation_rows or rows)[0].where} has {len(pool)} problems, but {num} are to be evaluated "
            f"on (evaluation.num_prompts)"
        )
    withheld = random.Random(derive_seed("withheld problems", evaluation_seed)).sample(sorted(pool), num)
    evaluation = tuple(_posed(pool[name], name) for name in withheld)
    training = without([_posed(problem, name) for name, problem in problems.items()], evaluation)
    if not training and num_evaluation is not None:
        raise TaskError(f"{rows[0].where}: all {len(problems)} problems are withheld for evaluation, none are left")

    def demonstrations(num: int, seed: int) -> list[Demonstration]:
        order = random.Random(derive_seed("code demonstrations", seed)).sample(training, min(num, len(training)))
        return [Demonstration(problem=problem, completion=_shown(problems[problem.id])) for problem in order]

    has_solutions = all(problem.reference.solution.strip() for problem in problems.values())
    return Task(
        name="code",
        training=training,
        evaluation=evaluation,
        grader="code",
        demonstrations=demonstrations if has_solutions else None,
    )


def check_solutions(problems: dict[str, CodeProblem]) -> None:
    """Raise TaskError where a reference solution is missing or fails its own tests, naming the first few."""
    faults: list[str] = []
    for name, problem in problems.items():
        if not problem.reference.solution.strip():
            faults.append(f"{name} (no solution)")
            continue
        outcome = run_program(problem.reference.solution, problem.reference.to_text(), limits=_PATIENT)
        if not outcome.correct:
            faults.append(f"{name} ({outcome.kind}, {outcome.num_passed} of {outcome.num_checks} checks passed)")
    close_sandboxes()
    if faults:
        listed = ", ".join(faults[:_MOST_LISTED]) + (", ..." if len(faults) > _MOST_LISTED else "")
        raise TaskError(f"{len(faults)} of {len(problems)} reference solutions do not pass their own tests: {listed}")


def _read_all(rows: Sequence[Row], prefix: str = "") -> dict[str, CodeProblem]:
    problems: dict[str, CodeProblem] = {}
    for row in rows:
        problem = read_problem(row)
        name = prefix + problem.id
        if name in problems:
            raise TaskError(f'{row.place}: the id "{problem.id}" is used by an earlier problem')
        problems[name] = problem
    return problems


def _posed(problem: CodeProblem, name: str) -> Problem:
    return Problem(id=name, prompt=problem.prompt, answer=problem.reference.to_text(), task="code")


def _shown(problem: CodeProblem) -> str:
    """Return a solution as an answer: the rest of the prompt, or a program between fences."""
    solution = problem.reference.solution
    return solution if problem.reference.prefix else f"```python\n{solution.strip()}\n```"
