"""Tables with a header and a delimiter, as rows: CSV, with `,` `;` tabs or blanks between the cells."""

import csv
import io
import re
from collections.abc import Iterator
from itertools import islice

from scalerl.errors import InputError
from scalerl.logs.frame import Placed, has_decimal_commas, listed, number
from scalerl.logs.source import MAX_COLUMNS, Source

_MAX_SAMPLE = 50
_MAX_FIELD = 131_072
_SUFFIXES = (".csv", ".tsv", ".gz")
_PREAMBLE = re.compile(r"\s*$|#|\s*\"?sep=.\"?\s*$", re.IGNORECASE)
_FRACTION = re.compile(r"[-+]?\d*\.\d")
_BEGUN = re.compile(r"[-+]?\d+\.?")
_NUMBER = re.compile(r"[-+]?\d[\d.,]*+(?:e[-+]?\d+)?", re.IGNORECASE)

Line = tuple[int, list[str]]
"""Line number and cells."""


def csv_rows(source: Source) -> list[Placed] | None:
    """Return the rows of a table; None if the text is not one. InputError says what is wrong with one."""
    delimiter, first, text = _dialect(source.text)
    if not _is_table(delimiter, text) and source.path.suffix.lower() not in _SUFFIXES:
        return None
    lines: list[Line] = []
    try:
        for number_of, cells in _lines(delimiter, text):
            source.check_columns(len(cells))
            lines.append((first + number_of, cells))
    except csv.Error as fault:
        line = lines[-1][0] + 1 if lines else 1
        raise InputError(f"{source.path}, line {line}: not CSV ({fault}); repair or remove that line.") from None
    (line, header), *body = lines
    if all(number(cell) == number(cell) for cell in header):
        raise InputError(
            f"{source.path}, line {line}: numbers ({listed(header)}) where column names belong; add a header line."
        )
    names = [cell.strip() or f"column {at}" for at, cell in enumerate(header, start=1)]
    # A repeated name keeps its first column; the others stay reachable by their position.
    seen: set[str] = set()
    names = [f"{name}.{at}" if name in seen else seen.add(name) or name for at, name in enumerate(names, start=1)]
    body = _whole(body, len(names), source)
    # Where commas separate cells, those within a cell group thousands.
    source.decimal_comma = delimiter != "," and has_decimal_commas(cell for _, cells in body for cell in cells)
    too_long = [(at, cells) for at, cells in body if any(map(str.strip, cells[len(names) :]))]
    if too_long:
        at, cells = too_long[0]
        raise InputError(
            f"{source.path}, line {at}: {len(cells)} values under {len(names)} columns; quote values that hold "
            f"{delimiter!r}."
        )
    # A run that is restarted may write its header again.
    return [(f"line {at}", dict(zip(names, cells, strict=False))) for at, cells in body if cells != header]


def _dialect(text: str) -> tuple[str, int, str]:
    """Return the delimiter, the number of lines before the header, and the text from the header on."""
    lines = text.splitlines(keepends=True)
    first = next((at for at, line in enumerate(lines) if not _PREAMBLE.match(line)), 0)
    header = lines[first][:_MAX_FIELD]
    delimiter = max(",;\t", key=lambda mark: len(next(csv.reader([header], delimiter=mark), [])))
    is_blank = delimiter not in header and len(header.split()) > 1
    return " " if is_blank else delimiter, first, "".join(lines[first:])


def _lines(delimiter: str, text: str) -> Iterator[Line]:
    """Yield the lines that hold something, with their numbers."""
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, skipinitialspace=delimiter == " ")
    yield from ((reader.line_num, cells) for cells in reader if any(map(str.strip, cells)))


def _is_table(delimiter: str, text: str) -> bool:
    """Return whether lines look like a table: a header, and under it rows of as many cells, or of numbers alone."""
    try:
        header, *rows = [cells for _, cells in islice(_lines(delimiter, text), _MAX_SAMPLE)]
    except csv.Error:
        return False
    if len(header) > MAX_COLUMNS:
        return True
    if len(header) < 2:
        return bool(rows) and all(len(row) == 1 and number(row[0]) == number(row[0]) for row in rows)
    if delimiter == " " and not (rows and all(number(cell) == number(cell) for row in rows for cell in row)):
        return False
    # Lines that say the same with other numbers are no table.
    shapes = [[_NUMBER.sub("0", cell) for cell in row] for row in (header, *(rows or [[]]))][:2]
    alike = [cell for cell, other in zip(*shapes, strict=False) if cell == other and re.search("[A-Za-z]", cell)]
    if any(map(_NUMBER.search, alike)):
        return False
    # The last line may be cut where a run is still writing.
    return {len(header)}.issuperset(map(len, rows[:-1])) and len(header) >= max(map(len, rows[-1:]), default=0)


def _whole(body: list[Line], num_columns: int, source: Source) -> list[Line]:
    """Return the lines without a last one that is still being written: 0.45 of which 0. was written is wrong."""
    if len(body) < 2 or source.text.endswith(("\n", "\r")):
        return body
    *others, last = (cells[-1].strip() for _, cells in body)
    is_begun = _BEGUN.fullmatch(last) and others[-1].startswith(last) and all(map(_FRACTION.match, others))
    if len(body[-1][1]) == num_columns and not is_begun:
        return body
    if is_begun:
        source.note("cut_lines", num=1, line=body[-1][0])
    return body[:-1]
