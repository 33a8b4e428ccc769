"""Which rows of which tables make which curve: `Selection`, the shared options, and `Point`, a row of a curve.

A fault found here is one of a file as a whole, and raises InputError.
"""

import difflib
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import Any, Literal

from scalerl.errors import InputError
from scalerl.logs.axes import UNEVEN_TIME, disagreement
from scalerl.logs.columns import ARM, RUN, STEP_TIME, Reward, choose_y, fill_from_step, find, label, plain
from scalerl.logs.facts import Fact
from scalerl.logs.names import ATTEMPT, FILE, CurveKey, file_names, listed
from scalerl.logs.runs import Span, chains
from scalerl.logs.table import Table, make_table, with_column, with_gpus, with_runs
from scalerl.logs.text import SPLIT
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
    """In the unit of the log; "fit" leaves out rows at compute 0 and fits the start."""
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
class Point:
    """A row of a curve that has both compute and reward, as the file has them."""

    table: Table
    row: dict[str, Any]
    place: str
    x: Any
    y: Any
    run: str
    seed: str | None
    """Value of the column that is recognised as seed; None where an option names one."""
    is_held_out: bool
    step: float
    """The step of a log that may have been resumed; NaN in our run folders, whose rows are known to count."""


def places(points: Sequence[Point]) -> str:
    """Return the places of points for a message: 'lines 3, 5 and 2 more of a.csv'."""
    shown = [(*point.place.rpartition(" ")[::2], point.table.path.name) for point in points[:_MAX_PLACES]]
    more = f" and {len(points) - len(shown)} more" if len(points) > len(shown) else ""
    units = {(unit, file) for unit, _, file in shown}
    if len(shown) == 1 or len(units) > 1:
        return ", ".join(f"{unit} {at} of {file}" for unit, at, file in shown) + more
    [(unit, file)] = units
    return f"{unit}s {', '.join(at for _, at, _ in shown)}{more} of {file}"


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


def curves_from(tables: Sequence[Table], selection: Selection) -> dict[CurveKey, list[Point]]:
    """Return the points of each curve; at least one curve with a point."""
    if not tables:
        raise InputError("no file was given: name at least one log file or run folder.")
    if len(tables) > 1 and not selection.by and not selection.seed:
        tables = _with_joined_files(tables)
    files = file_names([table.path for table in tables])
    tables = [_prepared(table, file, selection, len(files)) for table, file in zip(tables, files, strict=True)]
    kept = _filtered(tables, selection)
    tables, columns = _split(tables, kept, selection)
    curves: dict[CurveKey, list[Point]] = {}
    for table, file, rows, own in zip(tables, files, kept, columns, strict=True):
        for row, place in ((table.rows[at], table.places[at]) for at in rows):
            if row.get(table.x or "") is None or row.get(table.y or "") is None:
                continue
            step = row.get(table.step or "") if table.kind != "run" else None
            point = Point(
                table=table,
                row=row,
                place=place,
                x=row[table.x or ""],
                y=row[table.y or ""],
                # Files pooled into one curve are different runs, unless the user names the column of runs.
                run=label(row.get(selection.seed)) if selection.seed else file,
                seed=label(row.get(table.seed)) if table.seed and not selection.seed else None,
                is_held_out=selection.holds_out(row),
                step=step if is_number(step) and math.isfinite(step) else math.nan,
            )
            curves.setdefault(tuple((column, label(row.get(column))) for column in own), []).append(point)
    if not curves:
        raise InputError(_nothing_left(tables[0], kept[0]))
    return curves


# Files and columns that name runs


def _with_joined_files(tables: Sequence[Table]) -> list[Table]:
    """Join files of one folder that are attempts of one run: each begins in the later half of the one before it."""
    spans: dict[tuple[Any, ...], dict[int, Span]] = {}
    num = Counter(table.path.name for table in tables)
    for at, table in enumerate(tables):
        steps = [row[table.step] for row in table.rows if table.step and is_number(row.get(table.step))]
        if table.kind != "run" and steps and ATTEMPT not in table.apart:
            # Files of one name lie in folders of one folder.
            folder = table.path.parents[num[table.path.name] > 1]
            own = (folder, table.kind, table.step, table.y)
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
    counts = {name: len({label(row.get(name)) for row in rows}) for name in named}
    facts = [Fact(kind="runs_apart", values={"column": name, "num": num}) for name, num in counts.items()]
    return replace(table, apart=(*table.apart, *named), facts=(*table.facts, *facts))


def _names_runs(rows: Sequence[dict[str, Any]], column: str) -> bool:
    """Return whether every row has a value here, most values with several rows."""
    counts = Counter(label(row.get(column)) for row in rows)
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
    if selection.y is None and table.y in table.built and any(plain(name) in SPLIT for name in selection.mentioned):
        reward = choose_y([name for name in table.columns if name not in table.built], table.rows)
        table = replace(table, facts=tuple(fact for fact in table.facts if fact.kind != "evaluations_apart"))
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
