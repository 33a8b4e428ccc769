"""A document is a value: sections of sentences, tables and curves. Everything that is shown is rendered from one.

    Section  a title and blocks                        Say    a kind with values; `words.py` has its sentence
    Grid     a table of texts                          Curves points and fitted lines over compute
    Lines    columns over the steps of runs            Samples what a model wrote

`render` gives the terminal's or Markdown's view; `to_json` what `--json` prints and what the page draws.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from enum import Enum
from pathlib import Path
from typing import Any, Literal

import numpy as np

from scalerl.forecast.curves import Value
from scalerl.forecast.report import words
from scalerl.forecast.report.words import Level, level_of

Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Say:
    """One thing to say: code reads the kind and the values, people read the text."""

    kind: str
    values: Mapping[str, Any]
    level: Level
    text: str


def say(kind: str, /, *objects: Any, **given: Any) -> Say:
    """Return something to say; the values that its words name are given, or attributes of the objects."""
    values = words.Lookup(given, *objects)
    text = words.filled(words.WORDS[kind], values)
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
class Line:
    """A line over compute, with bands (low, high); solid between `first` and `last`, dashed elsewhere."""

    compute: np.ndarray
    reward: np.ndarray
    first: float
    last: float
    band: tuple[np.ndarray, np.ndarray] | None = None
    """Where the recipe's own curve lies."""
    new_band: tuple[np.ndarray, np.ndarray] | None = None
    """Where one new evaluation should fall."""

    def parts(self) -> Iterator[tuple[np.ndarray, np.ndarray, bool]]:
        """Yield compute and reward of the part before the data, within it and after it, and whether it is solid."""
        for begin, end in ((0.0, self.first), (self.first, self.last), (self.last, math.inf)):
            part = (self.compute >= begin) & (self.compute <= end)
            yield self.compute[part], self.reward[part], begin == self.first


@dataclass(frozen=True, slots=True, kw_only=True)
class Dots:
    """Points over compute; of a run with very many points means of neighbours."""

    compute: np.ndarray
    reward: np.ndarray
    error: np.ndarray
    """Standard error of a mean; NaN for a single reward."""
    run: np.ndarray
    role: np.ndarray
    """`fitted`, `left out` of the fit, or `held out` to test it."""
    runs: tuple[str, ...] = ("",)

    def take(self, which: np.ndarray) -> "Dots":
        """Return some of the points, by mask or index."""
        return Dots(
            compute=self.compute[which],
            reward=self.reward[which],
            error=self.error[which],
            run=self.run[which],
            role=self.role[which],
            runs=self.runs,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Drawn:
    """One curve of a chart."""

    name: str
    dots: Dots
    line: Line | None = None
    colour: int = 0
    marks: tuple[tuple[float, float], ...] = ()
    """(Compute, reward) of what is marked: forecasts that were asked for, a peak."""
    ceiling: Value | None = None
    """The ceiling and its interval: a bar beside the curves."""
    ceiling_at: float = 0.0
    """Compute at which that bar is drawn, beyond the end of every curve."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stroke:
    """One thing that is drawn of a curve, in the units of the axes; a page and a picture differ only in its look."""

    kind: str
    """`line`, `forecast`, `band`, `new-band`, `ceiling`, `level`, `above`, `below`, `mark`, or the role of points."""
    shape: Literal["line", "area", "points"]
    compute: np.ndarray
    reward: np.ndarray
    error: np.ndarray | None = None
    """Standard errors of points."""
    run: int = 0
    """Number of the run that points are of; runs have different signs."""
    name: str = ""
    """What it is of: the run, or the curve."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Curves:
    """A chart of curves over compute."""

    key: str
    drawn: tuple[Drawn, ...]
    x_label: str
    y_label: str
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
        yield from (block for block in section.blocks if isinstance(block, Say))


def sections(*parts: tuple[str, str, Blocks]) -> Document:
    """Return a section for each (key, title, blocks) that has a block."""
    made = []
    for key, title, blocks in parts:
        if kept := tuple(block for block in blocks if block is not None):
            made.append(Section(key=key, title=title, blocks=kept))
    return tuple(made)


def grid(key: str, heads: Sequence[str], rows: Sequence[Sequence[str]], **given: Any) -> Grid | None:
    """Return a table; None without rows."""
    return Grid(key=key, heads=tuple(heads), rows=tuple(map(tuple, rows)), **given) if rows else None


def table(
    key: str, columns: Mapping[str, words.Words], items: Iterable[Sequence[Any]], *shared: Any, **given: Any
) -> Grid | None:
    """Return a table from templates by their heads.

    Each item is a row: the objects that have what templates name, before those that all rows share.
    """
    rows: list[list[str]] = []
    for item in items:
        values = words.Lookup(*item, *shared)
        rows.append([words.filled(each, values) for each in columns.values()])
    return grid(key, tuple(columns), rows, **given)


# Views ----------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class View:
    """How a document is written: one function for each kind of block. Blocks that are pictures may have none."""

    title: Callable[[Section], Any]
    blocks: Mapping[type, Callable[[Any], Any]]
    join: Callable[[list[Any]], Any]


def render(document: Sequence[Section], view: View, *, explain: bool = True) -> Any:
    """Return the document in this view; without `explain` only what an answer needs."""
    parts: list[Any] = []
    for each in document:
        shown = [
            view.blocks[type(block)](block)
            for block in each.blocks
            if type(block) in view.blocks and (explain or block.level != Level.DETAIL)
        ]
        if shown:
            parts += [*([] if (title := view.title(each)) is None else [title]), *shown]
    return view.join(parts)


STYLES = {Level.ANSWER: "bold", Level.WHY: "", Level.WARNING: "yellow", Level.DETAIL: "dim"}
NARROWEST = 14  # letters that a column of words keeps on a narrow terminal


def _terminal_text(block: Say) -> Any:
    from rich.text import Text

    return Text(block.text, style=STYLES[block.level])


@dataclass(frozen=True, slots=True)
class TerminalGrid:
    """A table; on a terminal that is too narrow for its numbers, each row as a list of its cells."""

    block: Grid

    def __rich_console__(self, console: Any, options: Any) -> Iterator[Any]:
        from rich.padding import Padding
        from rich.table import Table
        from rich.text import Text

        block = self.block
        heads = self.block.heads
        widths = [max(map(len, column)) for column in zip(heads, *block.rows, strict=True)]
        least = [width if block.is_number(place) else min(NARROWEST, width) for place, width in enumerate(widths)]
        if block.title:
            yield Text(block.title, style="bold")
        if sum(least) + 2 * (len(least) - 1) <= options.max_width:
            made = Table(header_style="bold", pad_edge=False, box=None)
            for place, head in enumerate(heads):
                is_number = block.is_number(place)
                justify = "right" if is_number else "left"
                made.add_column(head, justify=justify, overflow="fold", no_wrap=is_number, min_width=least[place])
            for row in block.rows:
                made.add_row(*map(Text, row))
            yield made
            return
        for name, *cells in block.rows:
            made = Table.grid(padding=(0, 2, 0, 0))
            made.add_column(min_width=max(map(len, heads[1:])))
            made.add_column(overflow="fold")
            for head, cell in zip(heads[1:], cells, strict=True):
                if cell not in ("", "-"):
                    made.add_row(head, Text(cell))
            yield from (Text(name, style="bold"), Padding(made, (0, 0, 0, 2)))


def _group(parts: list[Any]) -> Any:
    from rich.console import Group

    return Group(*parts)


TERMINAL = View(lambda section: None, {Say: _terminal_text, Grid: TerminalGrid}, _group)


def shielded(text: object) -> str:
    """Return a text that Markdown shows as it is: no HTML, no link, no end of a table's cell."""
    return str(text).replace("<", "&lt;").replace("](", "]\\(").replace("|", "\\|").replace("\n", " ")


def _markdown_text(block: Say) -> str:
    marks = {Level.ANSWER: "**{}**", Level.WARNING: "> {}"}
    return marks.get(block.level, "{}").format(shielded(block.text))


def _markdown_grid(block: Grid) -> str:
    line = lambda cells: f"| {' | '.join(map(shielded, cells))} |"  # noqa: E731
    rules = "|".join("---:" if block.is_number(place) else "---" for place in range(len(block.heads)))
    title = [f"### {shielded(block.title)}", ""] if block.title else []
    return "\n".join([*title, line(block.heads), f"|{rules}|", *map(line, block.rows)])


MARKDOWN = View(
    lambda section: f"## {shielded(section.title)}" if section.title else None,
    {Say: _markdown_text, Grid: _markdown_grid},
    lambda parts: "\n\n".join(parts) + "\n",
)


# JSON -----------------------------------------------------------------------------------------------------------------


def plain(value: Any) -> Any:
    """Return JSON types: an enum by its value, a dataclass by its fields, null for a number that is not finite."""
    match value:
        case Enum():
            return value.value
        case float():
            return float(value) if math.isfinite(value) else None
        case np.generic():
            return plain(value.item())
        case np.ndarray():
            return rounded(value)
        case Say():
            return {"kind": value.kind, "level": value.level.value, "text": value.text, "values": plain(value.values)}
        case Mapping():
            return {f"{key:g}" if isinstance(key, float) else str(key): plain(each) for key, each in value.items()}
        case list() | tuple() | set() | frozenset():
            return [plain(each) for each in value]
        case Path():
            return str(value)
        case _ if is_dataclass(value) and not isinstance(value, type):
            return {each.name: plain(getattr(value, each.name)) for each in fields(value)}
    return value


def picked(names: Iterable[str], *objects: Any) -> Json:
    """Return values by name as JSON types, from the first object that has each; null where none has it."""
    values = words.Lookup(*objects)
    return {name: plain(values.get(name)) for name in names}


def to_json(document: Sequence[Section]) -> list[Json]:
    """Return the sections: each block with its type, and each sentence with its kind and its values."""
    made: list[Json] = []
    for section in document:
        blocks = [{"type": type(block).__name__.lower(), **plain(block)} for block in section.blocks]
        made.append({"key": section.key, "title": section.title, "blocks": blocks})
    return made


def rounded(values: np.ndarray, digits: int = 6) -> list[Any]:
    """Return an array as a list: numbers rounded to significant digits, None where not finite; words as they are."""
    if values.dtype.kind != "f":
        return values.tolist()
    return [float(f"{value:.{digits}g}") if math.isfinite(value) else None for value in values.tolist()]
