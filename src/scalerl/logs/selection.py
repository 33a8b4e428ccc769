"""Which rows of which tables make which curve: `Selection`, the shared options, and `Points`, the rows of a curve.

A fault found here is one of a file as a whole, and raises InputError.
"""

import difflib
import itertools
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from scalerl.errors import InputError
from scalerl.logs.axes import UNEVEN_TIME, disagreement
from scalerl.logs.columns import ARM, RUN, STEP_TIME, Reward, choose_y, fill_from_step, find, label, plain
from scalerl.logs.facts import Fact
from scalerl.logs.names import ATTEMPT, FILE, CurveKey, file_names, listed
from scalerl.logs.runs import Span, chains, span_of
from scalerl.logs.table import Table, make_table, with_column, with_gpus, with_runs
from scalerl.logs.text import SPLIT
from scalerl.logs.units import YScale, is_nan, number, numbers

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

    @property
    def filters(self) -> list[tuple[str, str, str]]:
        """(column, = or !=, value) of each condition on rows."""
        return [*((name, "=", value) for name, value in self.where), *((n, "!=", v) for n, v in self.where_not)]

    def holds_out(self, row: dict[str, Any]) -> bool:
        return self.holdout is not None and same(row.get(self.holdout[0]), self.holdout[1])


@dataclass(frozen=True, slots=True, kw_only=True)
class Points:
    """The rows of a curve that have both compute and reward, as the files have them."""

    tables: list[Table]
    """The table of each row."""
    rows: list[dict[str, Any]]
    places: list[str]
    run: NDArray[np.str_]
    held: NDArray[np.bool_]
    """Rows that `--holdout` names."""
    is_run_named: bool
    """Whether an option names the column of runs."""

    def take(self, which: Any) -> "Points":
        """Return some of the points, by mask or index, in the order given."""
        at = np.arange(len(self.rows))[which]
        picked = {name: [getattr(self, name)[n] for n in at] for name in ("tables", "rows", "places")}
        return replace(self, **picked, run=self.run[at], held=self.held[at])

    @property
    def table(self) -> Table:
        return self.tables[0]

    def distinct_tables(self) -> list[Table]:
        return list({id(table): table for table in self.tables}.values())

    def cells(self, role: str) -> list[Any]:
        """Return what each row has in its table's column of x, y, step, seed or num_samples; None for nothing."""
        return [row.get(getattr(table, role) or "") for row, table in zip(self.rows, self.tables, strict=True)]

    def where(self, mask: Any) -> str:
        """Return the places of points for a message: 'lines 3, 5 and 2 more of a.csv'."""
        found = np.flatnonzero(mask)
        shown = [(*self.places[at].rpartition(" ")[::2], self.tables[at].path.name) for at in found[:_MAX_PLACES]]
        more = f" and {len(found) - len(shown)} more" if len(found) > len(shown) else ""
        units = {(unit, file) for unit, _, file in shown}
        if len(shown) == 1 or len(units) > 1:
            return ", ".join(f"{unit} {at} of {file}" for unit, at, file in shown) + more
        [(unit, file)] = units
        return f"{unit}s {', '.join(at for _, at, _ in shown)}{more} of {file}"


def same(value: object, wanted: str) -> bool:
    """Return whether a value is the one written on the command line: 1 is "1.0", true is "True", NaN is "nan"."""
    if value is None or isinstance(value, bool):
        return value is not None and str(value).lower() == str(wanted).lower()
    one, other = number(value), number(wanted)
    return (
        str(value) == str(wanted) if one is None or other is None else one == other or (is_nan(one) and is_nan(other))
    )


def words_of(table: Table) -> list[str]:
    """Return the columns of text; none for a run folder, which is one run."""
    columns = [column for column in table.columns if column not in (FILE, table.seed) and table.kind != "run"]
    return [column for column in columns if all(isinstance(row.get(column), str | None) for row in table.rows)]


def curves_from(tables: Sequence[Table], selection: Selection) -> dict[CurveKey, Points]:
    """Return the points of each curve; at least one curve with a point."""
    if not tables:
        raise InputError("no file was given: name at least one log file or run folder.")
    if len(tables) > 1 and not selection.by and not selection.seed:
        tables = _with_joined_files(tables)
    files = file_names([table.path for table in tables])
    tables = _filtered(
        [_prepared(table, file, selection, len(files)) for table, file in zip(tables, files, strict=True)], selection
    )
    tables = [_with_named_runs(table, selection) for table in tables]
    found: dict[str, set[str]] = {}
    for table in tables:
        for column in table.apart:
            found.setdefault(column, set()).update(label(row.get(column)) for row in table.rows)
    several = {name for name, values in found.items() if len(values) > 1 and name not in selection.mentioned}
    curves: dict[CurveKey, list[tuple[Table, dict[str, Any], str]]] = {}
    for table in tables:
        if ATTEMPT not in several:
            table = replace(table, facts=tuple(fact for fact in table.facts if fact.kind != "attempts"))
        columns = [*(selection.by or (FILE,)), *(column for column in table.apart if column in several)]
        for row, place in zip(table.rows, table.places, strict=True):
            if row.get(table.x or "") is not None and row.get(table.y or "") is not None:
                key = tuple((column, label(row.get(column))) for column in columns)
                curves.setdefault(key, []).append((table, row, place))
    if not curves:
        raise InputError(_nothing_left(tables[0]))
    return {key: _points(own, selection) for key, own in curves.items()}


def _points(found: Sequence[tuple[Table, dict[str, Any], str]], selection: Selection) -> Points:
    tables, rows, places = map(list, zip(*found, strict=True))
    # Files pooled into one curve are different runs, unless the user names the column of runs.
    run = np.array([label(row.get(selection.seed or FILE)) for row in rows])
    held = np.array([selection.holds_out(row) for row in rows])
    return Points(tables=tables, rows=rows, places=places, run=run, held=held, is_run_named=bool(selection.seed))


# Files and columns that name runs


def _with_joined_files(tables: Sequence[Table]) -> list[Table]:
    """Join files of one folder that are attempts of one run: each begins in the later half of the one before it."""
    families: dict[tuple[Any, ...], dict[int, Span]] = {}
    num = Counter(table.path.name for table in tables)
    for at, table in enumerate(tables):
        span = span_of(numbers(table.rows, table.step))
        if table.kind != "run" and span and ATTEMPT not in table.apart:
            # Files of one name lie in folders of one folder.
            folder = table.path.parents[num[table.path.name] > 1]
            families.setdefault((folder, table.kind, table.step, table.y), {})[at] = span
    joined: dict[int, Table | None] = dict(enumerate(tables))
    for run in (run for spans in families.values() for run in chains(spans) if len(run) > 1):
        joined |= dict.fromkeys(run) | {run[0]: _as_one([tables[at] for at in run])}
    return [table for table in joined.values() if table is not None]


def _as_one(tables: Sequence[Table]) -> Table:
    rows = [
        (f"{table.path.name} {place}", {name: value for name, value in row.items() if name not in raw.built})
        for table in tables
        for raw in table.raw or (table,)
        for place, row in zip(raw.places, raw.rows, strict=True)
    ]
    fact = Fact(kind="files_joined", values={"files": tuple(table.path.name for table in tables)})
    return make_table(tables[0].path, tables[0].kind, rows, apart=tables[0].apart, facts=(fact,))


def _with_named_runs(table: Table, selection: Selection) -> Table:
    """Make what a column names separate curves, where nobody says what separates curves.

    A recipe, arm or model is a curve, and the runs and seeds within it are its repeats; a run is a curve of its own
    where there is no such column, unless each run has a seed of its own.
    """
    if table.kind == "run" or selection.by:
        return table
    rows = [row for row in table.rows if row.get(table.x or "") is not None and row.get(table.y or "") is not None]
    free = [column for column in table.columns if column not in {*selection.mentioned, *table.apart}]
    counts = {
        name: Counter(label(row.get(name)) for row in rows)
        for name in (find((each,), free) for each in (*ARM, *RUN))
        if name
    }
    # Every row has a value there, and most values have several rows.
    named = [
        name
        for name, own in counts.items()
        if 2 <= len(own) <= _MAX_RUNS and "None" not in own and median(own.values()) >= _MIN_ROWS_PER_RUN
    ]
    run = find(RUN, free) or ""
    arms = [name for name in named if plain(name) in ARM]
    apart = arms or [name for name in named if name == run and not selection.seed]
    pairs = {(label(row.get(run)), label(row.get(table.seed or ""))) for row in rows}
    if not apart or (not arms and table.seed and len(pairs) == len({seed for _, seed in pairs})):
        return table
    facts = [Fact(kind="runs_apart", values={"column": name, "num": len(counts[name])}) for name in apart]
    seed = table.seed or (run if arms and run else None)
    return replace(table, seed=seed, apart=(*table.apart, *apart), facts=(*table.facts, *facts))


# A table as a whole


def _prepared(table: Table, file: str, selection: Selection, num_files: int) -> Table:
    """Add the file name as a column and compute to every row that can have it; check the columns asked for."""
    if table.raw and (named := [name for name in table.raw[0].columns if name in selection.mentioned]):
        table = with_runs(table, named)
    x = selection.x
    if x is None and table.kind == "run" and table.x == "gpu_hours" and "arm" not in table.columns:
        share = disagreement(table.rows)
        if share > UNEVEN_TIME:
            x = "flops" if num_files == 1 else "gpu_hours"
            table = replace(table, facts=(*table.facts, Fact(kind="uneven_time", values={"share": share, "used": x})))
    if selection.gpus is not None:
        table = with_gpus(table, selection.gpus)
    if FILE not in table.columns:
        table = replace(with_column(table, FILE, [file] * len(table.rows)), built=table.built)
    table = replace(table, x=x or table.x)
    if selection.y is not None:
        table = replace(table, reward=Reward(column=selection.y, kind="evaluation"))
    elif table.y in table.built and any(plain(name) in SPLIT for name in selection.mentioned):
        logged = choose_y([name for name in table.columns if name not in table.built], table.rows)
        facts = tuple(fact for fact in table.facts if fact.kind != "evaluations_apart")
        table = replace(table, reward=logged, facts=facts)
    _check_columns(table, selection)
    if table.x and table.x != table.step:
        # Before any filter: the row of the same step that holds the compute may be one the filter drops.
        computes = fill_from_step(table.rows, table.x, table.step)
        table = replace(table, rows=[{**row, table.x: value} for row, value in zip(table.rows, computes, strict=True)])
    return table


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
    for option, column, what in (("--x", table.x, "compute"), ("--y", table.y, "reward")):
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


def _filtered(tables: Sequence[Table], selection: Selection) -> list[Table]:
    """Return the tables with the rows that the filters keep."""
    for column, sign, wanted in selection.filters:
        kept = [_rows_where(table, column, sign, wanted) for table in tables]
        if not any(table.rows for table in kept):
            raise InputError(_matches_nothing(tables, f"--where {column}{sign}{wanted}", column))
        tables = kept
    if selection.holdout and not any(selection.holds_out(row) for table in tables for row in table.rows):
        raise InputError(_matches_nothing(tables, f"--holdout {'='.join(selection.holdout)}", selection.holdout[0]))
    return list(tables)


def _rows_where(table: Table, column: str, sign: str, wanted: str) -> Table:
    keep = [same(row.get(column), wanted) == (sign == "=") for row in table.rows]
    rows, places = (list(itertools.compress(values, keep)) for values in (table.rows, table.places))
    return replace(table, rows=rows, places=places)


def _matches_nothing(tables: Sequence[Table], option: str, column: str) -> str:
    cells = (row.get(column) for table in tables for row in table.rows)
    values = dict.fromkeys(label(cell) for cell in cells if cell is not None)
    held = f"the values there are {listed(list(values))}" if values else "that column holds no values"
    return f"{option} matches no row of {listed([str(table.path) for table in tables])}: {held}."


def _nothing_left(table: Table) -> str:
    with_x, with_y = (sum(row.get(column or "") is not None for row in table.rows) for column in (table.x, table.y))
    return (
        f"no usable curve: of the {len(table.rows)} rows selected from {table.path}, {with_x} have {table.x!r}, "
        f"{with_y} have {table.y!r} and none has both; choose other columns with --x and --y."
    )
