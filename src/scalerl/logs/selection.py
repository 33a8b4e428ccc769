"""Which rows of which tables make which curve: what the commands' shared options say, applied.

Every fault found here is one of a file as a whole, and raises InputError.
"""

import difflib
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from scalerl.errors import InputError
from scalerl.logs.columns import STEP_TIME, TRAINER_STEP, fill_from_step, find, is_number
from scalerl.logs.table import Table, listed, with_gpus

FILE = "file"
_MOST_PLACES = 5

YScale = Literal["1", "100", "pm1", "none"]


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
    start: float | Literal["first"] | None = None
    """On the scale that is fitted, after `y_scale`."""
    y_scale: YScale = "1"
    holdout: tuple[str, str] | None = None
    gpus: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """One row of one curve, its values as the file has them."""

    curve: tuple[str, ...]
    evaluation_set: str | None
    """The set of a run folder that has several; part of the curve's name."""
    run: str
    seed: tuple[str, str] | None
    """(column, value) of a column recognised as seed, where no option says what tells runs apart."""
    x_label: str
    y_label: str
    x: Any
    y: Any
    num_samples: Any
    evaluation: str | None
    step_label: str
    step: float | None
    """Of a log that may have been resumed; of our run folders the rows that count are known."""
    is_held_out: bool
    may_be_zero: bool
    """Whether compute 0 is known to mean the model before training: in our run folders it does."""
    place: str
    source: str
    labels: tuple[tuple[str, str], ...] = ()
    """(column, value) of the columns of words that no option mentions: they may tell curves apart."""


def points_from(tables: Sequence[Table], selection: Selection) -> list[Point]:
    """The rows that have both compute and reward, each with its curve's name; at least one."""
    if not tables:
        raise InputError("no file was given: name at least one log file or run folder.")
    _check_start(selection)
    files = file_names(tables)
    tables = [_prepared(table, file, selection) for table, file in zip(tables, files, strict=True)]
    tables = _filtered(tables, selection)
    apart = _apart(tables, selection)
    points = []
    for table, file in zip(tables, files, strict=True):
        columns = [*(selection.by or (FILE,)), *(column for column in apart if column in table.apart)]
        points += _points_of(table, file, columns, "set" if "set" in apart else None, selection)
    if not points:
        raise InputError(_nothing_left(tables[0]))
    return points


def file_names(tables: Sequence[Table]) -> list[str]:
    """A short name for each table: the stem, with as many folders before it as it takes to tell the files apart."""
    paths = [table.path.absolute() for table in tables]
    distinct = list(dict.fromkeys(paths))
    stems = [path.name if path.is_dir() else _stem(path.name) for path in distinct]
    beside = [path.parent / stem for path, stem in zip(distinct, stems, strict=True)]
    # log.csv beside log.jsonl: no folder tells them apart, the ending does.
    stems = [
        path.name if beside.count(path.parent / stem) > 1 else stem for path, stem in zip(distinct, stems, strict=True)
    ]
    named = list(stems)
    for depth in range(1, max(len(path.parts) for path in distinct)):
        for place in [place for place, name in enumerate(named) if named.count(name) > 1]:
            named[place] = "/".join((*distinct[place].parent.parts[-depth:], stems[place]))
    names = dict(zip(distinct, named, strict=True))
    repeats = [paths[:place].count(path) for place, path in enumerate(paths)]
    return [f"{names[path]} ({nth + 1})" if nth else names[path] for path, nth in zip(paths, repeats, strict=True)]


def same(value: object, wanted: str) -> bool:
    """Whether a row's value is the one written on the command line: 1 is "1.0", true is "True", NaN is "nan"."""
    if value is None or isinstance(value, bool):
        return value is not None and str(value).lower() == str(wanted).lower()
    try:
        number, other = float(str(value)), float(wanted)
    except ValueError:
        return str(value) == str(wanted)
    return number == other or (math.isnan(number) and math.isnan(other))


def at(points: Sequence[Point]) -> str:
    """Where these rows stand: 'lines 3, 5 and 2 more of a.csv'."""
    shown = points[:_MOST_PLACES]
    more = f" and {len(points) - len(shown)} more" if len(points) > len(shown) else ""
    units = {(point.place.rpartition(" ")[0], point.source) for point in shown}
    if len(shown) == 1 or len(units) > 1:
        return ", ".join(f"{point.place} of {point.source}" for point in shown) + more
    [(unit, source)] = units
    return f"{unit}s {', '.join(point.place.rpartition(' ')[2] for point in shown)}{more} of {source}"


def _stem(name: str) -> str:
    name = name.removesuffix(".gz")
    stem, dot, _ = name.rpartition(".")
    return stem if dot and stem and "tfevents" not in name else name


def _label(value: object) -> str:
    return str(int(value)) if isinstance(value, float) and value.is_integer() else str(value)


# A table as a whole


def _prepared(table: Table, file: str, selection: Selection) -> Table:
    """The table with its file name as a column, all columns asked for, and compute in every row that can have it."""
    table = with_gpus(table, selection.gpus)
    if FILE not in table.columns:
        table = replace(table, columns=[*table.columns, FILE], rows=[{**row, FILE: file} for row in table.rows])
    _check_columns(table, selection)
    x = selection.x or table.x
    assert x is not None
    # Before any filter: the row of the same step that holds the compute may be one the filter drops.
    computes = fill_from_step(table.rows, x, table.step)
    rows = [{**row, x: compute} for row, compute in zip(table.rows, computes, strict=True)]
    return replace(table, rows=rows, x=x, y=selection.y or table.y)


def _check_start(selection: Selection) -> None:
    start = selection.start
    if not isinstance(start, float | int):
        return
    if not math.isfinite(start) or (selection.y_scale != "none" and not 0 <= start <= 1):
        raise InputError(
            f"--start {start:g} is outside [0, 1]: give it on the scale that is fitted, such as --start 0.4."
        )


def _check_columns(table: Table, selection: Selection) -> None:
    given = [("--x", selection.x), ("--y", selection.y), ("--seed", selection.seed)]
    given += [("--by", column) for column in selection.by] + [
        ("--where", column) for column, _ in (*selection.where, *selection.where_not)
    ]
    given += [("--holdout", selection.holdout[0])] if selection.holdout else []
    for option, column in given:
        if column is not None and column not in table.columns:
            raise InputError(_no_column(table, option, column))
    if selection.gpus is not None and selection.x is None and table.x in (None, table.step):
        raise InputError(
            f"--gpus {selection.gpus:g} needs the time of a step, and {table.path} has no column for it ("
            f"{', '.join(STEP_TIME[:2])}, step_time ...): choose the compute column with --x among "
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
        hint = "--gpus N builds it from the time of a step; it"
    return f"{table.path} has no column {column!r} ({option}): {hint} has {listed([*close, *rest])}."


# Which rows, and of which curve


def _filtered(tables: Sequence[Table], selection: Selection) -> list[Table]:
    filters = [(column, wanted, True) for column, wanted in selection.where]
    filters += [(column, wanted, False) for column, wanted in selection.where_not]
    for column, wanted, has in filters:
        kept = [
            [pair for pair in zip(table.rows, table.places, strict=True) if same(pair[0].get(column), wanted) == has]
            for table in tables
        ]
        if not any(kept):
            raise InputError(_matches_nothing(tables, "--where", column, wanted, equals="=" if has else "!="))
        tables = [
            replace(table, rows=[row for row, _ in pairs], places=[place for _, place in pairs])
            for table, pairs in zip(tables, kept, strict=True)
        ]
    if selection.holdout:
        column, wanted = selection.holdout
        if not any(same(row.get(column), wanted) for table in tables for row in table.rows):
            raise InputError(_matches_nothing(tables, "--holdout", column, wanted))
    return list(tables)


def _matches_nothing(tables: Sequence[Table], option: str, column: str, wanted: str, equals: str = "=") -> str:
    values = dict.fromkeys(_label(row[column]) for table in tables for row in table.rows if row.get(column) is not None)
    held = f"the values there are {listed(list(values))}" if values else "that column holds no values"
    paths = listed([str(table.path) for table in tables])
    return f"{option} {column}{equals}{wanted} matches no row of {paths}: {held}."


def _apart(tables: Sequence[Table], selection: Selection) -> list[str]:
    """Columns that split curves though nobody asked: those with several values that no option mentions."""
    mentioned = _mentioned(selection)
    found = []
    for column in dict.fromkeys(column for table in tables for column in table.apart):
        values = {_label(row.get(column)) for table in tables if column in table.apart for row in table.rows}
        if column not in mentioned and len(values) > 1:
            found.append(column)
    return found


def _points_of(
    table: Table, file: str, columns: Sequence[str], set_column: str | None, selection: Selection
) -> list[Point]:
    x, y = table.x, table.y
    assert x is not None
    assert y is not None
    points = []
    words = _unmentioned_words(table, columns, selection)
    step_label = find(TRAINER_STEP, table.columns) or ""
    for row, place in zip(table.rows, table.places, strict=True):
        if row.get(x) is None or row.get(y) is None:
            continue
        prompts, step = row.get("prompts_hash"), row.get(table.step or "step")
        points.append(
            Point(
                curve=tuple(_label(row.get(column)) for column in columns),
                evaluation_set=_label(row.get(set_column)) if set_column in table.apart else None,
                # Files pooled into one curve are different runs, unless the user names what tells runs apart.
                run=_label(row.get(selection.seed)) if selection.seed else file,
                seed=(table.seed, _label(row.get(table.seed))) if table.seed and not selection.seed else None,
                x_label=x,
                y_label=y,
                x=row[x],
                y=row[y],
                num_samples=row.get(table.num_samples or "num_samples"),
                evaluation=None if prompts is None or step is None else f"{_label(prompts)}@{_label(step)}",
                step_label=step_label,
                step=_known_step(row.get(step_label)) if table.kind != "run" else None,
                is_held_out=selection.holdout is not None and same(row.get(selection.holdout[0]), selection.holdout[1]),
                may_be_zero=table.kind == "run",
                place=place,
                source=table.path.name,
                labels=tuple((column, str(row[column])) for column in words if row.get(column) is not None),
            )
        )
    return points


def _known_step(value: Any) -> float | None:
    return value if is_number(value) and math.isfinite(value) else None


def _mentioned(selection: Selection) -> set[str | None]:
    mentioned = {*selection.by, selection.seed, *(column for column, _ in selection.where)}
    return mentioned | ({selection.holdout[0]} if selection.holdout else set())


def _unmentioned_words(table: Table, columns: Sequence[str], selection: Selection) -> list[str]:
    """Columns of text that no option mentions; a run folder's own are known to be of one run."""
    known = {FILE, table.seed, *columns, *_mentioned(selection)}
    if table.kind == "run":
        return []
    return [
        column
        for column in table.columns
        if column not in known and all(isinstance(row.get(column), str | None) for row in table.rows)
    ]


def told_apart(points: Sequence[Point]) -> tuple[list[Point], tuple[str, ...]]:
    """A curve's points with their seed in the name of their run where a file holds several, and a word on it."""
    files = {point.run for point in points}
    runs = {(point.run, point.seed) for point in points}
    if len(runs) == len(files):
        return list(points), ()
    columns = listed(sorted({point.seed[0] for point in points if point.seed is not None}))
    if 2 * len(runs) > len(points):
        return list(points), (f"Column {columns} has too many values to tell runs apart: all rows count as one run.",)
    named = [
        point if point.seed is None else replace(point, run="/".join((point.run, point.seed[1])[len(files) == 1 :]))
        for point in points
    ]
    return named, (f"Runs are told apart by column {columns}.",)


def _nothing_left(table: Table) -> str:
    with_x = sum(row.get(table.x or "") is not None for row in table.rows)
    with_y = sum(row.get(table.y or "") is not None for row in table.rows)
    return (
        f"no usable curve: of the {len(table.rows)} rows selected from {table.path}, {with_x} have {table.x!r}, "
        f"{with_y} have {table.y!r} and none has both; choose other columns with --x and --y."
    )
