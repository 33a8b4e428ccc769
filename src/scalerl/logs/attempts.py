"""Logs of other trainers in which a run was resumed: rows that a later attempt made again, and clocks that began anew.

Within one run of a file the step rises from row to row. Where it falls back to a step that was there before, the run
was resumed, and what earlier attempts logged from that step on is of a model that is gone. Where it falls back to its
very beginning, another run is as likely, and nothing is taken for gone.
"""

import itertools
import math
from collections.abc import Sequence

from scalerl.errors import InputError
from scalerl.logs.selection import Point, at

# Rows that keep no order at all fall at every second one.
_LEAST_ROWS_AN_ATTEMPT = 3
# A clock that is set right falls by a little, one that begins anew by far more.
_LEAST_FALL = 0.1


def telling_labels(points: Sequence[Point]) -> list[tuple[tuple[str, str], ...]]:
    """Of each point the labels that tell curves apart: words that come again and again, as a date and time do not."""
    words: dict[str, set[str]] = {}
    for column, word in itertools.chain.from_iterable(point.labels for point in points):
        words.setdefault(column, set()).add(word)
    telling = {column for column, found in words.items() if 2 * len(found) <= len(points)}
    return [tuple(label for label in point.labels if label[0] in telling) for point in points]


def without_superseded(points: Sequence[Point]) -> tuple[list[Point], tuple[str, ...]]:
    """The points less those after which an earlier attempt of the same run was not gone on with, and a word on it."""
    superseded: set[int] = set()
    resumed: list[tuple[int, int]] = []
    for attempts in _runs(points):
        for number, attempt in enumerate(attempts[1:], start=1):
            if _step(points[attempt[-1]]) == _step(points[attempt[0]]):
                continue  # a step looked at again, as the best one at the end, and not gone on from
            earlier = itertools.chain.from_iterable(attempts[:number])
            superseded |= {row for row in earlier if _step(points[row]) >= _step(points[attempt[0]])}
            resumed.append((attempts[number - 1][-1], attempt[0]))
    if not resumed:
        return list(points), ()
    before, after = (points[row] for row in min(resumed))
    more = f" (and {len(resumed) - 1} times more)" if len(resumed) > 1 else ""
    note = (
        f"The step falls from {_step(before):g} to {_step(after):g} at {at([after])}{more}, as where a run is resumed: "
        f"{len(superseded)} earlier rows of the steps from there on are left out (if they are of another run, name "
        "what tells runs apart with --seed or --by)."
    )
    return [point for row, point in enumerate(points) if row not in superseded], (note,)


def check_clock(points: Sequence[Point], computes: Sequence[float]) -> None:
    """Refuse compute that falls while the step of a run rises: what was spent before is missing from it."""
    for attempts in _runs(points):
        rows = sorted(itertools.chain.from_iterable(attempts), key=lambda row: _step(points[row]))
        spent = {_step(points[row]): computes[row] for row in rows}
        if any(computes[row] != spent[_step(points[row])] for row in rows):
            continue  # several runs side by side, each with a clock of its own
        for before, after in itertools.pairwise(rows):
            if 0 < computes[after] < (1 - _LEAST_FALL) * computes[before]:
                raise InputError(_fallen(points[before], points[after], computes[before], computes[after]))


def _fallen(before: Point, after: Point, spent: float, then: float) -> str:
    return (
        f"compute {after.x_label!r} falls from {spent:g} to {then:g} at {at([after])} while the step rises from "
        f"{_step(before):g} to {_step(after):g}, as where a run is resumed and its clock begins anew: add what was "
        f"spent before to the rows from there on, or choose a column that goes on, such as --x {after.step_label}."
    )


def _step(point: Point) -> float:
    assert point.step is not None
    return point.step


def _runs(points: Sequence[Point]) -> list[list[list[int]]]:
    """The rows of each run that are in the order of its steps, by attempt."""
    sources: dict[tuple[object, ...], list[int]] = {}
    for row, (point, labels) in enumerate(zip(points, telling_labels(points), strict=True)):
        sources.setdefault((point.source, point.run, point.is_held_out, labels), []).append(row)
    runs = []
    for rows in sources.values():
        if any(points[row].step is None for row in rows):
            continue
        num_falls = sum(_step(points[b]) < _step(points[a]) for a, b in itertools.pairwise(rows))
        if _LEAST_ROWS_AN_ATTEMPT * (num_falls + 1) <= len(rows):
            runs += _attempts(rows, [_step(points[row]) for row in rows])
    return runs


def _attempts(rows: Sequence[int], steps: Sequence[float]) -> list[list[list[int]]]:
    """Rows cut into runs, and these into attempts, where the step falls to one that was there before."""
    runs: list[list[list[int]]] = []
    seen: set[float] = set()
    before = math.inf
    for row, step in zip(rows, steps, strict=True):
        if step < before and step <= min(seen, default=math.inf):
            runs.append([[]])
            seen = set()
        elif step < before and step in seen:
            runs[-1].append([])
        runs[-1][-1].append(row)
        seen.add(step)
        before = step
    return runs
