"""Find expressions of numbers in a text and evaluate them exactly.

The parser is our own, so nothing that a model writes is ever executed, and its time is bounded for every text.
"""

import operator
import re
from collections.abc import Callable, Mapping
from fractions import Fraction
from typing import Any

_LONGEST = 500
"""In characters: longer than any sensible answer. Longer expressions are not evaluated."""

_SPELLINGS = {
    "**": " ",
    "\u00d7": "*",
    "\u22c5": "*",
    "\u00b7": "*",
    "\u00f7": "/",
    "\u2212": "-",
    "\\times": "*",
    "\\cdot": "*",
    "\\div": "/",
    "\\left": "",
    "\\right": "",
}
_RUN = re.compile(r"[\d+\-*/() ]+")
_OPERATION_BETWEEN = re.compile(r"\d[) ]*[-+*/][( ]*\d")
_TOKEN = re.compile(r"\d+(?:\.\d+)?|[-+*/()]")
_NEGATION = "~"
PRECEDENCE = {"+": 1, "-": 1, "*": 2, "/": 2, _NEGATION: 3}
OPERATIONS: Mapping[str, Callable[[Any, Any], Any]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "/": operator.truediv,
}


def last_expression(text: str) -> str:
    """Return the last expression of a text, else its last number, else "": "(25+7)*2" for "so (25+7)*2 = 64."."""
    for spelling, sign in _SPELLINGS.items():
        text = text.replace(spelling, sign)
    runs = [run for run in _RUN.findall(text[-2 * _LONGEST :]) if any(map(str.isdecimal, run))]
    expressions = [run for run in runs if _OPERATION_BETWEEN.search(run)]
    return (expressions or runs)[-1].strip() if runs else ""


def evaluate(expression: str) -> tuple[Fraction, list[Fraction]]:
    """Return the exact value of an expression, and the numbers in it.

    Raise ValueError if it is not a well-formed expression, or divides by zero. Two stacks and no recursion, so that no
    depth of brackets overflows.
    """
    if len(expression) > _LONGEST:
        raise ValueError(f"the expression has {len(expression)} characters: at most {_LONGEST} are read")
    if other := _TOKEN.sub("", expression).strip():
        raise ValueError(f'"{other[:20]}" is not part of an expression')
    values: list[Fraction] = []
    waiting: list[str] = []
    used: list[Fraction] = []
    number_next = True
    for token in _TOKEN.findall(expression):
        if number_next and token == "-":
            waiting.append(_NEGATION)
        elif number_next != (token[0].isdigit() or token == "("):
            raise ValueError(f'"{token}" was not expected here')
        elif token[0].isdigit():
            used.append(Fraction(token))
            values.append(used[-1])
            number_next = False
        elif token == "(":
            waiting.append(token)
        else:
            while waiting and waiting[-1] != "(" and (token == ")" or PRECEDENCE[waiting[-1]] >= PRECEDENCE[token]):
                _reduce(values, waiting)
            if token != ")":
                waiting.append(token)
            elif not waiting or waiting.pop() != "(":
                raise ValueError("unmatched closing bracket")
            number_next = token != ")"
    if number_next or "(" in waiting:
        raise ValueError("the expression is incomplete")
    while waiting:
        _reduce(values, waiting)
    return values[0], used


def _reduce(values: list[Fraction], waiting: list[str]) -> None:
    right, operation = values.pop(), waiting.pop()
    if operation == "/" and not right:
        raise ValueError("division by zero")
    values.append(-right if operation == _NEGATION else OPERATIONS[operation](values.pop(), right))
