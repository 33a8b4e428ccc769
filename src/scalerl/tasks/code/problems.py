"""Code problems from a file or a data set, in any of the formats of formats.py; graded by running the program."""

from collections.abc import Sequence

from scalerl.errors import TaskError
from scalerl.graders.code import close_sandboxes, run_program
from scalerl.graders.sandbox.job import RunLimits
from scalerl.tasks.code.formats import read_problem
from scalerl.tasks.files import Source
from scalerl.tasks.rows import Entry, Row, entries_task
from scalerl.tasks.task import Task
from scalerl.types import Problem

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
    rows, evaluation_rows = Source(path, evaluation_path, dataset, subset, split, evaluation_split).read("code")
    if check_references:
        check_solutions([*rows, *(evaluation_rows or ())])
    return entries_task(
        "code",
        num_evaluation,
        evaluation_seed,
        rows=sorted(rows, key=lambda row: read_problem(row).id),
        evaluation_rows=evaluation_rows and sorted(evaluation_rows, key=lambda row: read_problem(row).id),
        read=_entry,
        grader="code",
        label="code demonstrations",
    )


def check_solutions(rows: Sequence[Row]) -> None:
    """Raise TaskError where a reference solution is missing or fails its own tests, naming the first few."""
    faults: list[str] = []
    for problem in map(read_problem, rows):
        if not problem.reference.solution.strip():
            faults.append(f"{problem.id} (no solution)")
            continue
        outcome = run_program(problem.reference.solution, problem.reference.to_text(), limits=_PATIENT)
        if not outcome.correct:
            faults.append(f"{problem.id} ({outcome.kind}, {outcome.num_passed} of {outcome.num_checks} checks passed)")
    close_sandboxes()
    if faults:
        listed = ", ".join(faults[:_MOST_LISTED]) + (", ..." if len(faults) > _MOST_LISTED else "")
        raise TaskError(f"{len(faults)} of {len(rows)} reference solutions do not pass their own tests: {listed}")


def _entry(row: Row) -> Entry:
    """Return the problem of a row, and its solution: the rest of the prompt, or a program between fences."""
    made = read_problem(row)
    solution = made.reference.solution
    shown = solution if made.reference.prefix else f"```python\n{solution.strip()}\n```"
    problem = Problem(id=made.id, prompt=made.prompt, answer=made.reference.to_text(), task="code")
    return problem, shown if solution.strip() else ""
