"""Console output of trainers: its tables, and the records in it with the step at which each was printed.

Which lines are meant is tried in this order: dicts, those that name their step, and all that a loop printed. Which
counter is the step is decided by what it does: it rises from record to record. Without one the records are counted.
Records that differ in one word, the name of a run, are those of several runs.
"""

import re
from collections import Counter
from collections.abc import Iterator
from itertools import pairwise

from scalerl.forecast.logs.frame import Row
from scalerl.forecast.logs.readers.lines import Printed, printed_lines
from scalerl.forecast.logs.readers.printed import Line, is_counting, names_evaluation, plainly, read_line
from scalerl.forecast.logs.readers.records import Habits, Record, ends_evaluation, records_in
from scalerl.forecast.logs.readers.source import Source, Table
from scalerl.forecast.logs.readers.text_tables import longest_table

COUNTED_RECORDS = "the number of the record"
"""Where the step of a text comes from that names none."""

# The name of one of several processes of a run.
_PROCESS = re.compile(r"(?:\w*rank|default|worker|gpu|node|device|process|pid)[-_ ]?\d+", re.IGNORECASE)
_RUN = re.compile(r"(?:run|seed) \d+", re.IGNORECASE)
_MAX_RUNS = 20
# What stands before a number at the end of a line, and a number that is exact enough without its last digits.
_MARKS = re.compile(r"[\s:=}\])]")
_MANY_DIGITS = re.compile(r"-?\d+\.\d{6,}")
# Fewer records say nothing about what a loop prints.
_MIN_ALIKE = 3
# A counter that falls more often, for each of its rises, counts within each step.
_MAX_FALLS = 0.2
# The share of records at which a counter rises, if it is their step.
_MIN_RISES = 0.2
# A counter that rises less often than another by this is printed now and then, as in the title of a table.
_MANY_RISES = 0.8
# The share of what is said that is said again, if several processes print it.
_MANY_ALIKE = 0.9
# The words for a step, in the order in which a counter is taken for it.
_STEPS = ("step", "iteration", "update", "updates", "checkpoint", "steps", "timesteps", "iterations")
_COARSE = ("episode", "episodes", "epoch")


def console_tables(source: Source) -> Iterator[list[Table]]:
    """Yield the tables that a text prints, and the records in it, those that are surest first."""
    printed = list(printed_lines(source))
    if not printed:
        return
    is_open = not source.text.rstrip("\0").endswith(("\n", "\r"))
    if is_open:
        printed[-1] = printed[-1]._replace(text=_with_cut_number(printed[-1].text))
    lines = _lines(source, printed)
    table = longest_table(printed)
    num_whole = sum(bool(line.values) and line.is_whole and not line.is_in_box for line in lines)
    if table and num_whole <= len(table.rows):  # else it is a summary of what was printed before
        yield [table]
    habits = Habits(lines)
    for meant in habits.kinds:
        records = list(records_in(lines, habits, meant))
        source.budget.spend()
        is_block = any(record.num_lines > 1 for record in records)
        if is_open and is_block and len(lines[-1].values) == 1 and not lines[-1].is_dict:
            records.pop()  # its block may go on
        names = Counter(name for record in records for name in record.values)
        if max(names.values(), default=0) < 2:  # numbers by accident
            continue
        rows, origin = _rows(records, lines)
        if origin != COUNTED_RECORDS or not all(map(_is_loose, records)):
            placed = [(f"line {record.first.at}", row) for record, row in zip(records, rows, strict=True) if row]
            found = Table("console", placed)
            yield [found.with_fact("lines_taken", num=len(records), num_lines=printed[-1].at, origin=origin)]


def _lines(source: Source, printed: list[Printed]) -> list[Line]:
    """Return the lines that say something, and the last one."""
    lines: list[Line] = []
    for at, text in enumerate(printed, start=1):
        line = read_line(text.text, text.at, text.speaker)
        source.budget.spend(len(line.values))
        is_told = line.values or line.counters or line.is_rule or line.evaluates or ends_evaluation(line)
        if is_told or at == len(printed):
            lines.append(line)
    return lines


def _with_cut_number(text: str) -> str:
    """Return a line that is being written with a number at its end that says nothing, if digits may be missing."""
    last = _MARKS.split(text.rstrip())[-1]
    if not last or _MANY_DIGITS.fullmatch(last):
        return text
    return f"{text.rstrip().removesuffix(last)}0x"


def _is_loose(record: Record) -> bool:
    """Return whether a record is a name with its value and nothing else, which makes no curve without a step."""
    return len(record.values) == 1 and record.first.shape == " ".join(record.values)


# The rows


def _rows(records: list[Record], lines: list[Line]) -> tuple[list[Row], str]:
    """Return the records as rows, with run and step, and where the step comes from."""
    main = _main_name(records)
    training = [record for record in records if main in record.values] or records
    _name_runs(records, training)
    step = _step(training)
    if not step:
        steps = _counted(records, main)
        origin = COUNTED_RECORDS
    elif step[0] == "/":
        steps = _steps_of_bar(step, records, training, lines)
        origin = "that of the progress bar"
    else:
        steps = [record.counters.get(step, 0) for record in records]
        origin = f"the {step} that is printed with it"
    rows = [_row(record, at) for record, at in zip(records, steps, strict=True)]
    _join_bars(records, rows)
    _leave_out_repeated(rows, main)
    _leave_out_parts(records, rows, main)
    if step in _COARSE and 2 * len({*steps}) > len(rows):
        for row in rows:  # the column of that name says the same, and what is counted
            row.pop("step", None)
    return rows, origin


def _row(record: Record, step: int) -> Row:
    row: Row = {"run": record.run} if record.run else {}
    for name in _COARSE:
        if name in record.counters:
            row[name] = float(record.counters[name])
    row["step"] = step
    return row | {name: value for name, value in record.values.items() if plainly(name) not in row}


def _main_name(records: list[Record]) -> str:
    """Return the name that tells the records of training: one that varies, no evaluation, beside most others."""
    values: dict[str, list[float]] = {}
    num_beside: dict[str, list[int]] = {}
    for record in records:
        names = [name for name in record.values if not is_counting(name)]
        for name in names:
            values.setdefault(name, []).append(record.values[name])
            num_beside.setdefault(name, []).append(len(names))

    def worth(name: str) -> tuple[bool, bool, int, int]:
        others = sorted(num_beside[name])
        is_varied = len({*values[name]}) >= _MIN_ALIKE
        return is_varied, not names_evaluation(name), others[len(others) // 2], len(others)

    return max(values, key=worth, default="")


def _join_bars(records: list[Record], rows: list[Row]) -> None:
    """Join what bars say that are drawn again and again within a step: the last value counts."""
    before: Row = {}
    for record, row in zip(records, rows, strict=True):
        if not record.first.is_bar:
            continue
        if before and (before["step"], before.get("run")) == (row["step"], row.get("run")):
            row |= before | row
            before.clear()
        before = row


def _leave_out_repeated(rows: list[Row], main: str) -> None:
    """Empty the rows that say again what was said at their step, if most are, as by each of several processes.

    Processes print a step at about one time; a run that is printed after another is one of its own.
    """
    said: dict[tuple[object, ...], int] = {}
    again: list[Row] = []
    for at, row in enumerate(rows):
        if main in row:
            first = said.setdefault((row.get("run"), row["step"], row[main]), at)
            if 0 < 2 * (at - first) < len(rows):
                again.append(row)
    if len(again) >= max(_MIN_ALIKE, _MANY_ALIKE * len(said)):
        for row in again:
            row.clear()


def _leave_out_parts(records: list[Record], rows: list[Row], main: str) -> None:
    """Leave out the value of a line that comes several times a step, if another line says it once for each."""
    steps: dict[str, Counter[int]] = {}
    for record, row in zip(records, rows, strict=True):
        if main in row:
            steps.setdefault(record.first.shape, Counter())[row["step"]] += 1
    num_steps = len(set[int]().union(*steps.values()))
    wholes = {shape for shape, times in steps.items() if max(times.values()) == 1}
    if [len(steps[shape]) for shape in wholes].count(num_steps) == 1:
        for record, row in zip(records, rows, strict=True):
            if record.first.shape not in wholes:
                row.pop(main, None)


# The run


def _name_runs(records: list[Record], training: list[Record]) -> None:
    """Name the run of each record, where a text is of several.

    The lines of several runs differ in one word before their values, or in its number, or in the process that printed
    them, and in what they say: several processes of one run print the same.
    """
    heads = [record.first.head for record in training]
    if len({*map(len, heads)}) > 1:
        return
    columns = [at for at, words in enumerate(zip(*heads, strict=True)) if _may_be_runs(Counter(words))]
    if len(columns) != 1:
        return
    column = columns[0]
    said: dict[str, set[object]] = {}
    for record, head in zip(training, heads, strict=True):
        said.setdefault(head[column], set()).add((*record.values.items(), *record.named))
    if len({*map(frozenset, said.values())}) < len(said):
        return
    for record in records:
        head = record.first.head
        record.run = head[column] if len(head) > column and head[column] in said else ""
    training.sort(key=lambda record: [*said].index(record.run))


def _may_be_runs(times: Counter[str]) -> bool:
    """Return whether words are names of runs; a number that moves from line to line is none, unless it is said so."""
    are_few = 1 < len(times) <= _MAX_RUNS and min(times.values()) >= _MIN_ALIKE
    are_numbered = len(times) > 1 and all(map(_RUN.fullmatch, times))
    return (are_few or are_numbered) and not any(map(_PROCESS.fullmatch, times))


# The step


def _step(training: list[Record]) -> str:
    """Return the counter that rises from record to record of each run; "" if there is none."""
    times_named = Counter(name for record in training for name in record.named if name[0] != "/")
    often = {name for name, num in times_named.items() if 2 * num > len(training)}
    rises: dict[str, int] = {}
    for name in training[-1].counters:
        # A bar may be drawn after the first record; another counter that comes later is not their step.
        if name in often or name[0] == "/" or name in training[0].counters:
            rises[name] = _num_rises([record.counters.get(name, 0) for record in training])
    usable: list[str] = []
    for name, num in rises.items():
        # A step that every record names may rise slowly.
        is_slow_step = name in often and _rank(name) < len(_STEPS)
        least = 1 if is_slow_step else _MIN_RISES * (len(training) - 1)
        if num >= max(least, _MANY_RISES * max(rises.values()), 1):
            usable.append(name)
    return min(usable, key=lambda name: (names_evaluation(name), name not in often, _rank(name), len(name)), default="")


def _num_rises(counts: list[int]) -> int:
    """Return how often a counter rises; 0 for one that often falls, since it counts within each step."""
    num_rises = sum(map(int.__lt__, counts, counts[1:]))
    num_falls = sum(map(int.__gt__, counts, counts[1:]))
    return num_rises - num_falls if num_falls <= _MAX_FALLS * num_rises else 0


def _rank(name: str) -> int:
    """Return the place of a counter among those that may be the step: steps, then other words, bars, and epochs."""
    if name[0] == "/":
        return len(_STEPS) + 1
    word = name.removesuffix("_total").rpartition("_")[2]
    if word in _COARSE:
        return len(_STEPS) + 2
    return _STEPS.index(word) if word in _STEPS else len(_STEPS)


def _counted(records: list[Record], main: str) -> list[int]:
    """Return how many records of training its run has until each; one whose bar has moved on is drawn again."""
    steps: list[int] = []
    num = Counter[str]()
    drawn: dict[str, int] = {}
    for record in records:
        if main in record.values:
            counts = record.first.counters
            num[record.run] += not any(counts.get(name, 0) > count for name, count in drawn.items())
            drawn = {name: count for name, count in counts.items() if name[0] == "/"}
        steps.append(num[record.run])
    return steps


def _steps_of_bar(bar: str, records: list[Record], training: list[Record], lines: list[Line]) -> list[int]:
    """Return how far a bar is at each record; the next place where it is drawn after the record, as after the first."""
    steps = [record.counters.get(bar, 0) for record in records]
    if training[0].counters.get(bar):
        return steps
    drawn = [0, *(line.counters[bar] for line in lines if bar in line.counters)]
    following = {count: then for count, then in pairwise(drawn) if then > count}
    return [following.get(count, count + 1) for count in steps]
