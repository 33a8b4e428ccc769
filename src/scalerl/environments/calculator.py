"""A calculator: one expression of numbers, + - * / and parentheses, computed exactly."""

import re
from fractions import Fraction

_TOKEN = re.compile(r"\s*(\d+(?:\.\d+)?|[-+*/()])")
_LONGEST = 200
"""Characters of an expression, and digits of a number that is shown."""


def calculator(expression: str) -> str:
    """Compute an expression of numbers, + - * / and parentheses.

    Args:
        expression: What to compute, such as "47*83-52".
    """
    if len(expression) > _LONGEST:
        raise ValueError(f"the expression has {len(expression)} characters: at most {_LONGEST} are computed")
    tokens, place = [], 0
    while place < len(expression.rstrip()):
        match = _TOKEN.match(expression, place)
        if match is None:
            raise ValueError(f'"{expression[place:].strip()[:20]}" is not part of an expression')
        tokens.append(match[1])
        place = match.end()
    tokens.reverse()
    value = _sum(tokens)
    if tokens:
        raise ValueError(f'"{tokens[-1]}" was not expected here')
    return _shown(value)


def _sum(tokens: list[str]) -> Fraction:
    value = _product(tokens)
    while tokens and tokens[-1] in "+-":
        value = value + _product(tokens) if tokens.pop() == "+" else value - _product(tokens)
    return value


def _product(tokens: list[str]) -> Fraction:
    value = _number(tokens)
    while tokens and tokens[-1] in "*/":
        if tokens.pop() == "*":
            value *= _number(tokens)
        elif (divisor := _number(tokens)) == 0:
            raise ValueError("division by zero")
        else:
            value /= divisor
    return value


def _number(tokens: list[str]) -> Fraction:
    if not tokens:
        raise ValueError("the expression ends too early")
    token = tokens.pop()
    if token == "-":
        return -_number(tokens)
    if token == "(":
        value = _sum(tokens)
        if not tokens or tokens.pop() != ")":
            raise ValueError("a parenthesis is not closed")
        return value
    if not token[0].isdigit():
        raise ValueError(f'"{token}" was not expected here')
    return Fraction(token)


def _shown(value: Fraction) -> str:
    """Return a whole number exactly, another one with up to ten significant digits."""
    text = str(value.numerator) if value.denominator == 1 else f"{float(value):.10g}"
    if len(text) > _LONGEST:
        raise ValueError(f"the result has {len(text)} digits")
    return text
