"""Which rows of which tables make which curve: `Selection`, the shared options, and `Point`, one row of a curve.

A fault found here is one of a file as a whole, and raises InputError.
"""

import difflib
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from scalerl.errors import InputError
from scalerl.logs.axes import UNEVEN_TIME, disagreement
from scalerl.logs.columns import ARM, RUN, STEP_TIME, Reward, fill_from_step, find
from scalerl.logs.facts import Fact
from scalerl.logs.names import ATTEMPT, FILE, CurveKey, file_names, listed
from scalerl.logs.runs import chains
from scalerl.logs.table import Table, make_table, with_column, with_gpus
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

    def holds_out(self, row: dict[str, Any]) -> bool:
        return self.holdout is not None and same(row.get(self.holdout[0]), self.holdout[1])


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """One row of one curve, its values as the file has them."""

    table: Table
    at: int
    curve: CurveKey
    run: str
    seed: str | None
    """Value of the column that is recognised as seed, where no option names one."""
    is_held_out: bool

    @property
    def row(self) -> dict[str, Any]:
        return self.table.rows[self.at]

    @property
    def x(self) -> Any:
        return self.row.get(self.table.x or "")

    @property
    def y(self) -> Any:
        return self.row.get(self.table.y or "")

    @property
    def step(self) -> float | None:
        """The step of a log that may have been resumed; None for our run folders, whose rows are known to count."""
        value = self.row.get(self.table.step or "")
        return value if self.table.kind != "run" and is_number(value) and math.isfinite(value) else None

    @property
    def num_samples(self) -> Any:
        return self.row.get(self.table.num_samples or "num_samples")

    @property
    def evaluation(self) -> str | None:
        """The prompts and the step, for points that can be compared answer by answer."""
        prompts, step = self.row.get("prompts_hash"), self.row.get(self.table.step or "step")
        return None if prompts is None or step is None else f"{label(prompts)}@{label(step)}"


def words_of(table: Table) -> list[str]:
    """Return the columns of text; none for a run folder, which is one run."""
    columns = [column for column in table.columns if column not in (FILE, table.seed) and table.kind != "run"]
    return [column for column in columns if all(isinstance(row.get(column), str | None) for row in table.rows)]


def places_of(points: Sequence[Point]) -> str:
    """Return the places of rows for a message: 'lines 3, 5 and 2 more of a.csv'."""
    shown = [(point.table.places[point.at], point.table.path.name) for point in points[:_MAX_PLACES]]
    more = f" and {len(points) - len(shown)} more" if len(points) > len(shown) else ""
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


def label(value: object) -> str:
    return str(int(value)) if isinstance(value, float) and value.is_integer() else str(value)


def points_from(tables: Sequence[Table], selection: Selection) -> list[Point]:
    """Return the rows that have both compute and reward, each with the key of its curve; at least one."""
    if not tables:
        raise InputError("no file was given: name at least one log file or run folder.")
    if not selection.by and not selection.seed:
        tables = _joined(tables)
    files = file_names([table.path for table in tables])
    is_only = len(tables) == 1
    tables = [_prepared(table, file, selection, is_only) for table, file in zip(tables, files, strict=True)]
    kept = _filtered(tables, selection)
    apart = _apart(tables, kept, selection)
    points = []
    for table, rows, file in zip(tables, kept, files, strict=True):
        columns = [*(selection.by or (FILE,)), *(column for column in apart if column in table.apart)]
        if ATTEMPT not in columns:
            table = replace(table, facts=tuple(fact for fact in table.facts if fact.kind != "attempts"))
        for at in rows:
            row = table.rows[at]
            if row.get(table.x or "") is not None and row.get(table.y or "") is not None:
                point = Point(
                    table=table,
                    at=at,
                    curve=tuple((column, label(row.get(column))) for column in columns),
                    # Files pooled into one curve are different runs, unless the user names the column of runs.
                    run=label(row.get(selection.seed)) if selection.seed else file,
                    seed=label(row.get(table.seed)) if table.seed and not selection.seed else None,
                    is_held_out=selection.holds_out(row),
                )
                points.append(point)
    if not points:
        raise InputError(_nothing_left(tables[0], kept[0]))
    return points


# Files and columns that name runs


def _joined(tables: Sequence[Table]) -> list[Table]:
    """Join files of one folder that are attempts of one run: each begins in the later half of the one before it."""
    spans: dict[tuple[Any, ...], dict[int, tuple[float, float]]] = {}
    for at, table in enumerate(tables):
        steps = [row[table.step] for row in table.rows if table.step and is_number(row.get(table.step))]
        if table.kind != "run" and steps and ATTEMPT not in table.apart:
            own = (table.path.parent, table.kind, table.step, table.y)
            spans.setdefault(own, {})[at] = (min(steps), max(steps))
    parts = {chain[0]: chain for own in spans.values() for chain in chains(own) if len(chain) > 1}
    later = {at for chain in parts.values() for at in chain[1:]}
    return [
        _as_one([tables[part] for part in parts[at]]) if at in parts else table
        for at, table in enumerate(tables)
        if at not in later
    ]


def _as_one(tables: Sequence[Table]) -> Table:
    rows = [
        (f"{table.path.name} {place}", {name: value for name, value in row.items() if name not in table.built})
        for table in tables
        for place, row in zip(table.places, table.rows, strict=True)
    ]
    fact = Fact(kind="files_joined", values={"files": tuple(table.path.name for table in tables)})
    return make_table(tables[0].path, tables[0].kind, rows, apart=tables[0].apart, facts=(fact,))


def _with_named_runs(table: Table, selection: Selection) -> Table:
    """Make what a column names separate curves, where nobody says what separates curves.

    A recipe, arm or model is a curve, and the runs and seeds within it are its repeats; a run is a curve of its own
    where there is no such column and no seed.
    """
    if table.kind == "run" or selection.by:
        return table
    named = (find((name,), table.columns) for name in ARM)
    arms = [column for column in named if column is not None and _splits(table, column, selection)]
    run = find(RUN, table.columns)
    if arms:
        seed = table.seed or (run if run not in table.apart else None)
        return _split(replace(table, seed=seed), arms)
    if run is None or not _splits(table, run, selection) or selection.seed:
        return table
    spans: dict[str, tuple[float, float]] = {}
    pairs: set[tuple[str, str]] = set()
    for row in table.rows:
        x = row.get(table.x or "")
        if is_number(x) and row.get(table.y or "") is not None:
            low, high = spans.get(label(row[run]), (math.inf, -math.inf))
            spans[label(row[run])] = min(low, x), max(high, x)
            pairs.add((label(row[run]), label(row.get(table.seed or ""))))
    # A resumed run may have another id for what follows; and a run with a seed of its own is a repeat.
    is_repeat = table.seed is not None and len(pairs) == len({seed for _, seed in pairs})
    return table if is_repeat or len(chains(spans)) == 1 else _split(table, [run])


def _splits(table: Table, column: str | None, selection: Selection) -> bool:
    """Return whether every row with a reward has a value here, each value with several rows."""
    if column is None or column in selection.mentioned or column in table.apart:
        return False
    rows = [row for row in table.rows if row.get(table.y or "") is not None and row.get(table.x or "") is not None]
    counts: dict[str, int] = {}
    for row in rows:
        counts[label(row.get(column))] = counts.get(label(row.get(column)), 0) + 1
    return 2 <= len(counts) <= _MAX_RUNS and "None" not in counts and min(counts.values()) >= _MIN_ROWS_PER_RUN


def _split(table: Table, columns: Sequence[str]) -> Table:
    facts = [
        Fact(kind="runs_apart", values={"column": column, "num": len({label(row.get(column)) for row in table.rows})})
        for column in columns
    ]
    return replace(table, apart=(*table.apart, *columns), facts=(*table.facts, *facts))


def _apart(tables: Sequence[Table], kept: Sequence[Sequence[int]], selection: Selection) -> list[str]:
    """Return the columns that split curves unasked: those with several values that no option mentions."""
    separate = []
    for column in dict.fromkeys(column for table in tables for column in table.apart):
        pairs = [(table, rows) for table, rows in zip(tables, kept, strict=True) if column in table.apart]
        values = {label(table.rows[at].get(column)) for table, rows in pairs for at in rows}
        if column in selection.mentioned or len(values) < 2:
            continue
        if column != ATTEMPT or any(_attempts_differ(table, rows, selection) for table, rows in pairs):
            separate.append(column)
    return separate


def _attempts_differ(table: Table, rows: Sequence[int], selection: Selection) -> bool:
    """Return whether attempts say more than the columns that the user named: a run of a curve with several attempts."""
    named = [column for column in (*selection.by, selection.seed or table.seed) if column is not None]
    attempts: dict[tuple[str, ...], set[str]] = {}
    for row in (table.rows[at] for at in rows):
        key = (*(label(row.get(column)) for column in named), str(selection.holds_out(row)))
        attempts.setdefault(key, set()).add(label(row.get(ATTEMPT)))
    return any(len(numbers) > 1 for numbers in attempts.values())


# A table as a whole


def _prepared(table: Table, file: str, selection: Selection, is_only: bool) -> Table:
    """Add the file name as a column and compute to every row that can have it; check the columns asked for."""
    x, facts = None, ()
    if selection.x is None and table.kind == "run" and table.x == "gpu_hours" and "arm" not in table.columns:
        share = disagreement(table.rows)
        if share > UNEVEN_TIME:
            x = "flops" if is_only else "gpu_hours"
            facts = (Fact(kind="uneven_time", values={"share": share, "used": x}),)
    if selection.gpus is not None:
        table = with_gpus(table, selection.gpus)
    if FILE not in table.columns:
        table = replace(with_column(table, FILE, [file] * len(table.rows)), built=table.built)
    _check_columns(table, selection)
    x = selection.x or x or table.x
    assert x is not None
    reward = table.reward
    if selection.y is not None:
        reward = Reward(column=selection.y, kind="evaluation")
    if x != table.step:
        # Before any filter: the row of the same step that holds the compute may be one the filter drops.
        computes = fill_from_step(table.rows, x, table.step)
        rows = [{**row, x: compute} for row, compute in zip(table.rows, computes, strict=True)]
        table = replace(table, rows=rows)
    return _with_named_runs(replace(table, x=x, reward=reward, facts=(*table.facts, *facts)), selection)


def _check_columns(table: Table, selection: Selection) -> None:
    given = [("--x", selection.x), ("--y", selection.y), ("--seed", selection.seed)]
    given += [("--by", column) for column in selection.by]
    given += [("--where", column) for column, _ in (*selection.where, *selection.where_not)]
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
    filters = [(column, wanted, True) for column, wanted in selection.where]
    filters += [(column, wanted, False) for column, wanted in selection.where_not]
    for column, wanted, has in filters:
        before = kept
        kept = [
            [at for at in rows if same(table.rows[at].get(column), wanted) == has]
            for table, rows in zip(tables, kept, strict=True)
        ]
        if not any(kept):
            raise InputError(
                _matches_nothing(tables, before, f"--where {column}{'=' if has else '!='}{wanted}", column)
            )
    if selection.holdout and not any(
        selection.holds_out(table.rows[at]) for table, rows in zip(tables, kept, strict=True) for at in rows
    ):
        raise InputError(
            _matches_nothing(tables, kept, f"--holdout {'='.join(selection.holdout)}", selection.holdout[0])
        )
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
