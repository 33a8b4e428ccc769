"""The grader for mathematical answers, which uses the package math-verify (extra `math`).

Parsing and simplifying may hang or use much memory on some texts, so this grader runs in a GraderPool.
"""

import logging

from scalerl.training.graders.answer import reads_answer


@reads_answer
def math(given: str | None, answer: str) -> bool | None:
    r"""Return whether the answer equals the reference, for fractions, sets, intervals, matrices, units and so on.

    The answer's \boxed{} is read, else its last expression or number. The reference is an expression with or without
    LaTeX delimiters, a solution with delimiters, or a solution that ends in "#### expression".
    """
    from math_verify import parse, verify

    # math-verify warns that its timeouts are off. They need the main thread, and GraderPool enforces limits anyway.
    logging.getLogger("math_verify").setLevel(logging.ERROR)
    wanted = parse(_delimited(answer), parsing_timeout=0)
    if not wanted:
        return None
    return given is not None and verify(wanted, parse(given, parsing_timeout=0), timeout_seconds=0)


_DELIMITERS = ("$", r"\(", r"\[", r"\boxed")


def _delimited(reference: str) -> str:
    """Return a reference in a form that math-verify can read: it recognises LaTeX only between delimiters."""
    expression = reference.rpartition("####")[2].strip()
    if not expression or any(delimiter in expression for delimiter in _DELIMITERS):
        return expression
    return rf"\boxed{{{expression}}}"


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
