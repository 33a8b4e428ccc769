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
_MARKS = ",;\t"
_PREAMBLE = re.compile(r"\s*$|#|\s*\"?sep=.\"?\s*$", re.IGNORECASE)
# 0,25 and 1.234,5 and 1.000, in tables whose delimiter is not the comma; no group of thousands begins with 0.
_DECIMAL_COMMA = re.compile(r"\s*[-+]?(?:[1-9]\d{0,2}(?:\.\d{3})+(?:,\d+)?|\d{0,9},\d+)(?: ?%)?\s*")
_DECIMAL_POINT = re.compile(r"\s*[-+]?\d+\.\d{1,2}\s*")
_MAX_SAMPLE = 60
# Lines of prose above a table.
_MAX_PROSE = 10

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
    sample = list(itertools.islice(io.StringIO(source.text, newline=""), _MAX_SAMPLE))
    marks = f"{_MARKS}| " if is_named else f"{_MARKS} "
    head = _head_of(source, sample, marks, is_named)
    if head is None and is_named:
        head = _widest_line(source, sample, marks)
    lines = _lines_below(source, head, is_named) if head else None
    if head is None or lines is None:
        return
    if all(map(is_number, head.names)):
        raise InputError(
            f"{source.path}, line {head.above}: numbers ({listed(head.names)}) where column names belong: put a line "
            "with names above them, such as step,reward."
        )
    if head.mark == " ":  # other lines may stand below
        lines = [line for line in lines if len(line[1]) == len(head.names)]
    rows = _whole_rows(source, head.names, lines)
    if head.mark != "," and _has_decimal_commas(rows):
        rows = [(at, [_with_point(cell) for cell in cells]) for at, cells in rows]
    yield [Table("csv", named_rows(head.names, rows))]


def named_rows(header: Names, rows: Sequence[Line]) -> Placed:
    """Return rows by the names of their columns. Of columns with one name the later ones are known by their place."""
    names: dict[str, None] = {}
    for at, cell in enumerate(header, start=1):
        name = cell.strip() or f"column {at}"
        names[f"{name}.{at}" if name in names else name] = None
    placed: Placed = []
    for at, cells in rows:
        placed.append((f"line {at}", dict(zip(names, cells, strict=False))))
    return placed


def is_number(cell: str) -> bool:
    return number(cell) == number(cell)


def is_header(names: list[str], rows: list[list[str]], *, all_numbers: bool = False) -> bool:
    """Return whether cells are names above other rows with as many cells and numbers in each; the last may be cut."""
    if not rows or len(rows[0]) != len(names) or any(map(is_number, names)):
        return False
    for row in rows[:-1] or rows:
        if len(row) != len(names):
            return False
        are_numbers = list(map(is_number, filter(None, row)))
        if not (all(are_numbers) if all_numbers else any(are_numbers)):
            return False
    return True


# The head


def _head_of(source: Source, sample: list[str], marks: str, is_named: bool) -> Head | None:
    """Return where a table begins in the first lines of a text; None if they are none."""
    for at, line in enumerate(sample[:_MAX_PROSE]):
        source.budget.spend()
        for mark in marks:
            num = line.count(mark)
            is_wide = num >= MAX_COLUMNS and mark != " "
            if is_wide and (is_named or (at + 1 < len(sample) and sample[at + 1].count(mark) == num)):
                source.budget.limit(num + 1, MAX_COLUMNS, "columns")
            names = _cells(line, mark) if num or mark == marks[0] else []
            if not names or any(map(is_number, names)):
                continue
            below = sample[at + 1 :]
            are_numbers = mark == " " or len(names) == 1
            is_begun = is_header(names, _rows_of(below, mark, names, 1), all_numbers=are_numbers)
            rows = _rows_of(below, mark, names, 3 if is_named else _MAX_SAMPLE) if is_begun else []
            if is_header(names, rows, all_numbers=are_numbers):
                above = [_cells(each, mark) for each in sample[:at]]
                head = _with_index(at, names, above, mark)
                _refuse_two_rows(source, head, above)
                return head
    return None


def _rows_of(lines: list[str], mark: str, names: list[str], most: int) -> list[list[str]]:
    """Return the cells of the first lines that hold something else than the header."""
    rows: list[list[str]] = []
    for line in lines:
        cells = _cells(line, mark)
        if cells and cells != names:
            rows.append(cells)
        if len(rows) == most:
            break
    return rows


def _widest_line(source: Source, sample: list[str], marks: str) -> Head:
    """Return the first line that is no comment as the header, cut at the mark that makes most cells."""
    first = next((at for at, line in enumerate(sample) if not _PREAMBLE.match(line)), 0)
    by_mark = {mark: _cells(sample[first], mark) for mark in marks}
    mark = max(marks[:-1], key=lambda each: len(by_mark[each]))
    if not by_mark[mark]:
        raise InputError(f"{source.path}, line {first + 1}: not CSV (a name is too long); repair it.")
    mark = mark if len(by_mark[mark]) > 1 else " "
    return Head(first + 1, by_mark[mark], mark)


def _cells(line: str, mark: str) -> list[str]:
    """Return the cells of a line, without what makes it a comment; none for a rule."""
    line = line.strip("\r\n" if mark == "\t" else "\r\n ")
    line = line.lstrip("#").lstrip(" ") if line.startswith("#") else line
    if not line.strip(" -=+|:"):
        return []
    if mark == " ":
        return line.split()
    try:
        return list(map(str.strip, next(csv.reader([line], delimiter=mark, skipinitialspace=True), [])))
    except csv.Error:
        return []


def _with_index(at: int, names: list[str], above: list[list[str]], mark: str) -> Head:
    """Return the head of a table; pandas writes the name of the index into a row below the other names."""
    if above and names[0] and not any(names[1:]) and len(above[-1]) == len(names):
        return Head(at + 1, [names[0], *above[-1][1:]], mark)
    return Head(at + 1, names, mark)


def _refuse_two_rows(source: Source, head: Head, above: list[list[str]]) -> None:
    """Raise InputError for names that come again below a row of as many cells, which names their runs."""
    names = [name for name in head.names if name]
    if len({*names}) < len(names) and any(len(cells) == len(head.names) and any(cells) for cells in above):
        raise InputError(
            f"{source.path} has a head of two rows, with {listed(list(dict.fromkeys(names)))} below other names: write "
            "one row with the name of each column, such as 'grpo - reward'."
        )


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
            raise InputError(
                f"{source.path}, line {head.above + reader.line_num}: not CSV ({fault}); repair it."
            ) from None
        return None
    return lines


def _whole_rows(source: Source, names: Names, lines: list[Line]) -> list[Line]:
    """Return the rows, without headers that come again, and without a last row that is still being written."""
    for at, cells in lines:
        if len(cells) > len(names) and "".join(cells[len(names) :]).strip():
            raise InputError(f"{source.path}, line {at}: {len(cells)} values under {len(names)} columns.")
    is_open = len(lines) > 1 and not source.text.endswith(("\n", "\r"))
    if is_open and _is_cut([cells for _, cells in lines], len(names)):
        lines = lines[:-1]
    rows: list[Line] = []
    for at, cells in lines:
        if list(map(str.strip, cells)) != names:
            rows.append((at, cells))
    return rows


def _is_cut(rows: list[list[str]], num_columns: int) -> bool:
    """Return whether the last row is cut: 0.45 of which 0. was written is wrong."""
    *others, last = (cells[-1].strip() for cells in rows)
    is_begun = last in ("0", "0.", "-0", "-0.") and all("." in other for other in others)
    return is_begun or len(rows[-1]) < num_columns


def _has_decimal_commas(rows: list[Line]) -> bool:
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
