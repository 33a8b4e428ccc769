"""Tables with a header and a delimiter, as rows: CSV, with `,` `;` `|` tabs or blanks between the cells.

A header is a line of names above rows of as many cells with numbers. One with bars, as Markdown has it, or with nothing
but numbers between blanks may stand anywhere in a text; else the table begins with it, or under a few other lines.
"""

import csv
import io
import itertools
import operator
import re

from scalerl.errors import InputError
from scalerl.forecast.logs.amounts import amount
from scalerl.forecast.logs.columns import AXES, reward_rank, with_role
from scalerl.forecast.logs.frame import Names, Placed, listed, number
from scalerl.forecast.logs.readers.printed import read_line
from scalerl.forecast.logs.readers.source import MAX_COLUMNS, Source

_MAX_SAMPLE = 50
_MAX_FIELD = 131_072
_SUFFIXES = (".csv", ".tsv", ".gz")
_PREAMBLE = re.compile(r"\s*$|#|\s*\"?sep=.\"?\s*$", re.IGNORECASE)
# 0,25 and 1.234,5 and 1.000, in tables whose delimiter is not the comma; no group of thousands begins with 0.
_DECIMAL_COMMA = re.compile(r"\s*[-+]?(?:[1-9]\d{0,2}(?:\.\d{3})+(?:,\d+)?|\d{0,9},\d+)(?: ?%)?\s*")
_DECIMAL_POINT = re.compile(r"\s*[-+]?\d+\.\d{1,2}\s*")
_MIN_ROWS = 3
_MARKS = ",;\t|"
# Lines of prose above a table.
_MAX_PROSE = 10

Line = tuple[int, list[str]]
"""Line number and cells."""


def csv_rows(source: Source) -> Placed | None:
    """Return the rows of a table; None if the text is not one. InputError says what is wrong with one."""
    is_named = source.path.suffix.lower() in _SUFFIXES and not source.is_inside
    _check_width(source, is_named)
    between = _between_lines(source, "|" if is_named else "| ")
    delimiter, lines = ("|", between) if between else _from_its_head(source, is_named)
    if not lines or not (between or is_named or _is_table([cells for _, cells in lines[:_MAX_SAMPLE]], delimiter)):
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
    names: list[str] = []
    taken = set[str]()
    for at, cell in enumerate(header, start=1):
        name = cell.strip() or f"column {at}"
        names.append(f"{name}.{at}" if name in taken else name)
        taken.add(name)
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


def _check_width(source: Source, is_named: bool) -> None:
    """Raise InputError for a table with too many columns, before its cells are looked at."""
    lines = [line for line in itertools.islice(io.StringIO(source.text), _MAX_PROSE) if not _PREAMBLE.match(line)]
    for header, below in itertools.zip_longest(lines[:1], lines[1:2], fillvalue=""):
        for mark in _MARKS:
            num = header.count(mark)
            if num >= MAX_COLUMNS and (is_named or below.count(mark) == num):
                source.limit(num + 1, MAX_COLUMNS, "columns")


def _between_lines(source: Source, marks: str) -> list[Line]:
    """Return the longest table of steps and rewards between other lines, header first; [] if there is none.

    Tables with the same header are one: Ray prints its table again and again.
    """
    tables: dict[tuple[str, ...], list[Line]] = {}
    for mark in marks:
        header = None
        lines = [
            (at, _cells(line, mark))
            for at, line in enumerate(source.text.splitlines(), start=1)
            if (mark in line.strip()) and any(map(str.isalnum, line))
        ]
        for (at, cells), (_, following) in itertools.pairwise([*lines, (0, [])]):
            if _is_table([cells, following], mark) and (mark == "|" or any(map(reward_rank, cells))):
                header = tuple(cells)
                tables.setdefault(header, [(at, cells)])
            elif header and len(cells) == len(header) and (mark == "|" or all(map(_is_number, cells))):
                tables[header].append((at, cells))
    logs = [rows for names, rows in tables.items() if len(rows) > _MIN_ROWS and _goes_on(names, rows[1:])]
    longest = max(logs, key=lambda rows: (any(map(reward_rank, rows[0][1])), len(rows)), default=[])
    return [] if _has_more_records(source, len(longest)) else longest


def _cells(line: str, mark: str) -> list[str]:
    """Return the cells of a line, without its bars, the emphasis in them, and what makes it a comment."""
    line = line.strip().lstrip("#")
    if mark == " ":
        return line.split()
    return [cell.strip().strip("*`_$ ") for cell in line.removeprefix("|").removesuffix("|").split(mark)]


def _is_table(rows: list[list[str]], mark: str) -> bool:
    """Return whether lines look like a table: a header of names, and under it rows of as many cells with numbers."""
    header, *body = rows
    body = [row for row in body if row != header]
    whole = body[: max(len(body) - 1, 1)]
    if {len(header)} != {len(row) for row in whole} or any(map(_is_number, header)):
        return False
    is_narrow = len(header) < 2 or mark == " "
    for row in body[: 1 if len(body) < 3 else -1]:
        are_numbers = [_is_number(cell) for cell in row if cell.strip()]
        if not (all(are_numbers) if is_narrow else any(are_numbers)):
            return False
    return True


def _has_more_records(source: Source, num: int) -> bool:
    """Return whether a text prints more records than this: the rows under them are a summary."""
    lines = (read_line(line) for line in source.text.splitlines() if "|" not in line)
    return sum(1 for line in itertools.islice((line for line in lines if line.values and line.is_whole), num)) == num


def _goes_on(names: Names, rows: list[Line]) -> bool:
    """Return whether the steps of a table rise from row to row; those of runs may begin anew, each after some rows.

    The table in an answer begins anew after one or two.
    """
    axis = next(iter(with_role(names, "step", "coarse", *AXES)), "")
    steps = [amount(cells[names.index(axis)]) for _, cells in rows] if axis else []
    rises, falls = (sum(map(compare, steps, steps[1:])) for compare in (operator.lt, operator.gt))
    return rises > 2 * falls


def _from_its_head(source: Source, is_named: bool) -> tuple[str, list[Line]]:
    """Return the delimiter, and the lines that hold something, from the header on."""
    raw = source.text.splitlines(keepends=True)
    first, delimiter = _head(raw, _MARKS if is_named else _MARKS[:-1])
    raw[first] = raw[first].lstrip("# ")
    reader = csv.reader(io.StringIO("".join(raw[first:]), newline=""), delimiter=delimiter, skipinitialspace=True)
    lines = list[Line]()
    try:
        num_cells = 0
        for cells in reader:
            num_cells += len(cells)
            source.expect(num_cells)
            if any(cell.strip(" -=") for cell in cells):
                lines.append((first + reader.line_num, cells))
    except csv.Error as fault:
        if is_named:
            raise InputError(f"{source.path}, line {first + reader.line_num}: not CSV ({fault}); repair it.") from None
        return delimiter, []
    return delimiter, lines


def _head(raw: list[str], marks: str) -> tuple[int, str]:
    """Return where the header stands, which may be under lines of prose or behind '#', and the mark between names."""
    for at in range(min(_MAX_PROSE, len(raw) - 2)):
        for mark in f"{marks} ":
            names, *rows = (_cells(line[:_MAX_FIELD], mark) for line in raw[at : at + 3])
            is_head = any(map(reward_rank, names)) and _is_table([names, rows[0], rows[1], rows[1]], mark)
            if is_head or _two_heads(names, rows[0]):
                return at, mark
    first = next((at for at, line in enumerate(raw) if not _PREAMBLE.match(line)), 0)
    header = raw[first][:_MAX_FIELD]
    delimiter = max(marks, key=lambda mark: len(next(csv.reader([header], delimiter=mark), [])))
    return first, " " if delimiter not in header and " " in header.strip() else delimiter


def _two_heads(above: list[str], below: list[str]) -> list[str]:
    """Return the names of columns whose head has two rows, such as 'grpo - reward'; [] if it has one.

    The first row names runs, each above several columns, and the second one their metrics, which come again.
    """
    if len(above) != len(below) or any(map(_is_number, [*above, *below])):
        return []
    runs: list[str] = []
    for run in map(str.strip, above):
        runs.append(run or (runs or [""])[-1])
    pairs = [*zip(runs, map(str.strip, below), strict=True)]
    again = {metric for _, metric in pairs if len({run for run, other in pairs if other == metric and run}) > 1}
    if not any(map(reward_rank, again)) or len({*pairs}) < len(pairs):
        return []
    # The first column may be that of steps, which are no metric of a run.
    return [" - ".join(pair) if all(pair) and (at or pair[1] in again) else pair[1] or pair[0]
            for at, pair in enumerate(pairs)]  # fmt: skip


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
