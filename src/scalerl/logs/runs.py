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

from scalerl.logs.columns import RUN, is_measured, plain, run_keys
from scalerl.logs.facts import Fact
from scalerl.logs.names import ATTEMPT
from scalerl.logs.units import is_missing, is_number

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
    known = [at for at, row in enumerate(rows) if is_number(row.get(step)) and is_number(row.get(coarse or ""))]
    falls = [at for at, after in itertools.pairwise(known) if rows[after][step] < rows[at][step]]
    epochs = [rows[at][coarse or ""] for at in known]
    begins = [b for a, b in itertools.pairwise(known) if rows[b][coarse or ""] != rows[a][coarse or ""]]
    if not falls or any(b < a for a, b in itertools.pairwise(epochs)) or len(falls) != len(begins):
        return list(rows), []
    counted, offset = list(rows), 0.0
    for before, at in zip((None, *known), known, strict=False):
        if before is not None and rows[at][step] < rows[before][step]:
            offset += rows[before][step]
        counted[at] = {**rows[at], step: rows[at][step] + offset}
    return counted, [Fact(kind="steps_per_epoch", values={"step": step, "coarse": coarse, "num": len(falls) + 1})]


def join_named_runs(rows: Sequence[Row], step: str, labels: Sequence[str]) -> tuple[list[Row], list[Fact]]:
    """Return the rows with one name for the values of a run column that continue each other, as ids of restarts do."""
    joined, facts = list(rows), []
    for column in (label for label in labels if plain(label) in RUN):
        families: dict[tuple[str, ...], dict[Any, Span]] = {}
        keys = run_keys(joined, [label for label in labels if label != column])
        for key, row in zip(keys, joined, strict=True):
            if is_number(at := row.get(step)) and row.get(column) is not None:
                spans = families.setdefault(key, {})
                low, high = spans.get(row[column], (at, at))
                spans[row[column]] = min(low, at), max(high, at)
        runs = [(key, run) for key, spans in families.items() for run in chains(spans) if len(run) > 1]
        names = {(key, name): run[0] for key, run in runs for name in run}
        joined = [
            row if row.get(column) is None else {**row, column: names.get((key, row[column]), row[column])}
            for key, row in zip(keys, joined, strict=True)
        ]
        facts += [Fact(kind="runs_joined", values={"column": column, "names": tuple(map(str, run))}) for _, run in runs]
    return joined, facts


# The rows of one table


@dataclass(frozen=True, slots=True, kw_only=True)
class Joined:
    """The attempt of each row, and the positions of the rows that count."""

    attempt: list[int]
    kept: list[int]
    facts: list[Fact]


def join_attempts(rows: list[Row], step: str, labels: Sequence[str], places: Sequence[str], file: str) -> Joined:
    """Number the attempts that begin anew, and drop what a resumed attempt superseded.

    What only the superseded row of a step has, such as a checkpoint's evaluation, moves to the row that replaced it.
    """
    attempt, again, gone = [1] * len(rows), set[int](), dict[int, int]()
    groups: dict[tuple[str, ...], list[int]] = {}
    keys = run_keys(rows, labels)
    for row, key in enumerate(keys):
        groups.setdefault(key, []).append(row)
    for members in groups.values():
        with_step = [row for row in members if is_number(rows[row].get(step))]
        if _measure_other_things([rows[row] for row in with_step], step):
            continue
        steps = [rows[row][step] for row in with_step]
        found = find_attempts(steps)
        again |= {with_step[at] for at in found.again}
        for first in found.anew:
            # Rows without a step belong to the attempt around them.
            for row in members[members.index(with_step[first]) :]:
                attempt[row] += 1
        later: list[int] = []
        for at in reversed(range(len(steps))):
            by = next((other for other in later if steps[other] <= steps[at]), None)
            gone |= {} if by is None else {with_step[at]: with_step[by]}
            if at in found.anew:
                later = []
            elif at in found.resumed:
                later = [at, *(other for other in later if steps[other] < steps[at])]
    facts = [_superseded(rows, step, gone, places, file)] if gone else []
    newest = {(keys[row], rows[row][step]): row for row in range(len(rows)) if is_number(rows[row].get(step))}
    for row in gone:
        newer = newest[keys[row], rows[row][step]]
        if newer not in gone:
            rows[newer] = rows[row] | {name: value for name, value in rows[newer].items() if not is_missing(value)}
    counts = Counter(attempt[row] for row in range(len(rows)) if row not in again)
    short = {number for number, num in counts.items() if number < max(counts) and num < _MIN_ROWS}
    kept = [row for row in range(len(rows)) if attempt[row] not in short and row not in again and row not in gone]
    if short:
        values = {"num": len(short), "num_rows": sum(counts[number] for number in short), "place": file}
        facts.append(Fact(kind="short_attempts", values=values))
    if again:
        facts.append(Fact(kind="first_step_again", values={"num": len(again), "step": rows[min(again)][step]}))
    order = {number: new for new, number in enumerate(sorted(set(counts) - short), start=1)}
    numbers = [order.get(number, 0) for number in attempt]
    if len(order) > 1:
        differ = _settings([rows[row] for row in kept], [numbers[row] for row in kept])
        facts.append(Fact(kind="attempts", values={"num": len(order), "place": file, "differ": differ}))
    return Joined(attempt=numbers, kept=kept, facts=facts)


def _measure_other_things(rows: Sequence[Row], step: str) -> bool:
    """Return whether the parts between falls of the step have no metric in common: evaluations after all training."""
    parts: list[set[str]] = [set()]
    for before, row in zip((None, *rows), rows, strict=False):
        if before is not None and row[step] < before[step]:
            parts.append(set())
        parts[-1] |= {
            name for name, value in row.items() if name != step and is_measured(name) and not is_missing(value)
        }
    return sum(map(len, parts)) == len(set.union(*parts))


def _superseded(rows: Sequence[Row], step: str, gone: Mapping[int, int], places: Sequence[str], file: str) -> Fact:
    first = min(gone.values())
    before = next((rows[at][step] for at in range(first - 1, -1, -1) if is_number(rows[at].get(step))), 0)
    values = {"from_step": before, "to_step": rows[first][step], "place": f"{places[first]} of {file}"}
    return Fact(kind="superseded", values=values | {"times": len(set(gone.values())), "num": len(gone)})


def _settings(rows: Sequence[Row], attempt: Sequence[int]) -> tuple[str, ...]:
    """Return the columns that have one value in each attempt and not the same in all: settings, most likely."""
    values: dict[str, dict[int, set[str]]] = {}
    for row, number in zip(rows, attempt, strict=True):
        for column, value in row.items():
            if column != ATTEMPT and value is not None:
                values.setdefault(column, {}).setdefault(number, set()).add(str(value))
    constant = {
        column: set.union(*own.values())
        for column, own in values.items()
        if len(own) == len(set(attempt)) and all(len(seen) == 1 for seen in own.values())
    }
    return tuple(column for column, seen in constant.items() if len(seen) > 1)
