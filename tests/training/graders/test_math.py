"""The math grader, through the pool, against direct calls of math-verify."""

import logging
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from graded import grade_all
from hostile_answers import HOSTILE_ANSWERS
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


@pytest.mark.parametrize(
    ("text", "reference", "correct"),
    [
        # An equation that does not hold has no value.
        (r"\boxed{5=4}", "4", False),
        ("5=4", "4", False),
        (r"\boxed{x=5=4}", "4", False),
        ("So $2+2=4=5$", "5", False),
        ("20+20=40=41", "41", False),
        (r"\boxed{20+20=40}", "40", True),
        (r"\boxed{\frac{1}{3}=0.33}", "0.33", True),
        (r"\boxed{x+y=7}", "7", True),
        (r"\boxed{A=\frac12 bh=12}", "12", True),
        # Two units must be the same one.
        (r"\boxed{5 \text{ km}}", r"5 \text{ cm}", False),
        ("It is 5 km.", r"5 \text{ cm}", False),
        (r"\boxed{5} km", "5 cm", False),
        (r"\boxed{25\text{ cm}^2}", r"25 \text{ cm}", False),
        (r"\boxed{5 \text{ km/h}}", r"5 \text{ km}", False),
        ("5 kilometers", r"5 \text{ km}", True),
        (r"\boxed{25\text{ cm}^2}", r"25 \text{ square centimeters}", True),
        (r"\boxed{5 \text{ km}}", "5", True),
        ("5", r"5 \text{ km}", True),
        # A whole number above 1 is no share.
        (r"\boxed{400\%}", "4", False),
        ("400%", "4", False),
        (r"\boxed{4\%}", "4", True),
        (r"\boxed{400\%}", r"400\%", True),
        (r"\boxed{4}", r"400\%", True),
        (r"\boxed{150\%}", "1.5", True),
        # What is too large to be evaluated is compared as a text.
        (r"\boxed{(10^9)!}", "(10^9)!", True),
        (r"\boxed{9^{9^{9^9}}}", "9^{9^{9^8}}", False),
        ("7", "9^{9^{9^9}}", False),
        (r"\boxed{7}" + 3000 * " so", "7", True),
        (3000 * "so " + "7", "7", True),
        (r"\boxed{7" + 3000 * "+0" + "}", "7", False),
        ("7", "7" + 3000 * "+0", None),
    ],
)
def test_answer_is_right_only_if_it_says_so(text: str, reference: str, correct: bool | None):
    assert math(text, reference) is correct


def children_s(pid: int) -> float:
    """CPU seconds of a process and of its children that have ended."""
    with open(f"/proc/{pid}/stat") as file:
        ticks = file.read().rpartition(")")[2].split()[11:15]
    return sum(map(int, ticks)) / os.sysconf("SC_CLK_TCK")


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_hostile_answers_are_wrong_and_cost_little():
    """Each may hang or take much memory; 48 of 100 such answers once had no verdict, so that they cost nothing."""
    assert len(set(HOSTILE_ANSWERS)) == 100
    with GraderPool(timeout_s=100) as pool:
        pool.check(MATH)
        (pid,) = pool.pids
        began_s = children_s(pid)
        results = grade_all(pool, MATH, [(answer, r"\frac{3}{7}") for answer in HOSTILE_ANSWERS])
        assert [result.value for result in results] == 100 * [0.0]
        assert {result.outcome for result in results} == {"", "timeout"}
        assert children_s(pid) - began_s < 20


@pytest.mark.slow
def test_hostile_references_are_bounded():
    """A data set writes them. None is found equal to another value, and no process ends for another reason."""
    with GraderPool(timeout_s=100, cpu_limit_s=1) as pool:
        results = grade_all(pool, MATH, [(r"\boxed{\frac{3}{7}}", reference) for reference in HOSTILE_ANSWERS])
    assert {result.value for result in results} == {0.0, None}
    assert {result.reason for result in results} == {None, "no_answer", "timeout"}


def test_missing_math_verify_is_one_sentence(tmp_path: Path, monkeypatch):
    (tmp_path / "math_verify.py").write_text("raise ModuleNotFoundError(name='math_verify')")
    monkeypatch.syspath_prepend(tmp_path)
    with GraderPool() as pool, pytest.raises(GraderError, match='"math" needs math_verify, which is not installed'):
        pool.check(MATH)
