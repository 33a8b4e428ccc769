"""A document on a terminal, by rich: its sentences and tables. Charts are for pages and pictures."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from scalerl.forecast.report.document import Grid, Level, Say, Section

STYLES = {Level.ANSWER: "bold", Level.WHY: "", Level.WARNING: "yellow", Level.DETAIL: "dim"}
NARROWEST = 14  # letters that a column of words keeps on a narrow terminal
GAP = 2  # between columns


def printable(document: Sequence[Section], *, explain: bool = True) -> Any:
    """Return what rich prints; without `explain` only what an answer needs."""
    from rich.console import Group
    from rich.text import Text

    parts: list[Any] = []
    for section in document:
        for block in section.blocks:
            is_shown = explain or block.level != Level.DETAIL
            if is_shown and isinstance(block, Say):
                parts.append(Text(block.text, style=STYLES[block.level]))
            elif is_shown and isinstance(block, Grid):
                parts.append(Table(block))
    return Group(*parts)


@dataclass(frozen=True, slots=True)
class Table:
    """A table; on a terminal that is too narrow for its numbers, each row as a list of its cells."""

    block: Grid

    def __rich_console__(self, console: Any, options: Any) -> Iterator[Any]:
        from rich.text import Text

        if self.block.title:
            yield Text(self.block.title, style="bold")
        widths = self._least_widths()
        if sum(widths) + GAP * (len(widths) - 1) <= options.max_width:
            yield self._as_table(widths)
        else:
            yield from self._as_lists()

    def _least_widths(self) -> list[int]:
        """Return how narrow each column may be: numbers are not folded."""
        least: list[int] = []
        for place, column in enumerate(zip(self.block.heads, *self.block.rows, strict=True)):
            width = max(map(len, column))
            if not self.block.is_number(place):
                width = min(NARROWEST, width)
            least.append(width)
        return least

    def _as_table(self, widths: Sequence[int]) -> Any:
        from rich.table import Table
        from rich.text import Text

        table = Table(header_style="bold", pad_edge=False, box=None)
        for place, head in enumerate(self.block.heads):
            is_number = self.block.is_number(place)
            justify = "left"
            if is_number:
                justify = "right"
            table.add_column(head, justify=justify, overflow="fold", no_wrap=is_number, min_width=widths[place])
        for row in self.block.rows:
            table.add_row(*map(Text, row))
        return table

    def _as_lists(self) -> Iterator[Any]:
        """Yield the name of each row, and below it its other cells with their heads."""
        from rich.padding import Padding
        from rich.table import Table
        from rich.text import Text

        heads = self.block.heads[1:]
        for name, *cells in self.block.rows:
            table = Table.grid(padding=(0, GAP, 0, 0))
            table.add_column(min_width=max(map(len, heads)))
            table.add_column(overflow="fold")
            for head, cell in zip(heads, cells, strict=True):
                if cell not in ("", "-"):
                    table.add_row(head, Text(cell))
            yield Text(name, style="bold")
            yield Padding(table, (0, 0, 0, 2))
