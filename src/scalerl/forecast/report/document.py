"""A document is a value: sections of sentences, tables and curves. Everything that is shown is rendered from one.

    Section  a title and blocks                        Say    a kind with values; `words.py` has its sentence
    Grid     a table of texts                          Curves strokes over compute, made by `figures.py`
    Lines    columns over the steps of runs            Samples what a model wrote

`terminal.py`, `page.py` and `json_values.py` show it.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from scalerl.forecast.report.wording import Lookup, Words, filled
from scalerl.forecast.report.words import WORDS, Level, level_of

Json = dict[str, Any]
Range = tuple[float, float]


@dataclass(frozen=True, slots=True)
class Say:
    """One thing to say: code reads the kind and the values, people read the text."""

    kind: str
    values: Mapping[str, Any]
    level: Level
    text: str


def say(kind: str, /, *objects: Any, **given: Any) -> Say:
    """Return something to say; the values that its words name are given, or attributes of the objects."""
    values = Lookup(given, *objects)
    text = filled(WORDS[kind], values)
    return Say(kind, {**given, **values}, level_of(kind), text)


@dataclass(frozen=True, slots=True, kw_only=True)
class Grid:
    """A table of texts."""

    key: str
    heads: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    left: int = 1
    """Number of columns with words at the start; those after them hold numbers, and are aligned to the right."""
    right: int = 0
    """Number of columns with words at the end."""
    title: str = ""
    links: tuple[str, ...] = ()
    """Addresses within the page that the first cells lead to."""
    colours: tuple[int, ...] = ()
    """Numbers of the colours that mark the rows."""
    level: Level = Level.WHY

    def is_number(self, place: int) -> bool:
        return self.left <= place < len(self.heads) - self.right


@dataclass(frozen=True, slots=True, kw_only=True)
class Stroke:
    """One thing that is drawn of a curve, in the units of the axes; a page and a picture differ only in its look."""

    kind: str
    """`line`, `forecast`, `band`, `new-band`, `ceiling`, `level`, `above`, `below`, `mark`; or of points whether they
    were `fitted`, `left-out` of the fit, or `held-out` to test it."""
    shape: Literal["line", "area", "points"]
    compute: np.ndarray
    reward: np.ndarray
    error: np.ndarray | None = None
    """Standard errors of points that are means of neighbours."""
    run: int = 0
    """Number of the run that points are of; runs have different signs."""
    name: str = ""
    """What it is of: the run, or the curve."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Drawn:
    """One curve of a chart, from back to front."""

    name: str
    colour: int
    strokes: tuple[Stroke, ...]


def strokes_of(drawn: Iterable[Drawn]) -> Iterator[Stroke]:
    """Yield the strokes of all curves."""
    for each in drawn:
        yield from each.strokes


@dataclass(frozen=True, slots=True, kw_only=True)
class Curves:
    """A chart of curves over compute."""

    key: str
    drawn: tuple[Drawn, ...]
    x_label: str
    y_label: str
    limits: tuple[Range, Range]
    """The ends of both axes."""
    at: float | None = None
    """A compute that is marked: the budget."""
    note: Say | None = None
    level: Level = Level.WHY


@dataclass(frozen=True, slots=True, kw_only=True)
class Lines:
    """A small chart of one column over the steps of runs."""

    key: str
    title: str
    lines: tuple[tuple[str, int, Sequence[float | None], Sequence[float | None]], ...]
    """(Name, colour, steps, values) of each run."""
    limit: float | None = None
    """Value beyond which an alarm is raised."""
    has_legend: bool = False
    """Whether the lines are named below; those of runs have the colours of their curves."""
    counted: str = "step"
    level: Level = Level.WHY


@dataclass(frozen=True, slots=True, kw_only=True)
class Samples:
    """What a model wrote, to be read by eye."""

    rows: tuple[Mapping[str, Any], ...]
    level: Level = Level.WHY


Block = Say | Grid | Curves | Lines | Samples
Blocks = Iterable[Block | None]
"""What a section yields; None is left out."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    key: str
    title: str
    blocks: tuple[Block, ...]


Document = tuple[Section, ...]


def says(document: Sequence[Section]) -> Iterator[Say]:
    """Yield everything that a document says, in order."""
    for section in document:
        for block in section.blocks:
            if isinstance(block, Say):
                yield block


def sections(*parts: tuple[str, str, Blocks]) -> Document:
    """Return a section for each (key, title, blocks) that has a block."""
    made: list[Section] = []
    for key, title, blocks in parts:
        kept = tuple(block for block in blocks if block is not None)
        if kept:
            made.append(Section(key=key, title=title, blocks=kept))
    return tuple(made)


def grid(key: str, heads: Sequence[str], rows: Sequence[Sequence[str]], **given: Any) -> Grid | None:
    """Return a table; None without rows."""
    if rows:
        return Grid(key=key, heads=tuple(heads), rows=tuple(map(tuple, rows)), **given)
    return None


def table(
    key: str, columns: Mapping[str, Words], items: Iterable[Sequence[Any]], *shared: Any, **given: Any
) -> Grid | None:
    """Return a table from templates by their heads.

    Each item is a row: the objects that have what templates name, before those that all rows share.
    """
    rows: list[list[str]] = []
    for item in items:
        values = Lookup(*item, *shared)
        rows.append([filled(each, values) for each in columns.values()])
    return grid(key, tuple(columns), rows, **given)
