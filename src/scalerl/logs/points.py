"""Which rows of which tables make which curve. A fault found here is one of a whole file, and raises InputError."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from itertools import repeat
from statistics import median
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scalerl.errors import InputError
from scalerl.logs.axes import UNEVEN_TIME, disagreement
from scalerl.logs.build import arranged, make_table
from scalerl.logs.columns import ARM, RUN, Reward, fill_from_step, find_all, grouped, plain
from scalerl.logs.names import ATTEMPT, FILE, CurveKey, file_names, listed
from scalerl.logs.runs import chains
from scalerl.logs.selection import Selection, same
from scalerl.logs.source import Source
from scalerl.logs.table import Table
from scalerl.logs.units import Cells, Floats, Mask, column_of, label, labels, logged

_MAX_PLACES = 5
# A column with more values than these, or hardly a row for each, does not name runs.
_MAX_RUNS = 200
_MIN_ROWS_PER_RUN = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Points:
    """The rows of a curve that have both compute and reward, as the files have them."""

    tables: tuple[Table, ...]
    table: Table
    """The first of them."""
    words: tuple[str, ...]
    """Columns of text."""
    x: NDArray[Any]
    """As the files have it, and numbers once they are checked; so is y."""
    y: NDArray[Any]
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
        return f"{listed(list(self.place[mask]), _MAX_PLACES)} of {listed(list(dict.fromkeys(self.file[mask])))}"


def curves_from(tables: Sequence[Table], selection: Selection) -> dict[CurveKey, Points]:
    """Return the points of each curve; at least one curve with a point."""
    if not tables:
        raise InputError("no file was given: name at least one log file or run folder.")
    if len(tables) > 1 and not selection.by and not selection.seed:
        tables = _with_joined_files(tables)
    files = file_names([table.path for table in tables])
    tables = [_prepared(table, file, selection, len(files)) for table, file in zip(tables, files, strict=True)]
    tables = [_with_named_runs(table, selection) for table in selection.filtered(tables)]
    values: dict[str, set[str]] = {}
    for table in tables:
        for column in table.apart:
            values.setdefault(column, set()).update(map(label, table[column]))
    several = {name for name, own in values.items() if len(own) > 1 and name not in selection.mentioned}
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
        table = tables[0]
        with_x, with_y = (logged(table[column]).sum() for column in (table.x, table.y))
        raise InputError(
            f"no usable curve: of the {len(table)} rows selected from {table.path}, {with_x} have {table.x!r}, "
            f"{with_y} have {table.y!r} and none has both; choose other columns with --x and --y."
        )
    return {key: _points(own, selection) for key, own in curves.items()}


def _is_measured(table: Table) -> Mask:
    return logged(table[table.x]) & logged(table[table.y])


def _points(parts: Sequence[tuple[Table, NDArray[np.intp]]], selection: Selection) -> Points:
    words = tuple(dict.fromkeys(column for table, _ in parts for column in _words_of(table)))
    held_column, held_value = selection.holdout or (None, "")
    arrays = []
    for table in (table.take(rows) for table, rows in parts):
        evaluations = zip(table["prompts_hash"], table[table.step], strict=True)
        seed = None if selection.seed else table.seed
        arrays.append({
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
    whole = {name: np.concatenate([part[name] for part in arrays]) for name in arrays[0]}
    return Points(tables=tuple(table for table, _ in parts), table=parts[0][0], words=words, **whole)


def _words_of(table: Table) -> list[str]:
    """Return the columns of text; none for a run folder, which is one run."""
    columns = [column for column in table.columns if column not in (FILE, table.seed) and table.kind != "run"]
    return [column for column in columns if {str, type(None)} >= set(map(type, table[column]))]


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
        whole |= dict.fromkeys(run) | {run[0]: _as_one([tables[at] for at in run])}
    return [table for table in whole.values() if table is not None]


def _as_one(tables: Sequence[Table]) -> Table:
    rows = [
        (f"{table.path.name} {place}", {name: value for name, value in row.items() if name not in raw.built})
        for table in tables
        for raw in [table.raw or table]
        for place, row in zip(raw.places, raw.rows, strict=True)
    ]
    source = Source(tables[0].path)
    source.note("files_joined", files=tuple(table.path.name for table in tables))
    return make_table(source, tables[0].kind, rows)


def _prepared(table: Table, file: str, selection: Selection, num_files: int) -> Table:
    """Choose the columns asked for, add the file name as a column and compute to every row that can have it."""
    if selection.gpus is not None or selection.mentioned & (table.raw or table).cells.keys():
        table = arranged(table, selection)
    x = selection.x
    if x is None and table.kind == "run" and table.x == "gpu_hours" and "arm" not in table.cells:
        share = disagreement(table.rows)
        if share > UNEVEN_TIME:
            x = "flops" if num_files == 1 else "gpu_hours"
            table = table.noting("uneven_time", share=share, used=x)
    if FILE not in table.cells:
        table = replace(table.with_column(FILE, [file] * len(table)), built=table.built)
    reward = table.reward if selection.y is None else Reward(column=selection.y, kind="evaluation")
    table = replace(table, x=x or table.x, reward=reward)
    selection.check(table)
    compute = str(table.x)
    # Before any filter: the row of the same step that holds the compute may be one the filter drops.
    return replace(table, cells={**table.cells, compute: fill_from_step(table.cells, compute, table.step)})


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
        if 1 < len(own) <= _MAX_RUNS and "None" not in own and median(own.values()) >= _MIN_ROWS_PER_RUN
    ]
    run = next(iter(find_all(RUN, free)), None)
    arms = [name for name in named if plain(name) in ARM]
    apart = arms or [name for name in named if name == run and not selection.seed]
    pairs = set(zip(map(label, measured[run]), map(label, measured[table.seed]), strict=True))
    if not apart or (not arms and table.seed and len(pairs) == len({seed for _, seed in pairs})):
        return table
    for name in apart:
        table = table.noting("runs_apart", column=name, num=len(counts[name]))
    return replace(table, seed=table.seed or (run if arms else None), apart=(*apart, *table.apart))
