"""Code problems as others publish them: which fields a row has says which format it is.

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
import json
import re
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from scalerl.errors import TaskError
from scalerl.graders.sandbox.job import Reference
from scalerl.tasks.rows import Row

_QUESTIONS = ("question_content", "question", "problem", "prompt", "text")
_IDS = ("task_id", "question_id", "problem_id", "id")

_WRITE_FUNCTION = "Write a Python function that passes the tests. Give the program between ```python and ```."
_WRITE_SCRIPT = (
    "Write a Python program that reads from standard input and writes to standard output. Give it between ```python "
    "and ```."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class CodeProblem:
    """A row as a problem."""

    id: str
    prompt: str
    reference: Reference


def read_problem(row: Row) -> CodeProblem:
    """Return the problem in a row, in any known format; TaskError if it has none, or if its tests cannot be used."""
    values = row.values
    if "test_list" in values:
        problem = _mbpp(row)
    elif "entry_point" in values and "test" in values:
        problem = _human_eval(row)
    elif any(name in values for name in ("input_output", "tests", "public_test_cases")):
        problem = _cases(row)
    else:
        raise TaskError(
            f"{row.place}: not a code problem of a known format: it has {', '.join(map(str, values)) or 'no fields'}; "
            f"known are HumanEval (prompt, test, entry_point), MBPP (text, test_list), and stdin with stdout "
            f"(input_output, tests, or public_test_cases)"
        )
    for source in (problem.reference.setup, *problem.reference.asserts):
        if not _parses(source):
            raise TaskError(f"{row.place}: its tests are not valid Python")
    return problem


def _human_eval(row: Row) -> CodeProblem:
    prompt, test, entry_point = (_text(row, name) for name in ("prompt", "test", "entry_point"))
    if not re.search(r"\bcheck\b", test):
        raise TaskError(f'{row.place}: the field "test" must define check(candidate), as HumanEval\'s do')
    setup = _whole(prompt)
    # The prompt's other functions are the tests' to use; as the program wrote them, they could say anything.
    reference = Reference(
        asserts=(f"{test}\n\ncheck({entry_point})\n",),
        setup=setup,
        # A prompt in words is not continued by the program.
        prefix=prompt if setup else "",
        entry_point=entry_point,
        solution=str(row.values.get("canonical_solution") or ""),
    )
    return CodeProblem(id=_id(row), prompt=prompt, reference=reference)


def _whole(prompt: str) -> str:
    """Return a prompt that ends inside a function as Python that can be read; "" for a prompt in words."""
    bodies = [f"{prompt.rstrip()}\n{indent}pass" for indent in (" ", "  ", "    ", "\t", "        ")]
    return next((source for source in (prompt, *bodies) if _parses(source)), "")


def _parses(source: str) -> bool:
    try:
        ast.parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False
    return True


def _mbpp(row: Row) -> CodeProblem:
    listed = [*_list(row, "test_list"), *_list(row, "challenge_test_list")]
    tests = tuple(str(test) for test in listed if str(test).strip())
    if not tests:
        raise TaskError(f'{row.place}: the problem has no tests: the field "test_list" is empty')
    setup = "\n".join([str(row.values.get("test_setup_code") or ""), *map(str, _list(row, "test_imports"))])
    question = _question(row)
    prompt = f"{question}\n\n{_WRITE_FUNCTION}\n\n{tests[0]}"
    solution = str(row.values.get("code") or "")
    return CodeProblem(id=_id(row), prompt=prompt, reference=Reference(asserts=tests, setup=setup, solution=solution))


def _cases(row: Row) -> CodeProblem:
    cases, function = _read_cases(row)
    if not cases:
        raise TaskError(f"{row.place}: the problem has no tests")
    solution = _first_solution(row)
    if function:
        calls = [(_arguments(row, given), _value(out)) for given, out in cases]
        reference = Reference.of_calls(function, calls, solution=solution)
    else:
        streams = tuple((_lines(given), _lines(out)) for given, out in cases)
        reference = Reference(streams=streams, solution=solution)
    starter = str(row.values.get("starter_code") or "")
    ask = _WRITE_FUNCTION if function else _WRITE_SCRIPT
    prompt = "\n\n".join(part for part in (_question(row), ask, starter) if part.strip())
    return CodeProblem(id=_id(row), prompt=prompt, reference=reference)


def _read_cases(row: Row) -> tuple[list[tuple[Any, Any]], str]:
    """Return pairs of input and output, and the function they are for where it is not stdin and stdout."""
    values = row.values
    if "public_test_cases" in values:
        listed = [*_parsed(row, "public_test_cases"), *_parsed(row, "private_test_cases")]
        metadata = _parsed(row, "metadata") or {}
        function = metadata.get("func_name") or "" if isinstance(metadata, Mapping) else ""
        return _pairs(row, listed), function
    name = "input_output" if "input_output" in values else "tests"
    tests = _parsed(row, name)
    if isinstance(tests, list):
        pairs = _pairs(row, tests)
        return pairs, next((str(case["fn_name"]) for case in tests if case.get("fn_name")), "")
    if not isinstance(tests, Mapping) or not {"inputs", "outputs"} <= set(tests):
        raise TaskError(f'{row.place}: the field "{name}" must have "inputs" and "outputs", or be a list of cases')
    inputs, outputs = tests["inputs"], tests["outputs"]
    if not isinstance(inputs, list) or not isinstance(outputs, list):
        raise TaskError(f'{row.place}: "inputs" and "outputs" of the field "{name}" must be lists')
    if len(inputs) != len(outputs):
        raise TaskError(f'{row.place}: the field "{name}" has {len(inputs)} inputs but {len(outputs)} outputs')
    return list(zip(inputs, outputs, strict=True)), str(tests.get("fn_name") or "")


def _parsed(row: Row, name: str) -> Any:
    """Return a field that is JSON, or JSON compressed and in base64 as LiveCodeBench hides its private cases."""
    value = row.values.get(name)
    if not isinstance(value, str):
        return value if value is not None else []
    try:
        return json.loads(value)
    except ValueError:
        pass
    try:
        # Never unpickled, as its own reader does: the bytes after the pickle's head are the JSON text.
        packed = zlib.decompress(base64.b64decode(value, validate=True))
    except (binascii.Error, ValueError, zlib.error):
        raise TaskError(f'{row.place}: the field "{name}" is not valid JSON') from None
    match = re.search(rb"\[.*\]", packed, re.DOTALL)
    try:
        return json.loads(match[0]) if match else []
    except ValueError:
        raise TaskError(f'{row.place}: the field "{name}" is not valid JSON') from None


def _pairs(row: Row, cases: Any) -> list[tuple[Any, Any]]:
    if not isinstance(cases, list) or not all(isinstance(case, Mapping) for case in cases):
        raise TaskError(f"{row.place}: its test cases must be objects with input and output")
    for number, case in enumerate(cases, start=1):
        # A function may return None.
        missing = [name for name in ("input", "output") if name not in case] or ["input"] * (case["input"] is None)
        if missing:
            raise TaskError(f"{row.place}: test case {number} has no {' and no '.join(missing)}")
    return [(case["input"], case["output"]) for case in cases]


def _arguments(row: Row, given: Any) -> list[Any]:
    """Return the arguments of a call: a list of them, or one JSON value on each line."""
    if isinstance(given, list):
        return given
    try:
        return [json.loads(line) for line in str(given).split("\n") if line.strip()]
    except ValueError:
        raise TaskError(f"{row.place}: an input of a function must be JSON, one value on each line") from None


def _value(out: Any) -> Any:
    if isinstance(out, list) and len(out) == 1:
        # APPS and DeepCoder put the one return value into a list.
        return out[0]
    try:
        return json.loads(out) if isinstance(out, str) else out
    except ValueError:
        return out


def _lines(value: Any) -> str:
    return "\n".join(map(str, value)) if isinstance(value, list) else str(value)


def _first_solution(row: Row) -> str:
    solutions = row.values.get("solutions")
    if isinstance(solutions, str):
        try:
            solutions = json.loads(solutions)
        except ValueError:
            return solutions
    return str(solutions[0]) if isinstance(solutions, list) and solutions else str(row.values.get("solution") or "")


def _question(row: Row) -> str:
    for name in _QUESTIONS:
        if isinstance(row.values.get(name), str) and row.values[name].strip():
            return row.values[name]
    raise TaskError(f"{row.place}: it has no question: none of the fields {', '.join(_QUESTIONS)} holds text")


def _id(row: Row) -> str:
    for name in _IDS:
        if row.values.get(name) is not None:
            return str(row.values[name])
    return f"{row.unit}-{row.number}"


def _text(row: Row, name: str) -> str:
    value = row.values.get(name)
    if not isinstance(value, str) or not value.strip():
        raise TaskError(f'{row.place}: the field "{name}" must be text')
    return value


def _list(row: Row, name: str) -> list[Any]:
    value = row.values.get(name)
    if value is None:
        return []
    if not isinstance(value, list):
        raise TaskError(f'{row.place}: the field "{name}" must be a list')
    return value
