import base64
import dataclasses
import json
import re
import time
import zlib
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from needs import needs_bubblewrap

from scalerl.errors import TaskError
from scalerl.training.graders.code import run_program
from scalerl.training.tasks.code import code, read_problem
from scalerl.training.tasks.rows import Row

MBPP = {
    "task_id": 2,
    "text": "Write a function to find the shared elements of two lists.",
    "code": "def similar(a, b):\n  return tuple(set(a) & set(b))",
    "test_setup_code": "",
    "test_list": ["assert set(similar((3, 4), (4, 5))) == {4}", "assert similar((1,), (2,)) == ()"],
    "challenge_test_list": [],
}
HUMAN_EVAL = {
    "task_id": "Test/0",
    "prompt": 'def add(a, b):\n    """Add."""\n',
    "canonical_solution": "    return a + b\n",
    "test": "def check(candidate):\n    assert candidate(1, 2) == 3\n",
    "entry_point": "add",
}
DEEPCODER = {
    "problem": "Double the number.",
    "tests": json.dumps([{"input": "2\n", "output": "4\n", "type": "stdin_stdout"}]),
    "solutions": ["print(2 * int(input()))"],
}
APPS = {
    "question": "Double the number.",
    "input_output": json.dumps({"inputs": ["2\n", ["3"]], "outputs": ["4\n", ["6"]]}),
    "solutions": json.dumps(["print(2 * int(input()))"]),
}
LEETCODE = {
    "question": "Add.",
    "input_output": json.dumps({"fn_name": "add", "inputs": [[1, 2]], "outputs": [[3]]}),
    "solutions": ["class Solution:\n    def add(self, a, b):\n        return a + b"],
}
LIVE_CODE_BENCH = {
    "question_id": "x1",
    "question_content": "Add.",
    "starter_code": "class Solution:\n    def add(self, a, b):\n",
    "public_test_cases": json.dumps([{"input": "1\n2", "output": "3", "testtype": "functional"}]),
    "private_test_cases": base64.b64encode(
        zlib.compress(b"\x80\x04" + json.dumps([{"input": "[1]\n[2]", "output": "[1, 2]"}]).encode() + b"\x94.")
    ).decode(),
    "metadata": json.dumps({"func_name": "add"}),
    "solution": "def add(a, b):\n    return a + b",
}
OF_STREAMS = LIVE_CODE_BENCH | {
    "public_test_cases": json.dumps([{"input": "2\n", "output": "4\n", "testtype": "stdin"}]),
    "private_test_cases": base64.b64encode(zlib.compress(b'[{"input": "5\\n", "output": "10\\n"}]')).decode(),
    "metadata": "{}",
    "solution": "print(2 * int(input()))",
}
# With the number of asserts, or of streams below zero.
FORMATS = {
    "mbpp": (MBPP, 2),
    "human_eval": (HUMAN_EVAL, 1),
    "deepcoder": (DEEPCODER, -1),
    "apps": (APPS, -2),
    "leetcode": (LEETCODE, 1),
    "live_code_bench": (LIVE_CODE_BENCH, 2),
    "live_code_bench_of_streams": (OF_STREAMS, -2),
}


def row(values: dict[str, Any]) -> Row:
    return Row(where="problems.jsonl", unit="line", number=7, values=values)


def write(path: Path, *rows: dict[str, Any]) -> str:
    path.write_text("".join(json.dumps(values) + "\n" for values in rows))
    return str(path)


@needs_bubblewrap
@pytest.mark.parametrize("name", FORMATS)
def test_solutions_of_every_format_pass(name: str):
    values, num = FORMATS[name]
    problem, reference = read_problem(row(values))
    assert len(reference.asserts) - len(reference.streams) == num
    outcome = run_program(reference.solution, problem.answer)
    assert (outcome.kind, outcome.share) == ("passed", 1.0)
    assert run_program("def nothing(): pass", problem.answer).correct is False


IMPORTING = MBPP | {
    "code": "import math\nfrom math import isclose\nimport numpy_of_others\ndef root(x):\n  return math.sqrt(x)",
    "test_list": ["assert isclose(root(2), 1.4142, abs_tol=1e-3) and math.floor(root(9)) == 3"],
}


def test_tests_have_the_imports_of_the_solution_as_their_own():
    _, reference = read_problem(row(IMPORTING))
    assert reference.names == ("root",)
    test = "def check(candidate):\n    assert near(candidate(1, 2), 3)"
    _, reference = read_problem(row(HUMAN_EVAL | {"test": test}))
    assert (reference.entry_point, reference.names) == ("add", ())


@needs_bubblewrap
@pytest.mark.parametrize(
    ("program", "kind"),
    [
        ("import math\ndef root(x): return math.sqrt(x)", "passed"),
        ("def root(x): return x ** 0.5", "passed"),
        ("def root(x): return 0\ndef isclose(*_, **__): return True\nclass math: floor = lambda x: 3", "failed"),
    ],
)
def test_program_cannot_stand_in_for_what_tests_compare_with(program: str, kind: str):
    problem, _ = read_problem(row(IMPORTING))
    assert run_program(program, problem.answer).kind == kind


@needs_bubblewrap
@pytest.mark.parametrize("solution", ["", "def root(x):\n  print x", "def other(x): return x"])
def test_program_cannot_supply_a_module_that_tests_forgot_to_import(solution: str):
    """Nothing says which names the program defines, so only what is called could be the program's."""
    tests = ["assert math.isclose(root(4), 2)"]
    problem, reference = read_problem(row(MBPP | {"code": solution, "test_list": tests}))
    assert reference.names == ("root",)
    program = "def root(x): return 0\nclass math: isclose = lambda *_: True"
    assert run_program(program, problem.answer).kind == "bad_tests"
    unnamed = dataclasses.replace(reference, names=())
    assert run_program(program, unnamed.to_text()).kind == "bad_tests"


def test_tests_may_make_objects_of_the_programs_classes():
    made = {"code": "class Pair: 1\ndef longest(pairs): 1", "test_list": ["assert longest([Pair()]) == 3"]}
    _, reference = read_problem(row(MBPP | made))
    assert reference.names == ("Pair", "longest")


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        ({"prompt": "x", "answer": "y"}, "line 7: not a code problem in a known format: it has prompt, answer"),
        ({}, "it has no fields"),
        (MBPP | {"test_list": []}, "the problem has no tests"),
        (MBPP | {"test_list": "assert 1"}, 'the field "test_list" must be a list'),
        (MBPP | {"test_list": ["assert f( == 1"]}, "its tests are not valid Python"),
        (MBPP | {"text": ""}, "it has no question"),
        (MBPP | {"code": "", "test_list": ["assert near(f(1), 1)"]}, "its tests use f, near without defining them"),
        (
            MBPP | {"code": "def near(a, b): 1\ndef f(x): 1", "test_list": ["assert near(f(1), 1)"]},
            "its tests give what f returns to near, which a program would define itself",
        ),
        (HUMAN_EVAL | {"test": "def check(:"}, "its tests are not valid Python"),
        (HUMAN_EVAL | {"test": "assert True"}, 'the field "test" must define check(candidate)'),
        (HUMAN_EVAL | {"entry_point": None}, 'the field "entry_point" must be text or a number, not null'),
        (DEEPCODER | {"tests": "[]"}, "the problem has no tests"),
        (DEEPCODER | {"tests": "{"}, 'the field "tests" is not valid JSON'),
        (DEEPCODER | {"tests": "[1]"}, "its test cases must be objects with input and output"),
        (DEEPCODER | {"tests": [{"in": "1"}]}, "test case 1 must have an input and an output"),
        (DEEPCODER | {"tests": [{"input": None, "output": "1"}]}, "test case 1 must have an input"),
        (LIVE_CODE_BENCH | {"public_test_cases": '[{"input": "1"}]'}, "test case 1 must have an input"),
        (APPS | {"input_output": {"inputs": None, "outputs": []}}, 'must have "inputs" and "outputs"'),
        (APPS | {"input_output": {"inputs": "12", "outputs": "12"}}, "two lists of the same length"),
        (APPS | {"input_output": {"inputs": ["1"], "outputs": []}}, "two lists of the same length"),
        (APPS | {"input_output": {"inputs": []}}, 'must have "inputs" and "outputs"'),
        (LIVE_CODE_BENCH | {"private_test_cases": "%%%"}, 'the field "private_test_cases" is not valid JSON'),
    ],
)
def test_bad_rows_are_one_sentence(values: dict[str, Any], sentence: str):
    with pytest.raises(TaskError) as caught:
        read_problem(row(values))
    assert sentence in str(caught.value)
    assert str(caught.value).startswith("problems.jsonl, line 7: ")
    assert "\n" not in str(caught.value)


def packed(text: bytes) -> str:
    return base64.b64encode(zlib.compress(text)).decode()


def hidden_tests(text: bytes) -> dict[str, Any]:
    return LIVE_CODE_BENCH | {"private_test_cases": packed(text)}


HOSTILE_ROWS: dict[str, Callable[[], dict[str, Any]]] = {
    "brackets": lambda: hidden_tests(b"[" * 200_000),
    "bomb": lambda: hidden_tests(b"[" + b" " * 2**29),
    "many values": lambda: hidden_tests(b"[" + b"{}," * 2**25 + b"{}]"),
    "deep cases": lambda: LIVE_CODE_BENCH | {"public_test_cases": "[" * 100_000},
    "deep metadata": lambda: LIVE_CODE_BENCH | {"metadata": '{"a":' * 100_000},
    "deep solutions": lambda: APPS | {"solutions": "[" * 100_000},
    "deep test": lambda: MBPP | {"test_list": ["-" * 200_000 + "1"]},
    "deep solution": lambda: MBPP | {"code": ".a" * 200_000},
}
"""Made when they are tested: to pack the bomb takes seconds, and each worker imports this file."""


@pytest.mark.parametrize("name", HOSTILE_ROWS)
def test_hostile_rows_cost_little(name: str, tmp_path: Path):
    values = HOSTILE_ROWS[name]()
    began = time.process_time()
    with suppress(TaskError):
        code(1, 0, path=write(tmp_path / "problems.jsonl", values, MBPP | {"task_id": 3, "text": "Another."}))
    assert time.process_time() - began < 10


@needs_bubblewrap
@pytest.mark.parametrize(
    ("prompt", "solution"),
    [
        ("def add(a, b):\n    # Add.\n", "    return a + b\n"),
        ("def add(a, b):\n", "    return a + b\n"),
        ("def add(a, b):", "\n  return a + b"),
        ("Write add, which adds two numbers.", "def add(a, b):\n    return a + b"),
    ],
)
def test_human_eval_prompts_may_be_unfinished_or_words(prompt: str, solution: str):
    problem, _ = read_problem(row(HUMAN_EVAL | {"prompt": prompt, "canonical_solution": solution}))
    assert run_program(solution, problem.answer).kind == "passed"
    assert run_program(solution.replace("+", "-"), problem.answer).kind == "failed"


def test_problems_are_split_and_demonstrated(tmp_path: Path):
    rows = [HUMAN_EVAL | {"task_id": f"Test/{n}", "prompt": HUMAN_EVAL["prompt"] + f"    # {n}\n"} for n in range(6)]
    task = code(2, 0, path=write(tmp_path / "problems.jsonl", *rows))
    assert (len(task.training), len(task.evaluation), task.grader) == (4, 2, "code")
    assert len(code(None, 0, path=str(tmp_path / "problems.jsonl")).evaluation) == 6
    assert task.demonstrations is not None
    assert {made.completion for made in task.demonstrations(3, 0)} == {"    return a + b\n"}
    fenced = code(1, 0, path=write(tmp_path / "mbpp.jsonl", MBPP, MBPP | {"task_id": 3, "text": "Another."}))
    assert fenced.demonstrations is not None
    assert fenced.demonstrations(1, 0)[0].completion.startswith("```python\ndef similar")


@needs_bubblewrap
def test_reference_solutions_are_checked_on_request(tmp_path: Path):
    wrong = MBPP | {"task_id": 3, "text": "Another.", "code": "def similar(a, b):\n  return ()"}
    path = write(tmp_path / "problems.jsonl", MBPP, wrong, MBPP | {"task_id": 4, "text": "A third.", "code": ""})
    assert len(code(1, 0, path=path).training) == 2
    said = "2 of 3 reference solutions do not pass their own tests: 3 (failed, 1 of 2 checks passed), 4 (no solution)"
    with pytest.raises(TaskError, match=f"^{re.escape(said)}$"):
        code(1, 0, path=path, check_references=True)
