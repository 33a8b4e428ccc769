"""Cells of a table as numbers: 0.25, and what spreadsheets write, such as 0,25 and 1.234,5 and 1,234.5 and 25 %."""

import re
from collections.abc import Callable, Sequence

_ABSENT = frozenset({"", "none", "null", "na", "n/a", "#n/a", "-"})
# A group of thousands does not begin with 0: 0.250 is a quarter.
_COMMA_GROUPS = re.compile(r"[-+]?[1-9]\d{0,2}(,\d{3})+(\.\d+)?")
_DOT_GROUPS = re.compile(r"[-+]?[1-9]\d{0,2}(\.\d{3})+(,\d+)?")
_DECIMAL_COMMA = re.compile(r"[-+]?\d*,\d+([eE][-+]?\d+)?")

Cell = float | str | None


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
    """Return whether decimals are commas: 0,25 tells, 1,200 only in a table without decimal points such as 0.25."""
    numbers = [_without_percent(cell) for cell in cells]
    commas = [number for number in numbers if _DECIMAL_COMMA.fullmatch(number)]
    if any(not _COMMA_GROUPS.fullmatch(number) for number in commas):
        return True
    dots = (number for number in numbers if "." in number and not _DOT_GROUPS.fullmatch(number))
    return bool(commas) and all(as_float(number) is None for number in dots)


def as_float(text: str) -> float | None:
    """Return a number as Python writes it, None for other text."""
    try:
        return None if "_" in text else float(text)
    except ValueError:
        return None


def _read_column(cells: Sequence[str | None], has_commas: bool) -> list[Cell]:
    texts = [cell for cell in cells if cell is not None]
    is_percent = bool(texts) and all(text.endswith("%") for text in texts)
    bare = [_without_percent(text) for text in texts] if is_percent else texts
    for convert in _styles(bare, has_commas):
        numbers = [convert(text) for text in bare]
        if None not in numbers:
            known = iter(number / 100 if is_percent else number for number in numbers if number is not None)
            return [None if cell is None else next(known) for cell in cells]
    return list(cells)


def _styles(texts: Sequence[str], has_commas: bool) -> list[Callable[[str], float | None]]:
    """Return the ways to read a column's numbers, in the order they are tried."""
    if not has_commas:
        return [as_float, _grouped_by_commas]
    dotted = [text for text in texts if "." in text]
    if any("," in text for text in texts) or (dotted and all(map(_DOT_GROUPS.fullmatch, dotted))):
        return [_with_decimal_comma, _grouped_by_commas]
    return [as_float]


def _grouped_by_commas(text: str) -> float | None:
    return as_float(text.replace(",", "")) if "," not in text or _COMMA_GROUPS.fullmatch(text) else None


def _with_decimal_comma(text: str) -> float | None:
    if _DOT_GROUPS.fullmatch(text):
        text = text.replace(".", "")
    return as_float(text.replace(",", ".")) if text.count(",") <= 1 else None


def _without_percent(text: str) -> str:
    return text.removesuffix("%").rstrip()
