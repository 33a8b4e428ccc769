import itertools
import time

import pytest

from scalerl.training.graders.rules import GRADERS, POOLED, PREPARE, choice, exact, numeric


@pytest.mark.parametrize(
    ("text", "answer", "correct"),
    [
        ("1+1=2</think> 2 ", "2", True),
        ("<think>a</think>b</think>c", "b</think>c", True),
        ("", "2", False),
        ("<think>37+58=95;95-16=79</think>79", "79", True),
        ("<think>79</think>80", "79", False),
        ("<think>37+58=95;95-16=79", "79", False),
        ("<think>79</think>", "79", False),
        ("<think>x</think>079", "79", False),
        ("<think>x</think> two  words ", "two words", True),
        ("79", "79", True),
        ("<think>x</think>79", "", None),
    ],
)
def test_exact(text: str, answer: str, correct: bool | None):
    assert exact(text, answer) is correct


@pytest.mark.parametrize(
    ("text", "answer", "correct"),
    [
        ("<think>A or C</think>B", "B", True),
        ("<think>B</think>(b)", "B", True),
        ("**B.** Paris", "B", True),
        ("B) Paris is the capital of a country.", "(B)", True),
        ("So the answer is (C), not A.", "C", True),
        ("Answer: D", "D) Berlin", True),
        (r"It is A, no: \boxed{\text{B}}", "B", True),
        (r"\boxed{(C)}", "c", True),
        ("First A.\nThen I thought again.\nB", "B", True),
        ("The answer is A or B.\nThe answer is B.", "B", True),
        ("The answer is A.", "B", False),
        ("A cat is the best of these.", "A", False),
        ("The answer isn't B.", "B", False),
        ("Bees", "B", False),
        ("<think>B", "B", False),
        ("", "B", False),
        ("B", "", None),
        ("B", "Paris", None),
    ],
)
def test_choice(text: str, answer: str, correct: bool | None):
    assert choice(text, answer) is correct


@pytest.mark.parametrize(
    ("text", "answer", "correct"),
    [
        ("<think>7</think>So it is 1,234.50 dollars.", "1234.5", True),
        ("<think>8</think>first 7, then 8", "8", True),
        ("It is \u22124.", "-4", True),
        ("It is \u22124.", "4", False),
        ("It is -4.", "\u22124", True),
        ("<think>8</think>first 8, then 7", "8", False),
        ("<think>8", "8", False),
        ("<think>8</think>", "8", False),
        ("<think></think>3/4", "0.75", True),
        ("<think></think>.5", "1/2", True),
        ("<think></think>-3", "-3", True),
        ("<think></think>5-3", "3", True),
        ("<think></think>x2", "2", False),
        ("<think></think>18.", "#### 18", True),
        ("<think></think>1/0", "0", True),
        ("<think></think>0.1", "0.10000000000000001", False),
        ("<think></think>8", "eight", None),
        ("<think></think>" + 5000 * "8", "8", False),
        ("<think></think>0." + 5000 * "3", "1/3", False),
        ("<think></think>1/" + 5000 * "3", "8", False),
        ("<think></think>8", 5000 * "8", None),
    ],
)
def test_numeric(text: str, answer: str, correct: bool | None):
    assert numeric(text, answer) is correct


# The others have tests of their own.
@pytest.mark.parametrize("name", sorted(set(GRADERS) - {"code", "code_share", "judge", "gym"}))
def test_other_tags_can_be_set(name: str):
    if name == "math":
        pytest.importorskip("math_verify", reason="the extra `math` is not installed")
    tags = {"thinking_start": "<reason>", "thinking_end": "</reason>"}
    answer = {"choice": "B"}.get(name, "8")
    given = "B" if name == "choice" else "8"
    assert GRADERS[name](f"<reason>7 or A</reason>{given}", answer, **tags) is True
    assert GRADERS[name](f"<reason>{given}", answer, **tags) is False
    # Without tags there is no thinking: the whole text is the answer.
    assert GRADERS[name](given, answer, thinking_start="", thinking_end="</think>") is True
    assert GRADERS[name](f" {given} ", answer, thinking_start="", thinking_end="") is True
    assert GRADERS[name](" 7 ", answer, thinking_start="<think>", thinking_end="") is False


def test_pooled_and_prepared_name_known_graders():
    assert set(GRADERS) >= POOLED >= set(PREPARE)


@pytest.mark.parametrize("name", ["exact", "numeric", "choice"])
def test_answers_are_read_in_linear_time(name: str):
    """These graders run inside the loop, and a model writes the answers."""
    answer = {"choice": "B"}.get(name, "8")
    parts = ("1", "\n", " ", "(", "\\boxed{1", "1,", "1/", "-", ".", "answer: ", "A ", "1,111", "+1", "\\")
    began = time.process_time()
    for part, end in itertools.product(parts, ("1", "x", "}")):
        for begin in ("1", "x\\boxed{", "\n", "answer"):
            GRADERS[name](begin + part * (20_000 // len(part)) + end, answer)
    assert time.process_time() - began < 10
