"""What a run is: file x run column x seed, with its attempts joined by their steps; the last row of a step wins.

Within a run the step rises from row to row. Where it falls back to the first step, another attempt begins: a run of its
own. Where it falls back to a later step, the run was resumed there: the rows that were logged before of the steps from
there on are of a model that is gone. Files and run columns follow the same rule: a part that begins in the later half
of another and goes beyond it continues that one.
"""

import itertools
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scalerl.logs.columns import RUN, grouped, is_measured, plain, run_keys
from scalerl.logs.facts import Fact
from scalerl.logs.names import ATTEMPT
from scalerl.logs.units import is_known, numbers

Row = dict[str, Any]
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


def count_through_epochs(rows: Sequence[Row], step: str, coarse: str | None) -> tuple[list[Row], list[Fact]]:
    """Return rows whose steps go on where each epoch begins its steps anew; others as they are."""
    steps, epochs = numbers(rows, step), numbers(rows, coarse)
    known = np.flatnonzero(~np.isnan(steps) & ~np.isnan(epochs))
    falls, turns = np.diff(steps[known]) < 0, np.diff(epochs[known])
    if not falls.any() or (turns < 0).any() or falls.sum() != (turns > 0).sum():
        return list(rows), []
    before = np.cumsum(np.where(falls, steps[known][:-1], 0.0))
    counted = list(rows)
    for at, offset in zip(known[1:], before, strict=True):
        counted[at] = {**rows[at], step: rows[at][step] + float(offset)}
    values = {"step": step, "coarse": coarse, "num": int(falls.sum()) + 1}
    return counted, [Fact(kind="steps_per_epoch", values=values)]


def join_named_runs(rows: Sequence[Row], step: str, labels: Sequence[str]) -> tuple[list[Row], list[Fact]]:
    """Return the rows with one name for the values of a run column that continue each other, as ids of restarts do."""
    joined, steps, facts = list(rows), numbers(rows, step), []
    for column in (label for label in labels if plain(label) in RUN):
        for family in grouped(run_keys(joined, [label for label in labels if label != column])).values():
            parts = {name: family[own] for name, own in grouped(joined[at].get(column) for at in family).items()}
            spans = {name: span for name, own in parts.items() if name and (span := span_of(steps[own]))}
            for run in (run for run in chains(spans) if len(run) > 1):
                for at in np.concatenate([parts[name] for name in run]):
                    joined[at] = {**joined[at], column: run[0]}
                values = {"column": column, "names": tuple(map(str, run))}
                facts.append(Fact(kind="runs_joined", values=values))
    return joined, facts


def span_of(steps: NDArray[np.float64]) -> Span | None:
    known = steps[~np.isnan(steps)]
    return (float(known.min()), float(known.max())) if known.size else None


# The rows of one table


@dataclass(frozen=True, slots=True, kw_only=True)
class Joined:
    """The rows of a table that count, and the attempt of each."""

    rows: list[Row]
    attempt: list[int]
    superseded: list[bool]
    """Rows that were done and are gone: their time counts."""
    places: list[str]
    facts: list[Fact]


def join_attempts(rows: Sequence[Row], step: str, labels: Sequence[str], places: Sequence[str], file: str) -> Joined:
    """Number the attempts that begin anew, and mark what a resumed attempt superseded.

    What only the superseded row of a step has, such as a checkpoint's evaluation, moves to the row that replaced it.
    """
    rows, steps, keys = list(rows), numbers(rows, step), run_keys(rows, labels)
    attempt, again, gone = np.ones(len(rows), dtype=int), np.zeros(len(rows), dtype=bool), np.full(len(rows), -1)
    for members in grouped(keys).values():
        timed = members[~np.isnan(steps[members])]
        if _measure_other_things([rows[at] for at in timed], step):
            continue
        found = find_attempts(steps[timed].tolist())
        again[timed[sorted(found.again)]] = True
        for first in found.anew:
            attempt[members[members >= timed[first]]] += 1
        for at in reversed(found.resumed):
            before = timed[max((first for first in found.anew if first <= at), default=0) : at]
            gone[before[steps[before] >= steps[timed[at]]]] = timed[at]
    newest = {(key, at): row for row, (key, at) in enumerate(zip(keys, steps, strict=True))}
    for row in np.flatnonzero(gone >= 0):
        newer = newest[keys[row], steps[row]]
        if gone[newer] < 0:
            rows[newer] = rows[row] | {name: value for name, value in rows[newer].items() if is_known(value)}
    counts = Counter(attempt[~again].tolist())
    short = [number for number, num in counts.items() if number < max(counts) and num < _MIN_ROWS]
    kept = np.flatnonzero(~np.isin(attempt, short))
    attempt = 1 + np.searchsorted(np.unique(attempt[kept]), attempt)
    done = again | (gone >= 0)
    facts = [_superseded(steps, gone, places, file)] if (gone >= 0).any() else []
    if short:
        values = {"num": len(short), "num_rows": sum(counts[number] for number in short), "place": file}
        facts.append(Fact(kind="short_attempts", values=values))
    if again.any():
        values = {"num": int(again.sum()), "step": float(steps[again][0])}
        facts.append(Fact(kind="first_step_again", values=values))
    if attempt[kept].max(initial=1) > 1:
        counted = kept[~done[kept]]
        differ = _settings([rows[at] for at in counted], attempt[counted].tolist())
        values = {"num": int(attempt[kept].max()), "place": file, "differ": differ}
        facts.append(Fact(kind="attempts", values=values))
    return Joined(
        rows=[rows[at] for at in kept.tolist()],
        attempt=attempt[kept].tolist(),
        superseded=done[kept].tolist(),
        places=[places[at] for at in kept.tolist()],
        facts=facts,
    )


def _measure_other_things(rows: Sequence[Row], step: str) -> bool:
    """Return whether the parts between falls of the step have no metric in common: evaluations after all training."""
    part = np.cumsum(np.diff(numbers(rows, step), prepend=-np.inf) < 0)
    measured = {name for name in set[str]().union(*rows) if name != step and is_measured(name)}
    seen = {
        (number, name)
        for number, row in zip(part, rows, strict=True)
        for name in measured.intersection(row)
        if is_known(row[name])
    }
    return len(seen) == len({name for _, name in seen})


def _superseded(steps: NDArray[np.float64], gone: NDArray[np.intp], places: Sequence[str], file: str) -> Fact:
    first = int(gone[gone >= 0].min())
    before = steps[:first][~np.isnan(steps[:first])]
    values = {"from_step": float(before[-1]), "to_step": float(steps[first])}
    values |= {"place": f"{places[first]} of {file}", "times": len(np.unique(gone[gone >= 0]))}
    return Fact(kind="superseded", values=values | {"num": int((gone >= 0).sum())})


def _settings(rows: Sequence[Row], attempt: Sequence[int]) -> tuple[str, ...]:
    """Return the columns that have one value in each attempt and not the same in all: settings, most likely."""
    numbered = list(zip(attempt, rows, strict=True))
    names = dict.fromkeys(name for row in rows for name in row if name != ATTEMPT)
    values = {name: {(number, str(row.get(name))) for number, row in numbered} for name in names}
    constant = [name for name, pairs in values.items() if len(pairs) == len(set(attempt))]
    return tuple(name for name in constant if len({value for _, value in values[name]} - {"None"}) > 1)
