from typing import Any

import pytest
from graded import grade_all
from needs import needs_bubblewrap

from scalerl.errors import GraderError
from scalerl.recipe.parts import GradingSettings
from scalerl.training.graders.code import code_share, program_in, run_program
from scalerl.training.graders.pool import Graded, GraderPool, GraderSpec
from scalerl.training.graders.sandbox.job import Reference
from scalerl.training.loop.grading import with_limits

ANSWER = Reference.of_calls("f", [([2], 4), ([3], 9)]).to_text()
SQUARE = "def f(x):\n    return x * x\n"


@pytest.mark.parametrize(
    ("given", "program"),
    [
        ("def f(): pass", "def f(): pass"),
        ("    return x", "    return x"),
        ("So:\n```python\nx = 1\n```\nDone.", "x = 1\n"),
        ("```\nx = 1\n```", "x = 1\n"),
        ("```python\nx = 1", "x = 1"),
        ("```py\nx = 1\n```\nand\n```python3\nx = 2\n```", "x = 2\n"),
        ("```python\ndef f(): pass\n```\nUse it:\n```python\nf()\n```", "def f(): pass\n"),
        ("```python\nx = 1\n```\n```text\n1\n```", "x = 1\n"),
        ("```json\n{}\n```", None),
        ("", None),
        ("  \n", None),
        ("```python\n```", None),
    ],
)
def test_programs_are_taken_out_of_answers(given: str, program: str | None):
    assert program_in(given, "f") == program


@needs_bubblewrap
@pytest.mark.parametrize("rest", ["", "\nprint(f(\n", "So that is it."])
def test_prompts_are_continued(rest: str):
    prefix = 'def f(x):\n    """Square."""\n'
    answer = Reference(asserts=("assert f(3) == 9",), prefix=prefix, entry_point="f").to_text()
    assert run_program(f"    return x * x\n{rest}", answer).kind == "passed"


def pooled(**settings: object) -> GraderSpec:
    return GraderSpec(name="code", settings=settings)


@needs_bubblewrap
def test_a_missing_sandbox_is_told_before_anything_is_graded(monkeypatch: pytest.MonkeyPatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    with GraderPool(num_workers=1) as pool, pytest.raises(GraderError, match="apt install bubblewrap"):
        pool.check(pooled())


def test_limits_of_the_recipe_reach_the_programs():
    limits = GradingSettings(timeout_s=20, cpu_limit_s=5, memory_limit_mb=100)
    spec = with_limits(GraderSpec(name="code", settings={"thinking_end": "x"}), limits)
    assert spec.settings == {"thinking_end": "x", "timeout_s": 15.0, "cpu_limit_s": 5, "memory_limit_mb": 100}
    assert with_limits(GraderSpec(name="math"), limits) == GraderSpec(name="math")


OUTCOMES = {
    SQUARE: "passed",
    f"<think>Squares.</think>```python\n{SQUARE}```": "passed",
    "def f(x): return 4": "failed",
    "I do not know.": "failed",
    "def f(": "failed",
    "def f(x): return b'\\xff\\x00'": "failed",
    "raise SystemExit(0)": "failed",
    "while True: pass": "cpu",
    "import time\ntime.sleep(60)": "timeout",
    "def f(x): return bytearray(10**10)": "memory",
    "import os\nos._exit(0)": "crash",
    f"<think>```python\n{SQUARE}```": "no_program",
    "<think>x</think>": "no_program",
    "```json\n{}\n```": "no_program",
    " \n": "no_program",
}


@needs_bubblewrap
def test_every_answer_has_an_outcome_that_is_counted():
    # Only what sleeps may meet the time limit, however busy the machine is.
    spec, short = pooled(timeout_s=100.0, cpu_limit_s=1.0), pooled(timeout_s=3.0, cpu_limit_s=1.0)
    unreadable = Reference(asserts=("assert f( == 1",)).to_text()
    with GraderPool(num_workers=2, timeout_s=120.0) as pool:
        for text, kind in OUTCOMES.items():
            pool.submit(text, short if kind == "timeout" else spec, text, ANSWER)
        graded: list[Graded] = []
        while pool.num_pending:
            graded += pool.poll(100.0)
        unusable = grade_all(pool, spec, [(SQUARE, bad) for bad in ("8", unreadable)])
    assert {result.key: result.outcome for result in graded} == OUTCOMES
    assert all(result.value == (result.outcome == "passed") for result in graded)
    assert {(each.value, each.reason, each.outcome) for each in unusable} == {(None, "no_answer", "bad_tests")}


@needs_bubblewrap
def test_a_share_of_tests_may_count_and_tags_be_others():
    tags: dict[str, Any] = {"thinking_start": "<reason>", "thinking_end": "</reason>"}
    texts = {"def f(x): return 4": 0.5, "": 0.0, f"<reason>x</reason>{SQUARE}": 1.0, f"<reason>{SQUARE}": 0.0}
    assert {text: code_share(text, ANSWER, timeout_s=60, **tags).value for text in texts} == texts
    assert code_share(SQUARE, "8").value is None
