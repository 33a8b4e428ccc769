"""Expressions of whole numbers in what a model writes: found, and worked out exactly.

By a parser of our own: nothing a model writes is ever run. No text takes long, whatever stands in it.
"""

import operator
import re
from collections.abc import Callable, Mapping
from fractions import Fraction
from typing import Any

# Longer than any answer: what a model may fill its budget with is not worked out.
_LONGEST = 500

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
_TOKEN = re.compile(r"\d+|[-+*/()]")
BINDS = {"+": 1, "-": 1, "*": 2, "/": 2}
CARRY_OUT: Mapping[str, Callable[[Any, Any], Any]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "/": operator.truediv,
}


def last_expression(text: str) -> str | None:
    """The last stretch of a text that is an expression, else its last number: "so (25+7)*2 = 64." gives "(25+7)*2"."""
    for spelling, sign in _SPELLINGS.items():
        text = text.replace(spelling, sign)
    runs = [run for run in _RUN.findall(text[-2 * _LONGEST :]) if any(map(str.isdecimal, run))]
    expressions = [run for run in runs if _OPERATION_BETWEEN.search(run)]
    return (expressions or runs)[-1].strip() if runs else None


def work_out(expression: str) -> tuple[Fraction, list[int]]:
    """The value of an expression of whole numbers, exactly, and the numbers in it; ValueError if it is none.

    Two stacks and no recursion, so that no depth of brackets can overflow it.
    """
    if len(expression) > _LONGEST:
        raise ValueError("too long")
    values: list[Fraction] = []
    waiting: list[str] = []
    used: list[int] = []
    number_next = True
    for token in _TOKEN.findall(expression):
        if number_next != (token.isdigit() or token == "("):
            raise ValueError(f"{token} is out of place")
        if token.isdigit():
            used.append(int(token))
            values.append(Fraction(used[-1]))
            number_next = False
        elif token == "(":
            waiting.append(token)
        else:
            while waiting and waiting[-1] != "(" and (token == ")" or BINDS[waiting[-1]] >= BINDS[token]):
                _reduce(values, waiting)
            if token != ")":
                waiting.append(token)
            elif not waiting or waiting.pop() != "(":
                raise ValueError("a bracket is closed that was never opened")
            number_next = token != ")"
    if number_next or "(" in waiting:
        raise ValueError("the expression breaks off")
    while waiting:
        _reduce(values, waiting)
    return values[0], used


def _reduce(values: list[Fraction], waiting: list[str]) -> None:
    right, left, operation = values.pop(), values.pop(), waiting.pop()
    values.append(CARRY_OUT[operation](left, right))
