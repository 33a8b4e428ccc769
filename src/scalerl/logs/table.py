"""`Table`: the rows of one log as columns, whatever its format and shape.

Names, words and numbers are cleaned here. Tables of other shapes become one row per run and step, and evaluations that
share a column with training get their own.
"""

import itertools
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scalerl import store
from scalerl.errors import InputError
from scalerl.logs import columns as names
from scalerl.logs import units
from scalerl.logs.columns import Reward, choose_y, has_role, is_evaluation, is_measured, plain, run_labels
from scalerl.logs.facts import Fact
from scalerl.logs.names import clean, listed
from scalerl.logs.source import Source
from scalerl.logs.units import NOTHING, Cells, Floats, Mask, column_of, known, logged, numeric

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
_TRAINING = re.compile(r"train\w*", re.IGNORECASE)
_EVALUATION = re.compile(r"(eval|val|valid|test)\w*", re.IGNORECASE)
_VALUE = "value"
_SEPARATOR = " - "
_COMPANIONS = ("__MIN", "__MAX")
# Columns of one metric have peaks within this factor.
_ALIKE = 10.0


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
        return units.grouped(zip(np.zeros(len(self)), *(map(str, self[name]) for name in labels), strict=True))


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
        values = [units.number(v) if isinstance(v, int) and v.bit_length() > _MAX_BITS else v for v in values]
    if str not in kinds:
        return column_of(values, len(values))
    values = [clean(value) if isinstance(value, str) else value for value in values]
    is_absent = [isinstance(value, str) and value.strip().lower() in units.ABSENT for value in values]
    cells = column_of((None if gone else value for gone, value in zip(is_absent, values, strict=True)), len(values))
    if kinds & {list, bool, dict}:
        return cells
    there = np.flatnonzero(logged(cells))
    texts = [str(cell).strip() for cell in cells[there]]
    steps = [_STEP_OF.fullmatch(text) for text in texts] if has_role(column, "step") else [None]
    texts = [step[1] for step in steps if step] if all(steps) else texts
    numbers = column_of(units.as_numbers(texts, decimal_comma=decimal_comma))
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


# Training beside its evaluations


def are_splits(names: Iterable[str]) -> bool:
    """Return whether names are those of training and its evaluations, and not of runs."""
    return all(_TRAINING.fullmatch(name) or _EVALUATION.fullmatch(name) for name in names)


def with_evaluations(table: Table) -> Table:
    """Give each evaluation a column of its own, as eval/acc, where rows differ in a word such as split=eval."""
    column = table.find("split")
    split = column_of(map(str, table[column]))
    words = set(split) - {"None"}
    tests = sorted(word for word in words if not _TRAINING.fullmatch(word))
    if not tests or len(words) < 2 or not are_splits(words):
        return table
    kept, new = {}, {}
    for name, cells in table.cells.items():
        seen = set(split[logged(cells)])
        if not is_evaluation(name) and not seen.isdisjoint(tests) and choose_y({name: cells}):
            new |= {f"{word}/{name}": np.where(split == word, cells, NOTHING) for word in tests if word in seen}
            cells = np.where(np.isin(split, tests), NOTHING, cells)
        if name != column and logged(cells).any():
            kept[name] = cells
    if not new:
        return table
    table = replace(table, cells={**kept, **new}, built=(*table.built, *new))
    return table.noting("evaluations_apart", columns=tuple(new))


# Tables of other shapes


def one_row_per_run_and_step(table: Table, source: Source) -> Table:
    """Return a table with one row per run and step; the values in it were counted when they were read."""
    if series := run_columns(table):
        metrics = {metric for _, metric in series.values() if not metric.startswith("_")}
        reward = Reward(column=metrics.pop(), kind="evaluation") if len(metrics) == 1 else None
        table = replace(table, kind="wandb" if table.kind == "csv" else table.kind, reward=reward)
        table = table.noting("one_column_per_run", columns=tuple(dict.fromkeys(run for run, _ in series.values())))
        rows = one_row_per_run(table, series)
    else:
        rows = one_row_per_step(table) if table.find("metric") else []
    if not rows:
        return table
    cells, places = tabled(rows, source, is_counted=True)
    return replace(table, cells=cells, places=places)


def run_columns(table: Table) -> dict[str, tuple[str, str]]:
    """Map columns to (run, metric) in a table with one column per run, empty for any other.

    wandb exports 'run - metric' beside its __MIN and __MAX. Other tables have a step and columns of numbers, none of
    which is named as anything that trainers measure.
    """
    parts = {name: name.rpartition(_SEPARATOR) for name in table.columns if not name.endswith(_COMPANIONS)}
    exported = {column: (run, metric) for column, (run, separator, metric) in parts.items() if separator}
    if any(f"{column}__MIN" in table.cells for column in exported) or len(exported) == len(table.columns) - 1 > 0:
        return exported
    step = table.find("step", "coarse")
    others = [column for column in table.columns if column != step]
    if step is None or len(others) < 2 or any(map(is_measured, others)):
        return {}
    values = [numeric(table[name][logged(table[name])]) for name in others]
    peaks = [np.nanmax(np.abs(own), initial=0.0) for own in values]
    lows = [np.nanmin(own, initial=0.0) for own in values]
    is_rate = min(lows) >= -1 and max(peaks) <= 100
    is_alike = all(map(len, values)) and (is_rate or max(peaks) <= _ALIKE * min(peaks))
    are_numbers = all(np.isnan(table.numbers(name)).sum() == (~known(table[name])).sum() for name in others)
    return {column: (column, _VALUE) for column in others} if is_alike and are_numbers else {}


def one_row_per_run(table: Table, series: Mapping[str, tuple[str, str]]) -> list[Placed]:
    """Return one row per run and row of a table with one column per run."""
    placed: list[Placed] = []
    for place, row in zip(table.places, table.rows, strict=True):
        base = {name: cell for name, cell in row.items() if name not in series and not name.endswith(_COMPANIONS)}
        runs: dict[str, dict[str, Any]] = {}
        for column in series.keys() & row.keys():
            run, metric = series[column]
            runs.setdefault(run, {**base, "run": run})[metric] = row[column]
        placed += [(place, runs[run]) for run in dict.fromkeys(run for run, _ in series.values()) if run in runs]
    return placed


# Tables with one metric per row


def one_row_per_step(table: Table) -> list[Placed]:
    """Return one row per step and run, with a column per metric, of a table with one metric per row; else none."""
    step, value, metric = map(table.find, ("step", "value", "metric"))
    if not (step and value and metric):
        return []
    words = Counter(table[metric])
    # A "name" may be that of a run.
    is_metric = plain(metric) != "name" or any(choose_y({str(word): table[value]}) for word in words)
    if 2 * len(words) > len(table) or {str} != set(map(type, words)) or not is_metric:
        return []
    labels = [column for column in run_labels(table.cells, step) if column not in (metric, value, step)]
    rows: dict[tuple[str, ...], dict[str, Any]] = {}
    wide: list[Placed] = []
    keys = zip(*(map(str, table[column]) for column in (step, *labels)), strict=True)
    for key, place, row in zip(keys, table.places, table.rows, strict=True):
        # A metric that a step already has was logged again, by a resumed run: its row comes later.
        if key not in rows or row[metric] in rows[key]:
            rows[key] = {name: cell for name, cell in row.items() if name not in (metric, value)}
            wide.append((place, rows[key]))
        rows[key][row[metric]] = row.get(value)
    return wide
