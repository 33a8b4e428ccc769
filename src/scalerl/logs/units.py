"""Numbers as people and spreadsheets write them, and the scale of a reward. Pure.

A cell may read 0.25, 0,25, 1.234,5, 1,234.5 or 25 %; a reward may be a share, per cent, or a sum without limits.
"""

import math
import re
from collections.abc import Callable, Sequence
from typing import Any, Literal, TypeGuard

YScale = Literal["auto", "1", "100", "pm1", "none"]
Cell = float | str | None

_ABSENT = frozenset({"", "none", "null", "na", "n/a", "#n/a", "-"})
# A group of thousands does not begin with 0: 0.250 is a quarter.
_COMMA_GROUPS = re.compile(r"[-+]?[1-9]\d{0,2}(,\d{3})+(\.\d+)?")
_DOT_GROUPS = re.compile(r"[-+]?[1-9]\d{0,2}(\.\d{3})+(,\d+)?")
_DECIMAL_COMMA = re.compile(r"[-+]?\d*,\d+([eE][-+]?\d+)?")
# What people write for a number and float() does not read: 1,000.0 and 30.4%.
_WRITTEN_NUMBER = re.compile(r"[-+]?[\d.,' ]*\d[\d.,' ]*%?")
_MAX_NUMBER = 64
# The least maximum of a rate in per cent; a share may exceed 1 a little, by a bonus.
_MIN_PERCENT = 2.0


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


def is_nan(value: object) -> bool:
    """Return whether a value is NaN, as a number or as text."""
    return value != value if isinstance(value, float) else isinstance(value, str) and value.strip().lower() == "nan"


def looks_numeric(value: object) -> bool:
    """Return whether a value is a number, also one written as text: one bad cell makes a whole CSV column text."""
    if not isinstance(value, str) or is_nan(value):
        return is_number(value)
    return number(value) is not None or (len(value) < _MAX_NUMBER and bool(_WRITTEN_NUMBER.fullmatch(value)))


# Cells


def read_cells(columns: Sequence[Sequence[str]], delimiter: str) -> list[list[Cell]]:
    """Return the values of each column: numbers if every cell is one, else text; None for an empty cell.

    A label such as 3e7 does not become a number by itself. In a table whose decimals are commas a dot groups
    thousands: 1.000 is a thousand there.
    """
    present = [[None if cell.strip().lower() in _ABSENT else cell.strip() for cell in cells] for cells in columns]
    # Where commas separate cells, those within a cell group thousands.
    has_commas = delimiter != "," and _has_decimal_commas([cell for cells in present for cell in cells if cell])
    return [_read_column(cells, has_commas) for cells in present]


def _has_decimal_commas(cells: Sequence[str]) -> bool:
    """Return whether decimals are commas: 0,25 is proof, 1,200 only in a table without decimal points such as 0.25."""
    numbers = [_without_percent(cell) for cell in cells if len(cell) <= _MAX_NUMBER]
    commas = [text for text in numbers if _DECIMAL_COMMA.fullmatch(text)]
    if any(not _COMMA_GROUPS.fullmatch(text) for text in commas):
        return True
    dots = (text for text in numbers if "." in text and not _DOT_GROUPS.fullmatch(text))
    return bool(commas) and all(number(text) is None for text in dots)


def _read_column(cells: Sequence[str | None], has_commas: bool) -> list[Cell]:
    texts = [cell for cell in cells if cell is not None]
    is_percent = bool(texts) and all(text.endswith("%") for text in texts)
    bare = [_without_percent(text) for text in texts] if is_percent else texts
    for convert in _styles(bare, has_commas):
        numbers = [convert(text) for text in bare]
        if None not in numbers:
            known = iter(value / 100 if is_percent else value for value in numbers if value is not None)
            return [None if cell is None else next(known) for cell in cells]
    return list(cells)


def _styles(texts: Sequence[str], has_commas: bool) -> list[Callable[[str], float | None]]:
    """Return how a column's numbers may be written, in the order in which this is tried."""
    if not has_commas:
        return [number, _grouped_by_commas]
    dotted = [text for text in texts if "." in text]
    if any("," in text for text in texts) or (dotted and all(map(_DOT_GROUPS.fullmatch, dotted))):
        return [_with_decimal_comma, _grouped_by_commas]
    return [number]


def _grouped_by_commas(text: str) -> float | None:
    return number(text.replace(",", "")) if "," not in text or _COMMA_GROUPS.fullmatch(text) else None


def _with_decimal_comma(text: str) -> float | None:
    if _DOT_GROUPS.fullmatch(text):
        text = text.replace(".", "")
    return number(text.replace(",", ".")) if text.count(",") <= 1 else None


def _without_percent(text: str) -> str:
    return text.removesuffix("%").rstrip()


# The scale of a reward


def scaled(reward: Any, y_scale: YScale) -> Any:
    """Return rewards on the scale that is fitted."""
    if y_scale == "100":
        return reward / 100
    return (reward + 1) / 2 if y_scale == "pm1" else reward


def fitting_scale(low: float, high: float, *, is_rate: bool) -> YScale:
    """Return the scale of rewards: shares, per cent only for what is named as a rate, else none."""
    if low >= 0 and high <= 1:
        return "1"
    return "100" if is_rate and low >= 0 and _MIN_PERCENT <= high <= 100 else "none"
