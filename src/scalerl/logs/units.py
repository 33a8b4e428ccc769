"""Numbers as people and spreadsheets write them, and the scale of a reward. Pure.

A cell may read 0.25, 0,25, 1.234,5, 1,234.5 or 25 %; a reward may be a share, per cent, or a sum without limits.
"""

import math
import re
from collections.abc import Iterable, Sequence
from typing import Any, Literal, TypeGuard

YScale = Literal["auto", "1", "100", "pm1", "none"]

ABSENT = frozenset({"", "none", "null", "na", "n/a", "#n/a", "-"})
# A group of thousands does not begin with 0: 0.250 is a quarter.
_COMMA_GROUPS = re.compile(r"[-+]?[1-9]\d{0,2}(,\d{3})+(\.\d+)?")
_DOT_GROUPS = re.compile(r"[-+]?[1-9]\d{0,2}(\.\d{3})+(,\d+)?")
_DECIMAL_COMMA = re.compile(r"[-+]?\d*,\d+([eE][-+]?\d+)?")
# What people write for a number and float() does not read: 1,000.0 and 30.4%.
_WRITTEN_NUMBER = re.compile(r"[-+]?[\d.,' ]*\d[\d.,' ]*%?")
_MAX_NUMBER = 64
# The least maximum of a rate in per cent; a share may exceed 1 a little, by a bonus.
_MIN_PERCENT = 2.0
# (least reward, width) of each scale: a fitted reward is (reward - least) / width.
SCALES: dict[YScale, tuple[float, float]] = {"1": (0, 1), "100": (0, 100), "pm1": (-1, 2), "none": (0, 1)}


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


def is_missing(value: object) -> bool:
    """Return whether a value is absent or NaN."""
    return value is None or is_nan(value)


def looks_numeric(value: object) -> bool:
    """Return whether a value is a number, also one written as text: one bad cell makes a whole CSV column text."""
    if not isinstance(value, str) or is_nan(value):
        return is_number(value)
    return number(value) is not None or (len(value) < _MAX_NUMBER and bool(_WRITTEN_NUMBER.fullmatch(value)))


def as_numbers(texts: Sequence[str], *, decimal_comma: bool = False) -> list[float] | None:
    """Return the numbers of a column of texts, None if one of them is not a number: 3e7 may be a label beside 'base'.

    In a table whose decimals are commas a dot groups thousands: 1.000 is a thousand there.
    """
    is_percent = all(text.endswith("%") for text in texts)
    bare = [_without_percent(text) for text in texts] if is_percent else texts
    dots = [text for text in bare if "." in text]
    is_local = decimal_comma and (any("," in text for text in bare) or (dots and all(map(_DOT_GROUPS.fullmatch, dots))))
    numbers = [_local_number(text) if is_local else _plain_number(text) for text in bare]
    known = [value / 100 if is_percent else value for value in numbers if value is not None]
    return known if len(known) == len(texts) else None


def has_decimal_commas(cells: Iterable[str]) -> bool:
    """Return whether decimals are commas: 0,25 is proof, 1,200 only in a table without decimal points such as 0.25."""
    numbers = [_without_percent(cell.strip()) for cell in cells if len(cell) <= _MAX_NUMBER]
    commas = [text for text in numbers if _DECIMAL_COMMA.fullmatch(text)]
    if any(not _COMMA_GROUPS.fullmatch(text) for text in commas):
        return True
    dots = (text for text in numbers if "." in text and not _DOT_GROUPS.fullmatch(text))
    return bool(commas) and all(number(text) is None for text in dots)


def _plain_number(text: str) -> float | None:
    return number(text.replace(",", "") if _COMMA_GROUPS.fullmatch(text) else text)


def _local_number(text: str) -> float | None:
    plain = text.replace(".", "") if _DOT_GROUPS.fullmatch(text) else text
    return number(plain.replace(",", ".")) if plain.count(",") <= 1 else _plain_number(text)


def _without_percent(text: str) -> str:
    return text.removesuffix("%").rstrip()


def fitting_scale(low: float, high: float, *, is_rate: bool) -> YScale:
    """Return the scale of rewards: shares, per cent only for what is named as a rate, else none."""
    if low >= 0 and high <= 1:
        return "1"
    return "100" if is_rate and low >= 0 and _MIN_PERCENT <= high <= 100 else "none"
