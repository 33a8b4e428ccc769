"""Console output of trainers: the records in it, picked out of everything else that is printed.

Values that follow each other belong to one record until a name comes again or a named counter moves; a progress bar
ends nothing. A line that speaks of evaluation turns the values under it into evaluations. Which counter is the step of
the log is decided once, by what it does: it rises from record to record. Without one the records are counted. Lines
whose words come only once are prose. Colours, NUL bytes and the prefixes of Ray are ignored.
"""

import itertools
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

from scalerl.errors import InputError
from scalerl.logs.columns import ROLES, is_evaluation, plain, reward_rank
from scalerl.logs.frame import Placed
from scalerl.logs.printed import COUNTING, VERL, Counters, Line, Values, read_line
from scalerl.logs.source import MAX_WORD, Source

_ESCAPES = re.compile(r"\x1b\[[0-9;:?]*+[ -/]*+[@-~]|\x1b\][^\x07\x1b]*+(?:\x07|\x1b\\)|\x1b[@-Z\\-_]")
_RAY = re.compile(r"\s{0,20}\((?:\S{1,80} )?pid=\d{1,12}[^)]{0,80}\)\s?|")
_TRAINING = re.compile(r"\btraining (?:results|metrics)\b", re.IGNORECASE)
# The share of records at which a counter rises, if it is their step.
_MIN_RISES = 0.2
# A counter that rises less often than another by this is printed now and then, as in the title of a table.
_MANY_RISES = 0.8
_ORDER = (*ROLES["step"], *ROLES["coarse"])

NumberedLine = tuple[int, str]
Lines = list[NumberedLine]


@dataclass(slots=True)
class Record:
    """Values that belong together, and where every counter stood."""

    line: int
    values: Values
    counters: Counters
    """The numbers of all counters that were named so far."""
    named: set[str]
    """Counters that its own lines name."""
    words: str
    """The words of its first line."""

    def continues(self, line: Line, counters: Counters) -> bool:
        """Return whether a line goes on with this record, where the counters stand like this.

        It has other values, and no named counter has moved but those that it names anew. A bar is drawn again and again
        while its step stays.
        """
        moved = [name for name, count in self.counters.items() if counters[name] != count and name[0] != "/"]
        is_new = all(name in line.counting and name not in self.named for name in moved)
        is_drawn_again = line.is_bar and self.counters == counters
        return is_drawn_again or (is_new and self.values.keys().isdisjoint(line.values))


@dataclass(slots=True)
class Heading:
    """What the lines before say about the next one."""

    counters: Counters = field(default_factory=dict)
    is_open: bool = False
    """Whether values that are alone on their lines are records."""
    evaluates: bool = False
    """Whether such values are evaluations."""

    def read(self, line: Line) -> None:
        """Take in a line without a record. A bar ends nothing, and neither does a box that repeats the step."""
        is_moved = self.counters != self.counters | line.counters
        if not line.is_bar or any(name[0] != "/" for name in line.counters):
            goes_on = self.evaluates and not is_moved
            self.evaluates = (goes_on or line.evaluates) and not _TRAINING.search(line.text)
            self.is_open = self.is_open or bool(line.counters)
        self.is_open = self.is_open or self.evaluates
        self.counters = self.counters | line.counters | line.counting


def console_rows(source: Source) -> Placed | None:
    """Return one row per record, with its step; None if the text holds no dict and not two other records."""
    lines = list(_lines(source))
    is_open = not source.text.rstrip("\0").endswith(("\n", "\r"))
    cut = lines[-1] if is_open else None
    verl = [line for line in lines if VERL.search(line[1])]
    records = [*_records(verl, cut, source)] if len(verl) > 1 else []
    records = _without_prose(records or [*_records(lines, cut, source)])
    if len(records) > 1 or (records and not records[0].words):
        steps, origin = _steps(records)
        source.note("lines_taken", num=len(records), num_lines=lines[-1][0], origin=origin)
        return [(f"line {record.line}", _row(record, step)) for record, step in zip(records, steps, strict=True)]
    longest = max((len(word) for _, line in lines for word in line.split()), default=0)
    if longest > MAX_WORD:
        raise InputError(
            f"{source.path} holds a word of {longest:,} characters, and {MAX_WORD:,} is the limit: remove it."
        )
    return None


def _row(record: Record, step: int) -> dict[str, float]:
    coarse = {name: float(record.counters[name]) for name in ROLES["coarse"] if name in record.counters}
    return {**coarse, **record.values, "step": step}


def _lines(source: Source) -> Iterator[tuple[int, str]]:
    """Yield (line number, text) of each line, and of each part that a carriage return overwrites."""
    for at, line in enumerate(source.text.replace("\0", "").split("\n"), start=1):
        source.spend()
        for part in _ESCAPES.sub("", line).split("\r"):
            if part.strip():
                yield at, _RAY.sub("", part[:200], count=1) + part[200:]


def _without_prose(records: list[Record]) -> list[Record]:
    """Return the records without lines that have no other like them, if most lines have."""
    like = Counter(record.words for record in records)
    common = [record for record in records if like[record.words] > 1 or not record.words]
    return common if 2 * len(common) > len(records) else records


def _records(lines: Lines, cut: NumberedLine | None, source: Source) -> Iterator[Record]:
    """Yield what the lines record. Of a line that may be cut the last value and its block are left out."""
    record, heading, line = None, Heading(), Line("", {}, {})
    for numbered in lines:
        source.spend()
        line = read_line(numbered[1], is_cut=numbered is cut)
        is_in_block = line.is_alone and (heading.is_open or line.text.lstrip()[0] in "|\u2502")
        if not line.is_record and not is_in_block:
            heading.read(line)
            continue
        if line.evaluates or (heading.evaluates and not line.counters):
            line = line.of_evaluation()
        counters, named = heading.counters | line.counters | line.counting, {*line.counters, *line.counting}
        if record and record.continues(line, counters):
            record.values |= line.values
            record.named |= named
            record.counters |= counters
        else:
            yield from [record] if record else []
            record = Record(numbered[0], line.values, counters, named, line.words)
        heading = Heading(counters, heading.is_open and line.is_alone, heading.evaluates and line.is_alone)
    if record and not (cut and line.is_alone):
        yield record


def _steps(records: list[Record]) -> tuple[list[int], str]:
    """Return the step of each record and where it comes from: the counter that rises from record to record.

    Only records of training are asked: those with the reward, or else the value, that most of them have.
    """
    names = Counter(name for record in records for name in record.values if not is_evaluation(name))
    main = max(
        (name for name in names if not COUNTING.fullmatch(name)),
        key=lambda name: (reward_rank(name) is not None, names[name]),
        default="",
    )
    training = [record for record in records if main in record.values] or records
    named = Counter(name for record in training for name in record.named)
    rises: dict[str, int] = {}
    for name in training[-1].counters:
        counts = [record.counters.get(name, 0) for record in training]
        # A bar may be drawn after the first record; another counter that comes later is not their step.
        if name[0] == "/" or name in training[0].counters or 2 * named[name] > len(training):
            rises[name] = sum(map(int.__lt__, counts, counts[1:]))
    least = max(_MIN_RISES * (len(training) - 1), _MANY_RISES * max(rises.values(), default=0))
    usable = [name for name, num in rises.items() if num >= least]
    if not usable:
        return [*itertools.accumulate(int(main in record.values) for record in records)], "the number of the record"
    order = {name: _ORDER.index(plain(name)) if plain(name) in _ORDER else len(_ORDER) for name in usable}
    step = min(usable, key=lambda name: (2 * named[name] <= len(training), order[name], name))
    given = [record.counters.get(step, 0) for record in records]
    context = "that of the progress bar" if step[0] == "/" else "that of the line before"
    return given, "in the line" if 2 * named[step] > len(training) else context
