"""`Frame`: the rows of a log as columns, with the place in the log that each row comes from.

A column is an array of floats (NaN: not measured) or of words ("": none). Numbers may be written as people,
spreadsheets and array libraries write them: 0.25, 1,234.5, 25 %, 0.61 +- 0.02, Array(0.25, dtype=float32).
"""

import math
import re
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from scalerl.errors import printable

Item = TypeVar("Item")
Cells = NDArray[Any]
"""Floats, or objects that are all str."""
Words = NDArray[np.object_]
Floats = NDArray[np.float64]
Mask = NDArray[np.bool_]
Rows = NDArray[np.intp]
Columns = Mapping[str, Cells]
Names = Sequence[str]
Row = dict[str, Any]
Placed = list[tuple[str, Row]]
"""Rows, each with its place in the log, such as 'line 12'."""

MAX_NAME = 200
_LARGEST = 1e100
# Fewer names may differ in a number by accident.
_MIN_NAMES = 3
# A name of a checkpoint is no sentence.
_LAST_NUMBER = re.compile(r"(\S*?\s?\S*?)(\d{1,12})(\D*)")
_MAX_NUMBER = 128
_ABSENT = frozenset({"", "none", "null", "na", "n/a", "#n/a", "-", "nan"})
# A group of thousands does not begin with 0.
_GROUPS = re.compile(r"[-+]?[1-9]\d{0,2}(?:,\d{3})+(?:\.\d+)?")
_NUMBER = r"[-+]?(?:\d++(?:,\d{3})*+(?:\.\d*+)?|\.\d++)(?:[eE][-+]?\d{1,3})?(?: ?%)?"
# A number with its spread behind it: 0.61 +- 0.02, 0.61 (0.02), 0.61 [0.59, 0.63].
_SPREAD = re.compile(
    rf"({_NUMBER})\s*+(?:\(?(?:\u00b1|\+/?-|\\pm)\s*+{_NUMBER}\)?|\(\s*+{_NUMBER}\)"
    rf"|[\[(]{_NUMBER}\s*+[,;\u2013]\s*+{_NUMBER}[\])])"
)
CALL = (
    r"(?:[A-Za-z_]\w{0,40}\.){0,4}[A-Za-z_]\w{0,40}\(\s*+['\"]?"
    r"([-+]?(?:\.?\d[-+.\w]{0,40}|(?i:nan|inf)))['\"]?(?:,[^()]{0,100}(?:\(\)[^()]{0,100})?)?\)"
)
"""The pattern of a number within the name of its type: np.float64(0.5), Array(0.5, dtype=float32)."""
_CALL = re.compile(CALL)
_NOT_FINITE = frozenset({"nan", "inf", "infinity"})
_DIGITS = re.compile(r"-?\d{1,18}(?:\.\d{1,18})?")
_HAS_MORE = re.compile(r"[(\[\u00b1]|\+/?-|\\pm")


@dataclass(frozen=True, slots=True, eq=False)
class Frame:
    """Columns of equal length, and the origin of each row."""

    columns: Columns
    origin: Words

    def __len__(self) -> int:
        return len(self.origin)

    def __contains__(self, column: str) -> bool:
        return column in self.columns

    def is_words(self, column: str) -> bool:
        return column in self.columns and self.columns[column].dtype != np.float64

    def numbers(self, column: str) -> Floats:
        """Return a column as floats, NaN for what is no number; all NaN if it is missing or mostly words."""
        nothing = np.full(len(self), np.nan)
        cells = self.columns.get(column, nothing)
        if not self.is_words(column):
            return cells
        by_word = {word: number(word) for word in {*cells.tolist()}}
        values = np.array([by_word[word] for word in cells.tolist()], dtype=np.float64)
        return values if 2 * np.isfinite(values).sum() > (cells != "").sum() else nothing

    def words(self, column: str) -> Words:
        """Return a column as labels, "" for what was not logged: 7.0 is '7'."""
        return self.columns[column] if self.is_words(column) else objects(map(label, self.numbers(column).tolist()))

    def known(self, column: str) -> Mask:
        """Return which rows have a number in a column whose square is finite, too."""
        return np.abs(self.numbers(column)) < _LARGEST

    def values(self, column: str) -> Floats:
        """Return the numbers of a column, without the rows that have none."""
        return self.numbers(column)[self.known(column)]

    def groups(self, columns: Iterable[str]) -> Rows:
        """Return a number for each row, equal for rows that agree in these columns."""
        cells: list[list[Any]] = []
        for name in columns:
            values: Any = self.columns[name] if self.is_words(name) else self.numbers(name)
            # NaN is no number that is equal to another.
            cells.append([None if value != value else value for value in values.tolist()])
        return numbered(zip(*cells, strict=True)) if cells else np.zeros(len(self), dtype=np.intp)

    def num_groups(self, columns: Iterable[str]) -> int:
        return len({*self.groups(columns).tolist()})

    def take(self, which: Any) -> "Frame":
        """Return some of the rows, by mask or index."""
        return Frame({name: cells[which] for name, cells in self.columns.items()}, self.origin[which])

    def sorted(self, *columns: str) -> "Frame":
        """Return the rows in the order of columns, the first of which counts most."""
        keys = [self.columns[name] for name in reversed(columns) if name in self]
        return self.take(np.lexsort(keys))

    def having(self, columns: Columns) -> "Frame":
        """Return the frame with more columns."""
        return replace(self, columns={**self.columns, **columns})

    def without(self, gone: Iterable[str]) -> "Frame":
        kept = dict.fromkeys(self.columns.keys() - set(gone))
        return replace(self, columns={name: self.columns[name] for name in self.columns if name in kept})


def frame_of(rows: Placed) -> Frame:
    """Return rows as a frame; numbers that are written as text become numbers where the whole column is."""
    filled: dict[str, tuple[list[int], list[Any]]] = {}
    for at, (_, row) in enumerate(rows):
        for name, value in row.items():
            places, values = filled.setdefault(name, ([], []))
            places.append(at)
            values.append(value)
    columns: dict[str, Cells] = {}
    for at, (name, (places, values)) in enumerate(filled.items(), start=1):
        cells = _cells(values)
        column = np.full(len(rows), "" if cells.dtype == object else np.nan, dtype=cells.dtype)
        column[places] = cells
        columns.setdefault(clean(str(name)) or f"column {at}", column)
    return Frame(columns, objects(place for place, _ in rows))


def _cells(values: list[Any]) -> Cells:
    """Return a column: floats if everything in it is a number, else words."""
    kinds = {*map(type, values)}
    if kinds <= {int, float} or kinds == {str}:
        # The usual column; one with anything else is looked at word by word.
        plain = np.array([number(value) for value in values])
        if kinds != {str} or np.isfinite(plain).all():
            return plain
    words = [_word_or_number(value) for value in values]
    numbers = np.array([number(word) for word in words])
    is_number = np.isfinite(numbers) | np.isinf(numbers)
    is_absent = np.array([word == "" for word in words])
    return numbers if (is_number | is_absent).all() else objects(map(label, words))


def _word_or_number(value: Any) -> Any:
    """Return a number as it is, and anything else as a word; "" for what says that nothing was measured."""
    if type(value) in (int, float):
        return value
    word = "" if value is None else clean(label(value))
    return "" if word.strip().lower() in _ABSENT else word


def concatenated(frames: Sequence[Frame]) -> Frame:
    """Return the rows of several frames, one after the other."""
    columns: dict[str, Cells] = {}
    for name in dict.fromkeys(name for frame in frames for name in frame.columns):
        is_words = any(frame.is_words(name) for frame in frames)
        columns[name] = np.concatenate([frame.words(name) if is_words else frame.numbers(name) for frame in frames])
    return Frame(columns, np.concatenate([frame.origin for frame in frames]))


def number(value: Any) -> float:
    """Return a number, also one that is written as text, as 1,234.5 or 25 %; NaN for anything else.

    What is written around a number is left out: its spread, and the name of its type.
    """
    if not isinstance(value, str):
        return _as_float(value)
    if value[:1].isalpha() and "(" not in value and value.lower() not in _NOT_FINITE:
        return math.nan
    if _DIGITS.fullmatch(value):
        return float(value)
    if len(value) > _MAX_NUMBER:
        return math.nan
    text = value.strip().replace("\u2212", "-")
    is_per_cent = text.endswith("%")
    if _HAS_MORE.search(text):
        around = _SPREAD.fullmatch(text) or _CALL.fullmatch(text)
        if around is None:
            return math.nan
        text = around[1]
        is_per_cent = is_per_cent or text.endswith("%")
    bare = text.rstrip("% ")
    if "_" in bare:  # Python takes 1_000 for a number
        return math.nan
    if _GROUPS.fullmatch(bare):
        bare = bare.replace(",", "")
    return _as_float(bare) / 100 if is_per_cent else _as_float(bare)


def _as_float(value: Any) -> float:
    try:
        return float(value)
    except (TypeError, ValueError):
        return math.nan
    except OverflowError:  # an integer beyond floats
        return math.inf


def label(value: Any) -> str:
    """Return a cell as a word: 7.0 is '7', True is 'true', NaN is ''."""
    if isinstance(value, bool):
        return str(value).lower()
    if not isinstance(value, float):
        return str(value)
    if math.isnan(value):
        return ""
    return str(int(value)) if value.is_integer() else str(value)


def clean(text: str) -> str:
    """Return a name or word of a log without what a terminal or browser would obey."""
    return text if text.isprintable() and len(text) <= MAX_NAME else printable(text[:MAX_NAME]).strip()


def listed(items: Names, most: int = 12) -> str:
    """Join names for a message: 'a, b, c', at most so many of them."""
    more = f" and {len(items) - most} more" if len(items) > most else ""
    return ", ".join(items[:most]) + more


def objects(values: Iterable[Any]) -> Words:
    return np.fromiter(values, dtype=object)


def numbered(keys: Iterable[Hashable]) -> Rows:
    """Return a number for each key, equal for equal keys, in the order in which they come."""
    places: dict[Hashable, int] = {}
    return np.array([places.setdefault(key, len(places)) for key in keys], dtype=np.intp)


def steps_of_names(words: Sequence[str] | Words) -> Floats | None:
    """Return the last number in each name, if they rise and the names differ in nothing else; None if not.

    A name without a number before the others, such as 'base', is the model before training.
    """
    if len(words) < _MIN_NAMES:
        return None
    matches = [_LAST_NUMBER.fullmatch(word) for word in words]
    is_base = matches[0] is None
    numbered_names = matches[1:] if is_base else matches
    if len(numbered_names) < _MIN_NAMES or not all(numbered_names):
        return None
    texts = {(match[1], match[3]) for match in numbered_names if match}
    steps = np.array([0.0] * is_base + [float(match[2]) for match in numbered_names if match])
    return steps if len(texts) == 1 and (np.diff(steps) > 0).all() else None


def grouped(items: Iterable[Item], key: Callable[[Item], Hashable]) -> list[list[Item]]:
    """Return the items with equal keys together, in the order in which the keys come."""
    groups: dict[Hashable, list[Item]] = {}
    for item in items:
        groups.setdefault(key(item), []).append(item)
    return [*groups.values()]


def members(groups: Rows) -> list[Rows]:
    """Return the rows of each group, in their order."""
    order = np.argsort(groups, kind="stable")
    return np.split(order, np.flatnonzero(np.diff(groups[order])) + 1) if len(groups) else []
