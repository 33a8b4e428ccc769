"""The math grader, through the pool, against direct calls of math-verify."""

import logging
from collections.abc import Iterator
from pathlib import Path

import pytest
from graded import grade_all
from math_pairs import EQUAL, UNEQUAL, UNSEEN
from needs import needs_package

from scalerl.errors import GraderError
from scalerl.training.graders.math import math
from scalerl.training.graders.pool import GraderPool, GraderSpec

pytestmark = needs_package("math_verify")
MATH = GraderSpec(name="math")


@pytest.fixture(scope="module")
def pool() -> Iterator[GraderPool]:
    with GraderPool(num_workers=1, timeout_s=60, cpu_limit_s=1, memory_limit_mb=256) as pool:
        yield pool


def through(pool: GraderPool, pairs: list[tuple[str, str]]) -> list[float | None]:
    """Verdicts of texts and references."""
    return [result.value for result in grade_all(pool, MATH, pairs)]


def completion(answer: str) -> str:
    plain = "$" in answer or "#" in answer
    return "<think>Perhaps 123456.</think>" + (answer.lstrip("#") if plain else rf"Thus \boxed{{{answer}}}.")


def direct(text: str, reference: str) -> bool:
    """As math-verify's README has it, with its own timeouts."""
    import math_verify

    logging.getLogger("math_verify").setLevel(logging.ERROR)
    reference = reference.split("#### ")[-1]
    wanted = math_verify.parse(reference if "$" in reference else f"${reference}$")
    return math_verify.verify(wanted, math_verify.parse(text.split("</think>")[-1].strip()))


@pytest.mark.parametrize("every", [3, pytest.param(1, marks=pytest.mark.slow)])
def test_known_equivalences_agree_with_direct_calls(pool: GraderPool, every: int):
    """Direct calls, which take as long again, are made for some of those that are graded."""
    equal = [pair for pairs in EQUAL.values() for pair in pairs]
    unequal = [pair for pairs in UNEQUAL.values() for pair in pairs]
    pairs = [(completion(answer), reference) for answer, reference in equal + unequal + UNSEEN]
    assert len(set(pairs)) >= 200
    verdicts = through(pool, pairs[::every])
    assert verdicts == ([True] * len(equal) + [False] * (len(unequal) + len(UNSEEN)))[::every]
    assert verdicts[::every] == [direct(text, reference) for text, reference in pairs[:: every**2]]


@pytest.mark.parametrize(
    ("text", "reference", "correct"),
    [
        (r"<think>\boxed{7}</think>\boxed{8}", "7", False),
        (r"<think>\boxed{7}</think>\boxed{8}", "8", True),
        (r"<think>\boxed{8}", "8", False),
        ("<think></think>", "8", False),
        (r"\boxed{8}", "", None),
        (r"\boxed{8}", "She has 3 + 5 = <<3+5=8>>8 apples.\n#### 8", True),
        (r"\boxed{1250}", "#### 1,250", True),
        (r"\boxed{8}", "She has 8.\n####", None),
        ("So 8 \0 it is", "8", True),
        ("\ud800 8", "8", True),
    ],
)
def test_answer_is_compared_with_the_end_of_the_reference(text: str, reference: str, correct: bool | None):
    assert math(text, reference) is correct


def test_missing_math_verify_is_one_sentence(tmp_path: Path, monkeypatch):
    (tmp_path / "math_verify.py").write_text("raise ModuleNotFoundError(name='math_verify')")
    monkeypatch.syspath_prepend(tmp_path)
    with GraderPool() as pool, pytest.raises(GraderError, match='"math" needs math_verify, which is not installed'):
        pool.check(MATH)
