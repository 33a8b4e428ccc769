"""What a run is: file x run column x seed, with its attempts joined by their steps.

Within a run the step rises from row to row. Where it falls back to the first step, another attempt begins: a run of its
own. Where it falls back to a later step, the run was resumed there: the rows that were logged before of the steps from
there on are of a model that is gone. Files and run columns follow the same rule: a part that begins in the later half
of another and goes beyond it continues that one.
"""

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any

from scalerl.logs.columns import run_labels
from scalerl.logs.facts import Fact
from scalerl.logs.names import ATTEMPT
from scalerl.logs.units import is_number

Row = Mapping[str, Any]

# Rows in no order at all fall at every second row.
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


def continues(earlier: tuple[float, float], later: tuple[float, float]) -> bool:
    """Return whether a part, given as first and last step, goes on from a checkpoint in the later half of another."""
    return later[0] > sum(earlier) / 2 and later[1] > earlier[1] and later[0] <= earlier[1] + _gap_allowed(earlier)


def _gap_allowed(span: tuple[float, float]) -> float:
    return max(1.0, 0.1 * (span[1] - span[0]))


def chains(spans: Mapping[Any, tuple[float, float]]) -> list[list[Any]]:
    """Group parts into runs: each part but the first of a run continues the one before it."""
    runs: list[list[Any]] = []
    for key in sorted(spans, key=lambda key: spans[key]):
        ending = [run for run in runs if continues(spans[run[-1]], spans[key])]
        # A part that continues several others is of none of them for certain.
        if len(ending) == 1:
            ending[0].append(key)
        else:
            runs.append([key])
    return runs


# The rows of one table


@dataclass(frozen=True, slots=True, kw_only=True)
class Numbered:
    """Rows with their attempts: `kept` are positions of rows, `superseded` for each of these a row that replaced it."""

    kept: list[int]
    attempt: list[int] | None
    superseded: list[int | None]
    facts: tuple[Fact, ...]


def number_attempts(rows: Sequence[Row], step: str, place: str) -> Numbered:
    """Number the attempts of a log that begin anew, and mark what a resumed attempt superseded.

    Attempts with a row or two are left out, unless they are the last.
    """
    numbers, again = [1] * len(rows), set[int]()
    superseded: list[int | None] = [None] * len(rows)
    for members in _groups(rows, run_labels(rows, step)):
        with_step = [row for row in members if is_number(rows[row].get(step))]
        steps = [rows[row][step] for row in with_step]
        found = find_attempts(steps)
        again |= {with_step[at] for at in found.again}
        for number, first in enumerate(found.anew, start=2):
            # Rows without a step belong to the attempt around them.
            for row in members[members.index(with_step[first]) :]:
                numbers[row] = number
        begins = [0, *found.anew]
        for at in found.resumed:
            begin = max(first for first in begins if first <= at)
            for earlier in range(begin, at):
                if steps[earlier] >= steps[at] and superseded[with_step[earlier]] is None:
                    superseded[with_step[earlier]] = with_step[at]
    counts: dict[int, int] = {}
    for row, number in enumerate(numbers):
        counts[number] = counts.get(number, 0) + (row not in again)
    short = {number for number, num in counts.items() if number < max(counts) and num < _MIN_ROWS}
    kept = [row for row, number in enumerate(numbers) if number not in short and row not in again]
    facts: list[Fact] = []
    if short:
        values = {"num": len(short), "num_rows": sum(counts[number] for number in short), "place": place}
        facts.append(Fact(kind="short_attempts", values=values))
    if again:
        facts.append(Fact(kind="first_step_again", values={"num": len(again), "step": rows[min(again)][step]}))
    order = {number: new for new, number in enumerate(sorted(set(counts) - short), start=1)}
    attempt = [order[numbers[row]] for row in kept] if len(order) > 1 else None
    if attempt is not None:
        differ = _settings([rows[row] for row in kept], attempt)
        facts.append(Fact(kind="attempts", values={"num": len(order), "place": place, "differ": differ}))
    place_of = {row: new for new, row in enumerate(kept)}
    marks = [place_of.get(mark) if mark is not None else None for mark in (superseded[row] for row in kept)]
    return Numbered(kept=kept, attempt=attempt, superseded=marks, facts=tuple(facts))


def _groups(rows: Sequence[Row], labels: Sequence[str]) -> list[list[int]]:
    groups: dict[tuple[str, ...], list[int]] = {}
    for number, row in enumerate(rows):
        groups.setdefault(tuple(str(row.get(label)) for label in labels), []).append(number)
    return list(groups.values())


def _settings(rows: Sequence[Row], attempt: Sequence[int]) -> tuple[str, ...]:
    """Return the columns that have one value in each attempt and not the same in all: settings, most likely."""
    by_attempt: dict[str, dict[int, set[str]]] = {}
    for row, number in zip(rows, attempt, strict=True):
        for column, value in row.items():
            if column != ATTEMPT and value is not None:
                by_attempt.setdefault(column, {}).setdefault(number, set()).add(str(value))
    num = len(set(attempt))
    return tuple(
        column
        for column, values in by_attempt.items()
        if len(values) == num
        and all(len(seen) == 1 for seen in values.values())
        and len(set.union(*values.values())) > 1
    )
