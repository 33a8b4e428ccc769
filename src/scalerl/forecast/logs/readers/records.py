"""The records in console output: which lines a loop printed, and which of them belong together.

A line is a record if a loop printed it: other lines have the same words, or it is a dict, or a line of verl. Lines
whose words come once are prose. Values that follow each other belong to one record until a name comes again or a
counter that stands above records moves. A line that speaks of evaluation turns the values under it into evaluations.
"""

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from scalerl.forecast.logs.readers.entries import Counters, Values
from scalerl.forecast.logs.readers.printed import Line, names_evaluation

Meant = Literal["dicts", "whole", "all"]
"""Which lines are records: dicts, those that need no line above them, or all that a loop printed."""

_TRAINING = re.compile(r"\btraining (?:results|metrics)\b", re.IGNORECASE)
# What speaks of evaluation with more words is an answer that was printed there.
_MAX_HEADING = 20
# A set of names that comes less often than another by this factor is an odd one.
_ODD = 10


@dataclass(slots=True, eq=False)
class Record:
    """Values that belong together, and where every counter stood."""

    first: Line
    values: Values
    counters: Counters
    """The numbers of all counters that were named so far."""
    named: set[str]
    """Counters that its own lines name, or those right above it."""
    num_lines: int = 1
    run: str = ""

    def goes_on(self, line: Line, counters: Counters, heads: set[str]) -> bool:
        """Return whether a line belongs to this record, where the counters stand like this.

        It has other values, and no counter has moved that stands above records or in the line.
        """
        if self.first.is_dict != line.is_dict or not self.values.keys().isdisjoint(line.values):
            return False
        apart = heads | line.counters.keys()
        return all(counters[name] == count or name not in apart for name, count in self.counters.items())

    def take(self, line: Line) -> None:
        self.values |= line.values
        self.counters |= line.named
        self.named |= line.named.keys()
        self.num_lines += 1


def ends_evaluation(line: Line) -> bool:
    return "raining" in line.text and _TRAINING.search(line.text) is not None


class Habits:
    """What the lines of a text have in common, which tells what a loop prints from everything else."""

    def __init__(self, lines: Sequence[Line]) -> None:
        said = [line for line in lines if line.values]
        self._num_alike = Counter(line.shape for line in said)
        self._keys = Counter(frozenset(line.values) for line in said if line.is_dict)
        self._most_alike = max(self._keys.values(), default=0)
        whole = [line for line in said if line.is_whole]
        num_once = sum(self._num_alike[line.shape] == 1 for line in whole)
        self._is_prose = 2 * num_once < len(whole)
        num_loose = sum(not line.is_sure for line in whole)
        self.kinds: list[Meant] = []
        """What the records may be, the surest first."""
        if any(line.is_sure for line in said):
            self.kinds.append("dicts")
        if num_loose > 1:
            self.kinds.append("whole")
        if not all(line.is_sure for line in said):
            self.kinds.append("all")

    def is_record(self, line: Line, meant: Meant, *, evaluates: bool) -> bool:
        """Return whether a line records something; `evaluates` says whether a line above it speaks of evaluation."""
        evaluates = evaluates or line.evaluates or any(map(names_evaluation, line.values))
        if line.is_dict:
            # A dict with other names than nearly all dicts stands in an answer, unless it is an evaluation.
            is_odd = _ODD * self._keys[frozenset(line.values)] < self._most_alike
            return evaluates or not is_odd
        if line.is_sure:
            return True
        if meant == "dicts" or not line.values:
            return False
        is_alike = self._num_alike[line.shape] > 1 or (line.counters and not self._is_prose)
        return bool(is_alike) and (meant == "all" or line.is_whole or line.is_in_box or evaluates)


# Which lines belong together


class Context:
    """What the lines above say: where the counters stand, and whether an evaluation is printed."""

    def __init__(self) -> None:
        self.counters: Counters = {}
        self.heads = set[str]()
        """Counters that stand above records; a bar may be drawn again and again within its step."""
        self.above = set[str]()
        """Counters that were named since the last record."""
        self.evaluates = False

    def meet(self, line: Line) -> None:
        """Take note of a line that is no record."""
        is_only_bar = line.is_bar and all(name[0] == "/" for name in line.counters)
        if not is_only_bar:
            goes_on = self.evaluates and self.counters == self.counters | line.counters
            is_heading = line.evaluates and len(line.text.split()) <= _MAX_HEADING
            self.evaluates = (goes_on or is_heading) and not ends_evaluation(line)
        if line.named:
            self.counters = self.counters | line.named
            self.above |= line.named.keys()


def records_in(lines: list[Line], habits: Habits, meant: Meant) -> Iterator[Record]:
    """Yield what the lines record. A line of dashes ends a record."""
    record: Record | None = None
    context = Context()
    is_closed = False
    for line in lines:
        heads = line.counters if record else line.named
        context.heads |= {name for name in heads if name[0] != "/"}
        is_only_counting = len(line.counting) == len(line.values) and line.named.keys() <= context.heads
        if is_only_counting or not habits.is_record(line, meant, evaluates=context.evaluates):
            # A bar ends nothing, and neither does a box that repeats the step.
            is_closed = is_closed or line.is_rule
            context.meet(line)
            continue
        if line.evaluates or (context.evaluates and not line.counters):
            line = line.of_evaluation()
        context.counters = context.counters | line.named
        if record and not is_closed and record.goes_on(line, context.counters, context.heads):
            record.take(line)
        else:
            if record:
                yield record
            record = Record(line, dict(line.values), context.counters, context.above | line.named.keys())
        context.above = set()
        context.evaluates = context.evaluates and not line.is_dict and not line.counters
        is_closed = False
    if record:
        yield record
