"""Tables with a header and a delimiter, as rows: CSV, with `,` `;` `|` tabs or blanks between the cells.

A table with a rule under its header, as Markdown has it, may stand anywhere in a text.
"""

import csv
import io
import itertools
import re

from scalerl.errors import InputError
from scalerl.logs.amounts import amount
from scalerl.logs.columns import AXES, reward_rank, with_role
from scalerl.logs.frame import Names, Placed, listed, number
from scalerl.logs.printed import read_line
from scalerl.logs.source import MAX_COLUMNS, Source

_MAX_SAMPLE = 50
_MAX_FIELD = 131_072
_SUFFIXES = (".csv", ".tsv", ".gz")
_PREAMBLE = re.compile(r"\s*$|#|\s*\"?sep=.\"?\s*$", re.IGNORECASE)
# 0,25 and 1.234,5 and 1.000, in tables whose delimiter is not the comma; no group of thousands begins with 0.
_DECIMAL_COMMA = re.compile(r"\s*[-+]?(?:[1-9]\d{0,2}(?:\.\d{3})+(?:,\d+)?|\d{0,9},\d+)(?: ?%)?\s*")
_DECIMAL_POINT = re.compile(r"\s*[-+]?\d+\.\d{1,2}\s*")
# A row of a table that only separates others: |---|:--:| and +----+----+.
_RULE = re.compile(r"(?=[^\n]*-)(?=[^\n]*[|+])[-\s|+:=]*")
# 'loss: 0.1' is no name of a column, but a value that was printed.
_PRINTED = re.compile(r"[:=\uff1a]\s*+[-+]?\d")
_MIN_RULED = 3
_MARKS = ",;\t|"
_CELLS = re.compile(r"\s*+[,;|]\s*+|\s++")
# Lines of prose above a table.
_MAX_PROSE = 10

Line = tuple[int, list[str]]
"""Line number and cells."""


def csv_rows(source: Source) -> Placed | None:
    """Return the rows of a table; None if the text is not one. InputError says what is wrong with one."""
    is_named = source.path.suffix.lower() in _SUFFIXES and not source.is_inside
    ruled = _ruled(source) or ([] if is_named else _aligned(source))
    delimiter, lines = ("|", ruled) if ruled else _lines(source, is_named)
    if not lines or not (ruled or is_named or _is_table([cells for _, cells in lines[:_MAX_SAMPLE]], delimiter)):
        return None
    (line, header), *body = lines
    if body and (two := _two_heads(header, body[0][1])):
        # pandas writes the name of the index alone into a third row.
        is_index = len(body) > 1 and not _is_number(body[1][1][0]) and not any(map(str.strip, body[1][1][1:]))
        header, body = [body[1][1][0] if is_index else two[0], *two[1:]], body[1 + is_index :]
    source.limit(len(header), MAX_COLUMNS, "columns")
    if all(map(_is_number, header)):
        raise InputError(
            f"{source.path}, line {line}: numbers ({listed(header)}) where column names belong: put a line with names "
            "above them, such as step,reward."
        )
    # A repeated name keeps its first column; the others stay reachable by their position.
    names = [cell.strip() or f"column {at}" for at, cell in enumerate(header, start=1)]
    names = [f"{name}.{at + 1}" if name in names[:at] else name for at, name in enumerate(names)]
    for at, cells in body:
        if any(map(str.strip, cells[len(names) :])):
            raise InputError(f"{source.path}, line {at}: {len(cells)} values under {len(names)} columns.")
    # The last line may be cut where a run is still writing: 0.45 of which 0. was written is wrong.
    is_cut = (
        not source.text.endswith(("\n", "\r")) and len(body) > 1 and _is_cut([cells for _, cells in body], len(names))
    )
    # A run that is restarted may write its header again.
    rows = [(at, cells) for at, cells in body[: -1 if is_cut else None] if cells != header]
    if delimiter != "," and _has_decimal_commas([cell for _, cells in rows for cell in cells]):
        rows = [(at, [_with_point(cell) for cell in cells]) for at, cells in rows]
    return [(f"line {at}", dict(zip(names, cells, strict=False))) for at, cells in rows]


def _ruled(source: Source) -> list[Line]:
    """Return the longest table of steps and rewards with a rule under its header, header first; [] if there is none.

    Tables with the same header are one: Ray prints its table again and again.
    """
    lines = [line.strip() for line in source.text.splitlines()]
    tables: dict[tuple[str, ...], list[Line]] = {}
    header: tuple[str, ...] = ()
    for at, (line, following) in enumerate(zip(lines, [*lines[1:], ""], strict=True), start=1):
        if "|" not in line:
            header = header if _RULE.fullmatch(line) else ()
        elif not _RULE.fullmatch(line):
            cells = [_bare(cell) for cell in line.removeprefix("|").removesuffix("|").split("|")]
            header = header if len(cells) == len(header) else ()
            if header:
                tables[header].append((at, cells))
            elif _RULE.fullmatch(following) and len(cells) > 1:
                header = tuple(cells)
                tables.setdefault(header, [(at, cells)])
    logs = [rows for names, rows in tables.items() if len(rows) > _MIN_RULED and _goes_on(names, rows[1:])]
    longest = max(logs, key=lambda rows: (any(map(reward_rank, rows[0][1])), len(rows)), default=[])
    return [] if _has_more_records(source, len(longest)) else longest


def _aligned(source: Source) -> list[Line]:
    """Return a table of numbers between other lines, with blanks between its columns; [] if there is none."""
    lines = [
        (at, line.lstrip("#").split())
        for at, line in enumerate(source.text.splitlines(), start=1)
        if line.strip(" -=\t")
    ]
    for at, (header, (_, cells)) in enumerate(itertools.pairwise(lines)):
        names = header[1]
        if len(names) == len(cells) > 1 and not any(map(_is_number, names)) and any(map(reward_rank, names)):
            rows = [line for line in lines[at + 1 :] if len(line[1]) == len(names) and all(map(_is_number, line[1]))]
            return [header, *rows] if len(rows) >= _MIN_RULED and _goes_on(names, rows) else []
    return []


def _has_more_records(source: Source, num: int) -> bool:
    """Return whether a text prints more records than this: the rows under them are a summary."""
    lines = (read_line(line) for line in source.text.splitlines() if "|" not in line)
    return sum(1 for line in itertools.islice((line for line in lines if line.values and line.is_whole), num)) == num


def _goes_on(names: Names, rows: list[Line]) -> bool:
    """Return whether a table has numbers beside a column of steps that rises from row to row of each run.

    A run is told by the words in its rows. The table in an answer begins anew.
    """
    axis = next(iter(with_role(names, "step", "coarse", *AXES)), "")
    numbers = [[amount(cell) for cell in cells] for _, cells in rows]
    runs: dict[tuple[str, ...], list[float]] = {}
    for (_, cells), values in zip(rows, numbers, strict=True):
        words = tuple(cell for cell, value in zip(cells, values, strict=True) if value != value and cell)
        runs.setdefault(words, []).append(values[names.index(axis)] if axis else 0.0)
    is_measured = any(value == value for values in numbers for at, value in enumerate(values) if names[at] != axis)
    is_rising = all(a <= b for steps in runs.values() for a, b in itertools.pairwise(steps))
    return is_measured and is_rising and any(steps[0] < steps[-1] for steps in runs.values())


def _bare(cell: str) -> str:
    """Return a cell of a text without its emphasis."""
    return cell.strip().strip("*`_$ ")


def _lines(source: Source, is_named: bool) -> tuple[str, list[Line]]:
    """Return the delimiter, and the lines that hold something, from the header on."""
    raw = source.text.splitlines(keepends=True)
    first = _head(raw)
    raw[first] = raw[first].lstrip("# ") if raw[first].startswith("#") else raw[first]
    header, lines = raw[first][:_MAX_FIELD], list[Line]()
    delimiter = max(",;\t|", key=lambda mark: len(next(csv.reader([header], delimiter=mark), [])))
    delimiter = " " if delimiter not in header and " " in header.strip() else delimiter
    reader = csv.reader(io.StringIO("".join(raw[first:]), newline=""), delimiter=delimiter, skipinitialspace=True)
    try:
        lines += ((first + reader.line_num, cells) for cells in reader if any(cell.strip(" -=") for cell in cells))
    except csv.Error as fault:
        if is_named:
            raise InputError(f"{source.path}, line {first + reader.line_num}: not CSV ({fault}); repair it.") from None
        lines = []
    # Titles above the header, as spreadsheets have them.
    titles = itertools.takewhile(lambda line: len(line[1]) > 2 and sum(map(bool, map(str.strip, line[1]))) == 1, lines)
    return delimiter, lines[len([*titles]) :]


def _two_heads(above: list[str], below: list[str]) -> list[str]:
    """Return the names of columns whose head has two rows, such as 'grpo - reward'; [] if it has one.

    The first row names runs, each above several columns, and the second one their metrics, which come again.
    """
    if len(above) != len(below) or any(map(_is_number, [*above, *below])) or len(above) < 3:
        return []
    runs = list[str]()
    for run in map(str.strip, above):
        runs.append(run or (runs or [""])[-1])
    metrics = [metric.strip() for metric in below]
    pairs = [*zip(runs, metrics, strict=True)]
    again = [
        metric for metric in {*metrics} - {""} if len({run for run, other in pairs if other == metric and run}) > 1
    ]
    is_spanning = len({*runs[1:]}) < len(runs) - 1 and len({*metrics}) < len(metrics)
    are_named = all(map(any, pairs)) and len({*pairs}) == len(pairs)
    if not (is_spanning and are_named and any(map(reward_rank, again))):
        return []
    # The first column may be that of steps, which are no metric of a run.
    return [" - ".join(pair) if all(pair) and (at or pair[1] in again) else pair[1] or pair[0]
            for at, pair in enumerate(pairs)]  # fmt: skip


def _head(raw: list[str]) -> int:
    """Return where the header stands: in the first line, behind '#' above the first row, or under lines of prose."""
    first = next((at for at, line in enumerate(raw) if not _PREAMBLE.match(line)), 0)
    if first and raw[first - 1].startswith("#"):
        above, row = (_CELLS.split(line.strip("#").strip()) for line in raw[first - 1 : first + 1])
        if len(above) == len(row) > 1 and all(map(_is_number, row)) and not any(map(_is_number, above)):
            return first - 1
    for at in range(first, min(first + _MAX_PROSE, len(raw) - 2)):
        for mark in _MARKS:
            names, *rows = ([cell.strip() for cell in line[:_MAX_FIELD].split(mark)] for line in raw[at : at + 3])
            is_head = len(names) > 1 and any(map(reward_rank, names)) and not any(map(_is_number, names))
            if is_head and all(len(row) == len(names) and any(map(_is_number, row)) for row in rows):
                return at - (at > first and bool(_two_heads(raw[at - 1][:_MAX_FIELD].split(mark), names)))
    return first


def _is_table(rows: list[list[str]], delimiter: str) -> bool:
    """Return whether lines look like a table: a header of words, and under it rows of as many cells with numbers."""
    header, *body = rows
    body = [row for row in body if row != header]
    is_narrow = len(header) < 2 or delimiter in " |"
    are_numbers = [[_is_number(cell) for cell in row if cell.strip()] for row in body[: 1 if len(body) < 3 else -1]]
    is_like = len(header) > MAX_COLUMNS or {len(header)} >= {len(row) for row in body[:-1]}
    return (
        is_like
        and bool(body)
        and all(map(all if is_narrow else any, are_numbers))
        and not any(_is_number(cell) or _PRINTED.search(cell) for cell in header)
    )


def _is_number(cell: str) -> bool:
    return number(cell) == number(cell)


def _is_cut(rows: list[list[str]], num_columns: int) -> bool:
    *others, last = (cells[-1].strip() for cells in rows)
    is_begun = last in ("0", "0.", "-0", "-0.") and all("." in other for other in others)
    return is_begun or len(rows[-1]) < num_columns


def _has_decimal_commas(cells: list[str]) -> bool:
    has_commas = any("," in cell and _DECIMAL_COMMA.fullmatch(cell) for cell in cells)
    return has_commas and not any(map(_DECIMAL_POINT.fullmatch, cells))


def _with_point(cell: str) -> str:
    """Return 1.234,5 as 1234.5."""
    return cell.replace(".", "").replace(",", ".") if _DECIMAL_COMMA.fullmatch(cell) else cell
