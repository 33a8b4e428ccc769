"""Console output of trainers: the records in it, picked out of everything else that is printed.

A line is a record if a loop printed it: other lines have the same words, or it is a dict, or a line of verl. Lines
whose words come once are prose. Values that follow each other belong to one record until a name comes again or a
counter that stands above records moves. A line that speaks of evaluation turns the values under it into evaluations.
Which counter is the step of the log is decided once, by what it does: it rises from record to record. Without one the
records are counted. Records that differ in one word, the name of a run, are those of several runs.
"""

import itertools
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from scalerl.forecast.logs.columns import ROLES, is_evaluation, plain, reward_rank
from scalerl.forecast.logs.frame import Item, Placed, Row, grouped, members, numbered
from scalerl.forecast.logs.readers.lines import Printed, printed_lines
from scalerl.forecast.logs.readers.printed import COUNTING, VERL, Counters, Line, Values, cells_of, evaluated, read_line
from scalerl.forecast.logs.readers.source import Source

COUNTED_RECORDS = "the number of the record"
"""Where the step of a text comes from that names none."""

_TRAINING = re.compile(r"\btraining (?:results|metrics)\b", re.IGNORECASE)
# The name of one of several processes of a run.
_PROCESS = re.compile(r"(?:\w*rank|default|worker|gpu|node|device|process|pid)[-_ ]?\d+", re.IGNORECASE)
_MAX_RUNS = 20
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
# The share of steps at which several records say the same, if several processes print them.
_MANY_ALIKE = 0.9
_ORDER = (*ROLES["step"], *ROLES["coarse"])


def console_rows(source: Source) -> Placed | None:
    """Return one row per record, with its step; None if the text holds no dict and not two other records."""
    printed = [*_with_evaluations(printed_lines(source))]
    verl = [line for line in printed if VERL.search(line.text)]
    cut = None if source.text.rstrip("\0").endswith(("\n", "\r")) else printed[-1]
    lines: list[Line] = []
    for line in verl if len(verl) > 1 else printed:
        source.spend()
        lines.append(read_line(line.text, line.at, line.speaker, is_cut=line is cut))
    records = [*_records(lines)]
    is_block = max((record.num_lines for record in records), default=1) > 1
    if cut and is_block and len(lines[-1].values) == 1 and not lines[-1].is_dict:
        records.pop()  # it is still being printed
    names = Counter(name for record in records for name in record.values)
    is_log = any(map(reward_rank, names)) or max(names.values(), default=0) >= _MIN_ALIKE
    if is_log and (len(records) > 1 or records[0].first.is_dict):
        rows, origin = _rows(records, lines)
        source.note("lines_taken", num=len(records), num_lines=printed[-1].at, origin=origin)
        return [(f"line {record.first.at}", row) for record, row in zip(records, rows, strict=True) if row]
    return None


def _with_evaluations(printed: Iterable[Printed]) -> Iterator[Printed]:
    """Yield the lines, the rows of tables that an evaluation prints as values with their names."""
    header, above = list[str](), list[str]()
    for line in printed:
        cells = cells_of(line.text)
        if not any(map(str.isalnum, line.text)):
            header = header or above  # a rule stands under it
        elif not cells:
            header = []
        said = evaluated(header, cells)
        above = cells
        yield line._replace(text=said) if said else line


# Which lines are records


class Habits:
    """What the lines of a text have in common, which tells what a loop prints from everything else."""

    def __init__(self, lines: Sequence[Line]) -> None:
        self._shapes = Counter(line.shape for line in lines if line.values)
        are_unlike = [
            self._shapes[line.shape] == 1 for line in lines if line.values and (line.counters | line.counting)
        ]
        self._is_prose = 2 * sum(are_unlike) < len(are_unlike)
        # The reward of each step of an environment, always 1, says nothing about lines without it.
        is_constant = {name for name, each in _distinct(line.values for line in lines).items() if len(each) == 1}
        whole = [line for line in lines if line.is_whole and any(map(reward_rank, line.values.keys() - is_constant))]
        self._are_dicts = sum(line.is_dict for line in whole) > 1
        self._are_whole = len(whole) > 1
        self._keys = Counter(frozenset(line.values) for line in lines if line.is_dict)
        self._most_alike = max(self._keys.values(), default=0)
        counts: dict[str, list[int]] = {}
        for name, count in (counter for line in lines for counter in line.counters.items()):
            counts.setdefault(name, []).append(count)
        self.inner = {name for name, each in counts.items() if _num_falls(each) > _MAX_FALLS * len({*each})}
        """Counters that begin anew again and again: they count within each step."""

    def is_record(self, line: Line, evaluates: bool) -> bool:
        """Return whether a line records something; `evaluates` says whether a line above it speaks of evaluation."""
        evaluates = evaluates or line.evaluates
        if line.is_dict:
            # A dict with other names than nearly all dicts stands in an answer, unless it is an evaluation.
            is_odd = _ODD * self._keys[frozenset(line.values)] < self._most_alike
            return evaluates or not is_odd or any(map(is_evaluation, line.values))
        is_alike = self._shapes[line.shape] > 1 or (line.counters and not self._is_prose)
        # Where the reward stands in dicts, or beside its step, lines without one are single answers.
        is_part = not self._are_whole or line.is_whole or line.is_in_box or evaluates
        return VERL.search(line.text) is not None or bool(is_alike and is_part and not self._are_dicts)


def _distinct(rows: Iterable[Mapping[str, Item]]) -> dict[str, set[Item]]:
    """Return the values of each name in rows."""
    values: dict[str, set[Item]] = {}
    for row in rows:
        for name, value in row.items():
            values.setdefault(name, set()).add(value)
    return values


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


def _records(lines: list[Line]) -> Iterator[Record]:
    """Yield what the lines record. A line of dashes ends a record."""
    habits = Habits(lines)
    record, counters, evaluates, is_closed = None, Counters(), False, False
    heads, above = set[str](), set[str]()
    for line in lines:
        named = line.counters | line.counting
        heads |= line.counters.keys() if record else named.keys()
        is_only_counting = len(line.counting) == len(line.values) and named.keys() <= heads
        if is_only_counting or not habits.is_record(line, evaluates):
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
        if record and not is_closed and record.goes_on(line, counters, heads, habits.inner):
            record.values |= line.values
            record.counters |= named
            record.named |= named.keys()
            record.num_lines += 1
        else:
            yield from [record] if record else []
            record = Record(line, line.values, counters, above | named.keys())
        above, is_closed = set[str](), False
        evaluates = evaluates and not line.is_dict and not line.counters
    yield from [record] if record else []


# Which run and which step they record


def _rows(records: list[Record], lines: list[Line]) -> tuple[list[Row], str]:
    """Return the records as rows, with run and step, and where the step comes from."""
    names = Counter(name for record in records for name in record.values if not is_evaluation(name))
    said = _distinct(record.values for record in records)
    main = max(
        (name for name in names if not COUNTING.fullmatch(name)),
        key=lambda name: (reward_rank(name) is not None, len(said[name]) >= _MIN_ALIKE, names[name]),
        default="",
    )
    # Only records of training are asked: those with the reward, or else the value, that most of them have.
    training = [record for record in records if main in record.values] or records
    runs = _runs(records, training)
    of_training = [run for record, run in zip(records, runs, strict=True) if main in record.values] or runs
    step = _step([record for rows in members(numbered(of_training)) for record in map(training.__getitem__, rows)])
    if not step:
        steps = itertools.accumulate(int(main in record.values) for record in records)
        origin = COUNTED_RECORDS
    else:
        steps = [record.counters.get(step, 0) for record in records]
        if step[0] == "/" and not training[0].counters.get(step):  # it is drawn after each record, as after the first
            drawn = [0, *(line.counters[step] for line in lines if step in line.counters)]
            following = {count: then for count, then in itertools.pairwise(drawn) if then > count}
            steps = [following.get(count, count + 1) for count in steps]
        origin = "that of the progress bar" if step[0] == "/" else f"the {step} that is printed with it"
    rows = [_row(*each) for each in zip(records, steps, runs, strict=True)]
    return _once_each(_without_parts(rows, [record.first.shape for record in records], main), main), origin


def _once_each(rows: list[Row], main: str) -> list[Row]:
    """Leave out what is printed again and again at a step, as each of several processes does; their rows are empty."""
    there = [at for at, row in enumerate(rows) if main in row]
    same = grouped(there, lambda at: (rows[at].get("run"), rows[at]["step"], frozenset(rows[at])))
    # Processes print a step at about one time; a run that is printed after another is one of its own.
    near = [each for each in same if len(each) > 1 and 2 * (each[-1] - each[0]) < len(rows)]
    num_alike = sum(len({rows[at][main] for at in each}) == 1 for each in near)
    if num_alike < max(_MIN_ALIKE, _MANY_ALIKE * len(same)):
        return rows
    again = {at for each in same for at in each[1:] if rows[at][main] == rows[each[0]][main]}
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
    counted = {name: float(record.counters[name]) for name in ROLES["coarse"] if name in record.counters}
    row = {**({"run": run} if run else {}), **counted, "step": step}
    return row | {name: value for name, value in record.values.items() if plain(name) not in row}


def _runs(records: list[Record], training: list[Record]) -> list[str]:
    """Return the name of the run of each record; "" where the text is of one run.

    The lines of several runs differ in one word before their values, or in its number, or in the process that printed
    them, and in what they say: several processes of one run print the same.
    """
    if len({len(record.first.head) for record in training}) > 1:
        return [""] * len(records)
    columns = [*map(Counter, zip(*(record.first.head for record in training), strict=True))]
    # A number that moves from line to line is not that of a run.
    is_steady = [min(words.values()) >= _MIN_ALIKE and len(words) <= _MAX_RUNS for words in columns]

    def steady(record: Record) -> tuple[str, ...]:
        head = record.first.head
        return tuple(
            word if is_name else word.partition(" ")[0] for word, is_name in zip(head, is_steady, strict=False)
        )

    said: dict[tuple[str, ...], list[object]] = {}
    for record in training:
        said.setdefault(steady(record), []).append((*record.values.items(), *record.named))
    apart = [at for at, words in enumerate(zip(*said, strict=True)) if len({*words}) > 1]
    names = {words: words[apart[0]] for words in said} if len(apart) == 1 and len(said) <= _MAX_RUNS else {}
    is_told = min(map(len, said.values())) >= _MIN_ALIKE and not any(map(_PROCESS.fullmatch, names.values()))
    are_apart = len({*map(frozenset, said.values())}) == len(said)
    return [names.get(steady(record), "") if is_told and are_apart else "" for record in records]


def _step(training: list[Record]) -> str:
    """Return the counter that rises from record to record of each run; "" if there is none."""
    named = Counter(name for record in training for name in record.named if name[0] != "/")
    rises: dict[str, int] = {}
    for name in training[-1].counters:
        counts = [record.counters.get(name, 0) for record in training]
        # A bar may be drawn after the first record; another counter that comes later is not their step.
        is_there = name[0] == "/" or name in training[0].counters or 2 * named[name] > len(training)
        num_rises, num_falls = _num_falls(counts[::-1]), _num_falls(counts)
        if is_there and num_falls <= _MAX_FALLS * num_rises:
            rises[name] = num_rises - num_falls
        elif is_there and 2 * named[name] > len(training) and 4 * len({*counts}) > len(counts):
            rises[name] = len({*counts}) - 1  # of several runs whose lines are mixed
    most = max(rises.values(), default=0)
    # A step that every record names may rise slowly.
    least = {name: 1 if name in ROLES["step"] and 2 * named[name] > len(training) else _MIN_RISES * (len(training) - 1)
             for name in rises}  # fmt: skip
    usable = [name for name, num in rises.items() if num >= max(least[name], _MANY_RISES * most)]
    order = {name: _ORDER.index(plain(name)) if plain(name) in _ORDER else len(_ORDER) for name in usable}
    return min(usable, key=lambda name: (2 * named[name] <= len(training), order[name], name), default="")
