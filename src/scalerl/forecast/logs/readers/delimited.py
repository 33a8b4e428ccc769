"""Tables with a header and a delimiter: CSV, with `,` `;` `|` tabs or blanks between the cells.

A header is a line of names above rows of as many cells with numbers. It is the first line, or stands under a few lines
of prose, or behind '#'.
"""

import csv
import io
import itertools
import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from scalerl.errors import InputError
from scalerl.forecast.logs.frame import Names, Placed, listed, number
from scalerl.forecast.logs.readers.budget import MAX_COLUMNS
from scalerl.forecast.logs.readers.source import Source, Table

_SUFFIXES = (".csv", ".tsv", ".gz")
_PREAMBLE = re.compile(r"\s*$|#|\s*\"?sep=.\"?\s*$", re.IGNORECASE)
# 0,25 and 1.234,5 and 1.000, in tables whose delimiter is not the comma; no group of thousands begins with 0.
_DECIMAL_COMMA = re.compile(r"\s*[-+]?(?:[1-9]\d{0,2}(?:\.\d{3})+(?:,\d+)?|\d{0,9},\d+)(?: ?%)?\s*")
_DECIMAL_POINT = re.compile(r"\s*[-+]?\d+\.\d{1,2}\s*")
_MAX_SAMPLE = 60
# Lines of prose above a table, and rows that show what a file is that is named as a table.
_MAX_PROSE = 10
_FEW_ROWS = 3

Line = tuple[int, list[str]]
"""Line number and cells."""


class Head(NamedTuple):
    """Where a table begins."""

    above: int
    """Lines before its first row."""
    names: list[str]
    mark: str


def delimited_tables(source: Source) -> Iterator[list[Table]]:
    """Yield the table that a text is, if it is one; InputError says what is wrong with one."""
    is_named = source.path.suffix.lower() in _SUFFIXES and not source.is_inside
    head = _head_of(source, is_named)
    lines = _lines_below(source, head, is_named) if head else None
    if head is None or lines is None:
        return
    if all(map(is_number, head.names)):
        raise InputError(
            f"{source.path}, line {head.above}: numbers ({listed(head.names)}) where column names belong: put a line "
            "with names above them, such as step,reward."
        )
    rows = _whole_rows(source, head, lines)
    if head.mark != "," and _has_decimal_commas(rows):
        rows = [(at, list(map(_with_point, cells))) for at, cells in rows]
    yield [Table("csv", named_rows(head.names, rows))]


def named_rows(header: Names, rows: Sequence[Line]) -> Placed:
    """Return rows by the names of their columns. Of columns with one name the later ones are known by their place."""
    names: dict[str, None] = {}
    for at, cell in enumerate(header, start=1):
        name = cell.strip() or f"column {at}"
        names[f"{name}.{at}" if name in names else name] = None
    return [(f"line {at}", dict(zip(names, cells, strict=False))) for at, cells in rows]


def is_number(cell: str) -> bool:
    value = number(cell)
    return value == value


def is_header(names: list[str], rows: list[list[str]], *, all_numbers: bool = False) -> bool:
    """Return whether cells are names above other rows with as many cells and numbers in each; the last may be cut."""
    if not rows or len(rows[0]) != len(names) or any(map(is_number, names)):
        return False
    enough = all if all_numbers else any
    whole = rows[:-1] or rows
    return all(len(row) == len(names) and enough(map(is_number, filter(None, row))) for row in whole)


# The head


def _head_of(source: Source, is_named: bool) -> Head | None:
    """Return where a table begins in the first lines of a text; None if they are none.

    A file that is named as a table is one: its first line that is no comment is the header, cut into most cells.
    """
    sample = list(itertools.islice(io.StringIO(source.text, newline=""), _MAX_SAMPLE))
    marks = ",;\t| " if is_named else ",;\t "
    for at, line in enumerate(sample[:_MAX_PROSE]):
        source.budget.spend()
        for mark in marks:
            below = sample[at + 1 :]
            _limit_columns(source, line, mark, is_named or (below and below[0].count(mark) == line.count(mark)))
            names = _cells(line, mark) if mark in line or mark == "," else []
            if names and _is_header_above(names, below, mark, _FEW_ROWS if is_named else _MAX_SAMPLE):
                return _whole_head(source, Head(at + 1, names, mark), [_cells(each, mark) for each in sample[:at]])
    if not is_named:
        return None
    first = next((at for at, line in enumerate(sample) if not _PREAMBLE.match(line)), 0)
    by_mark = {mark: _cells(sample[first], mark) for mark in ",;\t|"}
    mark = max(by_mark, key=lambda each: len(by_mark[each]))
    if not by_mark[mark]:
        raise InputError(f"{source.path}, line {first + 1}: not CSV (a name is too long); repair it.")
    if len(by_mark[mark]) == 1:
        mark = " "
    return Head(first + 1, _cells(sample[first], mark), mark)


def _limit_columns(source: Source, line: str, mark: str, is_table: object) -> None:
    num = line.count(mark)
    if is_table and mark != " " and num >= MAX_COLUMNS:
        source.budget.limit(num + 1, MAX_COLUMNS, "columns")


def _is_header_above(names: list[str], below: list[str], mark: str, most: int) -> bool:
    """Return whether names stand above rows: numbers alone, where blanks are between them or there is one column."""
    are_numbers = mark == " " or len(names) == 1
    rows: list[list[str]] = []
    for line in below:
        cells = _cells(line, mark)
        if cells and cells != names:
            rows.append(cells)
            if len(rows) == 1 and not is_header(names, rows, all_numbers=are_numbers):
                return False
        if len(rows) == most:
            break
    return is_header(names, rows, all_numbers=are_numbers)


def _cells(line: str, mark: str) -> list[str]:
    """Return the cells of a line, without what makes it a comment; none for a rule."""
    line = line.strip("\r\n" if mark == "\t" else "\r\n ")
    if line.startswith("#"):
        line = line.lstrip("#").lstrip(" ")
    if not line.strip(" -=+|:"):
        return []
    if mark == " ":
        return line.split()
    try:
        return list(map(str.strip, next(csv.reader([line], delimiter=mark, skipinitialspace=True), [])))
    except csv.Error:
        return []


def _whole_head(source: Source, head: Head, above: list[list[str]]) -> Head:
    """Return a head with the names that pandas writes into the line above the name of the index.

    InputError for names that come again below a row of as many cells, which names their runs.
    """
    above = [cells for cells in above if len(cells) == len(head.names) and any(cells)]
    names = [name for name in head.names if name]
    if above and names == head.names[:1]:
        names = [*names, *filter(None, above[-1][1:])]
        head = head._replace(names=[head.names[0], *above[-1][1:]])
    if above and len({*names}) < len(names):
        raise InputError(
            f"{source.path} has a head of two rows, with {listed(list(dict.fromkeys(names)))} below other names: write "
            "one row with the name of each column, such as 'grpo - reward'."
        )
    return head


# The rows


def _lines_below(source: Source, head: Head, is_named: bool) -> list[Line] | None:
    """Return the lines below the head that hold something; None for a text that is no table after all."""
    text = io.StringIO(source.text, newline="")
    for _ in range(head.above):
        text.readline()
    reader = csv.reader(text, delimiter=head.mark, skipinitialspace=True)
    lines: list[Line] = []
    try:
        for cells in reader:
            if "".join(cells).strip(" -="):
                source.budget.spend(len(cells) + 1)
                lines.append((head.above + reader.line_num, cells))
    except csv.Error as fault:
        if is_named:
            where = f"{source.path}, line {head.above + reader.line_num}"
            raise InputError(f"{where}: not CSV ({fault}); repair it.") from None
        return None
    return lines


def _whole_rows(source: Source, head: Head, lines: list[Line]) -> list[Line]:
    """Return the rows, without headers that come again, and without a last row that is still being written."""
    num_columns = len(head.names)
    if head.mark == " ":  # other lines may stand below
        lines = [line for line in lines if len(line[1]) == num_columns]
    is_open = len(lines) > 1 and not source.text.endswith(("\n", "\r"))
    if is_open and _is_cut([cells for _, cells in lines], num_columns):
        lines = lines[:-1]
    rows: list[Line] = []
    for at, cells in lines:
        if "".join(cells[num_columns:]).strip():
            raise InputError(f"{source.path}, line {at}: {len(cells)} values under {num_columns} columns.")
        if list(map(str.strip, cells)) != head.names:
            rows.append((at, cells))
    return rows


def _is_cut(rows: list[list[str]], num_columns: int) -> bool:
    """Return whether the last row is cut: 0.45 of which 0. was written is wrong."""
    *others, last = (cells[-1].strip() for cells in rows)
    is_begun = last in ("0", "0.", "-0", "-0.") and all("." in other for other in others)
    return is_begun or len(rows[-1]) < num_columns


def _has_decimal_commas(rows: list[Line]) -> bool:
    """Return whether some cells are 0,25 and none is 0.25."""
    has_commas = False
    for _, cells in rows:
        for cell in cells:
            if _DECIMAL_POINT.fullmatch(cell):
                return False
            has_commas = has_commas or ("," in cell and _DECIMAL_COMMA.fullmatch(cell) is not None)
    return has_commas


def _with_point(cell: str) -> str:
    """Return 1.234,5 as 1234.5."""
    return cell.replace(".", "").replace(",", ".") if _DECIMAL_COMMA.fullmatch(cell) else cell
