"""Tables with a header and a delimiter, as rows: CSV, with `,` `;` tabs or blanks between the cells."""

import csv
import io
import re

from scalerl.errors import InputError
from scalerl.logs.frame import Names, Placed, listed, number
from scalerl.logs.source import MAX_COLUMNS, Source

_MAX_SAMPLE = 50
_MAX_FIELD = 131_072
_SUFFIXES = (".csv", ".tsv", ".gz")
_PREAMBLE = re.compile(r"\s*$|#|\s*\"?sep=.\"?\s*$", re.IGNORECASE)
_NUMBER = re.compile(r"[-+]?\d[\d.,]*+(?:e[-+]?\d+)?", re.IGNORECASE)
# 0,25 and 1.234,5 and 1.000, in tables whose delimiter is not the comma; no group of thousands begins with 0.
_DECIMAL_COMMA = re.compile(r"[-+]?[1-9]\d{0,2}(?:\.\d{3})+(?:,\d+)?(?: ?%)?|[-+]?\d{0,9},\d+(?: ?%)?")

Lines = list[tuple[int, list[str]]]
"""Line numbers and cells."""


def csv_rows(source: Source) -> Placed | None:
    """Return the rows of a table; None if the text is not one. InputError says what is wrong with one."""
    is_named, delimiter = source.path.suffix.lower() in _SUFFIXES, ","
    lines: Lines = []
    try:
        delimiter = _read(source.text, lines)
    except csv.Error as fault:
        if not is_named:
            return None
        line = lines[-1][0] + 1 if lines else 1
        raise InputError(f"{source.path}, line {line}: not CSV ({fault}); repair or remove that line.") from None
    if not _is_table([cells for _, cells in lines[:_MAX_SAMPLE]], delimiter) and not is_named:
        return None
    (line, header), *body = lines
    source.limit(len(header), MAX_COLUMNS, "columns")
    if all(map(_is_number, header)):
        raise InputError(f"{source.path}, line {line}: numbers ({listed(header)}) where column names belong.")
    # A repeated name keeps its first column; the others stay reachable by their position.
    names = [cell.strip() or f"column {at}" for at, cell in enumerate(header, start=1)]
    names = [f"{name}.{at + 1}" if name in names[:at] else name for at, name in enumerate(names)]
    too_long = [(at, cells) for at, cells in body if any(map(str.strip, cells[len(names) :]))]
    for at, cells in too_long[:1]:
        raise InputError(
            f"{source.path}, line {at}: {len(cells)} values under {len(names)} columns; quote values that hold "
            f"{delimiter!r}."
        )
    is_cut = not source.text.endswith(("\n", "\r")) and _is_cut(body, len(names))
    body = body[:-1] if is_cut else body
    has_commas = delimiter != "," and _has_decimal_commas(body)
    # A run that is restarted may write its header again.
    rows = [(at, _with_point(row) if has_commas else row) for at, row in body if row != header]
    return [(f"line {at}", dict(zip(names, row, strict=False))) for at, row in rows]


def _read(text: str, lines: Lines) -> str:
    """Append the lines that hold something, from the header on; return the delimiter."""
    raw = text.splitlines(keepends=True)
    first = next((at for at, line in enumerate(raw) if not _PREAMBLE.match(line)), 0)
    header = raw[first][:_MAX_FIELD]
    delimiter = max(",;\t", key=lambda mark: len(next(csv.reader([header], delimiter=mark), [])))
    delimiter = " " if delimiter not in header and " " in header.strip() else delimiter
    reader = csv.reader(io.StringIO("".join(raw[first:]), newline=""), delimiter=delimiter, skipinitialspace=True)
    lines += ((first + reader.line_num, cells) for cells in reader if any(map(str.strip, cells)))
    return delimiter


def _is_table(rows: list[list[str]], delimiter: str) -> bool:
    """Return whether lines look like a table: a header, and under it rows of as many cells, or of numbers alone."""
    header, *body = rows
    if len(header) < 2 or delimiter == " ":
        return bool(body) and all(len(row) == len(header) and all(map(_is_number, row)) for row in body)
    # Lines that say the same with other numbers are no table.
    first, second = ([_NUMBER.sub("0", cell) for cell in row] for row in (header, (body or [[]])[0]))
    if any(cell == other and re.search(r"[A-Za-z].*0|0.*[A-Za-z]", cell) for cell, other in zip(first, second, strict=False)):
        return False
    # The last line may be cut where a run is still writing.
    return {len(header)}.issuperset(map(len, body[:-1])) and len(header) >= max(map(len, body[-1:]), default=0)


def _is_number(cell: str) -> bool:
    return number(cell) == number(cell)


def _is_cut(body: Lines, num_columns: int) -> bool:
    """Return whether the last line is still being written: 0.45 of which 0. was written is a wrong value."""
    *others, last = [cells[-1].strip() for _, cells in body] or [""]
    is_begun = others[-1:] and last in ("0", "0.", "-0", "-0.") and all(map(re.compile(r"-?\d*\.\d").match, others))
    return len(body) > 1 and bool(is_begun or len(body[-1][1]) < num_columns)


def _has_decimal_commas(body: Lines) -> bool:
    cells = [cell.strip() for _, row in body for cell in row if "," in cell]
    has_points = any(re.fullmatch(r"[-+]?\d+\.\d{1,2}", cell) for _, row in body for cell in row)
    return bool(cells) and not has_points and any(map(_DECIMAL_COMMA.fullmatch, cells))


def _with_point(row: Names) -> list[str]:
    """Return 1.234,5 as 1234.5."""
    return [cell.replace(".", "").replace(",", ".") if _DECIMAL_COMMA.fullmatch(cell.strip()) else cell for cell in row]
