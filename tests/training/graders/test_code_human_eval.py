"""HumanEval's own problems: reference solutions pass, cheats do not, and verdicts are those of plain execution."""

import ast
import subprocess
import sys
from typing import Any

import pytest
from needs import human_eval_rows, needs_bubblewrap

from scalerl.training.graders.code import run_program
from scalerl.training.graders.sandbox.job import Outcome, RunLimits
from scalerl.training.tasks.code import read_problem
from scalerl.training.tasks.rows import Row

pytestmark = [needs_bubblewrap, pytest.mark.timeout(600)]

LIMITS = RunLimits(timeout_s=60, cpu_limit_s=20)
ENDLESS = RunLimits(timeout_s=30, cpu_limit_s=3)  # some loops never end once their constants are wrong


@pytest.fixture(scope="module")
def rows() -> list[dict[str, Any]]:
    return human_eval_rows()


def outcomes(rows: list[dict[str, Any]], answers: list[str], limits: RunLimits = LIMITS) -> list[Outcome]:
    results = []
    for number, (values, answer) in enumerate(zip(rows, answers, strict=True), start=1):
        problem, _ = read_problem(Row(where="HumanEval", unit="line", number=number, values=values))
        results.append(run_program(answer, problem.answer, limits))
    return results


def test_all_reference_solutions_pass(rows: list[dict[str, Any]]):
    results = outcomes(rows, [row["canonical_solution"] for row in rows])
    assert [outcome.kind for outcome in results] == ["passed"] * 164
    assert all(outcome.share == 1 and outcome.num_checks >= 1 for outcome in results)


PATCHED = """
    import builtins, unittest, sys
    class Always:
        def __eq__(self, other): return True
        def __ne__(self, other): return False
        def __lt__(self, other): return True
        def __gt__(self, other): return True
        def __abs__(self): return self
        def __sub__(self, other): return self
        def __bool__(self): return True
        def __iter__(self): return iter(())
        def __len__(self): return 0
    builtins.AssertionError = StopIteration
    builtins.abs = builtins.isinstance = builtins.all = lambda *_: True
    return Always()
"""


@pytest.mark.parametrize("one_in", [8, pytest.param(1, marks=pytest.mark.slow)])
@pytest.mark.parametrize("cheat", ["empty", "exit", "patched", "printed"])
def test_no_cheat_passes(cheat: str, one_in: int, rows: list[dict[str, Any]]):
    rows = rows[::one_in]
    bodies = {
        "empty": lambda row: "    pass\n",
        "exit": lambda row: "    import sys; sys.exit(0)\n",
        "patched": lambda row: PATCHED,
        # The whole test is printed, and with it every expected value.
        "printed": lambda row: f"    print({row['test']!r}); print('All tests passed', flush=True)\n",
    }
    results = outcomes(rows, [bodies[cheat](row) for row in rows])
    assert [row["task_id"] for row, outcome in zip(rows, results, strict=True) if outcome.correct] == []
    assert all(outcome.share < 1 for outcome in results)


def with_wrong_constants(prompt: str, solution: str) -> str:
    """Return a program with the whole numbers of its solution one too large.

    Not those of the prompt: its functions are the tests' own here, and the program's in plain execution.
    """

    class Change(ast.NodeTransformer):
        def visit_Constant(self, node: ast.Constant) -> ast.AST:
            if type(node.value) is int and node.lineno > prompt.count("\n"):
                return ast.Constant(value=node.value + 1)
            return node

    return ast.unparse(ast.fix_missing_locations(Change().visit(ast.parse(prompt + solution))))


@pytest.mark.slow
def test_wrong_constants_are_judged_as_by_plain_execution(rows: list[dict[str, Any]]):
    changed = [with_wrong_constants(row["prompt"], row["canonical_solution"]) for row in rows]
    results = outcomes(rows, [f"```python\n{program}\n```" for program in changed], ENDLESS)
    plain = []
    for row, program in zip(rows, changed, strict=True):
        script = f"{program}\n{row['test']}\ncheck({row['entry_point']})\n"
        try:
            plain.append(
                subprocess.run([sys.executable, "-I", "-c", script], capture_output=True, timeout=15).returncode == 0
            )
        except subprocess.TimeoutExpired:
            plain.append(False)
    assert [outcome.correct for outcome in results] == plain
    assert 10 < sum(plain) < 154
