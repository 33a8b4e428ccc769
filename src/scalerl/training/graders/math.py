"""The grader for mathematical answers, which uses the package math-verify (extra `math`).

Parsing and simplifying may hang or use much memory on some texts, so this grader runs in a GraderPool. A model writes
the answer: only its end is read, a value that is too large is not evaluated, and an answer that still takes too long is
wrong (limit.py). math-verify also takes the end of a false equation for its value, and reads no units; both are seen
to here.
"""

import logging
import re
from itertools import pairwise
from typing import Any

from scalerl.training.graders.answer import reads_answer
from scalerl.training.graders.limit import limits_answer
from scalerl.training.graders.size import is_small
from scalerl.training.graders.units import unit_of

_LONGEST = 2000
"""Largest number of characters that are read of a text, half of them before a box."""
_LIMIT_S = 0.7
"""CPU time for an answer: twice what the slowest of 230 ordinary answers takes."""
_APPROXIMATION = 0.01
"""Relative error up to which decimals in an equation are taken for rounded, as in 1/3 = 0.33."""

_DELIMITERS = ("$", r"\(", r"\[", r"\boxed")
_BARE_EQUATION = re.compile(r"[-+*/^().,\d\s=]*=[-+*/^().,\d\s=]*")


@reads_answer
def math(given: str | None, answer: str) -> bool | None:
    r"""Return whether the answer equals the reference, for fractions, sets, intervals, matrices, units and so on.

    The answer's \boxed{} is read, else its last expression or number. The reference is an expression with or without
    LaTeX delimiters, a solution with delimiters, or a solution that ends in "#### expression".
    """
    from math_verify import parse, verify

    # math-verify warns that its timeouts are off. They need the main thread, and GraderPool enforces limits anyway.
    logging.getLogger("math_verify").setLevel(logging.ERROR)
    reference = _delimited(answer)
    wanted = _usable(parse(_end_of(reference), parsing_timeout=0))
    if not wanted:
        return None
    if given is None:
        return False
    text = _end_of(given)
    if _BARE_EQUATION.fullmatch(text):
        text = rf"\boxed{{{text}}}"
    wanted_unit = unit_of(reference)
    given_unit = unit_of(text)
    if wanted_unit and given_unit and wanted_unit != given_unit:
        return False
    with limits_answer(_LIMIT_S):
        found = _usable(parse(text, parsing_timeout=0))
        if _counts_whole(wanted):
            found = [_percent_points(value) for value in found]
        return verify(wanted, found, timeout_seconds=0)


def _end_of(text: str) -> str:
    """Return the part of a text that is read: its last box with what is before it, else its end.

    Nothing is read of a box that does not close in time: its beginning could be taken for all of it.
    """
    box = text.rfind(r"\boxed")
    if box < 0:
        return text[-_LONGEST:]
    end = box + _LONGEST // 2
    boxed = text[box:end]
    if len(text) > end and boxed.count("{") > boxed.count("}"):
        return ""
    return text[max(0, end - _LONGEST) : end]


def _delimited(reference: str) -> str:
    """Return a reference in a form that math-verify can read: it recognises LaTeX only between delimiters."""
    expression = reference.rpartition("####")[2].strip()
    if not expression or any(delimiter in expression for delimiter in _DELIMITERS):
        return expression
    return rf"\boxed{{{expression}}}"


def _usable(parsed: list[Any]) -> list[Any]:
    """Return what math-verify has read, without expressions that cannot be evaluated and equations that do not hold.

    The text of the expression remains, which equals the same text.
    """
    return [value for value in parsed if isinstance(value, str) or (is_small(value) and _holds(value))]


def _holds(expression: Any) -> bool:
    """Return whether all numbers that an equation sets equal are equal: not in 5 = 4, nor in x = 5 = 4."""
    import sympy
    from latex2sympy2_extended.logic import And

    is_chain = issubclass(type(expression), And)
    links = expression._unsorted_args if is_chain else (expression,)
    if not all(isinstance(link, sympy.Eq) for link in links):
        return True
    numbers = []
    for link in links:
        numbers += [side for side in link.args if isinstance(side, sympy.Expr) and not side.free_symbols]
    return all(_are_equal(left, right) for left, right in pairwise(numbers))


def _are_equal(left: Any, right: Any) -> bool:
    import sympy

    try:
        difference = abs(sympy.N(left - right))
        allowed = _APPROXIMATION * abs(sympy.N(left)) if (left + right).has(sympy.Float) else 1e-9
        return bool(difference <= allowed)
    except TypeError:  # Not real numbers, such as infinity minus infinity.
        return left == right


def _counts_whole(wanted: list[Any]) -> bool:
    """Return whether a reference is a whole number above 1: "4" is 4 or 4 %, but not 400 %."""
    import sympy

    return isinstance(wanted[0], sympy.Integer) and abs(wanted[0]) > 1


def _percent_points(value: Any) -> Any:
    """Return the number before a percent sign, for 25 %; any other value as it is."""
    from math_verify.grader import get_pct_val

    return value if isinstance(value, str) else get_pct_val(value, value)


WARM_UP = (
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


def prepare(**_: object) -> None:
    """Grade the examples above: after that, the parser is up to a hundred times faster on such forms."""
    for text, answer in WARM_UP:
        math(text, answer)
