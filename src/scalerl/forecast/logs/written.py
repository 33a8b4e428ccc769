"""Amounts as people write them: 500, 16k, 60B, 65%, 4e15. Imports nothing that is heavy."""

import math

from scalerl.errors import InputError, option

FACTORS = {"k": 1e3, "K": 1e3, "M": 1e6, "B": 1e9, "T": 1e12}
UNITS = (*FACTORS, "h", "%")
Typed = float | str
"""A number, or a text that begins with one."""


def number_and_unit(typed: Typed, name: str) -> tuple[float, str]:
    """Return the number and its unit, "" without one; `name` is the option that an error names."""
    text = f"{typed:.12g}" if isinstance(typed, int | float) else str(typed).strip()
    unit = next((unit for unit in UNITS if text.endswith(unit)), "")
    try:
        value = float(text.removesuffix(unit).strip())
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise InputError(f"{argument(name)} takes a number such as 500, 60B or 65%, not {text!r}.")
    return value, unit


def positive_typed(typed: Typed, name: str) -> Typed:
    """Return what was typed, unchanged; InputError if it is not a positive number."""
    value, _ = number_and_unit(typed, name)
    if value <= 0:
        raise InputError(f"{argument(name)} must be positive, but is {typed}.")
    return typed


def argument(name: str) -> str:
    return f"{option:{name}}".removesuffix("=")


def amount_text(amount: float, digits: int = 4) -> str:
    """Format an amount in few characters: 750, 16k, 1.5M, 60B, 4e15."""
    rounded = float(f"{amount:.{digits}g}")
    for size, unit in ((1.0, ""), (1e3, "k"), (1e6, "M"), (1e9, "B"), (1e12, "T")):
        if 1e-3 <= abs(rounded) < 1e3 * size:
            return f"{rounded / size:.{digits}g}{unit}"
    if not rounded:
        return "0"
    mantissa, exponent = f"{rounded:.{digits - 1}e}".split("e")
    return f"{float(mantissa):g}e{int(exponent)}"
