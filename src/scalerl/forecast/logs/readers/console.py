"""Console output of trainers: the records in it, picked out of everything else that is printed.

A line is a record if a loop printed it: other lines have the same words, or it is a dict, or a line of verl. Lines
whose words come once are prose. Values that follow each other belong to one record until a name comes again or a
counter that stands above records moves. A line that speaks of evaluation turns the values under it into evaluations.

Which records are meant is tried in this order: those in dicts, those that name their step, and loose ones. Which
counter is the step is decided by what it does: it rises from record to record. Without one the records are counted.
Records that differ in one word, the name of a run, are those of several runs.
"""

import itertools
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from scalerl.forecast.logs.frame import Row, members, numbered
from scalerl.forecast.logs.readers.lines import Printed, printed_lines
from scalerl.forecast.logs.readers.printed import (
    VERL,
    Counters,
    Line,
    Values,
    is_counting,
    names_evaluation,
    plainly,
    read_line,
)
from scalerl.forecast.logs.readers.source import Source, Table
from scalerl.forecast.logs.readers.text_tables import longest_table

COUNTED_RECORDS = "the number of the record"
"""Where the step of a text comes from that names none."""

Meant = Literal["dicts", "whole", "all"]
"""Which lines are records: dicts, those that need no line above them, or all that a loop printed."""

_TRAINING = re.compile(r"\btraining (?:results|metrics)\b", re.IGNORECASE)
# The name of one of several processes of a run.
_PROCESS = re.compile(r"(?:\w*rank|default|worker|gpu|node|device|process|pid)[-_ ]?\d+", re.IGNORECASE)
_MAX_RUNS = 20
# What speaks of evaluation with more words is an answer that was printed there.
_MAX_HEADING = 20
# A counter that begins anew more often counts within each step.
_MAX_FALLS = 0.2
# The share of records at which a counter rises, if it is their step.
_MIN_RISES = 0.2
# A counter that rises less often than another by this is printed now and then, as in the title of a table.
_MANY_RISES = 0.8
# A set of names that comes less often than another by this factor is an odd one.
_ODD = 10
# Fewer records say nothing about what a loop prints.
_MIN_ALIKE = 3
# The share of steps at which several records say the same, if several processes print them.
_MANY_ALIKE = 0.9
# The words for a step, in the order in which a counter is taken for it.
_STEPS = ("step", "iteration", "update", "updates", "checkpoint", "steps", "timesteps", "timesteps_total", "iterations")
_COARSE = ("episode", "episodes", "epoch")


def console_tables(source: Source) -> Iterator[list[Table]]:
    """Yield the tables that a text prints, and the records in it, those that are surest first."""
    printed = list(printed_lines(source))
    if not printed:
        return
    table = longest_table(printed)
    lines = _lines(source, printed)
    num_whole = sum(1 for line in lines if line.values and line.is_whole and not line.is_in_box)
    is_summary = table is not None and num_whole > len(table.rows)
    if table and not is_summary:
        yield [table]
    habits = Habits(lines)
    for meant in habits.kinds:
        records = list(_records(lines, habits, meant))
        source.budget.spend()
        if _is_being_printed(source, lines, records):
            records.pop()
        if _are_log(records):
            rows, origin = _rows(records, lines)
            if origin == COUNTED_RECORDS and all(map(_is_loose, records)):
                continue
            placed = [(f"line {record.first.at}", row) for record, row in zip(records, rows, strict=True) if row]
            found = Table("console", placed)
            yield [found.with_fact("lines_taken", num=len(records), num_lines=printed[-1].at, origin=origin)]


def _lines(source: Source, printed: list[Printed]) -> list[Line]:
    """Return what the lines say; where verl prints records, what its lines say."""
    is_whole = source.text.rstrip("\0").endswith(("\n", "\r"))
    last = printed[-1]
    verl = [line for line in printed if VERL.search(line.text)]
    lines: list[Line] = []
    for line in verl if len(verl) > 1 else printed:
        said = read_line(line.text, line.at, line.speaker, is_cut=line is last and not is_whole)
        source.budget.spend(len(said.values))
        lines.append(said)
    return lines


def _is_being_printed(source: Source, lines: list[Line], records: list["Record"]) -> bool:
    """Return whether the last record is a block of lines that goes on in a line that is not written yet."""
    is_whole = source.text.rstrip("\0").endswith(("\n", "\r"))
    is_block = any(record.num_lines > 1 for record in records)
    return not is_whole and is_block and len(lines[-1].values) == 1 and not lines[-1].is_dict


def _are_log(records: list["Record"]) -> bool:
    """Return whether records are those of a loop, and no numbers by accident: several have one name."""
    names = Counter(name for record in records for name in record.values)
    return max(names.values(), default=0) > 1


def _is_loose(record: "Record") -> bool:
    """Return whether a record is a name with its value and nothing else, which makes no curve without a step."""
    name = " ".join(record.values)
    return len(record.values) == 1 and record.first.shape == name


# Which lines are records


class Habits:
    """What the lines of a text have in common, which tells what a loop prints from everything else."""

    def __init__(self, lines: Sequence[Line]) -> None:
        self._shapes = Counter(line.shape for line in lines if line.values)
        self._keys = Counter(frozenset(line.values) for line in lines if line.is_dict)
        self._most_alike = max(self._keys.values(), default=0)
        num_once = 0
        num_records = 0
        num_loose = 0
        counts: dict[str, list[int]] = {}
        for line in lines:
            for name, count in line.counters.items():
                counts.setdefault(name, []).append(count)
            if line.values and line.is_whole:
                num_records += 1
                num_once += self._shapes[line.shape] == 1
                num_loose += not (line.is_dict or line.is_verl)
        self._is_prose = 2 * num_once < num_records
        self.kinds: list[Meant] = []
        """What the records may be, the surest first."""
        if any(line.is_dict or line.is_verl for line in lines):
            self.kinds.append("dicts")
        if num_loose > 1:
            self.kinds.append("whole")
        if any(line.values and not (line.is_dict or line.is_verl) for line in lines):
            self.kinds.append("all")
        self.inner = {name for name, each in counts.items() if _num_falls(each) > _MAX_FALLS * len({*each})}
        """Counters that begin anew again and again: they count within each step."""

    def is_record(self, line: Line, meant: Meant, *, evaluates: bool) -> bool:
        """Return whether a line records something; `evaluates` says whether a line above it speaks of evaluation."""
        evaluates = evaluates or line.evaluates or any(map(names_evaluation, line.values))
        if line.is_dict:
            # A dict with other names than nearly all dicts stands in an answer, unless it is an evaluation.
            is_odd = _ODD * self._keys[frozenset(line.values)] < self._most_alike
            return evaluates or not is_odd
        if line.is_verl:
            return True
        if meant == "dicts" or not line.values:
            return False
        is_alike = self._shapes[line.shape] > 1 or (line.counters and not self._is_prose)
        return bool(is_alike) and (meant == "all" or line.is_whole or line.is_in_box or evaluates)


def _num_falls(counts: Sequence[int]) -> int:
    return sum(map(int.__gt__, counts, counts[1:]))


# Which lines belong together


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

    def goes_on(self, line: Line, counters: Counters, heads: set[str], inner: set[str]) -> bool:
        """Return whether a line belongs to this record, where the counters stand like this.

        It has other values, and no counter has moved that stands above records or in the line. A bar may be drawn again
        and again within its step, until it begins anew.
        """
        moved = {name for name, count in self.counters.items() if counters[name] != count}
        if line.is_bar and line.values.keys() <= self.values.keys():
            bars = [name for name in line.counters if name[0] == "/"]
            is_begun = any(line.counters[name] < self.counters.get(name, 0) for name in bars)
            is_ended = all(line.counters[name] == int(name[1:]) == self.counters.get(name) for name in bars)
            return moved <= inner and not is_begun and not (is_ended and line.values.items() - self.values.items())
        is_moved = any(name in line.counters or (name in heads and name[0] != "/") for name in moved)
        return self.first.is_dict == line.is_dict and self.values.keys().isdisjoint(line.values) and not is_moved

    def take(self, line: Line) -> None:
        self.values |= line.values
        self.counters |= line.named
        self.named |= line.named.keys()
        self.num_lines += 1


class Context:
    """What the lines above say: where the counters stand, and whether an evaluation is printed."""

    def __init__(self) -> None:
        self.counters: Counters = {}
        self.heads = set[str]()
        """Counters that stand above records."""
        self.above = set[str]()
        """Counters that were named since the last record."""
        self.evaluates = False

    def meet(self, line: Line) -> None:
        """Take note of a line that is no record."""
        if not line.is_bar or any(name[0] != "/" for name in line.counters):
            goes_on = self.evaluates and self.counters == self.counters | line.counters
            is_heading = line.evaluates and len(line.text.split()) <= _MAX_HEADING
            self.evaluates = (goes_on or is_heading) and not _TRAINING.search(line.text)
        if line.named:
            self.counters = self.counters | line.named
            self.above |= line.named.keys()


def _records(lines: list[Line], habits: Habits, meant: Meant) -> Iterator[Record]:
    """Yield what the lines record. A line of dashes ends a record."""
    record: Record | None = None
    context = Context()
    is_closed = False
    for line in lines:
        context.heads |= line.counters.keys() if record else line.named.keys()
        is_only_counting = len(line.counting) == len(line.values) and line.named.keys() <= context.heads
        if is_only_counting or not habits.is_record(line, meant, evaluates=context.evaluates):
            # A bar ends nothing, and neither does a box that repeats the step.
            is_closed = is_closed or not line.text.strip(" -")
            context.meet(line)
            continue
        if line.evaluates or (context.evaluates and not line.counters):
            line = line.of_evaluation()
        context.counters = context.counters | line.named
        if record and not is_closed and record.goes_on(line, context.counters, context.heads, habits.inner):
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


# Which run and which step they record


def _rows(records: list[Record], lines: list[Line]) -> tuple[list[Row], str]:
    """Return the records as rows, with run and step, and where the step comes from."""
    main = _main_name(records)
    training = [record for record in records if main in record.values] or records
    runs = _runs(records, training)
    of_training = [run for record, run in zip(records, runs, strict=True) if main in record.values] or runs
    in_order = [training[at] for rows in members(numbered(of_training)) for at in rows]
    step = _step(in_order)
    if not step:
        steps = list(itertools.accumulate(int(main in record.values) for record in records))
        origin = COUNTED_RECORDS
    elif step[0] == "/":
        steps = _steps_of_bar(step, records, training, lines)
        origin = "that of the progress bar"
    else:
        steps = [record.counters.get(step, 0) for record in records]
        origin = f"the {step} that is printed with it"
    rows = [_row(*each) for each in zip(records, steps, runs, strict=True)]
    shapes = [record.first.shape for record in records]
    rows = _once_each(_without_parts(rows, shapes, main), main)
    if step in _COARSE and 2 * len({*steps}) > len(rows):
        # The column of that name says the same, and what is counted.
        rows = [{name: value for name, value in row.items() if name != "step"} for row in rows]
    return rows, origin


def _main_name(records: list[Record]) -> str:
    """Return the name that tells the records of training: of those that repeat, with most training values."""
    kinds: dict[frozenset[str], list[Record]] = {}
    for record in records:
        kinds.setdefault(frozenset(record.values), []).append(record)
    num = Counter(name for record in records for name in record.values)
    values: dict[str, set[float]] = {}
    for record in records:
        for name, value in record.values.items():
            values.setdefault(name, set()).add(value)

    def measured(names: frozenset[str]) -> list[str]:
        return sorted(name for name in names if not names_evaluation(name) and not is_counting(name))

    def fitness(names: frozenset[str]) -> tuple[bool, int, int]:
        return len(kinds[names]) >= _MIN_ALIKE, len(measured(names)), len(kinds[names])

    names = measured(max(kinds, key=fitness))
    return max(names, key=lambda name: (len(values[name]) >= _MIN_ALIKE, num[name]), default="")


def _steps_of_bar(bar: str, records: list[Record], training: list[Record], lines: list[Line]) -> list[int]:
    """Return how far a bar is at each record; the next place where it is drawn after the record, as after the first."""
    steps = [record.counters.get(bar, 0) for record in records]
    if training[0].counters.get(bar):
        return steps
    drawn = [0, *(line.counters[bar] for line in lines if bar in line.counters)]
    following = {count: then for count, then in itertools.pairwise(drawn) if then > count}
    return [following.get(count, count + 1) for count in steps]


def _once_each(rows: list[Row], main: str) -> list[Row]:
    """Empty the rows that say again what was said at their step, if most are said so, as by each of several processes.

    Processes print a step at about one time; a run that is printed after another is one of its own.
    """
    said: dict[tuple[object, ...], int] = {}
    again: set[int] = set()
    num_told = 0
    for at, row in enumerate(rows):
        if main not in row:
            continue
        num_told += 1
        before = said.setdefault((row.get("run"), row["step"], row[main]), at)
        if before < at and 2 * (at - before) < len(rows):
            again.add(at)
    num_once = num_told - len(again)
    if len(again) < max(_MIN_ALIKE, _MANY_ALIKE * num_once):
        return rows
    return [{} if at in again else row for at, row in enumerate(rows)]


def _without_parts(rows: list[Row], shapes: list[str], main: str) -> list[Row]:
    """Leave out the value of a line that comes several times a step, if another line says it once for each."""
    steps: dict[str, Counter[int]] = {}
    for row, shape in zip(rows, shapes, strict=True):
        if main in row:
            steps.setdefault(shape, Counter())[row["step"]] += 1
    parts = {shape for shape, times in steps.items() if max(times.values()) > 1}
    num_steps = len(set[int]().union(*steps.values()))
    if [len(steps[shape]) for shape in steps.keys() - parts].count(num_steps) != 1:
        return rows
    return [
        {name: value for name, value in row.items() if name != main or shape not in parts}
        for row, shape in zip(rows, shapes, strict=True)
    ]


def _row(record: Record, step: int, run: str) -> Row:
    row: Row = {"run": run} if run else {}
    for name in _COARSE:
        if name in record.counters:
            row[name] = float(record.counters[name])
    row["step"] = step
    return row | {name: value for name, value in record.values.items() if plainly(name) not in row}


def _runs(records: list[Record], training: list[Record]) -> list[str]:
    """Return the name of the run of each record; "" where the text is of one run.

    The lines of several runs differ in one word before their values, or in its number, or in the process that printed
    them, and in what they say: several processes of one run print the same.
    """
    nameless = [""] * len(records)
    heads = [record.first.head for record in training]
    if len({*map(len, heads)}) > 1:
        return nameless
    # A number that moves from line to line is not that of a run.
    words = [Counter(column) for column in zip(*heads, strict=True)]
    is_steady = [min(num.values()) >= _MIN_ALIKE and len(num) <= _MAX_RUNS for num in words]
    said: dict[tuple[str, ...], list[object]] = {}
    for record in training:
        said.setdefault(_steady(record, is_steady), []).append((*record.values.items(), *record.named))
    apart = [at for at, column in enumerate(zip(*said, strict=True)) if len({*column}) > 1]
    if len(apart) != 1 or len(said) > _MAX_RUNS or min(map(len, said.values())) < _MIN_ALIKE:
        return nameless
    names = {head: head[apart[0]] for head in said}
    are_processes = any(map(_PROCESS.fullmatch, names.values()))
    if are_processes or len({*map(frozenset, said.values())}) < len(said):
        return nameless
    return [names.get(_steady(record, is_steady), "") for record in records]


def _steady(record: Record, is_steady: list[bool]) -> tuple[str, ...]:
    """Return the words before the values of a record, without numbers that move."""
    head = record.first.head
    return tuple(word if keeps else word.partition(" ")[0] for word, keeps in zip(head, is_steady, strict=False))


def _step(training: list[Record]) -> str:
    """Return the counter that rises from record to record of each run; "" if there is none."""
    times_named = Counter(name for record in training for name in record.named if name[0] != "/")
    often = {name for name, num in times_named.items() if 2 * num > len(training)}
    rises: dict[str, int] = {}
    for name in training[-1].counters:
        # A bar may be drawn after the first record; another counter that comes later is not their step.
        if name in often or name[0] == "/" or name in training[0].counters:
            counts = [record.counters.get(name, 0) for record in training]
            rises[name] = _num_rises(counts, is_named=name in often)
    most = max(rises.values(), default=0)
    usable: list[str] = []
    for name, num in rises.items():
        # A step that every record names may rise slowly.
        is_slow_step = name in often and _word_of(name) < len(_STEPS)
        least = 1 if is_slow_step else _MIN_RISES * (len(training) - 1)
        if num >= max(least, _MANY_RISES * most):
            usable.append(name)
    return min(usable, key=lambda name: (names_evaluation(name), name not in often, *_order(name)), default="")


def _num_rises(counts: list[int], *, is_named: bool) -> int:
    """Return how often a counter rises; -1 for one that often falls, unless lines of several runs are mixed."""
    num_rises = _num_falls(counts[::-1])
    num_falls = _num_falls(counts)
    if num_falls <= _MAX_FALLS * num_rises:
        return num_rises - num_falls
    num_values = len({*counts})
    return num_values - 1 if is_named and 4 * num_values > len(counts) else -1


def _order(name: str) -> tuple[int, bool, int, str]:
    """Return how a counter is ordered among those that may be the step: steps, then other words, epochs, and bars."""
    is_coarse = name.rpartition("_")[2] in _COARSE
    return _word_of(name), is_coarse or name[0] == "/", len(name), name


def _word_of(name: str) -> int:
    """Return which word for a step a counter ends in, as global_step does; one more than there are for none."""
    return next((at for at, word in enumerate(_STEPS) if f"_{name}".endswith(f"_{word}")), len(_STEPS))
