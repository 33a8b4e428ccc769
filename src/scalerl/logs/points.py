"""Which rows of which tables make which curve. A fault found here is one of a whole file, and raises InputError."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from statistics import median
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from scalerl.errors import InputError
from scalerl.logs.axes import UNEVEN_TIME, disagreement
from scalerl.logs.build import arranged
from scalerl.logs.columns import Reward, fill_from_step, grouped, has_role, roles
from scalerl.logs.names import ATTEMPT, FILE, CurveKey, file_names, without_seed
from scalerl.logs.runs import chains
from scalerl.logs.selection import Selection
from scalerl.logs.table import Table, pooled
from scalerl.logs.units import Floats, label, logged

# A column with more values than these, or hardly a row for each, does not name runs.
_MAX_RUNS = 200
_MIN_ROWS_PER_RUN = 2


Rows = list[tuple[Table, NDArray[np.intp]]]
"""Rows of each table."""


class Curve(NamedTuple):
    """The rows of a curve that have both compute and reward, as the files have them."""

    key: CurveKey
    rows: Table
    tables: tuple[Table, ...]
    """The whole tables that they are from."""


def curves_from(tables: Sequence[Table], selection: Selection) -> list[Curve]:
    """Return the curves, at least one, each with a row at least."""
    if not tables:
        raise InputError("no file was given: name at least one log file or run folder.")
    if len(tables) > 1 and not selection.by and not selection.seed:
        tables = _with_joined_files(tables)
    files = file_names([table.path for table in tables])
    tables = [_prepared(table, file, selection, len(files)) for table, file in zip(tables, files, strict=True)]
    if selection.where or selection.where_not or selection.holdout:
        tables = selection.filtered(tables)
    tables = [_with_named_runs(table, selection) for table in tables]
    values: dict[str, set[str]] = {}
    for table in tables:
        for column in table.apart:
            values.setdefault(column, set()).update(map(label, table[column]))
    several = {name for name, own in values.items() if len(own) > 1 and name not in selection.mentioned}
    curves: dict[CurveKey, Rows] = {}
    for table in tables:
        if ATTEMPT not in several:
            table = replace(table, facts=tuple(fact for fact in table.facts if not fact.kind.startswith("attempts")))
        columns = [*(selection.by or (FILE,)), *(column for column in table.apart if column in several)]
        measured = np.flatnonzero(table.is_measured)
        keys = zip(*(map(label, table[column][measured]) for column in columns), strict=True)
        for key, own in grouped(keys).items():
            curves.setdefault(tuple(zip(columns, key, strict=True)), []).append((table, measured[own]))
    if len(curves) > 1 and not selection.by and not selection.seed:
        curves = _with_joined_seeds(curves)
    if not curves:
        table = tables[0]
        with_x, with_y = (logged(table[column]).sum() for column in (table.x, table.y))
        raise InputError(
            f"no usable curve: of the {len(table)} rows selected from {table.path}, {with_x} have {table.x!r}, "
            f"{with_y} have {table.y!r} and none has both; choose other columns with --x and --y."
        )
    return [
        Curve(key, pooled([table.take(rows) for table, rows in own]), tuple(table for table, _ in own))
        for key, own in curves.items()
    ]


def _with_joined_seeds(curves: Mapping[CurveKey, Rows]) -> dict[CurveKey, Rows]:
    """Join curves whose files or runs have names that differ in the seed alone: they are runs of one curve.

    Where a curve has the very name without a seed, or they differ in their columns, the names say too little.
    """
    keys, joined = list(curves), dict[CurveKey, Rows]()
    for family, places in grouped(map(_seedless, keys)).items():
        members = [keys[at] for at in places]
        key = tuple(part for part in family if part[1])  # a run's name may be nothing but its seed
        axes = {(table.x, table.y) for member in members for table, _ in curves[member]}
        if len(members) == 1 or len(axes) > 1 or key in curves:
            joined |= {member: curves[member] for member in members}
            continue
        column = next(column for (column, name), (_, cut) in zip(members[0], family, strict=True) if name != cut)
        told = {"names": tuple(dict(member)[column] for member in members), "column": column}
        parts = [part for member in members for part in curves[member]]
        joined[key] = [(_with_runs_by(table, column).noting("seeds_by_name", **told), rows) for table, rows in parts]
    return joined


def _with_runs_by(table: Table, column: str) -> Table:
    """Return a table in which this column names the runs of one curve; files do that by themselves."""
    facts = tuple(fact for fact in table.facts if fact.kind != "runs_apart")
    return replace(table, facts=facts, seed=table.seed if column == FILE else column)


def _seedless(key: CurveKey) -> CurveKey:
    """Return a key whose files and runs have no seed in their names."""
    return tuple(
        (column, without_seed(name) if column == FILE or has_role(column, "run") else name) for column, name in key
    )


def _with_joined_files(tables: Sequence[Table]) -> list[Table]:
    """Join files of one folder that are attempts of one run: each begins in the later half of the one before it."""
    families: dict[tuple[Any, ...], dict[int, Floats]] = {}
    num = Counter(table.path.name for table in tables)
    for at, table in enumerate(tables):
        if table.kind != "run" and ATTEMPT not in table.apart:
            # Files of one name lie in folders of one folder.
            folder = table.path.parents[num[table.path.name] > 1]
            families.setdefault((folder, table.kind, table.step, table.y), {})[at] = table.numbers(table.step)
    whole: dict[int, Table | None] = dict(enumerate(tables))
    for run in (run for steps in families.values() for run in chains(steps)):
        parts = [tables[at].raw or tables[at] for at in run]
        one = replace(pooled(parts), path=parts[0].path, facts=())
        one = arranged(one.noting("files_joined", files=tuple(part.path.name for part in parts)), Selection())
        whole |= dict.fromkeys(run) | {run[0]: one}
    return [table for table in whole.values() if table is not None]


def _prepared(table: Table, file: str, selection: Selection, num_files: int) -> Table:
    """Choose the columns asked for, add the file name as a column and compute to every row that can have it."""
    if selection.gpus is not None or selection.mentioned & (table.raw or table).cells.keys():
        table = arranged(table, selection)
    x = selection.x
    if x is None and table.kind == "run" and table.x == "gpu_hours" and "arm" not in table.cells:
        share = disagreement(table.rows)
        if share > UNEVEN_TIME:
            x = "flops" if num_files == 1 else "gpu_hours"
            table = table.noting("counted_in_flops" if x == "flops" else "uneven_time", share=share)
    if FILE not in table.cells:
        table = replace(table.with_column(FILE, [file] * len(table)), built=table.built)
    reward = table.reward if selection.y is None else Reward(column=selection.y, kind="evaluation")
    table = replace(table, x=x or table.x, reward=reward)
    selection.check(table)
    # Before any filter: the row of the same step that holds the compute may be one the filter drops.
    return replace(table, cells={**table.cells, str(table.x): fill_from_step(table.cells, str(table.x))})


def _with_named_runs(table: Table, selection: Selection) -> Table:
    """Make what a column names separate curves, where nobody says what separates curves.

    A recipe, arm or model is a curve, and the runs and seeds within it are its repeats; a run is a curve of its own
    where there is no such column, unless each run has a seed of its own.
    """
    free = roles(tuple(column for column in table.cells if column not in {*selection.mentioned, *table.apart}))
    if table.kind == "run" or selection.by or not (free["arm"] or free["run"]):
        return table
    measured, run = table.take(table.is_measured), next(iter(free["run"]), None)
    counts = {name: Counter(map(label, measured[name])) for name in (*free["arm"], *free["run"][:1])}
    # Every row has a value there, and most values have several rows.
    named = [
        name
        for name, own in counts.items()
        if 1 < len(own) <= _MAX_RUNS and "None" not in own and median(own.values()) >= _MIN_ROWS_PER_RUN
    ]
    arms = [name for name in named if has_role(name, "arm")]
    apart = arms or [name for name in named if not selection.seed]
    pairs = set(zip(map(label, measured[run]), map(label, measured[table.seed]), strict=True))
    if not apart or (not arms and table.seed and len(pairs) == len({seed for _, seed in pairs})):
        return table
    for name in apart:
        table = table.noting("runs_apart", column=name, num=len(counts[name]))
    return replace(table, seed=table.seed or (run if arms else None), apart=(*apart, *table.apart))
