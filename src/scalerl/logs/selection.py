"""Which rows of which tables make which curve: `Selection`, the shared options, and `Rows`, the rows of one curve.

A fault found here is one of a file as a whole, and raises InputError.
"""

import difflib
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from scalerl.errors import InputError
from scalerl.logs.axes import UNEVEN_TIME, disagreement
from scalerl.logs.columns import ARM, RUN, STEP_TIME, Reward, fill_from_step, find, label, value_counts
from scalerl.logs.facts import Fact
from scalerl.logs.names import ATTEMPT, FILE, CurveKey, file_names, listed
from scalerl.logs.runs import Span, chains
from scalerl.logs.table import Table, make_table, with_column, with_gpus, with_runs
from scalerl.logs.units import YScale, is_number

_MAX_PLACES = 5
# A column with more values than these, or hardly a row for each, does not name runs.
_MAX_RUNS = 64
_MIN_ROWS_PER_RUN = 3


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
    """On the scale that is fitted, after `y_scale`; "fit" leaves out rows at compute 0 and fits the start."""
    y_scale: YScale = "auto"
    holdout: tuple[str, str] | None = None
    gpus: float | None = None
    labels: tuple[str, ...] = ()
    """Names of the curves, or of the files, in their order."""
    bins: int | Literal["auto"] | None = None
    """Number of bins along compute in which the rewards of each run are averaged."""

    @property
    def mentioned(self) -> set[str]:
        """The columns that an option names as what separates rows."""
        named = [*self.by, self.seed, *(column for column, _ in self.where), *(self.holdout or ())[:1]]
        return {column for column in named if column is not None}

    @property
    def filters(self) -> list[tuple[str, str, str]]:
        """(column, = or !=, value) of each condition on rows."""
        return [*((name, "=", value) for name, value in self.where), *((n, "!=", v) for n, v in self.where_not)]

    def holds_out(self, row: dict[str, Any]) -> bool:
        return self.holdout is not None and same(row.get(self.holdout[0]), self.holdout[1])


@dataclass(frozen=True, slots=True, kw_only=True)
class Rows:
    """The rows of one curve that have both compute and reward, as arrays of equal length."""

    tables: Sequence[Table]
    table: NDArray[np.intp]
    at: NDArray[np.intp]
    """The row of that table."""
    x: NDArray[Any]
    """Compute as the file has it, and so the reward."""
    y: NDArray[Any]
    run: NDArray[Any]
    seed: NDArray[Any]
    """Value of the column that is recognised as seed; None where an option names one."""
    is_held_out: NDArray[Any]
    step: NDArray[Any]
    """The step of a log that may have been resumed; NaN in our run folders, whose rows are known to count."""

    @property
    def first(self) -> Table:
        return self.tables[self.table[0]]

    def take(self, which: NDArray[Any]) -> "Rows":
        arrays = ("table", "at", "x", "y", "run", "seed", "is_held_out", "step")
        return replace(self, **{name: getattr(self, name)[which] for name in arrays})

    def used_tables(self) -> list[Table]:
        return [self.tables[number] for number in dict.fromkeys(self.table.tolist())]

    def column(self, name: str) -> list[Any]:
        """Return the values of a column that is neither compute nor reward."""
        places = zip(self.table.tolist(), self.at.tolist(), strict=True)
        return [self.tables[number].rows[at].get(name) for number, at in places]

    def places(self, which: NDArray[np.bool_]) -> str:
        """Return the places of rows for a message: 'lines 3, 5 and 2 more of a.csv'."""
        chosen = [(self.tables[number], at) for number, at in zip(self.table[which], self.at[which], strict=True)]
        shown = [(table.places[at], table.path.name) for table, at in chosen[:_MAX_PLACES]]
        more = f" and {len(chosen) - len(shown)} more" if len(chosen) > len(shown) else ""
        units = {(place.rpartition(" ")[0], source) for place, source in shown}
        if len(shown) == 1 or len(units) > 1:
            return ", ".join(f"{place} of {source}" for place, source in shown) + more
        [(unit, source)] = units
        return f"{unit}s {', '.join(place.rpartition(' ')[2] for place, _ in shown)}{more} of {source}"


def same(value: object, wanted: str) -> bool:
    """Return whether a value is the one written on the command line: 1 is "1.0", true is "True", NaN is "nan"."""
    if value is None or isinstance(value, bool):
        return value is not None and str(value).lower() == str(wanted).lower()
    try:
        number, other = float(str(value)), float(wanted)
    except ValueError:
        return str(value) == str(wanted)
    return number == other or (math.isnan(number) and math.isnan(other))


def words_of(table: Table) -> list[str]:
    """Return the columns of text; none for a run folder, which is one run."""
    columns = [column for column in table.columns if column not in (FILE, table.seed) and table.kind != "run"]
    return [column for column in columns if all(isinstance(row.get(column), str | None) for row in table.rows)]


def curves_from(tables: Sequence[Table], selection: Selection) -> dict[CurveKey, Rows]:
    """Return the rows of each curve; at least one curve with a row."""
    if not tables:
        raise InputError("no file was given: name at least one log file or run folder.")
    if len(tables) > 1 and not selection.by and not selection.seed:
        tables = _with_joined_files(tables)
    files = file_names([table.path for table in tables])
    tables = [_prepared(table, file, selection, len(files)) for table, file in zip(tables, files, strict=True)]
    kept = _filtered(tables, selection)
    tables, columns = _split(tables, kept, selection)
    parts: dict[CurveKey, list[tuple[Any, ...]]] = {}
    for number, (table, file, rows) in enumerate(zip(tables, files, kept, strict=True)):
        for at in rows:
            row = table.rows[at]
            x, y = row.get(table.x or ""), row.get(table.y or "")
            if x is None or y is None:
                continue
            key = tuple((column, label(row.get(column))) for column in columns[number])
            # Files pooled into one curve are different runs, unless the user names the column of runs.
            run = label(row.get(selection.seed)) if selection.seed else file
            seed = label(row.get(table.seed)) if table.seed and not selection.seed else None
            step = row.get(table.step or "") if table.kind != "run" else None
            step = step if is_number(step) and math.isfinite(step) else math.nan
            parts.setdefault(key, []).append((number, at, x, y, run, seed, selection.holds_out(row), step))
    if not parts:
        raise InputError(_nothing_left(tables[0], kept[0]))
    return {key: _as_arrays(tables, found) for key, found in parts.items()}


def _as_arrays(tables: Sequence[Table], found: Sequence[tuple[Any, ...]]) -> Rows:
    """Return arrays, in which x, y, run and seed are as they are written: numbers, texts or lists."""
    arrays = []
    for kind, values in zip((np.intp, np.intp, *[object] * 4, bool, float), zip(*found, strict=True), strict=True):
        array = np.empty(len(found), dtype=kind)
        array[:] = values
        arrays.append(array)
    names = ("table", "at", "x", "y", "run", "seed", "is_held_out", "step")
    return Rows(tables=tables, **dict(zip(names, arrays, strict=True)))


# Files and columns that name runs


def _with_joined_files(tables: Sequence[Table]) -> list[Table]:
    """Join files of one folder that are attempts of one run: each begins in the later half of the one before it."""
    spans: dict[tuple[Any, ...], dict[int, Span]] = {}
    for at, table in enumerate(tables):
        steps = [row[table.step] for row in table.rows if table.step and is_number(row.get(table.step))]
        if table.kind != "run" and steps and ATTEMPT not in table.apart:
            own = (table.path.parent, table.kind, table.step, table.y)
            spans.setdefault(own, {})[at] = (min(steps), max(steps))
    joined: dict[int, Table | None] = dict(enumerate(tables))
    for run in (run for own in spans.values() for run in chains(own) if len(run) > 1):
        joined |= dict.fromkeys(run) | {run[0]: _as_one([tables[at] for at in run])}
    return [table for table in joined.values() if table is not None]


def _as_one(tables: Sequence[Table]) -> Table:
    parts = [(table.path.name, *(table.raw or (table,))) for table in tables]
    rows = [
        (f"{file} {place}", {name: value for name, value in row.items() if name not in table.built})
        for file, table in parts
        for place, row in zip(table.places, table.rows, strict=True)
    ]
    fact = Fact(kind="files_joined", values={"files": tuple(file for file, _ in parts)})
    return make_table(tables[0].path, tables[0].kind, rows, apart=tables[0].apart, facts=(fact,))


def _split(
    tables: Sequence[Table], kept: Sequence[Sequence[int]], selection: Selection
) -> tuple[list[Table], list[list[str]]]:
    """Return the tables with what they know of their curves, and for each the columns whose values are curves."""
    tables = [_with_named_runs(table, selection) for table in tables]
    values: dict[str, set[str]] = {}
    for table, rows in zip(tables, kept, strict=True):
        for column in table.apart:
            values.setdefault(column, set()).update(label(table.rows[at].get(column)) for at in rows)
    several = [name for name, found in values.items() if len(found) > 1 and name not in selection.mentioned]
    if ATTEMPT not in several:
        tables = [replace(table, facts=tuple(f for f in table.facts if f.kind != "attempts")) for table in tables]
    base = list(selection.by or (FILE,))
    return tables, [[*base, *(column for column in several if column in table.apart)] for table in tables]


def _with_named_runs(table: Table, selection: Selection) -> Table:
    """Make what a column names separate curves, where nobody says what separates curves.

    A recipe, arm or model is a curve, and the runs and seeds within it are its repeats; a run is a curve of its own
    where there is no such column, unless each run has a seed of its own.
    """
    if table.kind == "run" or selection.by:
        return table
    rows = [row for row in table.rows if row.get(table.x or "") is not None and row.get(table.y or "") is not None]
    free = [column for column in table.columns if column not in {*selection.mentioned, *table.apart}]
    arms = [arm for arm in (find((name,), free) for name in ARM) if arm is not None and _names_runs(rows, arm)]
    run = find(RUN, free)
    if arms:
        table = replace(table, seed=table.seed or run)
    elif run is None or selection.seed or not _names_runs(rows, run):
        return table
    else:
        pairs = {(label(row[run]), label(row.get(table.seed or ""))) for row in rows}
        if table.seed is not None and len(pairs) == len({seed for _, seed in pairs}):
            return table
    named = arms or [str(run)]
    facts = [Fact(kind="runs_apart", values={"column": name, "num": len(value_counts(rows, name))}) for name in named]
    return replace(table, apart=(*table.apart, *named), facts=(*table.facts, *facts))


def _names_runs(rows: Sequence[dict[str, Any]], column: str) -> bool:
    """Return whether every row has a value here, most values with several rows."""
    counts = value_counts(rows, column)
    return 2 <= len(counts) <= _MAX_RUNS and "None" not in counts and median(counts.values()) >= _MIN_ROWS_PER_RUN


# A table as a whole


def _prepared(table: Table, file: str, selection: Selection, num_files: int) -> Table:
    """Add the file name as a column and compute to every row that can have it; check the columns asked for."""
    if table.raw and (named := [name for name in table.raw[0].columns if name in selection.mentioned]):
        table = with_runs(table, named)
    x = None
    if selection.x is None and table.kind == "run" and table.x == "gpu_hours" and "arm" not in table.columns:
        share = disagreement(table.rows)
        if share > UNEVEN_TIME:
            x = "flops" if num_files == 1 else "gpu_hours"
            table = replace(table, facts=(*table.facts, Fact(kind="uneven_time", values={"share": share, "used": x})))
    if selection.gpus is not None:
        table = with_gpus(table, selection.gpus)
    if FILE not in table.columns:
        table = replace(with_column(table, FILE, [file] * len(table.rows)), built=table.built)
    _check_columns(table, selection)
    x = selection.x or x or table.x
    assert x is not None
    if x != table.step:
        # Before any filter: the row of the same step that holds the compute may be one the filter drops.
        computes = fill_from_step(table.rows, x, table.step)
        table = replace(table, rows=[{**row, x: value} for row, value in zip(table.rows, computes, strict=True)])
    reward = Reward(column=selection.y, kind="evaluation") if selection.y is not None else table.reward
    return replace(table, x=x, reward=reward)


def _check_columns(table: Table, selection: Selection) -> None:
    given = [("--x", selection.x), ("--y", selection.y), ("--seed", selection.seed)]
    given += [("--by", column) for column in selection.by]
    given += [("--where", column) for column, _, _ in selection.filters]
    given += [("--holdout", selection.holdout[0])] if selection.holdout else []
    for option, column in given:
        if column is not None and column not in table.columns:
            raise InputError(_no_column(table, option, column))
    if selection.gpus is not None and selection.x is None and table.x in (None, table.step):
        raise InputError(
            f"--gpus {selection.gpus:g} needs a clock, and {table.path} has no column for it "
            f"({', '.join(STEP_TIME[:2])}, step_time, timestamp ...): choose the compute column with --x among "
            f"{listed(table.columns)}."
        )
    for option, column, what in (("--x", selection.x or table.x, "compute"), ("--y", selection.y or table.y, "reward")):
        if column is None:
            raise InputError(
                f"{table.path} has no column recognised as {what}: choose one with {option} among "
                f"{listed(table.columns)}."
            )


def _no_column(table: Table, option: str, column: str) -> str:
    close = difflib.get_close_matches(column, table.columns, n=3, cutoff=0.6)
    close += [name for name in table.columns if column.lower() in name.lower() and name not in close]
    rest = [name for name in table.columns if name not in close]
    hint = f"did you mean {close[0]!r}? It" if close else "it"
    if column == "gpu_hours" and "hours" in table.columns:
        hint = "--gpus N builds it from the log's clock; it"
    return f"{table.path} has no column {column!r} ({option}): {hint} has {listed([*close, *rest])}."


def _filtered(tables: Sequence[Table], selection: Selection) -> list[list[int]]:
    """Return the rows of each table that the filters keep."""
    kept = [list(range(len(table.rows))) for table in tables]
    for column, sign, wanted in selection.filters:
        before = kept
        kept = [
            [at for at in rows if same(table.rows[at].get(column), wanted) == (sign == "=")]
            for table, rows in zip(tables, kept, strict=True)
        ]
        if not any(kept):
            raise InputError(_matches_nothing(tables, before, f"--where {column}{sign}{wanted}", column))
    rows = (table.rows[at] for table, own in zip(tables, kept, strict=True) for at in own)
    if selection.holdout and not any(map(selection.holds_out, rows)):
        option = f"--holdout {'='.join(selection.holdout)}"
        raise InputError(_matches_nothing(tables, kept, option, selection.holdout[0]))
    return kept


def _matches_nothing(tables: Sequence[Table], kept: Sequence[Sequence[int]], option: str, column: str) -> str:
    cells = (table.rows[at].get(column) for table, rows in zip(tables, kept, strict=True) for at in rows)
    values = dict.fromkeys(label(cell) for cell in cells if cell is not None)
    held = f"the values there are {listed(list(values))}" if values else "that column holds no values"
    return f"{option} matches no row of {listed([str(table.path) for table in tables])}: {held}."


def _nothing_left(table: Table, rows: Sequence[int]) -> str:
    with_x, with_y = (sum(table.rows[at].get(column or "") is not None for at in rows) for column in (table.x, table.y))
    return (
        f"no usable curve: of the {len(rows)} rows selected from {table.path}, {with_x} have {table.x!r}, "
        f"{with_y} have {table.y!r} and none has both; choose other columns with --x and --y."
    )
