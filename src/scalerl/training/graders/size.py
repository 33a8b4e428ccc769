"""Bound what it would take to evaluate an expression of sympy, from its form alone.

Reading an expression is cheap, but its value may have more digits than there is memory: 9^(9^9), (10^9)!.
"""

import math
from collections.abc import Sequence
from typing import Any

_MOST_DIGITS = 20_000
"""Largest number of digits of a value that is evaluated, in any of its parts."""
_MOST_PARTS = 400
"""Largest number of parts of an expression: numbers, symbols, operations."""


def is_small(expression: Any) -> bool:
    """Return whether an expression can be evaluated in a moment."""
    try:
        return _num_parts(expression) <= _MOST_PARTS and _digits(expression) <= _MOST_DIGITS
    except RecursionError:
        return False


def _num_parts(expression: Any) -> int:
    num = 0
    waiting = [expression]
    while waiting and num <= _MOST_PARTS:
        num += 1
        waiting += _parts(waiting.pop())
    return num


def _parts(expression: Any) -> Sequence[Any]:
    """Return what an expression consists of; a matrix does not list its elements as its arguments."""
    return expression.flat() if hasattr(expression, "flat") else getattr(expression, "args", ())


def _digits(expression: Any) -> float:
    """Return a rough bound of the digits of an expression's value, in which a symbol counts as one digit."""
    import sympy

    if isinstance(expression, sympy.Rational):
        return math.log10(1 + abs(expression.p)) + math.log10(expression.q)
    if isinstance(expression, sympy.Float):
        return abs(float(sympy.log(abs(expression), 10))) if expression else 1.0
    parts = list(map(_digits, _parts(expression)))
    if isinstance(expression, sympy.Pow):
        base, exponent = parts
        return max(base, 1.0) * _ten_to(exponent)
    if isinstance(expression, sympy.exp | sympy.factorial | sympy.factorial2 | sympy.binomial):
        return sum(parts) * _ten_to(max(parts))
    return max(1.0, sum(parts))


def _ten_to(digits: float) -> float:
    return 10.0**digits if digits < 300 else math.inf
