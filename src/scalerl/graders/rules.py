"""Graders: was the answer right? Pure functions of a completion's text and a problem's reference answer.

True or False is a verdict; None is none: the reference itself cannot be read, so the completion is neither right nor
wrong and is never trained on. Only what stands after the end of thinking is looked at. What a verdict is worth in
training is the recipe's business (reward.correct, reward.wrong).

Those in POOLED may hang, crash or eat memory on some texts: they run in a GraderPool (pool.py), as do import paths.
"""

import json
import logging
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction

from scalerl.answer_format import THINKING_END, THINKING_START
from scalerl.graders.code import code, prepare
from scalerl.graders.expressions import last_expression, work_out

TAGS = ("thinking_start", "thinking_end")
"""The settings that every task gives its grader."""

# In characters. Python itself refuses to read one of more than 4,300 digits.
_LONGEST_NUMBER = 1000

# A number that is no part of a word: 1,234.5 or .5 or 3/4. In 3-4 the minus is no sign.
_NUMBER = re.compile(r"(?<![\w.])[-+]?(?:\d{1,3}(?:,\d{3})+(?!\d)|\d+|(?=\.\d))(?:\.\d+)?(?:/[1-9]\d*)?(?!\w)")


def answer_part(text: str, *, thinking_start: str = THINKING_START, thinking_end: str = THINKING_END) -> str | None:
    """What follows the first end of thinking; the whole text if it holds no thinking; None if that never ended.

    Where nothing ends the thinking (an empty `thinking_end`), there is none.
    """
    if not thinking_end:
        return text.strip()
    thinking, end, answer = text.partition(thinking_end)
    if end:
        return answer.strip()
    return None if thinking_start and thinking_start in thinking else thinking.strip()


def exact(
    text: str, answer: str, /, *, thinking_start: str = THINKING_START, thinking_end: str = THINKING_END
) -> bool | None:
    """The answer is the reference, word for word, apart from spaces."""
    if not answer.split():
        return None
    given = answer_part(text, thinking_start=thinking_start, thinking_end=thinking_end)
    return given is not None and given.split() == answer.split()


def numeric(
    text: str, answer: str, /, *, thinking_start: str = THINKING_START, thinking_end: str = THINKING_END
) -> bool | None:
    """The last number of the answer equals the last number of the reference, as exact fractions: 0.50 is 1/2."""
    wanted = _last_number(answer)
    if wanted is None:
        return None
    given = answer_part(text, thinking_start=thinking_start, thinking_end=thinking_end)
    return given is not None and _last_number(given) == wanted


def _last_number(text: str) -> Fraction | None:
    # The sign that typesetting has for minus: without it, -4 would be read as 4 and could be held right.
    found = _NUMBER.findall(text.replace("\u2212", "-"))
    if not found or len(found[-1]) > _LONGEST_NUMBER:
        return None
    # Fraction reads "0.5" and "3/4" but not "0.5/2".
    numerator, _, denominator = found[-1].replace(",", "").partition("/")
    return Fraction(numerator) / Fraction(denominator or 1)


def math(
    text: str, answer: str, /, *, thinking_start: str = THINKING_START, thinking_end: str = THINKING_END
) -> bool | None:
    r"""math-verify holds the answer equal to the reference: fractions, surds, sets, intervals, matrices, units ...

    Of the answer it takes what is in \boxed{}, else the last expression or number. The reference is an expression, with
    or without LaTeX delimiters, a solution with delimiters, or a solution that ends in "#### expression".
    """
    from math_verify import parse, verify

    # It warns that its timeouts are off. They need the main thread, and a pool keeps time better.
    logging.getLogger("math_verify").setLevel(logging.ERROR)
    wanted = parse(_delimited(answer), parsing_timeout=0)
    if not wanted:
        return None
    given = answer_part(text, thinking_start=thinking_start, thinking_end=thinking_end)
    return given is not None and verify(wanted, parse(given, parsing_timeout=0), timeout_seconds=0)


_DELIMITERS = ("$", r"\(", r"\[", r"\boxed")


def _delimited(reference: str) -> str:
    """A reference as math-verify reads one: it finds LaTeX only between delimiters."""
    expression = reference.rpartition("####")[2].strip()
    if not expression or any(delimiter in expression for delimiter in _DELIMITERS):
        return expression
    return rf"\boxed{{{expression}}}"


def countdown(
    text: str, answer: str, /, *, thinking_start: str = THINKING_START, thinking_end: str = THINKING_END
) -> bool | None:
    """The last expression of the answer has the target's value and uses no number more often than it is given.

    The reference is {"target": 64, "numbers": [2, 7, 25]}.
    """
    try:
        wanted = json.loads(answer)
        target, numbers = Fraction(wanted["target"]), Counter[int](wanted["numbers"])
    except (ValueError, KeyError, TypeError, ArithmeticError):
        return None
    given = answer_part(text, thinking_start=thinking_start, thinking_end=thinking_end)
    expression = None if given is None else last_expression(given)
    if expression is None:
        return False
    try:
        value, used = work_out(expression)
    except (ValueError, ZeroDivisionError):
        return False
    return value == target and Counter(used) <= numbers


GRADERS: Mapping[str, Callable[..., bool | None]] = {
    "exact": exact,
    "numeric": numeric,
    "math": math,
    "countdown": countdown,
    "code": code,
}

POOLED = frozenset({"math", "code"})

PREPARE: Mapping[str, Callable[..., None]] = {"code": prepare}
"""Called once with a grader's settings before workers are forked; GraderError says why it cannot be used."""

# Graded once before workers are forked: a parser that has met these forms is up to a hundred times faster on the next.
WARM_UP: Mapping[str, Sequence[tuple[str, str]]] = {
    "math": (
        ("So it is 72.", "#### 72"),
        (r"\boxed{\frac{3}{4}}", "0.75"),
        (r"$x^2 + 2x + 1$", "(x+1)^2"),
        (r"\boxed{x^2 + 5x + 7}", "(x + 2)(x + 3)"),
        (r"\boxed{2\sqrt{3} + \pi}", r"\sqrt{12} + \pi"),
        (r"\boxed{2\sqrt{3}}", r"\sqrt{13}"),
        (r"\boxed{[1, 2)}", "[1, 3)"),
        (r"\boxed{[1, 2) \cup (3, \infty)}", r"[1,2)\cup(3,\infty)"),
        (r"\boxed{\{1, 2, -3\}}", r"\{-3, 2, 1\}"),
        (r"\boxed{\begin{pmatrix} 1 & 2 \\ 3 & 4 \end{pmatrix}}", r"\begin{pmatrix}1&2\\3&5\end{pmatrix}"),
        (r"\boxed{y = 2x - 1}", "2x - y = 1"),
        (r"\boxed{x \le 5}", r"x \leq 5"),
        (r"\boxed{1.5 \times 10^{-3} \text{ cm}}", r"0.0015\text{ cm}"),
        (r"\boxed{25\%}", "0.25"),
        (r"\boxed{\log_2 8 + \sin(30^\circ)}", "3.5"),
    )
}
