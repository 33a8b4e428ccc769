"""What a run is, and which rows of which logs make a curve.

A run is file x run column x seed, with its attempts joined by their steps; the last row of a step wins. Within a run
the step rises from row to row. Where it falls back to the first step, another attempt begins: a run of its own. Where
it falls back to a later step, the run was resumed there: the rows that were logged before of the steps from there on
are of a model that is gone. Files and run columns follow the same rule: a part that begins in the later half of another
and goes beyond it continues that one.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from statistics import median
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from scalerl.errors import InputError
from scalerl.logs.axes import UNEVEN_TIME, disagreement
from scalerl.logs.clock import wall_times, with_hours
from scalerl.logs.columns import Reward, choose_x, choose_y, fill_from_step, has_role, is_measured, roles, run_labels
from scalerl.logs.names import ATTEMPT, FILE, CurveKey, file_names, without_seed
from scalerl.logs.selection import Selection
from scalerl.logs.source import Source
from scalerl.logs.table import Placed, Table, one_row_per_run_and_step, pooled, tabled, with_evaluations
from scalerl.logs.units import Floats, Mask, grouped, known, label, logged

# From rows to a log


def make_table(source: Source, kind: str, rows: Iterable[Placed]) -> Table:
    """Build a table from rows of any shape, and recognise its columns."""
    cells, places = tabled(rows, source)
    table = Table(path=source.path, kind=kind, cells=cells, places=places, facts=tuple(source.facts))
    if kind != "run":
        table = one_row_per_run_and_step(table, source)
    elif "reward" in cells:
        reward = Reward(column="reward", kind="evaluation")
        table = replace(table, reward=reward, apart=tuple(name for name in ("arm", "set") if name in cells))
    return arranged(table, Selection())


def arranged(table: Table, selection: Selection) -> Table:
    """Join the attempts of a log as it was read, build its hours, and choose the columns of compute and reward."""
    raw, gpus = table.raw or table, selection.gpus
    table = replace(raw, path=table.path, seed=raw.find("seed"))
    if raw.kind != "run":
        # Who names the column that tells evaluations from training means the column that they share.
        is_split = not raw.find("split") or any(has_role(name, "split") for name in selection.mentioned)
        table = replace(table if is_split else with_evaluations(table), raw=raw)
        table, counts = joined(table, selection.mentioned)
        # Work that a restart lost was done, and its time counts.
        table = with_hours(table)
        table = table if counts.all() else table.take(counts)
    if gpus is not None and not 0 < gpus < float("inf"):
        raise InputError(f"--gpus {gpus:g} is not a number of GPUs: give how many the run used, such as --gpus 8.")
    if gpus is not None and "hours" in table.cells and table.find("gpu_hours") is None:
        hours = table["hours"]
        table = table.with_column("gpu_hours", (None if hour is None else hour * gpus for hour in hours))
    reward = table.reward or choose_y(table.cells)
    x = choose_x(table.cells, y=reward.column if reward else None, built=gpus is not None)
    return replace(table, reward=reward, x=x)


# The attempts of a run

# Rows in no order at all fall at every second row. An attempt with fewer rows is left out, unless it is the last.
_MIN_ROWS = 3

Rows = NDArray[np.intp]


def joined(table: Table, labels: set[str]) -> tuple[Table, Mask]:
    """Return the rows of a log in their order, and which of them no later attempt superseded.

    `labels` are columns that name runs, beside those that are recognised.
    """
    step, every = table.find("trainer_step"), np.ones(len(table), dtype=bool)
    if step is None or ATTEMPT in table.cells:
        return table, every
    table = _in_order(table, step)
    known_labels = run_labels(table.cells, step)
    names = [*known_labels, *(name for name in table.columns if name in labels and name not in known_labels)]
    if not names and (np.diff(table.numbers(step)) > 0).all():
        return table, every  # one run, never interrupted
    table = _counted_through_epochs(table, step, table.find("coarse"))
    table = _with_named_runs_joined(table, step, [name for name in names if name not in labels])
    return _with_attempts_joined(table, step, names)


def chains(steps: Mapping[Any, Floats]) -> list[list[Any]]:
    """Group parts into runs: each part but the first begins in the later half of the one before and goes beyond it."""
    spans = {key: (own.min(), own.max()) for key, part in steps.items() if (own := part[~np.isnan(part)]).size}
    runs: list[list[Any]] = []
    for key, (first, last) in sorted(spans.items(), key=lambda item: item[1]):
        ending = []
        for run in runs:
            begin, end = spans[run[-1]]
            if (begin + end) / 2 < first <= end + max(1.0, 0.1 * (end - begin)) and last > end:
                ending.append(run)
        # A part that continues several others is of none of them for certain.
        if len(ending) == 1:
            ending[0].append(key)
        else:
            runs.append([key])
    return [run for run in runs if len(run) > 1]


def _in_order(table: Table, step: str) -> Table:
    """Return the rows by their time of day, if every row has one; rows with the newest first are turned."""
    steps = table.numbers(step)
    if table.find("wall_clock") and not np.isnan(times := wall_times(table)).any():
        return table.take(np.argsort(times, kind="stable"))
    steps = steps[~np.isnan(steps)]
    is_turned = len(np.unique(steps)) > 3 and (np.diff(steps) <= 0).all()
    return table.take(slice(None, None, -1)) if is_turned else table


def _counted_through_epochs(table: Table, step: str, coarse: str | None) -> Table:
    """Return a table whose steps go on where each epoch begins its steps anew; any other as it is."""
    steps, epochs = table.numbers(step), table.numbers(coarse)
    there = np.flatnonzero(~np.isnan(steps) & ~np.isnan(epochs))
    falls, turns = np.diff(steps[there]) < 0, np.diff(epochs[there])
    if not falls.any() or (turns < 0).any() or falls.sum() != (turns > 0).sum():
        return table
    counted = table[step].copy()
    counted[there[1:]] += np.cumsum(np.where(falls, steps[there][:-1], 0.0))
    table = replace(table, cells={**table.cells, step: counted})
    return table.noting("steps_per_epoch", step=step, coarse=coarse, num=int(falls.sum()) + 1)


def _with_named_runs_joined(table: Table, step: str, labels: Sequence[str]) -> Table:
    """Give one name to the values of a run column that continue each other, as ids of restarts do."""
    steps = table.numbers(step)
    for column in (name for name in labels if has_role(name, "run")):
        names = table[column].copy()
        for family in table.groups(name for name in labels if name != column).values():
            parts = {name: family[own] for name, own in grouped(names[family]).items() if name}
            for run in chains({name: steps[own] for name, own in parts.items()}):
                names[np.concatenate([parts[name] for name in run])] = run[0]
                table = table.noting("runs_joined", column=column, names=tuple(map(str, run)))
        table = replace(table, cells={**table.cells, column: names})
    return table


# Attempts


def find_attempts(steps: Floats) -> tuple[list[int], list[tuple[Rows, int]]]:
    """Return the rows at which attempts begin anew, and for each resumption the rows it superseded and its first row.

    Rows in no order have neither.
    """
    rises = np.diff(steps)
    gap = float(np.median(rises[rises > 0])) if (rises > 0).any() else 0.0
    parts = np.split(np.arange(len(steps)), np.flatnonzero(rises < 0) + 1)
    anew: list[int] = []
    gone: list[tuple[Rows, int]] = []
    num_inside, run = 0, parts[0]
    for part in parts[1:]:
        (first, second, *_), reached = (*np.unique(steps[run]), np.inf), steps[run].max()
        begin, then, *_ = (*np.unique(steps[part]), np.nan)
        num_inside += int(begin > first)
        if begin <= first and (then <= second or then > reached + gap):
            anew.append(int(part[0]))
            run = part
            continue
        # One step alone was evaluated again, and one row that was written late does not change how the run goes on.
        if begin > first and then == then and then - reached != gap:
            gone.append((run[steps[run] >= begin], int(part[0])))
        elif begin <= first and then == then:  # resumed, and the first step was evaluated again
            gone.append((np.concatenate([run[steps[run] >= then], part[steps[part] == first]]), int(part[0])))
        run = np.concatenate([run, part])
    return (anew, gone) if _MIN_ROWS * (num_inside + 1) <= len(steps) else ([], [])


def _with_attempts_joined(table: Table, step: str, labels: Sequence[str]) -> tuple[Table, Mask]:
    """Number the attempts that begin anew; return the table, and which rows no resumed attempt superseded.

    What only the superseded row of a step has, such as a checkpoint's evaluation, moves to the row that replaced it.
    """
    steps, attempt, gone = table.numbers(step), np.ones(len(table), dtype=int), np.full(len(table), -1)
    newest = np.arange(len(table))
    for members in table.groups(labels).values():
        timed = members[~np.isnan(steps[members])]
        if not timed.size or _measure_other_things(table.take(timed), step):
            continue
        anew, superseded = find_attempts(steps[timed])
        attempt[members] += np.searchsorted(timed[anew], members, side="right")
        for rows, by in reversed(superseded):
            gone[timed[rows]] = timed[by]
        for same in grouped(steps[timed]).values():
            newest[timed[same]] = timed[same[-1]]
    is_gone = gone >= 0
    table = _filled(table, np.flatnonzero(is_gone & ~is_gone[newest])[::-1], newest)
    counts = Counter(attempt.tolist())
    short = [number for number, num in counts.items() if number < max(counts) and num < _MIN_ROWS]
    kept = ~np.isin(attempt, short)
    attempt = 1 + np.searchsorted(np.unique(attempt[kept]), attempt)
    if is_gone.any():
        at, *_ = falls = np.unique(gone[is_gone])
        spans = {"from_step": float(steps[:at][~np.isnan(steps[:at])][-1]), "to_step": float(steps[at])}
        place = f"{table.places[at]} of {table.path.name}"
        table = table.noting("superseded", **spans, place=place, times=len(falls), num=int(is_gone.sum()))
    if short:
        num_rows = sum(counts[number] for number in short)
        table = table.noting("short_attempts", num=len(short), num_rows=num_rows, place=table.path.name)
    if (num := int(attempt[kept].max(initial=1))) > 1:
        differ = _settings(table.take(kept & ~is_gone), attempt[kept & ~is_gone])
        told = {"num": num, "place": table.path.name, "differ": ",".join(differ)}
        table = table.noting("attempts_differ" if differ else "attempts", **told)
        table = replace(table.with_column(ATTEMPT, attempt.tolist()), apart=(*table.apart, ATTEMPT))
    return table.take(kept), ~is_gone[kept]


def _filled(table: Table, old: Rows, newest: Rows) -> Table:
    """Fill the gaps of rows with what the rows they replaced had measured."""
    filled = {}
    for name, cells in table.cells.items():
        gaps = old[~known(cells[newest[old]])]
        filled[name] = cells.copy()
        filled[name][newest[gaps]] = cells[gaps]
    return replace(table, cells=filled) if len(old) else table


def _measure_other_things(table: Table, step: str) -> bool:
    """Return whether the parts between falls of the step have no metric in common: evaluations after all training."""
    part = np.cumsum(np.diff(table.numbers(step), prepend=-np.inf) < 0)
    measured = [cells for name, cells in table.cells.items() if name != step and is_measured(name)]
    return all(len(np.unique(part[known(cells)])) < 2 for cells in measured)


def _settings(table: Table, attempt: Rows) -> tuple[str, ...]:
    """Return the columns that have one value in each attempt and not the same in all: settings, most likely."""
    values = {name: set(zip(attempt, map(str, cells), strict=True)) for name, cells in table.cells.items()}
    constant = [name for name, pairs in values.items() if len(pairs) == len(set(attempt))]
    return tuple(name for name in constant if len({value for _, value in values[name]} - {"None"}) > 1)


# Which rows make which curve

# A column with more values than these, or hardly a row for each, does not name runs.
_MAX_RUNS = 200
_MIN_ROWS_PER_RUN = 2

Parts = list[tuple[Table, Rows]]
"""Rows of each table."""


class Curve(NamedTuple):
    """The rows of a curve that have both compute and reward, as the files have them."""

    key: CurveKey
    rows: Table
    tables: tuple[Table, ...]
    """The whole tables that they are from."""
    problem: str = ""
    """Why a whole file makes no curve."""


def curves_from(tables: Sequence[Table], selection: Selection) -> list[Curve]:
    """Return the curves, at least one with a row at least; a file that makes none is one with a problem."""
    if not tables:
        raise InputError("no file was given: name at least one log file or run folder.")
    if len(tables) > 1 and not selection.by and not selection.seed:
        tables = _with_joined_files(tables)
    usable, faulty = list[Table](), list[Curve]()
    for table, file in zip(tables, file_names([table.path for table in tables]), strict=True):
        try:
            usable.append(_prepared(table, file, selection, len(tables)))
        except InputError as fault:
            faulty.append(Curve(((FILE, file),), table, (), str(fault)))
    if not usable:
        raise InputError(faulty[0].problem)
    usable = [_with_named_runs(table, selection) for table in selection.filtered(usable)]
    apart = {column for table in usable for column in table.apart} - selection.mentioned
    cells = {column: [table[column] for table in usable if column in table.apart] for column in apart}
    several = {column for column in apart if len(set(map(label, np.concatenate(cells[column])))) > 1}
    curves: dict[CurveKey, Parts] = {}
    for table in usable:
        if ATTEMPT not in several:
            table = replace(table, facts=tuple(fact for fact in table.facts if not fact.kind.startswith("attempts")))
        columns = [*(selection.by or (FILE,)), *(column for column in table.apart if column in several)]
        measured = np.flatnonzero(table.is_measured)
        keys = zip(*(map(label, table[column][measured]) for column in columns), strict=True)
        for key, own in grouped(keys).items():
            curves.setdefault(tuple(zip(columns, key, strict=True)), []).append((table, measured[own]))
        if len(table) and not measured.size:
            with_x, with_y = (logged(table[column]).sum() for column in (table.x, table.y))
            problem = (
                f"no usable curve: of the {len(table)} rows selected from {table.path}, {with_x} have {table.x!r}, "
                f"{with_y} have {table.y!r} and none has both; choose other columns with --x and --y."
            )
            faulty.append(Curve(((FILE, table[FILE][0]),), table, (), problem))
    if not curves:
        raise InputError(faulty[0].problem)
    if len(curves) > 1 and not selection.by and not selection.seed:
        curves = _with_joined_seeds(curves)
    found = [
        Curve(key, pooled([table.take(rows) for table, rows in own]), tuple(table for table, _ in own))
        for key, own in curves.items()
    ]
    return [*found, *faulty]


def _with_joined_seeds(curves: Mapping[CurveKey, Parts]) -> dict[CurveKey, Parts]:
    """Join curves whose files or runs have names that differ in the seed alone: they are runs of one curve.

    Where a curve has the very name without a seed, or they differ in their columns, the names say too little.
    """
    keys, joined = list(curves), dict[CurveKey, Parts]()
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
