"""`Selection`: what the commands' shared options say about columns and rows, and the checks against a table."""

import difflib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from scalerl.errors import InputError
from scalerl.logs.names import FILE, listed
from scalerl.logs.table import Table
from scalerl.logs.units import Cells, Mask, YScale, label, number


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """What the commands' shared options say."""

    x: str | None = None
    y: str | None = None
    by: tuple[str, ...] = ()
    seed: str | None = None
    where: tuple[tuple[str, str], ...] = ()
    """(column, value) that a row must have."""
    where_not: tuple[tuple[str, str], ...] = ()
    """(column, value) that a row must not have."""
    start: float | Literal["first", "fit"] | None = None
    """In the unit of the log; "fit" leaves out rows at compute 0 and fits the start."""
    y_scale: YScale = "auto"
    holdout: tuple[str, str] | None = None
    gpus: float | None = None
    labels: tuple[str, ...] = ()
    """Names of the curves, or of the files, in their order."""

    @property
    def mentioned(self) -> set[str]:
        """The columns that an option names as what separates rows."""
        named = [*self.by, self.seed, *(column for column, _ in self.where), *(self.holdout or ())[:1]]
        return {column for column in named if column is not None}

    def check(self, table: Table) -> None:
        """Raise InputError where a column asked for is not there, or none was recognised."""
        asked = [("--x", self.x), ("--y", self.y), ("--seed", self.seed), *(("--by", column) for column in self.by)]
        asked += [("--where", column) for column, _ in (*self.where, *self.where_not)]
        asked += [("--holdout", self.holdout[0])] if self.holdout else []
        for option, column in asked:
            if column is not None and column not in table.cells:
                raise InputError(_no_column(table, option, column))
        columns = listed([name for name in table.columns if name != FILE])
        if not columns:
            raise InputError(f"{table.path} has rows, but no value in them: give the log of a run.")
        if self.gpus is not None and self.x is None and table.x in (None, table.step):
            raise InputError(
                f"--gpus {self.gpus:g} needs a clock, and {table.path} has no column for it "
                f"(time/step, step_time, timestamp ...): choose the compute column with --x among {columns}."
            )
        for option, what, column in (("--x", "compute", table.x), ("--y", "reward", table.y)):
            if column is None:
                raise InputError(
                    f"{table.path} has no column recognised as {what}: choose one with {option} among {columns}."
                )

    def filtered(self, tables: Sequence[Table]) -> list[Table]:
        """Return the tables with the rows that the filters keep; InputError for an option that matches no row."""
        for wanted, is_kept in ((self.where, True), (self.where_not, False)):
            for column, value in wanted:
                option = f"--where {column}{'=' if is_kept else '!='}{value}"
                kept = [table.take(same(table[column], value) == is_kept) for table in tables]
                tables = _some(kept, tables, option, column)
        if self.holdout:
            column, value = self.holdout
            held = [table.take(same(table[column], value)) for table in tables]
            _some(held, tables, f"--holdout {column}={value}", column)
        return list(tables)


def _some(kept: Sequence[Table], tables: Sequence[Table], option: str, column: str) -> Sequence[Table]:
    if any(map(len, kept)):
        return kept
    values = dict.fromkeys(label(cell) for table in tables for cell in table[column] if cell is not None)
    held = f"the values there are {listed(list(values))}" if values else "that column holds no values"
    raise InputError(f"{option} matches no row of {listed([str(table.path) for table in tables])}: {held}.")


def same(cells: Cells, wanted: str) -> Mask:
    """Return which cells hold the value written on the command line: 1 is "1.0", true is "True", NaN is "nan"."""
    asked = {wanted, str(number(wanted)), *({"true", "false"} & {wanted.lower()})}
    return np.array([cell is not None and _written(cell) in asked for cell in cells], dtype=bool)


def _written(cell: Any) -> str:
    if isinstance(cell, bool):
        return str(cell).lower()
    value = number(cell)
    return str(cell) if value is None else str(value)


def _no_column(table: Table, option: str, column: str) -> str:
    close = difflib.get_close_matches(column, table.columns, n=3, cutoff=0.6)
    close += [name for name in table.columns if column.lower() in name.lower() and name not in close]
    rest = [name for name in table.columns if name not in close]
    hint = f"did you mean {close[0]!r}? It" if close else "it"
    if column == "gpu_hours" and "hours" in table.cells:
        hint = "--gpus N builds it from the log's clock; it"
    return f"{table.path} has no column {column!r} ({option}): {hint} has {listed([*close, *rest])}."
