"""Cells as numbers, as people and spreadsheets write them, and the scale of a reward. Pure.

A cell may read 0.25, 0,25, 1.234,5, 1,234.5 or 25 %; a reward may be a share, per cent, or a sum without limits.
"""

import math
import re
from collections.abc import Hashable, Iterable, Sequence
from typing import Any, Literal, TypeGuard

import numpy as np
from numpy.typing import NDArray

Cells = NDArray[np.object_]
"""A column of a log; None for what was not logged, which is not NaN."""
NOTHING: Any = None
Floats = NDArray[np.float64]
Mask = NDArray[np.bool_]

YScale = Literal["auto", "1", "100", "pm1", "none"]
Bounds = tuple[float, float] | None
SCALES: dict[YScale, Bounds] = {"1": (0.0, 1.0), "100": (0.0, 100.0), "pm1": (-1.0, 1.0), "none": None}

ABSENT = frozenset({"", "none", "null", "na", "n/a", "#n/a", "-"})
# 1,234.5 and 0,25 and 1.234,5: a group of thousands does not begin with 0, so that 0.250 is a quarter.
_COMMA_GROUPS = re.compile(r"[-+]?[1-9]\d{0,2}(,\d{3})+(\.\d+)?")
_DOT_GROUPS = re.compile(r"[-+]?[1-9]\d{0,2}(\.\d{3})+(,\d+)?")
_DECIMAL_COMMA = re.compile(r"[-+]?\d*,\d+([eE][-+]?\d+)?")
_MAX_NUMBER = 64


def number(value: Any) -> float | None:
    """Return a number, also one written as text, None for anything else; an integer beyond floats is infinite."""
    if isinstance(value, str) and (len(value) > _MAX_NUMBER or "_" in value):
        return None
    try:
        return float(value)
    except (TypeError, ValueError):
        return None
    except OverflowError:
        return math.inf if int(value) > 0 else -math.inf


def is_number(value: object) -> TypeGuard[float]:
    """Return whether a value is a number; NaN, which pandas and wandb write for what was not logged, is not one."""
    return isinstance(value, int | float) and not isinstance(value, bool) and value == value


def column_of(values: Iterable[Any], num: int = -1) -> Cells:
    """Return values as a column; a list in a cell stays one value."""
    return np.fromiter(values, dtype=object, count=num)


def numeric(cells: Iterable[Any]) -> Floats:
    """Return cells as floats, NaN for what is no number."""
    values = list(cells)
    if not {int, float, type(None)} >= set(map(type, values)):
        values = [cell if is_number(cell) else math.nan for cell in values]
    return np.array(values, dtype=float)


def logged(cells: Cells) -> Mask:
    """Return which cells hold anything, be it NaN."""
    return np.not_equal(cells, NOTHING)


def known(cells: Cells) -> Mask:
    """Return which cells were measured: they are there and not NaN."""
    return logged(cells) & np.equal(cells, cells)


def label(value: object) -> str:
    return str(int(value)) if isinstance(value, float) and value.is_integer() else str(value)


def labels(cells: Iterable[Any]) -> NDArray[np.str_]:
    return np.array([label(cell) for cell in cells], dtype=str)


def as_numbers(texts: Sequence[str], *, decimal_comma: bool = False) -> list[float | None]:
    """Return the numbers of a column of texts, None for a text that is not one.

    In a table whose decimals are commas a dot groups thousands: 1.000 is a thousand there.
    """
    unit = 100 if all(text.endswith("%") for text in texts) else 1
    bare = [text.rstrip("% ") for text in texts] if unit > 1 else texts
    dots = [text for text in bare if "." in text]
    if decimal_comma and (any("," in text for text in bare) or (dots and all(map(_DOT_GROUPS.fullmatch, dots)))):
        bare = list(map(_with_point, bare))
    found = (number(text.replace(",", "") if _COMMA_GROUPS.fullmatch(text) else text) for text in bare)
    return [None if value is None else value / unit for value in found]


def _with_point(text: str) -> str:
    """Return 1.234,5 as 1234.5; as it is where commas group."""
    plain = text.replace(".", "") if _DOT_GROUPS.fullmatch(text) else text
    return plain.replace(",", ".") if plain.count(",") <= 1 else text


def has_decimal_commas(cells: Iterable[str]) -> bool:
    """Return whether decimals are commas: 0,25 is proof, 1,200 only in a table without decimal points such as 0.25."""
    texts = [cell.strip().removesuffix("%").rstrip() for cell in cells if len(cell) <= _MAX_NUMBER]
    commas = [text for text in texts if _DECIMAL_COMMA.fullmatch(text)]
    points = [text for text in texts if "." in text and not _DOT_GROUPS.fullmatch(text) and number(text) is not None]
    return any(not points or not _COMMA_GROUPS.fullmatch(text) for text in commas)


def grouped(keys: Iterable[Hashable]) -> dict[Any, NDArray[np.intp]]:
    """Return the positions of each key."""
    groups: dict[Any, list[int]] = {}
    for at, key in enumerate(keys):
        groups.setdefault(key, []).append(at)
    return {key: np.array(positions) for key, positions in groups.items()}
