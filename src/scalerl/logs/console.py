"""Console output of trainers: the records in it, picked out of everything else that is printed.

A line is a record if a loop printed it: other lines have the same words, or it is a dict, or a line of verl. Lines
whose words come once are prose. Values that follow each other belong to one record until a name comes again or a
counter that stands above records moves. A line that speaks of evaluation turns the values under it into evaluations.
Which counter is the step of the log is decided once, by what it does: it rises from record to record. Without one the
records are counted. Colours, NUL bytes and the prefixes of Ray are ignored.
"""

import itertools
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from scalerl.errors import InputError
from scalerl.logs.columns import ROLES, is_evaluation, plain, reward_rank
from scalerl.logs.frame import Placed
from scalerl.logs.printed import COUNTING, MAX_RECORD, VERL, Counters, Line, Values, read_line
from scalerl.logs.source import MAX_WORD, Source

_ESCAPES = re.compile(r"\x1b\[[0-9;:?]*+[ -/]*+[@-~]|\x1b\][^\x07\x1b]*+(?:\x07|\x1b\\)|\x1b[@-Z\\-_]")
# | eval/ |  |, and | mean_reward | 1.5 | under it
_SECTION = re.compile(r"\|\s+(\w+/)\s*\|\s*\|\s*")
_IN_SECTION = re.compile(r"\|\s{2,}(?=\w)")
_RAY = re.compile(r"\s{0,20}\((?:\S{1,80} )?pid=\d{1,12}[^)]{0,80}\)\s?|")
_TRAINING = re.compile(r"\btraining (?:results|metrics)\b", re.IGNORECASE)
# A dict that goes on in the next line, and the end of one with something behind it.
_OPEN_DICT = re.compile(r"\{\s*+['\"][^{}]*+$")
_BEHIND_DICT = re.compile(r"(?<=\})(?!\s*+[,}\])])(?=[^{}]*+\{['\"])")
# The rest of a record of verl.
_MORE_ITEMS = re.compile(r"\S*\s?- [\w@./-]+:[^\s:]+(?: - |$)|\S+:\S+ - [\w@./-]+:")
_MAX_WRAPPED = 60
# A counter that begins anew more often counts within each step.
_MAX_FALLS = 0.2
# The share of records at which a counter rises, if it is their step.
_MIN_RISES = 0.2
# A counter that rises less often than another by this is printed now and then, as in the title of a table.
_MANY_RISES = 0.8
# A set of names that comes less often than another by this factor is an odd one.
_ODD = 10
# Records with one value: with fewer, and none that is named as a reward, the text is no log.
_MIN_ALIKE = 3
_ORDER = (*ROLES["step"], *ROLES["coarse"])

NumberedLine = tuple[int, str]


@dataclass(slots=True)
class Record:
    """Values that belong together, and where every counter stood."""

    line: int
    values: Values
    counters: Counters
    """The numbers of all counters that were named so far."""
    named: set[str]
    """Counters that its own lines name, or those right above it."""
    is_dict: bool
    num_lines: int = 1

    def goes_on(self, line: Line, counters: Counters, heads: set[str]) -> bool:
        """Return whether a line belongs to this record, where the counters stand like this.

        It has other values, and no counter has moved that stands above records or in the line. A bar is drawn again and
        again while its step stays.
        """
        moved = {name for name, count in self.counters.items() if counters[name] != count}
        is_moved = any(name in line.counters or (name in heads and name[0] != "/") for name in moved)
        is_named = any(name[0] != "/" for name in line.counters)
        is_drawn_again = line.is_bar and not any(name[0] != "/" or not is_named for name in moved)
        is_new = self.is_dict == line.is_dict and self.values.keys().isdisjoint(line.values)
        return is_drawn_again or (is_new and not is_moved)

    def take(self, line: Line, named: Counters) -> None:
        """Add the values of a line and the counters that it names."""
        self.values |= line.values
        self.counters |= named
        self.named |= named.keys()
        self.num_lines += 1


def console_rows(source: Source) -> Placed | None:
    """Return one row per record, with its step; None if the text holds no dict and not two other records."""
    numbered = list(_lines(source))
    is_open = not source.text.rstrip("\0").endswith(("\n", "\r"))
    cut = numbered[-1] if is_open else None
    verl = [line for line in numbered if VERL.search(line[1])]
    lines: list[tuple[int, Line]] = []
    for line in verl if len(verl) > 1 else numbered:
        source.spend()
        lines.append((line[0], read_line(line[1], is_cut=line is cut)))
    records = [*_records(lines)]
    is_block = max((record.num_lines for record in records), default=1) > 1
    if cut and is_block and len(lines[-1][1].values) == 1 and not lines[-1][1].is_dict:
        records.pop()  # it is still being printed
    names = Counter(name for record in records for name in record.values)
    is_log = any(map(reward_rank, names)) or max(names.values(), default=0) >= _MIN_ALIKE
    if is_log and (len(records) > 1 or records[0].is_dict):
        steps, origin = _steps(records)
        source.note("lines_taken", num=len(records), num_lines=numbered[-1][0], origin=origin)
        return [(f"line {record.line}", _row(record, step)) for record, step in zip(records, steps, strict=True)]
    longest = max((len(word) for _, line in numbered for word in line.split()), default=0)
    if longest > MAX_WORD:
        raise InputError(
            f"{source.path} holds a word of {longest:,} characters, and {MAX_WORD:,} is the limit: remove it."
        )
    return None


def _row(record: Record, step: int) -> dict[str, float]:
    counted = {name: float(record.counters[name]) for name in ROLES["coarse"] if name in record.counters}
    counted["step"] = step
    return {**counted, **{name: value for name, value in record.values.items() if plain(name) not in counted}}


def _lines(source: Source) -> Iterator[NumberedLine]:
    """Yield (line number, text) of each line; dicts and verl's records are lines, however they are wrapped."""
    begun, whole = list[NumberedLine](), ""
    for at, line in _printed(source):
        is_dict = _OPEN_DICT.search(whole) and line.lstrip()[0] != "{"
        is_verl = VERL.search(whole) and _MORE_ITEMS.match(line) and not VERL.search(line)
        if (is_dict or is_verl) and len(begun) < _MAX_WRAPPED and len(whole) < MAX_RECORD:
            begun.append((at, line))
            whole += f" {line}" if is_dict else line
        else:
            yield from _unwrapped(begun, whole)
            begun, whole = [(at, line)], line
    yield from _unwrapped(begun, whole)


def _unwrapped(lines: list[NumberedLine], whole: str) -> Iterator[NumberedLine]:
    """Yield the records in lines that belong together; the lines as they are where a dict is never closed."""
    is_closed = lines and not _OPEN_DICT.search(whole)
    yield from ((lines[0][0], part) for part in _BEHIND_DICT.split(whole)) if is_closed else lines


def _printed(source: Source) -> Iterator[NumberedLine]:
    """Yield (line number, text) of each line, and of each part that a carriage return overwrites."""
    section = ""
    for at, line in enumerate(source.text.replace("\0", "").split("\n"), start=1):
        source.spend()
        for part in _ESCAPES.sub("", line).split("\r"):
            head = _RAY.sub("", part[:200], count=1)
            title = _SECTION.fullmatch(head)
            section = title[1] if title else "" if head[:1] == "-" else section
            text = (_IN_SECTION.sub(f"| {section}", head, count=1) if section else head) + part[200:]
            if text.strip():
                yield at, text


def _records(lines: list[tuple[int, Line]]) -> Iterator[Record]:
    """Yield what the lines record. A line of dashes ends a record."""
    shapes = Counter(line.shape for _, line in lines if line.values)
    are_unlike = [shapes[line.shape] == 1 for _, line in lines if line.values and (line.counters or line.counting)]
    is_prose = 2 * sum(are_unlike) < len(are_unlike)
    whole = [line for _, line in lines if line.is_whole and any(map(reward_rank, line.values))]
    are_dicts = sum(line.is_dict for line in whole) > 1
    keys = Counter(frozenset(line.values) for _, line in lines if line.is_dict)
    most_alike = max(keys.values(), default=0)
    record, counters, evaluates, is_closed = None, Counters(), False, False
    heads, above = set[str](), set[str]()
    for at, line in lines:
        named = line.counters | line.counting
        heads |= line.counters.keys() if record else named.keys()
        is_alike = shapes[line.shape] > 1 or (line.counters and not is_prose)
        # Where the reward stands in dicts, or beside its step, lines without one are single answers.
        is_part = line.is_whole or line.is_in_box or line.evaluates or evaluates
        is_alike = is_alike and (len(whole) < 2 or is_part) and not are_dicts
        # A dict with other names than nearly all dicts stands in an answer, unless it is an evaluation.
        is_odd = _ODD * keys[frozenset(line.values)] < most_alike and not any(map(is_evaluation, line.values))
        is_dict = line.is_dict and (not is_odd or line.evaluates or evaluates)
        is_only_counting = len(line.counting) == len(line.values)
        if not (is_dict or VERL.search(line.text) or is_alike) or (is_only_counting and named.keys() <= heads):
            # A bar ends nothing, and neither does a box that repeats the step.
            is_closed = is_closed or not line.text.strip(" -")
            if not line.is_bar or any(name[0] != "/" for name in line.counters):
                goes_on = evaluates and counters == counters | line.counters
                evaluates = (goes_on or line.evaluates) and not _TRAINING.search(line.text)
            counters, above = counters | named, above | named.keys()
            continue
        if line.evaluates or (evaluates and not line.counters):
            line = line.of_evaluation()
        counters = counters | named
        if record and not is_closed and record.goes_on(line, counters, heads):
            record.take(line, named)
        else:
            yield from [record] if record else []
            record = Record(at, line.values, counters, above | named.keys(), line.is_dict)
        above, is_closed = set[str](), False
        evaluates = evaluates and not line.is_dict and not line.counters
    yield from [record] if record else []


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
    named = Counter(name for record in training for name in record.named if name[0] != "/")
    rises: dict[str, int] = {}
    for name in training[-1].counters:
        counts = [record.counters.get(name, 0) for record in training]
        # A bar may be drawn after the first record; another counter that comes later is not their step.
        is_there = name[0] == "/" or name in training[0].counters or 2 * named[name] > len(training)
        num_rises, num_falls = (sum(map(each, counts, counts[1:])) for each in (int.__lt__, int.__gt__))
        if is_there and num_falls <= _MAX_FALLS * num_rises:
            rises[name] = num_rises - num_falls
    most = max(rises.values(), default=0)
    # A step that every record names may rise slowly.
    least = {name: 1 if name in ROLES["step"] and 2 * named[name] > len(training) else _MIN_RISES * (len(training) - 1)
             for name in rises}  # fmt: skip
    usable = [name for name, num in rises.items() if num >= max(least[name], _MANY_RISES * most)]
    if not usable:
        return [*itertools.accumulate(int(main in record.values) for record in records)], "the number of the record"
    order = {name: _ORDER.index(plain(name)) if plain(name) in _ORDER else len(_ORDER) for name in usable}
    step = min(usable, key=lambda name: (2 * named[name] <= len(training), order[name], name))
    given = [record.counters.get(step, 0) for record in records]
    return given, "that of the progress bar" if step[0] == "/" else f"the {step} that is printed with it"
