"""Runs that were restarted: attempts that begin anew, rows that a resumed run superseded, and clocks that began anew.

Within one run the step rises from row to row. Where it falls back to the first step, another attempt begins: a curve of
its own. Where it falls back to a later step, the run was resumed from there, and what was logged before of the steps
from there on is of a model that is gone.
"""

import itertools
from collections.abc import Hashable, Sequence
from dataclasses import replace
from statistics import median
from typing import Any

from scalerl.errors import InputError
from scalerl.logs import columns as names
from scalerl.logs.facts import Fact
from scalerl.logs.points import Point, at
from scalerl.logs.table import ATTEMPT, Table

# Rows in no order at all fall at every second row.
_MIN_ROWS_PER_ATTEMPT = 3
# A clock that is corrected falls by a little, one that begins anew by far more.
_MIN_FALL = 0.1


# Attempts that begin anew


def separate_attempts(table: Table) -> Table:
    """Number the attempts of a log in which the step falls back to its beginning; short ones are left out."""
    step = names.find(names.TRAINER_STEP, table.columns)
    if step is None or table.kind == "run" or ATTEMPT in table.columns:
        return table
    table = _oldest_first(table, step)
    numbers, again = _number_attempts(table, step)
    counts: dict[int, int] = {}
    for row, number in enumerate(numbers):
        if row not in again:
            counts[number] = counts.get(number, 0) + 1
    last = max(counts, default=1)
    short = {number for number, count in counts.items() if number < last and count < _MIN_ROWS_PER_ATTEMPT}
    kept = [row for row, number in enumerate(numbers) if number not in short and row not in again]
    facts = list(table.facts)
    if short:
        values = {"num": len(short), "num_rows": sum(counts[number] for number in short), "place": table.path.name}
        facts.append(Fact(kind="short_attempts", values=values))
    if again:
        values = {"num": len(again), "step": table.rows[min(again)][step]}
        facts.append(Fact(kind="first_step_again", values=values))
    order = {number: new for new, number in enumerate(sorted(set(counts) - short), start=1)}
    rows = [{**table.rows[row], **({ATTEMPT: order[numbers[row]]} if len(order) > 1 else {})} for row in kept]
    table = replace(table, rows=rows, places=[table.places[row] for row in kept], facts=tuple(facts))
    if len(order) < 2:
        return table
    values = {"num": len(order), "unit": "attempts", "place": table.path.name, "differ": _differing(table)}
    return replace(
        table,
        columns=[*table.columns, ATTEMPT],
        apart=(*table.apart, ATTEMPT),
        facts=(*facts, Fact(kind="attempts", values=values)),
    )


def _oldest_first(table: Table, step: str) -> Table:
    """Turn the rows of a table around in which the step never rises within a run: the newest rows come first."""
    groups = [[row for row in rows if names.is_number(table.rows[row].get(step))] for rows in _label_groups(table)]
    steps = [[table.rows[row][step] for row in rows] for rows in groups]
    num_rises = sum(a < b for own in steps for a, b in itertools.pairwise(own))
    num_falls = sum(a > b for own in steps for a, b in itertools.pairwise(own))
    if num_rises or num_falls < _MIN_ROWS_PER_ATTEMPT:
        return table
    return replace(table, rows=table.rows[::-1], places=table.places[::-1])


def _number_attempts(table: Table, step: str) -> tuple[list[int], set[int]]:
    """Return the number of the attempt of each row, and the rows that repeat the first step of a resumed run."""
    numbers, again = [1] * len(table.rows), set[int]()
    for members in _label_groups(table):
        rows = [row for row in members if names.is_number(table.rows[row].get(step))]
        steps = [table.rows[row][step] for row in rows]
        falls = [place for place in range(1, len(steps)) if steps[place] < steps[place - 1]]
        begins: list[int] = []
        begin = num_other = 0
        repeated: set[int] = set()
        for fall in falls:
            if steps[fall] > steps[begin]:
                num_other += 1
                continue
            repeats = _repeats_first_step(steps, begin, fall)
            if repeats:
                repeated |= {rows[place] for place in repeats if steps[place] == steps[begin]}
            elif len(set(steps[fall:])) > 1:
                begins.append(fall)
                begin = fall
        if _MIN_ROWS_PER_ATTEMPT * (num_other + 1) > len(rows):
            continue  # rows in no order
        again |= repeated
        for number, first in enumerate(begins, start=2):
            # Rows without a step belong to the attempt around them.
            for row in members[members.index(rows[first]) :]:
                numbers[row] = number
    return numbers, again


def _repeats_first_step(steps: Sequence[float], begin: int, fall: int) -> list[int]:
    """Return the positions of rows at the first step or before it, after which the run jumps to where it continues.

    A resumed run evaluates its first step again; or one row was written late.
    """
    second = next((step for step in steps[begin:fall] if step > steps[begin]), None)
    after = next((at for at in range(fall, len(steps)) if steps[at] != steps[fall]), None)
    if second is None or after is None:
        return []
    reached = max(steps[begin:fall])
    gap = second - steps[begin]
    return list(range(fall, after)) if second < steps[after] <= reached + gap else []


def _label_groups(table: Table) -> list[list[int]]:
    """Group rows by what tells runs apart within a file: columns of runs and seeds, and words that are repeated."""
    labels = [column for column in table.columns if _is_label(column, [row.get(column) for row in table.rows])]
    groups: dict[tuple[Hashable, ...], list[int]] = {}
    for number, row in enumerate(table.rows):
        groups.setdefault(tuple(str(row.get(label)) for label in labels), []).append(number)
    return list(groups.values())


def _is_label(column: str, values: Sequence[Any]) -> bool:
    if names.plain(column) in names.RUN:
        return True
    words = [value for value in values if value is not None]
    return bool(words) and all(isinstance(word, str) for word in words) and 2 * len(set(words)) <= len(words)


def _differing(table: Table) -> tuple[str, ...]:
    """Return the columns that have one value in each attempt and not the same in all: settings, most likely."""
    by_attempt: dict[str, dict[int, set[str]]] = {}
    for row in table.rows:
        for column, value in row.items():
            if column != ATTEMPT and value is not None:
                by_attempt.setdefault(column, {}).setdefault(row[ATTEMPT], set()).add(str(value))
    num = len({row[ATTEMPT] for row in table.rows})
    return tuple(
        column
        for column, values in by_attempt.items()
        if len(values) == num
        and all(len(seen) == 1 for seen in values.values())
        and len(set.union(*values.values())) > 1
    )


# Rows that a resumed run superseded


def telling_labels(points: Sequence[Point]) -> list[tuple[tuple[str, str], ...]]:
    """Return the labels of each point that tell curves apart: words that are repeated, as a date and time is not."""
    words: dict[str, set[str]] = {}
    for column, word in itertools.chain.from_iterable(point.labels for point in points):
        words.setdefault(column, set()).add(word)
    telling = {column for column, values in words.items() if 2 * len(values) <= len(points)}
    return [tuple(label for label in point.labels if label[0] in telling) for point in points]


def drop_superseded(points: Sequence[Point]) -> tuple[list[Point], tuple[Fact, ...]]:
    """Drop the points that a resumed attempt superseded; return the rest and what was done."""
    superseded: set[int] = set()
    resumed: list[tuple[int, int]] = []
    for attempts in _runs(points):
        for number, attempt in enumerate(attempts[1:], start=1):
            if _step(points[attempt[-1]]) == _step(points[attempt[0]]):
                continue  # a step evaluated again, such as the best one at the end, and not continued from
            earlier = itertools.chain.from_iterable(attempts[:number])
            superseded |= {row for row in earlier if _step(points[row]) >= _step(points[attempt[0]])}
            resumed.append((attempts[number - 1][-1], attempt[0]))
    if not resumed:
        return list(points), ()
    before, after = (points[row] for row in min(resumed))
    values = {"from_step": _step(before), "to_step": _step(after), "place": at([after])}
    fact = Fact(kind="superseded", values=values | {"times": len(resumed), "num": len(superseded)})
    return [point for row, point in enumerate(points) if row not in superseded], (fact,)


def _runs(points: Sequence[Point]) -> list[list[list[int]]]:
    """Return, for each run whose rows are in the order of its steps, its rows by attempt."""
    sources: dict[tuple[object, ...], list[int]] = {}
    for row, (point, labels) in enumerate(zip(points, telling_labels(points), strict=True)):
        sources.setdefault((point.source, point.run, point.is_held_out, labels), []).append(row)
    runs = []
    for rows in sources.values():
        if any(points[row].step is None for row in rows):
            continue
        num_falls = sum(_step(points[b]) < _step(points[a]) for a, b in itertools.pairwise(rows))
        if _MIN_ROWS_PER_ATTEMPT * (num_falls + 1) <= len(rows):
            runs += _split(rows, [_step(points[row]) for row in rows])
    return runs


def _split(rows: Sequence[int], steps: Sequence[float]) -> list[list[list[int]]]:
    """Cut rows into runs where the step falls to its beginning, and these into attempts where it falls elsewhere."""
    runs: list[list[list[int]]] = []
    begin = 0
    for place, row in enumerate(rows):
        if place == 0 or (steps[place] < steps[place - 1] and steps[place] <= min(steps[begin:place])):
            runs.append([[]])
            begin = place
        elif steps[place] < steps[place - 1] and _is_resumed(steps, begin, place):
            runs[-1].append([])
        runs[-1][-1].append(row)
    return runs


def _is_resumed(steps: Sequence[float], begin: int, fall: int) -> bool:
    """Return whether a run was resumed here, and not one row written late: steps are made again, or lie between."""
    if steps[fall] in steps[begin:fall]:
        return True
    reached = max(steps[begin:fall])
    after = list(itertools.takewhile(lambda pair: pair[0] < pair[1], itertools.pairwise(steps[fall:])))
    made_again = 1 + sum(step <= reached for _, step in after)
    if made_again > 1 or not after:
        return made_again > 1
    gaps = [b - a for a, b in itertools.pairwise(steps[begin:fall]) if b > a]
    return bool(gaps) and after[0][1] - reached != median(gaps)


# Clocks


def check_clock(points: Sequence[Point], computes: Sequence[float]) -> None:
    """Raise InputError where compute falls while the step of a run rises: what was spent before is missing from it."""
    for attempts in _runs(points):
        rows = sorted(itertools.chain.from_iterable(attempts), key=lambda row: _step(points[row]))
        spent = {_step(points[row]): computes[row] for row in rows}
        if any(computes[row] != spent[_step(points[row])] for row in rows):
            continue  # several runs side by side, each with its own clock
        for before, after in itertools.pairwise(rows):
            if 0 < computes[after] < (1 - _MIN_FALL) * computes[before]:
                raise InputError(_clock_fell(points[before], points[after], computes[before], computes[after]))


def _clock_fell(before: Point, after: Point, spent: float, then: float) -> str:
    return (
        f"compute {after.x_label!r} falls from {spent:g} to {then:g} at {at([after])} while the step rises from "
        f"{_step(before):g} to {_step(after):g}, as where a run is resumed and its clock begins anew: add what was "
        f"spent before to the rows from there on, or choose a column that goes on, such as --x {after.step_label}."
    )


def _step(point: Point) -> float:
    assert point.step is not None
    return point.step
