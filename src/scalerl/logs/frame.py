"""`Frame`: the rows of a log as columns, with the place in the log that each row comes from.

A column is an array of floats (NaN: not measured) or of words ("": none). Numbers may be written as people and
spreadsheets write them: 0.25, 0,25, 1.234,5, 1,234.5, 25 %.
"""

import math
import re
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scalerl.errors import printable

Cells = NDArray[Any]
"""Floats, or objects that are all str."""
Floats = NDArray[np.float64]
Mask = NDArray[np.bool_]
Rows = NDArray[np.intp]
Placed = tuple[str, Mapping[str, Any]]
"""A row and its place in the log, such as 'line 12'."""

MAX_NAME = 200
_MAX_NUMBER = 64
_MAX_PLACES = 5
_ABSENT = frozenset({"", "none", "null", "na", "n/a", "#n/a", "-", "nan"})
# 1,234.5 and 0,25 and 1.234,5: a group of thousands does not begin with 0, so that 0.250 is a quarter.
_COMMA_GROUPS = re.compile(r"[-+]?[1-9]\d{0,2}(?:,\d{3})+(?:\.\d+)?")
_DOT_GROUPS = re.compile(r"[-+]?[1-9]\d{0,2}(?:\.\d{3})+(?:,\d+)?")
_DECIMAL_COMMA = re.compile(r"[-+]?\d*,\d+(?:[eE][-+]?\d+)?")
# A step as ms-swift writes it, '5/400', and as folders are named, 'checkpoint-5'.
_STEP = re.compile(r"(?:[A-Za-z][A-Za-z_ -]*+)?(\d{1,15})(?:\s*/\s*\d+)?")


@dataclass(frozen=True, slots=True, eq=False)
class Frame:
    """Columns of equal length, and the origin of each row."""

    columns: Mapping[str, Cells]
    origin: NDArray[np.object_]

    def __len__(self) -> int:
        return len(self.origin)

    def __contains__(self, column: str) -> bool:
        return column in self.columns

    def numbers(self, column: str | None) -> Floats:
        """Return a column as floats, NaN for what is no number; all NaN if it is missing or mostly words."""
        cells = self.columns.get(column or "", np.full(len(self), np.nan))
        if cells.dtype == np.float64:
            return cells
        values = as_numbers(cells.tolist())
        is_numeric = 2 * np.isfinite(values).sum() > (cells != "").sum()
        return values if is_numeric else np.full(len(self), np.nan)

    def words(self, column: str | None) -> NDArray[np.object_]:
        """Return a column as labels, "" for what was not logged: 7.0 is '7'."""
        cells = self.columns.get(column or "", np.full(len(self), "", dtype=object))
        return objects(map(label, cells.tolist())) if cells.dtype == np.float64 else cells

    def has(self, column: str | None) -> Mask:
        """Return which rows have anything in a column."""
        cells = self.columns.get(column or "", np.full(len(self), np.nan))
        return ~np.isnan(cells) if cells.dtype == np.float64 else cells != ""

    def is_words(self, column: str) -> bool:
        return self.columns[column].dtype != np.float64

    def groups(self, columns: Iterable[str]) -> Rows:
        """Return a number for each row, equal for rows that agree in these columns."""
        words = [self.words(name).tolist() for name in columns]
        return numbered(zip(*words, strict=True)) if words else np.zeros(len(self), dtype=np.intp)

    def take(self, which: Any) -> "Frame":
        """Return some of the rows, by mask or index."""
        return Frame({name: cells[which] for name, cells in self.columns.items()}, self.origin[which])

    def having(self, columns: Mapping[str, Cells]) -> "Frame":
        """Return the frame with more columns."""
        return replace(self, columns={**self.columns, **columns})

    def without(self, columns: Iterable[str]) -> "Frame":
        gone = set(columns)
        return replace(self, columns={name: cells for name, cells in self.columns.items() if name not in gone})

    def where(self, which: Any) -> str:
        """Return the places of rows for a message: 'line 3, line 5 and 2 more'."""
        return listed(list(dict.fromkeys(self.origin[which])), _MAX_PLACES)


def frame_of(rows: Sequence[Placed], *, decimal_comma: bool = False) -> Frame:
    """Return rows as a frame; numbers that are written as text become numbers where the whole column is."""
    filled: dict[str, tuple[list[int], list[Any]]] = {}
    for at, (_, row) in enumerate(rows):
        for name, value in row.items():
            places, values = filled.setdefault(name, ([], []))
            places.append(at)
            values.append(value)
    columns: dict[str, Cells] = {}
    for at, (name, (places, values)) in enumerate(filled.items(), start=1):
        cells = _cells(values, decimal_comma=decimal_comma)
        column = np.full(len(rows), np.nan if cells.dtype == np.float64 else "", dtype=cells.dtype)
        column[places] = cells
        columns.setdefault(clean(str(name)) or f"column {at}", column)
    return Frame(columns, objects(place for place, _ in rows))


def concatenated(frames: Sequence[Frame]) -> Frame:
    """Return the rows of several frames, one after the other."""
    names = dict.fromkeys(name for frame in frames for name in frame.columns)
    columns: dict[str, Cells] = {}
    for name in names:
        parts = [frame.numbers(name) for frame in frames]
        is_words = any(name in frame and frame.is_words(name) for frame in frames)
        columns[name] = np.concatenate([frame.words(name) for frame in frames] if is_words else parts)
    return Frame(columns, np.concatenate([frame.origin for frame in frames]))


def _cells(values: list[Any], *, decimal_comma: bool) -> Cells:
    """Return a column: floats if everything in it is a number, else words."""
    kinds = set(map(type, values))
    if kinds <= {int, float, type(None)}:
        return np.array([math.nan if value is None else number(value) for value in values], dtype=np.float64)
    texts = ["" if value is None or isinstance(value, list | dict) else clean(label(value)) for value in values]
    texts = ["" if text.strip().lower() in _ABSENT else text for text in texts]
    numbers = as_numbers(texts, decimal_comma=decimal_comma)
    is_read = ~np.isnan(numbers) == np.array([text != "" for text in texts])
    return numbers if is_read.all() else objects(texts)


# Numbers


def number(value: Any) -> float:
    """Return a number, also one that is written as text; NaN for anything else."""
    if isinstance(value, str) and (len(value) > _MAX_NUMBER or "_" in value):
        return math.nan
    try:
        return float(value)
    except (TypeError, ValueError):
        return math.nan
    except OverflowError:  # an integer beyond floats
        return math.inf


def as_numbers(texts: Sequence[str], *, decimal_comma: bool = False) -> Floats:
    """Return the numbers of a column of texts, NaN for a text that is not one.

    In a table whose decimals are commas a dot groups thousands: 1.000 is a thousand there.
    """
    written = [text.strip() for text in texts]
    is_percent = all(text.endswith("%") for text in written if text) and any(written)
    written = [text.rstrip("% ") for text in written] if is_percent else written
    dots = [text for text in written if "." in text]
    if decimal_comma and (any("," in text for text in written) or all(map(_DOT_GROUPS.fullmatch, dots))):
        written = list(map(_with_point, written))
    plain = [text.replace(",", "") if _COMMA_GROUPS.fullmatch(text[:_MAX_NUMBER]) else text for text in written]
    return np.array(list(map(number, plain)), dtype=np.float64) / (100 if is_percent else 1)


def _with_point(text: str) -> str:
    """Return 1.234,5 as 1234.5; as it is where commas group."""
    plain = text.replace(".", "") if _DOT_GROUPS.fullmatch(text[:_MAX_NUMBER]) else text
    return plain.replace(",", ".") if plain.count(",") <= 1 else text


def has_decimal_commas(cells: Iterable[str]) -> bool:
    """Return whether decimals are commas: 0,25 is proof, 1,200 only in a table without decimal points such as 0.25."""
    texts = [cell.strip().removesuffix("%").rstrip() for cell in cells if len(cell) <= _MAX_NUMBER]
    commas = [text for text in texts if _DECIMAL_COMMA.fullmatch(text)]
    has_points = any("." in text and not _DOT_GROUPS.fullmatch(text) and number(text) == number(text) for text in texts)
    return any(not has_points or not _COMMA_GROUPS.fullmatch(text) for text in commas)


def steps_of(words: Sequence[str]) -> Floats:
    """Return the steps in words such as 'checkpoint-5' and '5/400', NaN for words without one."""
    matches = [_STEP.fullmatch(word[:MAX_NAME]) for word in words]
    return np.array([float(match[1]) if match else math.nan for match in matches])


# Labels


def label(value: Any) -> str:
    """Return a cell as a word: 7.0 is '7', True is 'true', NaN is ''."""
    if isinstance(value, float):
        return str(int(value)) if value.is_integer() else "" if math.isnan(value) else str(value)
    return str(value).lower() if isinstance(value, bool) else str(value)


def clean(text: str) -> str:
    """Return a name or word of a log without what a terminal or browser would obey."""
    if text.isprintable() and len(text) <= MAX_NAME:
        return text
    return printable(text[:MAX_NAME]).strip()


def listed(items: Sequence[str], most: int = 12) -> str:
    """Join names for a message: 'a, b, c', at most so many of them."""
    shown = ", ".join(items[:most])
    return shown if len(items) <= most else f"{shown} and {len(items) - most} more"


def objects(values: Iterable[Any]) -> NDArray[np.object_]:
    return np.fromiter(values, dtype=object)


def numbered(keys: Iterable[Hashable]) -> Rows:
    """Return a number for each key, equal for equal keys, in the order in which they come."""
    places: dict[Hashable, int] = {}
    return np.array([places.setdefault(key, len(places)) for key in keys], dtype=np.intp)


def members(groups: Rows) -> list[Rows]:
    """Return the rows of each group, in their order."""
    order = np.argsort(groups, kind="stable")
    return np.split(order, np.flatnonzero(np.diff(groups[order])) + 1) if len(groups) else []
