"""What a run is: file x run column x seed, with its attempts joined by their steps; the last row of a step wins.

Within a run the step rises from row to row. Where it falls back to the first step, another attempt begins: a run of its
own. Where it falls back to a later step, the run was resumed there: the rows that were logged before of the steps from
there on are of a model that is gone. Files and run columns follow the same rule: a part that begins in the later half
of another and goes beyond it continues that one.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scalerl.logs.clock import wall_times
from scalerl.logs.columns import grouped, has_role, is_measured, run_labels
from scalerl.logs.names import ATTEMPT
from scalerl.logs.table import Table
from scalerl.logs.units import Floats, Mask, known

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
    for column in (label for label in labels if has_role(label, "run")):
        names = table[column].copy()
        for family in table.groups(label for label in labels if label != column).values():
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
