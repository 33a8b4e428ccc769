"""Apply the commands' shared options: which rows of which tables make which curve.

Every fault found here is one of a file as a whole, and raises InputError.
"""

import difflib
import itertools
import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from scalerl.errors import InputError
from scalerl.logs.axes import UNEVEN_TIME, disagreement
from scalerl.logs.columns import RUN_NAME, STEP_TIME, TRAINER_STEP, fill_from_step, find, is_number, unit_rewards
from scalerl.logs.facts import Fact
from scalerl.logs.names import FILE, file_names
from scalerl.logs.points import Point, Selection
from scalerl.logs.table import ATTEMPT, Table, listed, per_attempt, with_gpus

# A column with more values than these, or hardly a row for each, does not name runs.
_MAX_RUNS = 64
_MIN_ROWS_PER_RUN = 3


def points_from(tables: Sequence[Table], selection: Selection) -> list[Point]:
    """Return the rows that have both compute and reward, each with the key of its curve; at least one."""
    if not tables:
        raise InputError("no file was given: name at least one log file or run folder.")
    _check_start(selection)
    files = file_names([table.path for table in tables])
    tables = [_with_even_axis(table, selection, is_only=len(tables) == 1) for table in tables]
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


def same(value: object, wanted: str) -> bool:
    """Return whether a value is the one written on the command line: 1 is "1.0", true is "True", NaN is "nan"."""
    if value is None or isinstance(value, bool):
        return value is not None and str(value).lower() == str(wanted).lower()
    try:
        number, other = float(str(value)), float(wanted)
    except ValueError:
        return str(value) == str(wanted)
    return number == other or (math.isnan(number) and math.isnan(other))


def _label(value: object) -> str:
    return str(int(value)) if isinstance(value, float) and value.is_integer() else str(value)


# A table as a whole


def _prepared(table: Table, file: str, selection: Selection) -> Table:
    """Add the file name as a column and compute to every row that can have it; check the columns asked for."""
    table = with_gpus(table, selection.gpus)
    if FILE not in table.columns:
        table = replace(table, columns=[*table.columns, FILE], rows=[{**row, FILE: file} for row in table.rows])
    _check_columns(table, selection)
    x = selection.x or table.preferred_x or table.x
    assert x is not None
    # Before any filter: the row of the same step that holds the compute may be one the filter drops.
    computes = per_attempt(table, lambda rows: fill_from_step(rows, x, table.step)) or []
    rows = [{**row, x: compute} for row, compute in zip(table.rows, computes, strict=True)]
    return _with_named_runs(replace(table, rows=rows, x=x, y=selection.y or table.y), selection)


def _with_named_runs(table: Table, selection: Selection) -> Table:
    """Make the runs that a column names separate curves, where nobody says what tells curves apart."""
    column = find(RUN_NAME, table.columns)
    is_chosen = bool(selection.by or selection.seed or table.seed) or column in {*_mentioned(selection), *table.apart}
    if column is None or table.kind not in ("csv", "jsonl") or is_chosen:
        return table
    x, y = table.x or "", table.y or ""
    spans: dict[str, list[float]] = {}
    for row in table.rows:
        if is_number(row.get(x)) and row.get(y) is not None:
            if row.get(column) is None:
                return table
            spans.setdefault(_label(row[column]), []).append(row[x])
    if not 2 <= len(spans) <= _MAX_RUNS or min(map(len, spans.values())) < _MIN_ROWS_PER_RUN:
        return table
    # A resumed run may have another id for what follows, from a checkpoint in the later half of what came before.
    ends = sorted((min(computes), max(computes)) for computes in spans.values())
    pairs = itertools.pairwise(ends)
    if all(begin > (before + last) / 2 and end > last for (before, last), (begin, end) in pairs):
        return table
    fact = Fact(kind="runs_apart", values={"column": column, "num": len(spans)})
    return replace(table, apart=(*table.apart, column), facts=(*table.facts, fact))


def _with_even_axis(table: Table, selection: Selection, *, is_only: bool) -> Table:
    """Note it where a run's GPU-hours and FLOPs disagree, and take FLOPs for the curve of a run on its own."""
    if selection.x is not None or table.kind != "run" or table.x != "gpu_hours" or "arm" in table.columns:
        return table
    share = disagreement(table.rows)
    if share <= UNEVEN_TIME:
        return table
    used = "flops" if is_only else "gpu_hours"
    fact = Fact(kind="uneven_time", values={"share": share, "used": used})
    return replace(table, facts=(*table.facts, fact), preferred_x=used)


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
    """Return the columns that split curves unasked: those with several values that no option mentions."""
    mentioned = _mentioned(selection)
    separate = []
    for column in dict.fromkeys(column for table in tables for column in table.apart):
        values = {_label(row.get(column)) for table in tables if column in table.apart for row in table.rows}
        if column in mentioned or len(values) < 2:
            continue
        if column != ATTEMPT or any(_attempts_differ(table, selection) for table in tables):
            separate.append(column)
    return separate


def _attempts_differ(table: Table, selection: Selection) -> bool:
    """Return whether attempts say more than the columns that the user named: a run of a curve with several attempts."""
    named = [column for column in (*selection.by, selection.seed or table.seed) if column is not None]
    attempts: dict[tuple[str, ...], set[str]] = {}
    for row in table.rows if ATTEMPT in table.apart else ():
        held_out = selection.holdout is not None and same(row.get(selection.holdout[0]), selection.holdout[1])
        key = (*(_label(row.get(column)) for column in named), str(held_out))
        attempts.setdefault(key, set()).add(_label(row.get(ATTEMPT)))
    return any(len(numbers) > 1 for numbers in attempts.values())


def _points_of(
    table: Table, file: str, columns: Sequence[str], set_column: str | None, selection: Selection
) -> list[Point]:
    x, y = table.x, table.y
    assert x is not None
    assert y is not None
    points = []
    words = _unmentioned_words(table, columns, selection)
    step_label = find(TRAINER_STEP, table.columns) or ""
    others = tuple(column for column in unit_rewards(table.columns, table.rows) if column != y)
    is_apart = ATTEMPT in columns
    facts = tuple(fact for fact in table.facts if fact.kind != "attempts" or is_apart)
    for row, place in zip(table.rows, table.places, strict=True):
        if row.get(x) is None or row.get(y) is None:
            continue
        prompts, step = row.get("prompts_hash"), row.get(table.step or "step")
        points.append(
            Point(
                curve=tuple((column, _label(row.get(column))) for column in columns),
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
                is_run_folder=table.kind == "run",
                place=place,
                source=table.path.name,
                labels=tuple((column, str(row[column])) for column in words if row.get(column) is not None),
                unit_columns=others,
                facts=facts,
            )
        )
    return points


def _known_step(value: Any) -> float | None:
    return value if is_number(value) and math.isfinite(value) else None


def _mentioned(selection: Selection) -> set[str | None]:
    mentioned = {*selection.by, selection.seed, *(column for column, _ in selection.where)}
    return mentioned | ({selection.holdout[0]} if selection.holdout else set())


def _unmentioned_words(table: Table, columns: Sequence[str], selection: Selection) -> list[str]:
    """Return the columns of text that no option mentions; none for a run folder, which is one run."""
    known = {FILE, table.seed, *columns, *_mentioned(selection)}
    if table.kind == "run":
        return []
    return [
        column
        for column in table.columns
        if column not in known and all(isinstance(row.get(column), str | None) for row in table.rows)
    ]


def split_by_seed(points: Sequence[Point]) -> tuple[list[Point], tuple[Fact, ...]]:
    """Put the seed into the name of the run of each point where a file holds several; return what was done."""
    files = {point.run for point in points}
    runs = {(point.run, point.seed) for point in points}
    if len(runs) == len(files):
        return list(points), ()
    columns = {"columns": tuple(sorted({point.seed[0] for point in points if point.seed is not None}))}
    if 2 * len(runs) > len(points):
        return list(points), (Fact(kind="seed_has_too_many_values", values=columns),)
    named = [
        point if point.seed is None else replace(point, run="/".join((point.run, point.seed[1])[len(files) == 1 :]))
        for point in points
    ]
    return named, (Fact(kind="runs_by_column", values=columns),)


def _nothing_left(table: Table) -> str:
    with_x = sum(row.get(table.x or "") is not None for row in table.rows)
    with_y = sum(row.get(table.y or "") is not None for row in table.rows)
    return (
        f"no usable curve: of the {len(table.rows)} rows selected from {table.path}, {with_x} have {table.x!r}, "
        f"{with_y} have {table.y!r} and none has both; choose other columns with --x and --y."
    )
