"""`Table`: the rows of one log as columns, whatever its format. Names, words and numbers are cleaned here."""

import itertools
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scalerl import store
from scalerl.errors import InputError
from scalerl.logs import columns as names
from scalerl.logs.columns import Reward
from scalerl.logs.facts import Fact
from scalerl.logs.names import clean, listed
from scalerl.logs.source import Source
from scalerl.logs.units import ABSENT, Cells, Floats, Mask, as_numbers, column_of, known, logged, number, numeric

Placed = tuple[str, Mapping[str, Any]]
"""A row and its place in the log, such as 'line 12'."""

_MAX_PLACES = 5
_MAX_DEPTH = 8
# Larger integers are beyond floats, and become infinite.
_MAX_BITS = 1000
# What an empty cell costs of the limit on values: columns that hardly any row has.
_EMPTY_CELL = 0.1
# A step as ms-swift writes it, '5/400', and as folders are named, 'checkpoint-5'.
_STEP_OF = re.compile(r"(?:[A-Za-z][A-Za-z_ -]*)?(\d+)(?:\s*/\s*\d+)?")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Table:
    """Columns of one log."""

    path: Path
    kind: str
    """The name of the format (formats.py)."""
    cells: Mapping[str, Cells]
    places: Cells
    """Position of each row, for messages: 'line 12'."""
    x: str | None = None
    reward: Reward | None = None
    seed: str | None = None
    """Its values are runs of one curve unless --seed names another column."""
    apart: tuple[str, ...] = ()
    """Columns whose values are known to be separate curves: a run folder's sets, wandb's runs."""
    built: tuple[str, ...] = ()
    """Columns that are not in the log: hours from its clock, evaluations that share a column with training."""
    facts: tuple[Fact, ...] = ()
    """What the reader decided that the user did not ask for."""
    raw: "Table | None" = None
    """The table as it was read, before its attempts were joined."""

    def __len__(self) -> int:
        return len(self.places)

    def __getitem__(self, column: str | None) -> Cells:
        """Return a column; one that is not there holds nothing."""
        return self.cells.get(column or "", np.full(len(self), None))

    @property
    def columns(self) -> list[str]:
        return list(self.cells)

    @property
    def y(self) -> str | None:
        return self.reward.column if self.reward else None

    @property
    def step(self) -> str | None:
        return self.find("step")

    @property
    def rows(self) -> list[dict[str, Any]]:
        """The rows, each with what it holds."""
        return [
            {name: cell for name, cell in zip(self.cells, row, strict=True) if cell is not None}
            for row in zip(*self.cells.values(), strict=True)
        ]

    def find(self, *wanted: str) -> str | None:
        """Return the first column that has one of these roles."""
        return names.find(self.cells, *wanted)

    def numbers(self, column: str | None) -> Floats:
        """Return a column as numbers, NaN where there is none."""
        return numeric(self[column])

    def take(self, which: Any) -> "Table":
        """Return the table with these rows, by mask or index."""
        cells = {name: cells[which] for name, cells in self.cells.items()}
        return replace(self, cells=cells, places=self.places[which])

    @property
    def is_measured(self) -> Mask:
        """Which rows have both compute and reward."""
        return logged(self[self.x]) & logged(self[self.y])

    def where(self, mask: Any) -> str:
        """Return the places of rows for a message: 'line 3, line 5 and 2 more of a.csv'."""
        return f"{listed(list(self.places[mask]), _MAX_PLACES)} of {self.path.name}"

    def with_column(self, name: str, values: Iterable[Any]) -> "Table":
        """Return the table with a column that is not in the log."""
        return replace(self, cells={**self.cells, name: column_of(values, len(self))}, built=(*self.built, name))

    def noting(self, kind: str, **values: Any) -> "Table":
        """Return the table with a fact, which is said once."""
        fact = Fact(kind=kind, values=values)
        return self if fact in self.facts else replace(self, facts=(*self.facts, fact))

    def groups(self, labels: Iterable[str]) -> dict[Any, NDArray[np.intp]]:
        """Return the positions of the rows that agree in these columns."""
        return names.grouped(zip(np.zeros(len(self)), *(map(str, self[name]) for name in labels), strict=True))


def pooled(parts: Sequence[Table]) -> Table:
    """Return the rows of several tables as one; of one as they are."""
    if len(parts) == 1:
        return parts[0]
    first, seed = parts[0], next((part.seed for part in parts if part.seed), None)
    columns = dict.fromkeys(name for part in parts for name in part.cells)
    return replace(
        first,
        path=first.path.absolute().parent,
        seed=seed,
        cells={name: np.concatenate([part[part.seed if name == seed else name] for part in parts]) for name in columns},
        places=column_of(f"{part.path.name} {place}" for part in parts for place in part.places),
        facts=tuple({repr(fact): fact for part in parts for fact in part.facts}.values()),
    )


def tabled(placed: Iterable[Placed], source: Source, *, is_counted: bool = False) -> tuple[dict[str, Cells], Cells]:
    """Return rows as columns, and their places; InputError for no rows.

    Values that were counted before, in rows of another shape, are within the limit: only new empty cells are counted.
    """
    rows, places = [], []
    for place, row in placed:
        source.spend(0 if is_counted else len(row) + 1)
        rows.append(row)
        places.append(place)
    if not rows:
        what = "holds no rows yet: wait until the run has logged something."
        if store.is_run_folder(source.path):
            what = f"has no rows in {store.EVALS} yet: wait for its first evaluation."
        raise InputError(f"{source.path} {what}")
    columns = dict.fromkeys(itertools.chain.from_iterable(rows))
    source.spend(_EMPTY_CELL * (len(rows) * len(columns) - sum(map(len, rows))))
    cells: dict[str, Cells] = {}
    for at, column in enumerate(columns, start=1):
        name = clean(str(column)) or f"column {at}"
        values = _column(name, [row.get(column) for row in rows], decimal_comma=source.decimal_comma)
        cells[name] = np.where(known(values), values, cells[name]) if name in cells else values
    return cells, column_of(places)


def _column(column: str, values: list[Any], *, decimal_comma: bool) -> Cells:
    """Return a column, clean, with numbers in place of texts that are numbers, if it holds little else."""
    kinds = set(map(type, values))
    if int in kinds:
        values = [number(v) if isinstance(v, int) and v.bit_length() > _MAX_BITS else v for v in values]
    if str not in kinds:
        return column_of(values, len(values))
    values = [clean(value) if isinstance(value, str) else value for value in values]
    is_absent = [isinstance(value, str) and value.strip().lower() in ABSENT for value in values]
    cells = column_of((None if gone else value for gone, value in zip(is_absent, values, strict=True)), len(values))
    if kinds & {list, bool, dict}:
        return cells
    there = np.flatnonzero(logged(cells))
    texts = [str(cell).strip() for cell in cells[there]]
    steps = [_STEP_OF.fullmatch(text) for text in texts] if names.has_role(column, "step") else [None]
    texts = [step[1] for step in steps if step] if all(steps) else texts
    numbers = column_of(as_numbers(texts, decimal_comma=decimal_comma))
    is_read = logged(numbers)
    if 2 * is_read.sum() > len(numbers):  # 3e7 may be a label beside 'base'
        cells[there[is_read]] = numbers[is_read]
    return cells


def flatten(row: Mapping[str, Any], prefix: str = "", depth: int = 0) -> dict[str, Any]:
    """Turn nested objects into one level: {'loss': {'kl': 1}} becomes {'loss/kl': 1}."""
    flat: dict[str, Any] = {}
    for key, value in row.items():
        if not isinstance(value, dict):
            flat[f"{prefix}{key}"] = value
        elif depth < _MAX_DEPTH:
            flat |= flatten(value, f"{prefix}{key}/", depth + 1)
    return flat
