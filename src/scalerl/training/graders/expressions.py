"""Evaluate arithmetic expressions exactly.

Python's parser reads them, with a name in place of each number. Text of a model is never executed.
"""

import ast
import operator
import re
from fractions import Fraction

_LONGEST = 500
"""Largest number of characters in an expression, longer than any sensible one."""

_NUMBER = re.compile(r"\d+(?:\.\d+)?")
_OPERATIONS = {ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv}


def evaluate(expression: str) -> Fraction:
    """Return the exact value of an expression; ValueError if it is malformed or divides by zero."""
    if len(expression) > _LONGEST:
        raise ValueError(f"the expression has {len(expression)} characters: at most {_LONGEST} are read")
    if other := re.sub(r"[-+*/()\s]", "", _NUMBER.sub("", expression)):
        raise ValueError(f'"{other[:20]}" is not part of an expression')
    used = [Fraction(number) for number in _NUMBER.findall(expression)]
    names = (f" n{place} " for place in range(len(used)))
    named = " ".join(_NUMBER.sub(lambda _: next(names), expression).split())
    try:
        return _value(ast.parse(named, mode="eval").body, used)
    except ZeroDivisionError:
        raise ValueError("division by zero") from None
    except (SyntaxError, RecursionError, MemoryError):
        raise ValueError("the expression is not well formed") from None


def _value(node: ast.AST, used: list[Fraction]) -> Fraction:
    match node:
        case ast.Name(id=name):
            return used[int(name[1:])]
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return -_value(operand, used)
        case ast.BinOp(left=left, op=sign, right=right) if type(sign) in _OPERATIONS:
            return _OPERATIONS[type(sign)](_value(left, used), _value(right, used))
    raise ValueError("only + - * / and brackets are read")
