"""Tables and JSON: CSV of any delimiter, JSON lines, JSON documents; tables with one metric or one run per column."""

import csv
import io
import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from scalerl import store
from scalerl.errors import InputError
from scalerl.logs.columns import COARSE, LABELS, STEP, choose_y, find, may_be_run, plain
from scalerl.logs.facts import Fact
from scalerl.logs.names import listed
from scalerl.logs.table import Placed, flatten
from scalerl.logs.units import is_number, number, read_cells

_MAX_SAMPLE = 50
_MAX_FIELD = 131_072
_MAX_LINE = 2_000
_MIN_ALIGNED = 6
_RULE = re.compile(r"[-:+=|\s]+")
_PREAMBLE = re.compile(r"#|\s*\"?sep=.\"?\s*$", re.IGNORECASE)
_KEY_VALUE = re.compile(r"""\w["']?\s*[=:]\s*["']?[-+]?[\d.]""")


# CSV


def is_table(text: str) -> bool:
    """Return whether lines look like a table: a header, and under it rows of as many cells, or of numbers alone."""
    lines = [line for line in _head(text) if line.strip() and not _PREAMBLE.match(line)]
    if not lines or max(map(len, lines)) > _MAX_FIELD:
        return False
    header, *rows = [cells for cells in csv.reader(lines, delimiter=_delimiter(lines[0])) if any(map(str.strip, cells))]
    if len(header) < 2:
        return bool(rows) and all(len(row) == 1 and number(row[0]) is not None for row in rows)
    if rows and any(map(_KEY_VALUE.search, header)) and any(map(_KEY_VALUE.search, rows[0])):
        return False
    # The last line may be cut where a run is still writing.
    return all(len(row) == len(header) for row in rows[:-1]) and all(len(row) <= len(header) for row in rows[-1:])


def csv_rows(path: Path, text: str) -> list[tuple[str, dict[str, Any]]]:
    """Return the rows of a table with a header line."""
    lines = text.splitlines(keepends=True)
    first = next((at for at, line in enumerate(lines) if line.strip() and not _PREAMBLE.match(line)), 0)
    delimiter = _delimiter(lines[first])
    reader = csv.reader(io.StringIO("".join(lines[first:]), newline=""), delimiter=delimiter)
    try:
        body = [(first + reader.line_num, cells) for cells in reader if any(cell.strip() for cell in cells)]
    except csv.Error as fault:
        line = first + reader.line_num
        raise InputError(f"{path}, line {line}: not CSV ({fault}); repair or remove that line.") from None
    line, cells = body.pop(0)
    columns = _header(path, line, cells)
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
    by_column = [[cells[at] if at < len(cells) else "" for _, cells in body] for at in range(len(columns))]
    values = read_cells(by_column, delimiter)
    # Every column stays, also one without values; only the cells that hold something are in a row.
    rows = (
        {name: cells[at] for name, cells in zip(columns, values, strict=True) if cells[at] is not None}
        for at in range(len(body))
    )
    return [(f"line {line}", row) for (line, _), row in zip(body, rows, strict=True)]


def aligned(text: str) -> str:
    """Return the longest table drawn in a text as CSV with tabs, empty where there is none of steps.

    Cells are separated by pipes, as in Markdown, or by two blanks, as pandas prints them.
    """
    best: list[list[str]] = []
    own: list[list[str]] = []
    for line in (line for line in text.splitlines() if len(line) <= _MAX_LINE):
        if _RULE.fullmatch(line):
            continue
        separator = r"\|" if line.count("|") > 1 else r"\s{2,}"
        cells = [cell.strip() for cell in re.split(separator, line.strip(" |\t"))]
        if not own or len(own[0]) != len(cells):
            own = []
        own.append(cells)
        best = max(best, own, key=len)
    is_log = len(best) > _MIN_ALIGNED and len(best[0]) > 1 and find((*STEP, *COARSE), best[0]) is not None
    return "".join("\t".join(cells) + "\n" for cells in best) if is_log else ""


def _head(text: str) -> list[str]:
    """Return the first lines, without cutting the whole text into lines."""
    end = 0
    for _ in range(_MAX_SAMPLE):
        end = text.find("\n", end) + 1
        if not end:
            return text.splitlines()
    return text[:end].splitlines()


def _delimiter(header: str) -> str:
    return max(
        ",;\t", key=lambda mark: len(next(csv.reader([header], delimiter=mark), [])) if len(header) < _MAX_FIELD else 0
    )


def _header(path: Path, line: int, cells: Sequence[str]) -> list[str]:
    if all(number(cell) is not None for cell in cells):
        raise InputError(
            f"{path}, line {line}: numbers ({listed(cells)}) where column names belong; add a header line."
        )
    columns: dict[str, None] = {}
    for at, cell in enumerate(cells, start=1):
        name = cell.strip() or f"column {at}"
        # A repeated name keeps its first column; the others stay reachable by their position.
        columns[name if name not in columns else f"{name}.{at}"] = None
    return list(columns)


# JSON


def is_json_document(body: str) -> bool:
    """Return whether a text is one JSON document with rows, and not one object per line."""
    if body.startswith("["):
        return bool(re.match(r"\[\s*[{\[\]]", body)) or _parsed(body) is not None
    if not re.match(r'\{\s*("|\}|$)', body):
        return False
    # One object over many lines is JSON, and so is one line that holds many rows.
    first, _, rest = body.partition("\n")
    value = _parsed(first)
    if '"log_history"' in body or not isinstance(value, dict):
        return _parsed(body) is not None
    return not rest.strip() and _rows_in(value) is not None


def is_json_lines(body: str) -> bool:
    return bool(re.match(r'\{\s*("|\}|$)', body))


def json_rows(path: Path, text: str) -> tuple[list[Placed], tuple[Fact, ...]]:
    """Return the rows of a trainer's `log_history`, a list of rows or numbers, or an object of columns or lists."""
    try:
        value = json.loads(text)
    except json.JSONDecodeError as fault:
        raise InputError(f"{path}, line {fault.lineno}: not JSON ({fault.msg}); repair or remove it.") from None
    unit = "log_history row" if isinstance(value, dict) and "log_history" in value else "row"
    rows = _rows_in(value)
    if rows is None:
        raise InputError(
            f"{path} is JSON, but neither a list of rows, nor columns of equal length, nor a trainer_state.json with a "
            "log_history."
        )
    rows = [flatten(row) for row in rows]
    columns = dict.fromkeys(name for row in rows for name in row)
    facts: tuple[Fact, ...] = ()
    if rows and find((*STEP, *COARSE), list(columns)) is None and choose_y(list(columns), rows) is not None:
        rows = [{"step": at, **row} for at, row in enumerate(rows, start=1)]
        facts = (Fact(kind="rows_counted", values={"num": len(rows)}),)
    return [(f"{unit} {at}", row) for at, row in enumerate(rows, start=1)], facts


# Points as lists of numbers; those with three are what tensorboard's page saves.
_POINTS = {2: ("step", "value"), 3: ("wall_time", "step", "value")}


def _rows_in(value: Any) -> list[dict[str, Any]] | None:
    """Return the rows that a JSON value holds; None where it holds none."""
    if isinstance(value, list):
        if value and all(map(is_number, value)):
            return [{"value": item} for item in value] if len(value) > 2 else None
        if value and all(isinstance(row, list) and len(row) in _POINTS and all(map(is_number, row)) for row in value):
            return [dict(zip(_POINTS[len(row)], row, strict=True)) for row in value]
        return value if all(isinstance(row, dict) for row in value) else None
    if not isinstance(value, dict):
        return None
    if "log_history" in value:
        return _rows_in(value["log_history"])
    columns = _columns_in(value)
    if columns is not None:
        return [dict(zip(columns, cells, strict=True)) for cells in zip(*columns.values(), strict=True)]
    lists = {
        name: part for name, part in value.items() if isinstance(part, list) and part and isinstance(part[0], dict)
    }
    if len(lists) == 1:
        return _rows_in(next(iter(lists.values())))
    if len(lists) > 1 and len(lists) == len(value) and all(_rows_in(part) is not None for part in lists.values()):
        return [{"run": name, **row} for name, part in lists.items() for row in part]
    return None


def _columns_in(value: Mapping[str, Any]) -> dict[str, list[Any]] | None:
    """Return columns: lists of equal length, or objects by row as pandas writes them; None for any other object."""
    parts = list(value.values())
    if all(isinstance(part, dict) for part in parts):
        keys = [list(part) for part in parts]
        is_frame = bool(parts) and all(own == keys[0] for own in keys) and all(key.isdecimal() for key in keys[0])
        parts = [list(part.values()) for part in parts] if is_frame else []
    if not parts or not all(isinstance(part, list) for part in parts) or len({len(part) for part in parts}) > 1:
        return None
    if any(isinstance(cell, list | dict) for part in parts for cell in part):
        return None
    return dict(zip(value, parts, strict=True))


# Objects that some loggers put the metrics of a row into: verl's {"step": 1, "data": {...}}, events with "metrics".
_WRAPPERS = ("data", "metrics", "payload", "values")


def jsonl_rows(path: Path, text: str) -> tuple[list[Placed], tuple[Fact, ...]]:
    """Return one row per line; lines that were cut while they were written are left out."""
    text, cut = _without_cut_lines(text)
    placed = []
    for line, row in store.parse_lines(text, path):
        for wrapper in _WRAPPERS:
            inner = row.get(wrapper)
            if isinstance(inner, dict):
                row = {**inner, **{key: value for key, value in row.items() if key != wrapper}}
        placed.append((f"line {line}", flatten(row)))
    return placed, (Fact(kind="cut_lines", values={"num": len(cut), "line": cut[0]}),) if cut else ()


def _without_cut_lines(text: str) -> tuple[str, list[int]]:
    """Blank the lines that a killed writer cut, keeping the row that its successor wrote behind; return their numbers.

    The last line may be cut because it is being written: the parser of lines knows that one.
    """
    lines = text.split("\n")
    bad = [at for at, line in enumerate(lines) if line.lstrip().startswith('{"') and _parsed(line) is None]
    if len(bad) * 2 > len(lines):
        return text, []
    cut = []
    for at in bad:
        behind = _object_at_end(lines[at])
        if behind or any(line.strip() for line in lines[at + 1 :]):
            lines[at] = behind
            cut.append(at + 1)
    return ("\n".join(lines), cut) if cut else (text, cut)


def _object_at_end(line: str) -> str:
    """Return the whole object at the end of a line, empty where there is none."""
    begins = [match.start() for match in re.finditer(r'\{"', line[1:_MAX_FIELD])][:_MAX_SAMPLE]
    return next((line[begin + 1 :] for begin in begins if isinstance(_parsed(line[begin + 1 :]), dict)), "")


def _parsed(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


# Tables of other shapes

_METRIC = ("tag", "metric", "metric_name", "metric_key", "key", "name", "variable")
_VALUE = "value"
_SEPARATOR = " - "
_COMPANIONS = ("__MIN", "__MAX")


def reshaped(placed: Sequence[Placed]) -> tuple[list[Placed], str | None, tuple[Fact, ...]]:
    """Return rows as one per step and run, the metric where there is only one, and what was done.

    Tables with one metric per row (run, tag, step, value) and tables with one column per run become that.
    """
    columns = list(dict.fromkeys(column for _, row in placed for column in row))
    series = _run_columns(columns, placed)
    if not series:
        return _one_row_per_step(columns, placed) or list(placed), None, ()
    shared = [column for column in columns if column not in series and not column.endswith(_COMPANIONS)]
    rows: list[Placed] = []
    for place, row in placed:
        base = {column: row[column] for column in shared if column in row}
        runs: dict[str, dict[str, Any]] = {}
        for column, (run, metric) in series.items():
            if row.get(column) is not None:
                runs.setdefault(run, {})[metric] = row[column]
        rows += [(place, {**base, "run": run, **metrics}) for run, metrics in runs.items()]
    metrics = {metric for _, metric in series.values() if not metric.startswith("_")}
    fact = Fact(kind="one_column_per_run", values={"columns": tuple(dict.fromkeys(run for run, _ in series.values()))})
    return rows, metrics.pop() if len(metrics) == 1 else None, (fact,)


def _run_columns(columns: Sequence[str], placed: Sequence[Placed]) -> dict[str, tuple[str, str]]:
    """Map columns to (run, metric) in a table with one column per run.

    wandb exports 'run - metric' beside its __MIN and __MAX. Other tables have a step and columns of numbers, none of
    which is named as anything that trainers measure.
    """
    exported = {}
    for column in columns:
        run, separator, metric = column.rpartition(_SEPARATOR)
        if separator and not metric.endswith(_COMPANIONS):
            exported[column] = (run, metric)
    if any(f"{column}__MIN" in columns for column in exported) or len(exported) == len(columns) - 1 > 0:
        return exported
    step = find((*STEP, *COARSE), columns)
    others = [column for column in columns if column != step]
    if step is None or len(others) < 2 or not all(map(may_be_run, others)):
        return {}
    cells = [row[column] for _, row in placed for column in others if row.get(column) is not None]
    is_rate = all(map(is_number, cells)) and bool(cells) and min(cells) >= -1 and max(cells) <= 100
    return {column: (column, _VALUE) for column in others} if is_rate else {}


def _one_row_per_step(columns: Sequence[str], placed: Sequence[Placed]) -> list[Placed] | None:
    """Return one row per step and run with a column per metric; None for a table that has no metric per row."""
    step, value, metric = find(STEP, columns), find((_VALUE,), columns), find(_METRIC, columns)
    if step is None or value is None or metric is None:
        return None
    words = {str(row.get(metric)): isinstance(row.get(metric), str) for _, row in placed}
    if len(words) < 2 or 2 * len(words) > len(placed) or not all(words.values()):
        return None
    # A "name" may be that of a run.
    if plain(metric) == "name" and not choose_y(list(words), [{row[metric]: row.get(value)} for _, row in placed]):
        return None
    labels = [column for column in columns if column not in (metric, value, step) and _is_label(column, placed)]
    rows: dict[tuple[str, ...], dict[str, Any]] = {}
    wide: list[Placed] = []
    for place, row in placed:
        key = tuple(str(row.get(column)) for column in (step, *labels))
        # A metric that a step already has was logged again, by a resumed run: its row comes later.
        if key not in rows or row[metric] in rows[key]:
            rows[key] = {name: cell for name, cell in row.items() if name not in (metric, value)}
            wide.append((place, rows[key]))
        if row.get(value) is not None:
            rows[key][row[metric]] = row[value]
    return wide


def _is_label(column: str, placed: Sequence[Placed]) -> bool:
    values = [row.get(column) for _, row in placed]
    words = {value for value in values if isinstance(value, str)}
    return plain(column) in LABELS or (bool(words) and len(words) * 2 <= len(values))
