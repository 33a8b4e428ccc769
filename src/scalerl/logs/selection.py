"""Which rows of which tables make which curve: `Selection`, the shared options, and `Points`, the rows of a curve.

A fault found here is one of a file as a whole, and raises InputError.
"""

import difflib
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from itertools import repeat
from statistics import median
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from scalerl.errors import InputError
from scalerl.logs.axes import UNEVEN_TIME, disagreement
from scalerl.logs.build import make_table, with_gpus, with_runs
from scalerl.logs.columns import ARM, RUN, STEP_TIME, Reward, choose_y, fill_from_step, find_all, grouped, plain
from scalerl.logs.facts import Fact
from scalerl.logs.names import ATTEMPT, FILE, CurveKey, file_names, listed
from scalerl.logs.runs import Span, chains, span_of
from scalerl.logs.shapes import SPLIT
from scalerl.logs.source import Source
from scalerl.logs.table import Table
from scalerl.logs.units import Cells, Floats, Mask, YScale, column_of, label, labels, logged, number

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Points:
    """The rows of a curve that have both compute and reward, as the files have them."""

    tables: tuple[Table, ...]
    table: Table
    """The first of them."""
    words: tuple[str, ...]
    """Columns of text."""
    x: Cells
    y: Cells
    place: Cells
    file: Cells
    run: NDArray[np.str_]
    seed: NDArray[np.str_]
    held: Mask
    """Rows that `--holdout` names."""
    step: Floats
    samples: Floats
    evaluation: NDArray[np.str_]
    """'prompts_hash@step' of rows that can be compared answer by answer; empty for others."""
    texts: Cells
    """What each row has in the columns of text, after an empty string."""

    def take(self, which: Any) -> "Points":
        """Return some of the points, by mask or index, in the order given."""
        arrays = {field.name: getattr(self, field.name) for field in fields(self)[3:]}
        return replace(self, **{name: values[which] for name, values in arrays.items()})

    def where(self, mask: Any) -> str:
        """Return the places of points for a message: 'line 3, line 5 and 2 more of a.csv'."""
        parts = [place.rpartition("line ") for place in self.place[mask]]
        # A file within a folder is named once: 'evals.jsonl line 3, line 5'.
        named = [
            head * (at == 0 or head != parts[at - 1][0]) + rest + num for at, (head, rest, num) in enumerate(parts)
        ]
        return f"{listed(named, _MAX_PLACES)} of {listed(list(dict.fromkeys(self.file[mask])))}"


def same(cells: Cells, wanted: str) -> Mask:
    """Return which cells hold the value written on the command line: 1 is "1.0", true is "True", NaN is "nan"."""
    asked = {wanted, str(number(wanted)), *({"true", "false"} & {wanted.lower()})}
    return np.array([cell is not None and _written(cell) in asked for cell in cells], dtype=bool)


def _written(cell: Any) -> str:
    if isinstance(cell, bool):
        return str(cell).lower()
    value = number(cell)
    return str(cell) if value is None else str(value)


def curves_from(tables: Sequence[Table], selection: Selection) -> dict[CurveKey, Points]:
    """Return the points of each curve; at least one curve with a point."""
    if not tables:
        raise InputError("no file was given: name at least one log file or run folder.")
    if len(tables) > 1 and not selection.by and not selection.seed:
        tables = _with_joined_files(tables)
    files = file_names([table.path for table in tables])
    tables = [_prepared(table, file, selection, len(files)) for table, file in zip(tables, files, strict=True)]
    tables = [_with_named_runs(table, selection) for table in _filtered(tables, selection)]
    found: dict[str, set[str]] = {}
    for table in tables:
        for column in table.apart:
            found.setdefault(column, set()).update(map(label, table[column]))
    several = {name for name, values in found.items() if len(values) > 1 and name not in selection.mentioned}
    curves: dict[CurveKey, list[tuple[Table, NDArray[np.intp]]]] = {}
    for table in tables:
        if ATTEMPT not in several:
            table = replace(table, facts=tuple(fact for fact in table.facts if fact.kind != "attempts"))
        columns = [*(selection.by or (FILE,)), *(column for column in table.apart if column in several)]
        measured = np.flatnonzero(_is_measured(table))
        keys = zip(*(map(label, table[column][measured]) for column in columns), strict=True)
        for key, own in grouped(keys).items():
            curves.setdefault(tuple(zip(columns, key, strict=True)), []).append((table, measured[own]))
    if not curves:
        raise InputError(_nothing_left(tables[0]))
    return {key: _points(own, selection) for key, own in curves.items()}


def _is_measured(table: Table) -> Mask:
    return logged(table[table.x]) & logged(table[table.y])


def _points(found: Sequence[tuple[Table, NDArray[np.intp]]], selection: Selection) -> Points:
    words = tuple(dict.fromkeys(column for table, _ in found for column in _words_of(table)))
    held_column, held_value = selection.holdout or (None, "")
    parts = []
    for table in (table.take(rows) for table, rows in found):
        evaluations = zip(table["prompts_hash"], table[table.step], strict=True)
        seed = None if selection.seed else table.seed
        parts.append({
            "x": table[table.x],
            "y": table[table.y],
            "place": table.places,
            "file": np.full(len(table), table.path.name, dtype=object),
            # Files pooled into one curve are different runs, unless the user names the column of runs.
            "run": labels(table[selection.seed or FILE]),
            "seed": labels(np.where(logged(table[seed]), table[seed], "")),
            "held": same(table[held_column], held_value),
            "step": table.numbers(table.step),
            "samples": table.numbers(table.num_samples),
            "evaluation": np.array(["" if None in pair else "@".join(map(label, pair)) for pair in evaluations]),
            "texts": column_of(zip(repeat("", len(table)), *(table[column] for column in words), strict=True)),
        })  # fmt: skip
    arrays = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
    return Points(tables=tuple(table for table, _ in found), table=found[0][0], words=words, **arrays)


def _words_of(table: Table) -> list[str]:
    """Return the columns of text; none for a run folder, which is one run."""
    columns = [column for column in table.columns if column not in (FILE, table.seed) and table.kind != "run"]
    return [column for column in columns if {str, type(None)} >= set(map(type, table[column]))]


# Files and columns that name runs


def _with_joined_files(tables: Sequence[Table]) -> list[Table]:
    """Join files of one folder that are attempts of one run: each begins in the later half of the one before it."""
    families: dict[tuple[Any, ...], dict[int, Span]] = {}
    num = Counter(table.path.name for table in tables)
    for at, table in enumerate(tables):
        span = span_of(table.numbers(table.step))
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
    source = Source(tables[0].path)
    source.note("files_joined", files=tuple(table.path.name for table in tables))
    return make_table(source, tables[0].kind, rows, apart=tables[0].apart)


def _with_named_runs(table: Table, selection: Selection) -> Table:
    """Make what a column names separate curves, where nobody says what separates curves.

    A recipe, arm or model is a curve, and the runs and seeds within it are its repeats; a run is a curve of its own
    where there is no such column, unless each run has a seed of its own.
    """
    if table.kind == "run" or selection.by:
        return table
    measured = table.take(_is_measured(table))
    free = [column for column in table.columns if column not in {*selection.mentioned, *table.apart}]
    counts = {name: Counter(map(label, measured[name])) for name in find_all((*ARM, *RUN), free)}
    # Every row has a value there, and most values have several rows.
    named = [
        name
        for name, own in counts.items()
        if 2 <= len(own) <= _MAX_RUNS and "None" not in own and median(own.values()) >= _MIN_ROWS_PER_RUN
    ]
    run = next(iter(find_all(RUN, free)), None)
    arms = [name for name in named if plain(name) in ARM]
    apart = arms or [name for name in named if name == run and not selection.seed]
    pairs = set(zip(map(label, measured[run]), map(label, measured[table.seed]), strict=True))
    if not apart or (not arms and table.seed and len(pairs) == len({seed for _, seed in pairs})):
        return table
    facts = [Fact(kind="runs_apart", values={"column": name, "num": len(counts[name])}) for name in apart]
    return replace(table, seed=table.seed or (run if arms else None), apart=(*table.apart, *apart)).noting(*facts)


# A table as a whole


def _prepared(table: Table, file: str, selection: Selection, num_files: int) -> Table:
    """Add the file name as a column and compute to every row that can have it; check the columns asked for."""
    if table.raw and (named := [name for name in table.raw[0].columns if name in selection.mentioned]):
        table = with_runs(table, named)
    x = selection.x
    if x is None and table.kind == "run" and table.x == "gpu_hours" and "arm" not in table.cells:
        share = disagreement(table.rows)
        if share > UNEVEN_TIME:
            x = "flops" if num_files == 1 else "gpu_hours"
            table = table.noting(Fact(kind="uneven_time", values={"share": share, "used": x}))
    if selection.gpus is not None:
        table = with_gpus(table, selection.gpus)
    if FILE not in table.cells:
        table = replace(table.with_column(FILE, [file] * len(table)), built=table.built)
    table = replace(table, x=x or table.x)
    if selection.y is not None:
        table = replace(table, reward=Reward(column=selection.y, kind="evaluation"))
    elif table.y in table.built and any(plain(name) in SPLIT for name in selection.mentioned):
        logged = choose_y({name: cells for name, cells in table.cells.items() if name not in table.built})
        facts = tuple(fact for fact in table.facts if fact.kind != "evaluations_apart")
        table = replace(table, reward=logged, facts=facts)
    x, _ = _checked_columns(table, selection)
    # Before any filter: the row of the same step that holds the compute may be one the filter drops.
    return replace(table, cells={**table.cells, x: fill_from_step(table.cells, x, table.step)})


def _checked_columns(table: Table, selection: Selection) -> tuple[str, str]:
    """Return the columns of compute and reward; InputError where one of the columns asked for is not there."""
    given = [("--x", selection.x), ("--y", selection.y), ("--seed", selection.seed)]
    given += [("--by", column) for column in selection.by]
    given += [("--where", column) for column, _, _ in selection.filters]
    given += [("--holdout", selection.holdout[0])] if selection.holdout else []
    for option, column in given:
        if column is not None and column not in table.cells:
            raise InputError(_no_column(table, option, column))
    if selection.gpus is not None and selection.x is None and table.x in (None, table.step):
        raise InputError(
            f"--gpus {selection.gpus:g} needs a clock, and {table.path} has no column for it "
            f"({', '.join(STEP_TIME[:2])}, step_time, timestamp ...): choose the compute column with --x among "
            f"{listed(table.columns)}."
        )
    if table.x and table.y:
        return table.x, table.y
    option, what = ("--y", "reward") if table.x else ("--x", "compute")
    raise InputError(
        f"{table.path} has no column recognised as {what}: choose one with {option} among {listed(table.columns)}."
    )


def _no_column(table: Table, option: str, column: str) -> str:
    close = difflib.get_close_matches(column, table.columns, n=3, cutoff=0.6)
    close += [name for name in table.columns if column.lower() in name.lower() and name not in close]
    rest = [name for name in table.columns if name not in close]
    hint = f"did you mean {close[0]!r}? It" if close else "it"
    if column == "gpu_hours" and "hours" in table.cells:
        hint = "--gpus N builds it from the log's clock; it"
    return f"{table.path} has no column {column!r} ({option}): {hint} has {listed([*close, *rest])}."


def _filtered(tables: Sequence[Table], selection: Selection) -> list[Table]:
    """Return the tables with the rows that the filters keep."""
    for column, sign, wanted in selection.filters:
        kept = [table.take(same(table[column], wanted) == (sign == "=")) for table in tables]
        if not any(map(len, kept)):
            raise InputError(_matches_nothing(tables, f"--where {column}{sign}{wanted}", column))
        tables = kept
    if selection.holdout:
        column, wanted = selection.holdout
        if not any(same(table[column], wanted).any() for table in tables):
            raise InputError(_matches_nothing(tables, f"--holdout {column}={wanted}", column))
    return list(tables)


def _matches_nothing(tables: Sequence[Table], option: str, column: str) -> str:
    values = dict.fromkeys(label(cell) for table in tables for cell in table[column] if cell is not None)
    held = f"the values there are {listed(list(values))}" if values else "that column holds no values"
    return f"{option} matches no row of {listed([str(table.path) for table in tables])}: {held}."


def _nothing_left(table: Table) -> str:
    with_x, with_y = (logged(table[column]).sum() for column in (table.x, table.y))
    return (
        f"no usable curve: of the {len(table)} rows selected from {table.path}, {with_x} have {table.x!r}, "
        f"{with_y} have {table.y!r} and none has both; choose other columns with --x and --y."
    )
