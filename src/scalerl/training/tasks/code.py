"""Code problems from a file or a data set, graded by running programs. The fields of a row determine its format.

| format | fields |
|---|---|
| HumanEval | prompt, test, entry_point; canonical_solution |
| MBPP | text or prompt, test_list; code, test_setup_code or test_imports, challenge_test_list |
| stdin and stdout (DeepCoder, TACO, APPS) | question, problem or prompt, input_output or tests; solutions |
| LiveCodeBench | question_content, public_test_cases, private_test_cases; metadata, starter_code |
"""

import ast
import base64
import binascii
import dataclasses
import re
import zlib
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

from scalerl.errors import TaskError
from scalerl.runfolder.json_text import parse_json
from scalerl.training.graders.code import close_sandboxes, run_program
from scalerl.training.graders.sandbox.job import Reference, RunLimits
from scalerl.training.graders.sandbox.names import defined_names, free_names, module_names
from scalerl.training.graders.sandbox.program_side import parses
from scalerl.training.tasks.files import Entry, entries_task
from scalerl.training.tasks.rows import Row, read_all, read_rows
from scalerl.training.tasks.task import Task
from scalerl.training.types import Problem

_QUESTIONS = ("question_content", "question", "problem", "prompt", "text")
_IDS = ("task_id", "question_id", "problem_id", "id")

_WRITE_FUNCTION = "Write a Python function that passes the tests. Give the program between ```python and ```."
_WRITE_SCRIPT = (
    "Write a Python program that reads from standard input and writes to standard output. Give it between ```python "
    "and ```."
)

_MOST_LISTED = 5
"""Largest number of faults that an error lists."""
_STRING = re.compile(rb'"(?:[^"\\]|\\.)*+"', re.DOTALL)
_MOST_BYTES = 2**28
_MOST_OUTSIDE = 2**22
"""Largest size of unpacked test cases, and of their text outside strings, far above those of any problem.

A small field can unpack to terabytes, and what is outside strings takes much more memory than its text.
"""

# Reference solutions are assumed to end, but a busy machine may be slow.
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
    """Return programming problems with unit tests; `num_evaluation` of them are withheld for evaluation.

    With `check_references`, every reference solution must pass its own tests.
    """
    rows, held_rows = read_rows("code", path, evaluation_path, dataset, subset, split, evaluation_split)
    read = read_all(_row_and_problem, rows)
    held_read = read_all(_row_and_problem, held_rows or ())
    if check_references:
        check_solutions([(problem, reference) for _, problem, reference in [*read, *held_read]])
    return entries_task("code", num_evaluation, evaluation_seed, _entries(read), _entries(held_read), grader="code")


_Read = tuple[Row, Problem, Reference]


def _row_and_problem(row: Row) -> _Read:
    problem, reference = read_problem(row)
    return row, problem, reference


def _entries(read: Iterable[_Read]) -> list[Entry]:
    """Return the entries of problems in the order of their ids."""
    return sorted((_entry(*each) for each in read), key=lambda entry: entry[1].id)


def check_solutions(problems: Sequence[tuple[Problem, Reference]]) -> None:
    """Raise TaskError if reference solutions are missing or fail their own tests; the error names the first few."""
    faults: list[str] = []
    for problem, reference in problems:
        if not reference.solution.strip():
            faults.append(f"{problem.id} (no solution)")
            continue
        outcome = run_program(reference.solution, problem.answer, _PATIENT)
        if not outcome.correct:
            faults.append(f"{problem.id} ({outcome.kind}, {outcome.num_passed} of {outcome.num_checks} checks passed)")
    close_sandboxes()
    if faults:
        listed = ", ".join(faults[:_MOST_LISTED])
        if len(faults) > _MOST_LISTED:
            listed += ", ..."
        raise TaskError(f"{len(faults)} of {len(problems)} reference solutions do not pass their own tests: {listed}")


def _entry(row: Row, problem: Problem, reference: Reference) -> Entry:
    """Return a problem with its solution: the rest of the prompt, or a program between fences."""
    solution = reference.solution
    given = solution if reference.prefix else f"```python\n{solution.strip()}\n```"
    return row, problem, given if solution.strip() else ""


def read_problem(row: Row) -> tuple[Problem, Reference]:
    """Return the problem in a row of any known format, and its tests; TaskError if there are no usable tests."""
    values = row.values
    if "test_list" in values:
        prompt, reference = _mbpp(row)
    elif "entry_point" in values and "test" in values:
        prompt, reference = _human_eval(row)
    elif any(name in values for name in ("input_output", "tests", "public_test_cases")):
        prompt, reference = _cases(row)
    else:
        raise row.fault(
            f"not a code problem in a known format: it has {', '.join(map(str, values)) or 'no fields'}; known formats "
            f"are HumanEval (prompt, test, entry_point), MBPP (text, test_list), and stdin with stdout (input_output, "
            f"tests, or public_test_cases)"
        )
    if not reference.num_tests:
        raise row.fault("the problem has no tests")
    if not all(map(parses, (reference.setup, *reference.asserts))):
        raise row.fault("its tests are not valid Python")
    number = next((str(values[name]) for name in _IDS if values.get(name) is not None), row.place.replace(" ", "-"))
    return Problem(id=number, prompt=prompt, answer=reference.to_text(), task="code"), reference


def _human_eval(row: Row) -> tuple[str, Reference]:
    prompt, test, entry_point = map(row.text, ("prompt", "test", "entry_point"))
    if not re.search(r"\bcheck\b", test):
        raise row.fault('the field "test" must define check(candidate), as HumanEval\'s do')
    # A prompt that ends inside a function becomes valid Python with a body; a prompt in words does not.
    bodies = [f"{prompt.rstrip()}\n{indent}pass" for indent in (" ", "  ", "    ", "\t", "        ")]
    setup = next((source for source in (prompt, *bodies) if parses(source)), "")
    solution = str(row.values.get("canonical_solution") or "")
    reference = Reference(
        asserts=(f"{test}\n\ncheck({entry_point})\n",),
        # Tests use the prompt's version of other functions; the program's version could do anything.
        setup=setup,
        # A program does not continue a prompt in words.
        prefix=prompt if setup else "",
        entry_point=entry_point,
        names=_required_names((test,), setup, prompt + solution),
        solution=solution,
    )
    return prompt, reference


def _mbpp(row: Row) -> tuple[str, Reference]:
    tests = [*_list(row, "test_list"), *_list(row, "challenge_test_list")]
    asserts = tuple(test for test in tests if test.strip())
    solution = str(row.values.get("code") or "")
    setup = "\n".join([_imports(solution), str(row.values.get("test_setup_code") or ""), *_list(row, "test_imports")])
    example = next(iter(asserts), "")
    prompt = f"{_question(row)}\n\n{_WRITE_FUNCTION}\n\n{example}"
    names = _required_names(asserts, setup, solution) or _only_name(row, asserts, setup)
    _check_helpers(row, asserts, names)
    return prompt, Reference(asserts=asserts, setup=setup, names=names, solution=solution)


def _imports(solution: str) -> str:
    """Return the imports of a solution as code for the tests, which may use them."""
    statements = ast.parse(solution).body if parses(solution) else []
    imports = [node for node in statements if isinstance(node, ast.Import | ast.ImportFrom)]
    usable = [ast.unparse(node) for node in imports if getattr(node, "module", "") != "__future__"]
    return "\n".join(f"try: {line}\nexcept ImportError: pass" for line in usable)


def _required_names(tests: Sequence[str], setup: str, solution: str) -> tuple[str, ...]:
    """Return the names that tests use, that they neither define nor import, and that the solution defines."""
    if not all(map(parses, (setup, solution, *tests))):
        return ()
    return tuple(sorted(free_names(setup, *tests) & defined_names(solution)))


def _check_helpers(row: Row, tests: Sequence[str], names: Sequence[str]) -> None:
    """Raise TaskError if tests give what one name of the program returns to another, such as a helper that compares.

    A program could define the other one so that it finds every answer right.
    """
    if len(names) < 2 or not all(map(parses, tests)):
        return
    for outer, call in _calls(names, *map(ast.parse, tests)):
        given = [*call.args, *(keyword.value for keyword in call.keywords)]
        for inner, _ in _calls(names, *given):
            # An object of a class is made for the function that is tested.
            if inner != outer and not inner[0].isupper():
                raise row.fault(
                    f"its tests give what {inner} returns to {outer}, which a program would define itself: define "
                    f"{outer} in test_setup_code"
                )


def _calls(names: Collection[str], *trees: ast.AST) -> Iterator[tuple[str, ast.Call]]:
    """Yield the calls of these names in some code."""
    for tree in trees:
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in names:
                yield node.func.id, node


def _only_name(row: Row, tests: Sequence[str], setup: str) -> tuple[str, ...]:
    """Return the one name that tests use without defining it, if no solution says what the program defines.

    With two of them, a program could supply what its answers are compared with.
    """
    if not all(map(parses, (setup, *tests))):
        return ()
    names = sorted(free_names(setup, *tests) - module_names(*tests))
    if len(names) > 1:
        raise row.fault(
            f"its tests use {', '.join(names)} without defining them: give a solution that defines those of the "
            f"program, and import the others"
        )
    return tuple(names)


def _cases(row: Row) -> tuple[str, Reference]:
    cases, function = _read_cases(row)
    if function:
        calls = [(_arguments(row, case["input"]), _value(case["output"])) for case in cases]
        reference = Reference.of_calls(function, calls)
    else:
        reference = Reference(streams=tuple((_lines(case["input"]), _lines(case["output"])) for case in cases))
    starter = str(row.values.get("starter_code") or "")
    ask = _WRITE_FUNCTION if function else _WRITE_SCRIPT
    prompt = "\n\n".join(part for part in (_question(row), ask, starter) if part.strip())
    return prompt, dataclasses.replace(reference, solution=_first_solution(row))


def _read_cases(row: Row) -> tuple[list[Mapping[str, Any]], str]:
    """Return cases with input and output, and the name of the function; it is empty for stdin and stdout."""
    if "public_test_cases" in row.values:
        cases = [*_listed(row, "public_test_cases"), *_listed(row, "private_test_cases")]
        metadata = _parsed(row, "metadata")
        function = metadata.get("func_name") if isinstance(metadata, Mapping) else None
        return cases, function or ""
    field = "input_output" if "input_output" in row.values else "tests"
    cases = _listed(row, field)
    return cases, next((str(case["fn_name"]) for case in cases if case.get("fn_name")), "")


def _listed(row: Row, name: str) -> list[Mapping[str, Any]]:
    """Return the cases in a field: a list of them, or lists of all inputs and of all outputs."""
    cases = _parsed(row, name)
    if isinstance(cases, Mapping):
        inputs = cases.get("inputs")
        outputs = cases.get("outputs")
        if not isinstance(inputs, list) or not isinstance(outputs, list) or len(inputs) != len(outputs):
            raise row.fault(
                f'the field "{name}" must have "inputs" and "outputs", two lists of the same length, or be a list of '
                f"cases"
            )
        shared = {"fn_name": cases.get("fn_name")}
        return [{"input": given, "output": out, **shared} for given, out in zip(inputs, outputs, strict=True)]
    if not isinstance(cases, list) or not all(isinstance(case, Mapping) for case in cases):
        raise row.fault("its test cases must be objects with input and output")
    for number, case in enumerate(cases, start=1):
        # The output of a function may be None.
        if case.get("input") is None or "output" not in case:
            raise row.fault(f"test case {number} must have an input and an output")
    return cases


def _parsed(row: Row, name: str) -> Any:
    """Return a field with JSON, or with compressed JSON in base64, as in LiveCodeBench's private cases."""
    value = row.values.get(name)
    if not isinstance(value, str):
        return value if value is not None else []
    try:
        return parse_json(value)
    except ValueError:
        pass
    try:
        # Never unpickle it, as LiveCodeBench does: the bytes after the pickle's head are the JSON text.
        unpacked = zlib.decompressobj().decompress(base64.b64decode(value, validate=True), _MOST_BYTES)
        listed = unpacked[unpacked.find(b"[") : unpacked.rfind(b"]") + 1] or b"[]"
        if len(_STRING.sub(b"", listed)) > _MOST_OUTSIDE:
            raise ValueError("too many values")
        return parse_json(listed)
    except (binascii.Error, ValueError, zlib.error):
        raise row.fault(f'the field "{name}" is not valid JSON') from None


def _arguments(row: Row, given: Any) -> list[Any]:
    """Return the arguments of a call: a list, or one JSON value per line."""
    if isinstance(given, list):
        return given
    try:
        return [parse_json(line) for line in str(given).split("\n") if line.strip()]
    except ValueError:
        raise row.fault("an input of a function must be JSON, one value on each line") from None


def _value(out: Any) -> Any:
    if isinstance(out, list) and len(out) == 1:
        # APPS and DeepCoder put the return value into a list.
        return out[0]
    try:
        return parse_json(out) if isinstance(out, str) else out
    except ValueError:
        return out


def _lines(value: Any) -> str:
    return "\n".join(map(str, value)) if isinstance(value, list) else str(value)


def _first_solution(row: Row) -> str:
    solutions = row.values.get("solutions")
    if isinstance(solutions, str):
        try:
            solutions = parse_json(solutions)
        except ValueError:
            return solutions
    if isinstance(solutions, list) and solutions:
        return str(solutions[0])
    return str(row.values.get("solution") or "")


def _question(row: Row) -> str:
    for name in _QUESTIONS:
        if isinstance(row.values.get(name), str) and row.values[name].strip():
            return row.values[name]
    raise row.fault(f"it has no question: none of the fields {', '.join(_QUESTIONS)} contains text")


def _list(row: Row, name: str) -> list[str]:
    value = row.values.get(name)
    if not isinstance(value, list | None):
        raise row.fault(f'the field "{name}" must be a list')
    return list(map(str, value or ()))
