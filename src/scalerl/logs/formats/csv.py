"""CSV of any delimiter, and the CSV that wandb exports from a chart."""

import csv
import io
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from scalerl.errors import InputError
from scalerl.logs.formats.cells import as_float, read_cells
from scalerl.logs.formats.long import widen
from scalerl.logs.table import Table, listed, make_table

_WANDB_SEPARATOR = " - "
_COMPANIONS = ("__MIN", "__MAX")
_MAX_SAMPLE = 50
_PREAMBLE = re.compile(r"#|\s*\"?sep=.\"?\s*$", re.IGNORECASE)
_KEY_VALUE = re.compile(r"\w\s*[=:]\s*[-+]?[\d.]")


def read_csv(path: Path, text: str) -> Table:
    """Read a table with a header line."""
    columns, places, rows = _parsed(path, text)
    placed = list(zip(places, rows, strict=True))
    wide = widen(placed)
    return make_table(path, "csv", wide) if wide else replace(make_table(path, "csv", placed), columns=columns)


def is_table(text: str) -> bool:
    """Return whether lines look like a table: a header, and under it rows of as many cells, or of numbers alone."""
    text = _without_preamble(text)
    delimiter = _delimiter(text)
    lines = [line for line in text.splitlines()[:_MAX_SAMPLE] if line.strip()]
    try:
        header, *rows = [cells for cells in csv.reader(lines, delimiter=delimiter) if any(map(str.strip, cells))]
    except (csv.Error, ValueError):
        return False
    if len(header) < 2:
        return bool(rows) and all(len(row) == 1 and as_float(row[0]) is not None for row in rows)
    if rows and any(map(_KEY_VALUE.search, header)) and any(map(_KEY_VALUE.search, rows[0])):
        return False
    # The last line may be cut where a run is still writing.
    return all(len(row) == len(header) for row in rows[:-1]) and all(len(row) <= len(header) for row in rows[-1:])


# wandb's export of a chart


def is_wandb_export(text: str) -> bool:
    """Return whether the header is that of a wandb chart: columns 'run - metric' beside their __MIN and __MAX."""
    text = _without_preamble(text)
    return bool(_wandb_series(next(csv.reader([_header_line(text)], delimiter=_delimiter(text)), [])))


def read_wandb_export(path: Path, text: str) -> Table:
    """Read a wandb chart, which has one column per run, as one row per run and line."""
    columns, places, rows = _parsed(path, text)
    series = _wandb_series(columns)
    metrics = {metric for _, metric in series.values() if not metric.startswith("_")}
    only = metrics.pop() if len(metrics) == 1 else None
    return make_table(path, "wandb", _wandb_rows(columns, series, rows, places), y=only, apart=("run",))


def _wandb_series(columns: Sequence[str]) -> dict[str, tuple[str, str]]:
    """Map columns to (run, metric): 'run - metric' beside its __MIN, or a table of such columns but for one."""
    series = {}
    for column in columns:
        run, separator, metric = column.rpartition(_WANDB_SEPARATOR)
        if separator and not metric.endswith(_COMPANIONS):
            series[column] = (run, metric)
    companions = [column for column in columns if column.endswith(_COMPANIONS)]
    has_companions = any(f"{column}__MIN" in companions for column in series)
    return series if has_companions or len(series) == len(columns) - 1 > 0 else {}


def _wandb_rows(
    columns: Sequence[str],
    series: Mapping[str, tuple[str, str]],
    rows: Sequence[Mapping[str, Any]],
    places: Sequence[str],
) -> list[tuple[str, dict[str, Any]]]:
    shared = [column for column in columns if column not in series and not column.endswith(_COMPANIONS)]
    placed = []
    for place, row in zip(places, rows, strict=True):
        runs: dict[str, dict[str, Any]] = {}
        for column, (run, metric) in series.items():
            if column in row:
                runs.setdefault(run, {})[metric] = row[column]
        base = {column: row[column] for column in shared if column in row}
        placed.extend((place, {**base, "run": run, **metrics}) for run, metrics in runs.items())
    return placed


# Lines and cells


def _header_line(text: str) -> str:
    return next((line for line in text.splitlines() if line.strip()), "")


def _without_preamble(text: str) -> str:
    """Blank what stands before the header: comments, and the line by which Excel names the delimiter."""
    lines = text.splitlines(keepends=True)
    for at, line in enumerate(lines):
        if line.strip() and not _PREAMBLE.match(line):
            return "".join("\n" if _PREAMBLE.match(part) else part for part in lines[:at]) + "".join(lines[at:])
    return text


def _delimiter(text: str) -> str:
    header = _header_line(text)
    return max(",;\t", key=lambda mark: len(next(csv.reader([header], delimiter=mark), [])))


def _parsed(path: Path, text: str) -> tuple[list[str], list[str], list[dict[str, Any]]]:
    """Return the column names, and of each row its place and its values."""
    text = _without_preamble(text)
    delimiter = _delimiter(text)
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter)
    try:
        lines = [(reader.line_num, cells) for cells in reader if any(cell.strip() for cell in cells)]
    except csv.Error as fault:
        raise InputError(f"{path}, line {reader.line_num}: not CSV ({fault}); mend or remove it.") from None
    (first, header_cells), *body = lines
    columns = _header(path, first, header_cells)
    if len(body) > 1 and len(body[-1][1]) < len(columns) and not text.endswith(("\n", "\r")):
        body.pop()  # still being written
    for line, cells in body:
        if any(cell.strip() for cell in cells[len(columns) :]):
            raise InputError(
                f"{path}, line {line}: {len(cells)} values under {len(columns)} columns; quote values that hold "
                f"{delimiter!r}."
            )
    if not body:
        raise InputError(
            f"{path} holds a header and no rows: wait until the run has logged something, or give another file."
        )
    parsed = read_cells(
        [[cells[at] if at < len(cells) else "" for _, cells in body] for at in range(len(columns))], delimiter
    )
    rows: list[dict[str, Any]] = [
        {name: values[at] for name, values in zip(columns, parsed, strict=True) if values[at] is not None}
        for at in range(len(body))
    ]
    return columns, [f"line {line}" for line, _ in body], rows


def _header(path: Path, line: int, cells: Sequence[str]) -> list[str]:
    if all(as_float(cell) is not None for cell in cells):
        raise InputError(
            f"{path}, line {line}: numbers ({listed(cells)}) where column names belong; add a header line."
        )
    columns: list[str] = []
    for at, cell in enumerate(cells, start=1):
        name = cell.strip() or f"column {at}"
        # A repeated name keeps its first column; the others stay reachable by their position.
        columns.append(name if name not in columns else f"{name}.{at}")
    return columns
