"""What a run is: file x run column x seed, with its attempts joined by their steps; the last row of a step wins.

Within a run the step rises from row to row. Where it falls back to the first step, another attempt begins: a run of its
own. Where it falls back to a later step, the run was resumed there: the rows that were logged before of the steps from
there on are of a model that is gone. Files and run columns follow the same rule: a part that begins in the later half
of another and goes beyond it continues that one.
"""

import itertools
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import median
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scalerl.logs.columns import RUN, grouped, is_measured, plain
from scalerl.logs.facts import Fact
from scalerl.logs.names import ATTEMPT
from scalerl.logs.table import Table
from scalerl.logs.units import Cells, Floats, Mask, known

Span = tuple[float, float]
"""First and last step of a part."""

# Rows in no order at all fall at every second row. An attempt with fewer rows is left out, unless it is the last.
_MIN_ROWS = 3


@dataclass(slots=True)
class Attempts:
    """Where attempts begin in a list of steps, given in the order they were written."""

    anew: list[int] = field(default_factory=list)
    """Positions at which a run begins from its first step again."""
    resumed: list[int] = field(default_factory=list)
    """Positions at which a run was resumed from a later step."""
    again: set[int] = field(default_factory=set)
    """Positions of the first step that a resumed run evaluated again."""


def find_attempts(steps: Sequence[float]) -> Attempts:
    """Return where attempts begin; none for rows in no order."""
    found = Attempts()
    falls = [at for at in range(1, len(steps)) if steps[at] < steps[at - 1]]
    rises = [b - a for a, b in itertools.pairwise(steps) if b > a]
    if not falls or not rises:
        return found
    gap = median(rises)
    begin, reached, second, num_inside, seen = 0, steps[0], None, 0, 0
    for at in falls:
        for step in steps[seen:at]:
            reached = max(reached, step)
            second = step if second is None and step > steps[begin] else second
        seen = at
        after = next((place for place in range(at, len(steps)) if steps[place] != steps[at]), None)
        num_inside += steps[at] > steps[begin]
        if after is None:
            continue  # a step evaluated again, such as the best one at the end
        then = steps[after]
        if steps[at] > steps[begin]:
            # One row that was written late does not change how the run goes on.
            if then - reached != gap:
                found.resumed.append(at)
        elif second is not None and second < then <= reached + gap:
            found.again |= {place for place in range(at, after) if steps[place] == steps[begin]}
            found.resumed += [after] if then <= reached else []
        else:
            found.anew.append(at)
            begin, reached, second = at, steps[at], None
    return found if _MIN_ROWS * (num_inside + 1) <= len(steps) else Attempts()


def chains(spans: Mapping[Any, Span]) -> list[list[Any]]:
    """Group parts into runs: each part but the first begins in the later half of the one before and goes beyond it."""
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
    return runs


def span_of(steps: Floats) -> Span | None:
    there = steps[~np.isnan(steps)]
    return (float(there.min()), float(there.max())) if there.size else None


# The rows of one table


def count_through_epochs(table: Table, step: str, coarse: str | None) -> Table:
    """Return a table whose steps go on where each epoch begins its steps anew; any other as it is."""
    steps, epochs = table.numbers(step), table.numbers(coarse)
    there = np.flatnonzero(~np.isnan(steps) & ~np.isnan(epochs))
    falls, turns = np.diff(steps[there]) < 0, np.diff(epochs[there])
    if not falls.any() or (turns < 0).any() or falls.sum() != (turns > 0).sum():
        return table
    counted = table[step].copy()
    counted[there[1:]] += np.cumsum(np.where(falls, steps[there][:-1], 0.0))
    values = {"step": step, "coarse": coarse, "num": int(falls.sum()) + 1}
    return replace(table, cells={**table.cells, step: counted}).noting(Fact(kind="steps_per_epoch", values=values))


def join_named_runs(table: Table, step: str, labels: Sequence[str]) -> Table:
    """Give one name to the values of a run column that continue each other, as ids of restarts do."""
    steps = table.numbers(step)
    for column in (label for label in labels if plain(label) in RUN):
        names = table[column].copy()
        for family in table.groups(label for label in labels if label != column).values():
            parts = {name: family[own] for name, own in grouped(names[family]).items()}
            spans = {name: span for name, own in parts.items() if name and (span := span_of(steps[own]))}
            for run in (run for run in chains(spans) if len(run) > 1):
                names[np.concatenate([parts[name] for name in run])] = run[0]
                values = {"column": column, "names": tuple(map(str, run))}
                table = table.noting(Fact(kind="runs_joined", values=values))
        table = replace(table, cells={**table.cells, column: names})
    return table


def join_attempts(table: Table, step: str, labels: Sequence[str]) -> tuple[Table, Mask]:
    """Number the attempts that begin anew; return the table, and which rows no resumed attempt superseded.

    What only the superseded row of a step has, such as a checkpoint's evaluation, moves to the row that replaced it.
    """
    steps, file = table.numbers(step), table.path.name
    attempt, again, gone = np.ones(len(table), dtype=int), np.zeros(len(table), dtype=bool), np.full(len(table), -1)
    newest = np.arange(len(table))
    for members in table.groups(labels).values():
        timed = members[~np.isnan(steps[members])]
        if _measure_other_things(table.take(timed), step):
            continue
        found = find_attempts(steps[timed].tolist())
        again[timed[sorted(found.again)]] = True
        for first in found.anew:
            attempt[members[members >= timed[first]]] += 1
        for at in reversed(found.resumed):
            before = timed[max((first for first in found.anew if first <= at), default=0) : at]
            gone[before[steps[before] >= steps[timed[at]]]] = timed[at]
        for same in grouped(steps[timed]).values():
            newest[timed[same]] = timed[same[-1]]
    table = _with_values_of(table, np.flatnonzero((gone >= 0) & (gone[newest] < 0))[::-1], newest)
    counts = Counter(attempt[~again].tolist())
    short = [number for number, num in counts.items() if number < max(counts) and num < _MIN_ROWS]
    kept = ~np.isin(attempt, short)
    attempt = 1 + np.searchsorted(np.unique(attempt[kept]), attempt)
    done, num_attempts = again | (gone >= 0), int(attempt[kept].max(initial=1))
    if (gone >= 0).any():
        table = table.noting(_superseded(steps, gone, table.places, file))
    if short:
        values = {"num": len(short), "num_rows": sum(counts[number] for number in short), "place": file}
        table = table.noting(Fact(kind="short_attempts", values=values))
    if again.any():
        values = {"num": int(again.sum()), "step": float(steps[again][0])}
        table = table.noting(Fact(kind="first_step_again", values=values))
    if num_attempts > 1:
        differ = _settings(table.take(kept & ~done), attempt[kept & ~done])
        table = table.noting(Fact(kind="attempts", values={"num": num_attempts, "place": file, "differ": differ}))
        table = replace(table.with_column(ATTEMPT, attempt.tolist()), apart=(*table.apart, ATTEMPT))
    return table.take(kept), ~done[kept]


def _with_values_of(table: Table, old: NDArray[np.intp], newest: NDArray[np.intp]) -> Table:
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


def _superseded(steps: Floats, gone: NDArray[np.intp], places: Cells, file: str) -> Fact:
    first = int(gone[gone >= 0].min())
    before = steps[:first][~np.isnan(steps[:first])]
    values = {"from_step": float(before[-1]), "to_step": float(steps[first])}
    values |= {"place": f"{places[first]} of {file}", "times": len(np.unique(gone[gone >= 0]))}
    return Fact(kind="superseded", values=values | {"num": int((gone >= 0).sum())})


def _settings(table: Table, attempt: NDArray[np.intp]) -> tuple[str, ...]:
    """Return the columns that have one value in each attempt and not the same in all: settings, most likely."""
    values = {name: set(zip(attempt, map(str, cells), strict=True)) for name, cells in table.cells.items()}
    constant = [name for name, pairs in values.items() if len(pairs) == len(set(attempt))]
    return tuple(name for name in constant if len({value for _, value in values[name]} - {"None"}) > 1)
