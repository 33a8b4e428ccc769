"""Tables and JSON as rows: CSV of any delimiter, drawn tables, JSON lines, JSON documents.

Cells stay text here; table.py reads the numbers. `reshaped` turns tables with one metric per row, and with one column
per run, into rows of one run and step.
"""

import csv
import io
import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

from scalerl import store
from scalerl.errors import InputError
from scalerl.logs.columns import COARSE, LABELS, STEP, WALL_CLOCK, choose_y, find, is_measured, plain
from scalerl.logs.facts import Fact
from scalerl.logs.names import listed
from scalerl.logs.table import Placed, flatten
from scalerl.logs.units import as_numbers, has_decimal_commas, is_number, number

_MAX_SAMPLE = 50
_MAX_FIELD = 131_072
_MAX_LINE = 2_000
_MIN_DRAWN = 6
_RULE = re.compile(r"[-:+=|\s]+")
_PREAMBLE = re.compile(r"\s*$|#|\s*\"?sep=.\"?\s*$", re.IGNORECASE)
_KEY_VALUE = re.compile(r"""\w["']?\s*[=:]\s*["']?[-+]?[\d.]""")


# CSV


def _cells(text: str) -> Iterator[tuple[int, str, list[str]]]:
    """Yield (line, delimiter, cells) of each line from the header on that holds something."""
    lines = text.splitlines(keepends=True)
    first = next((at for at, line in enumerate(lines) if not _PREAMBLE.match(line)), 0)
    header = lines[first] if len(lines[first]) < _MAX_FIELD else ""
    delimiter = max(",;\t", key=lambda mark: len(next(csv.reader([header], delimiter=mark), [])))
    reader = csv.reader(io.StringIO("".join(lines[first:]), newline=""), delimiter=delimiter)
    yield from ((first + reader.line_num, delimiter, cells) for cells in reader if any(map(str.strip, cells)))


def is_table(text: str) -> bool:
    """Return whether lines look like a table: a header, and under it rows of as many cells, or of numbers alone."""
    try:
        (_, _, header), *body = islice(_cells(text), _MAX_SAMPLE)
    except csv.Error:
        return False
    rows = [cells for _, _, cells in body]
    if len(header) < 2:
        return bool(rows) and all(len(row) == 1 and number(row[0]) is not None for row in rows)
    if any(map(_KEY_VALUE.search, header)) and any(map(_KEY_VALUE.search, rows[0] if rows else ())):
        return False
    # The last line may be cut where a run is still writing.
    return all(len(row) == len(header) for row in rows[:-1]) and all(len(row) <= len(header) for row in rows[-1:])


def csv_rows(path: Path, text: str) -> tuple[list[Placed], bool]:
    """Return the rows of a table, each with the cells that hold something, and whether its decimals are commas."""
    found, line = [], 0
    try:
        for line, delimiter, cells in _cells(text):
            found.append((line, delimiter, cells))
    except csv.Error as fault:
        raise InputError(f"{path}, line {line + 1}: not CSV ({fault}); repair or remove that line.") from None
    (line, delimiter, header), *body = found
    columns = _header(path, line, header)
    if len(body) > 1 and len(body[-1][2]) < len(columns) and not text.endswith(("\n", "\r")):
        body.pop()  # still being written
    if not body:
        raise InputError(
            f"{path} holds a header and no rows: wait until the run has logged something, or give another file."
        )
    for line, _, cells in body:
        if any(map(str.strip, cells[len(columns) :])):
            raise InputError(
                f"{path}, line {line}: {len(cells)} values under {len(columns)} columns; quote values that hold "
                f"{delimiter!r}."
            )
    # Where commas separate cells, those within a cell group thousands.
    has_commas = delimiter != "," and has_decimal_commas(cell for _, _, cells in body for cell in cells)
    # A run that is restarted may write its header again.
    named = ((line, zip(columns, cells, strict=False)) for line, _, cells in body if cells != header)
    return [(f"line {at}", {name: cell.strip() for name, cell in row if cell.strip()}) for at, row in named], has_commas


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


def drawn_rows(text: str) -> list[Placed]:
    """Return the rows of the longest table drawn in a text, none where it has no column of steps.

    Cells are separated by pipes, as in Markdown, by two blanks, as pandas prints them, or by any blanks.
    """
    lines = [line for line in text.splitlines() if len(line) <= _MAX_LINE and not _RULE.fullmatch(line)]
    for blanks in (r"\s{2,}", r"\s+"):
        tables: list[list[list[str]]] = [[]]
        for line in lines:
            cells = [cell.strip() for cell in re.split(r"\|" if line.count("|") > 1 else blanks, line.strip(" |\t"))]
            if not tables[-1] or len(tables[-1][0]) != len(cells):
                tables.append([])
            tables[-1].append(cells)
        header, *rows = max(tables, key=len) or [[]]
        if len(rows) >= _MIN_DRAWN and len(header) > 1 and find((*STEP, *COARSE), header) is not None:
            return [(f"row {at}", dict(zip(header, cells, strict=True))) for at, cells in enumerate(rows, start=1)]
    return []


# JSON

# Points as lists of numbers; those with three are what tensorboard's page saves.
_POINTS = {2: ("step", "value"), 3: ("wall_time", "step", "value")}
_TRAINING = re.compile(r"train\w*", re.IGNORECASE)
_EVALUATION = re.compile(r"(eval|val|valid|test)\w*", re.IGNORECASE)
SPLIT = ("split", "phase", "mode", "stage", "subset", "set", "type", "kind", "event")


def json_document(path: Path, body: str) -> tuple[list[Placed], tuple[Fact, ...]] | None:
    """Return the rows of one JSON document: a `log_history`, a list of rows or numbers, columns, or lists of a run.

    None for what is no JSON document: text, or one object per line.
    """
    if not re.match(r"\[\s*([{\[\]]|[-\d.]+\s*,)|\{", body):
        return None
    try:
        value = json.loads(body)
    except json.JSONDecodeError as fault:
        if body[0] == "{" or not re.match(r"\[\s*[{\[\]]", body):
            return None
        raise InputError(f"{path}, line {fault.lineno}: not JSON ({fault.msg}); repair or remove it.") from None
    rows = _rows_in(value)
    if rows is None:
        if body[0] == "{" and "\n" not in body.strip():
            return None
        raise InputError(
            f"{path} is JSON, but neither a list of rows, nor columns of equal length, nor a trainer_state.json with a "
            "log_history."
        )
    unit = "log_history row" if isinstance(value, dict) and "log_history" in value else "row"
    rows = [flatten(row) for row in rows]
    columns = _columns(rows)
    is_counted = bool(rows) and find((*STEP, *COARSE), columns) is None and choose_y(columns, rows) is not None
    facts = (Fact(kind="rows_counted", values={"num": len(rows)}),) if is_counted else ()
    return [(f"{unit} {at}", {**({"step": at} if facts else {}), **row}) for at, row in enumerate(rows, start=1)], facts


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
    if columns := _columns_in(value):
        return [dict(zip(columns, cells, strict=True)) for cells in zip(*columns.values(), strict=True)]
    found = {name: _rows_in(part) for name, part in value.items() if isinstance(part, list | dict)}
    parts = {name: rows for name, rows in found.items() if rows and set(rows[0]) != {"value"}}
    if len(parts) < 2:
        return next(iter(parts.values()), None) or _rows_by_step(value)
    if are_splits(parts):
        return [of_split(name, row) for name, rows in parts.items() for row in rows]
    return [{"run": name, **row} for name, rows in parts.items() for row in rows] if len(parts) == len(value) else None


def _rows_by_step(value: Mapping[str, Any]) -> list[dict[str, Any]] | None:
    """Return the rows of an object whose keys are steps, as {"step_10": {"acc": 0.5}, ...}; None for any other."""
    steps = [re.fullmatch(r"(?:[A-Za-z][A-Za-z_ -]*)?(\d+)", key) for key in value]
    if (
        len(steps) < 3
        or not all(steps)
        or not all(isinstance(part, dict) or is_number(part) for part in value.values())
    ):
        return None
    rows = (part if isinstance(part, dict) else {"value": part} for part in value.values())
    return [{"step": int(step[1][:12]), **row} for step, row in zip(steps, rows, strict=True) if step]


def _columns_in(value: Mapping[str, Any]) -> dict[str, list[Any]]:
    """Return columns: lists of equal length, or objects by row as pandas writes them; none for any other object."""
    parts = list(value.values())
    if all(isinstance(part, dict) and part and all(key.isdecimal() for key in part) for part in parts):
        parts = [list(part.values()) for part in parts]
    is_plain = all(isinstance(part, list) and not any(isinstance(cell, list | dict) for cell in part) for part in parts)
    return dict(zip(value, parts, strict=True)) if is_plain and len({len(part) for part in parts}) == 1 else {}


def is_json_lines(body: str) -> bool:
    return bool(re.match(r'\{\s*("|\}|$)', body))


# Objects that some loggers put the metrics of a row into: verl's {"step": 1, "data": {...}}, events with "metrics".
_WRAPPERS = ("data", "metrics", "payload", "values")


def jsonl_rows(path: Path, text: str) -> tuple[list[Placed], tuple[Fact, ...]]:
    """Return one row per line; lines that were cut while they were written are left out."""
    text, cut = _without_cut_lines(text)
    placed = []
    for line, row in store.parse_lines(text, path):
        for inner in [inner for name in _WRAPPERS if isinstance(inner := row.get(name), dict)]:
            row = {**inner, **{key: value for key, value in row.items() if value is not inner}}
        placed.append((f"line {line}", flatten(row)))
    return placed, (Fact(kind="cut_lines", values={"num": len(cut), "line": cut[0]}),) if cut else ()


def _without_cut_lines(text: str) -> tuple[str, list[int]]:
    """Blank the lines that a killed writer cut, keeping the row that its successor wrote behind; return their numbers.

    The last line may be cut because it is being written: the parser of lines knows that one.
    """
    lines = text.split("\n")
    bad = [at for at, line in enumerate(lines) if line.lstrip().startswith('{"') and not _is_object(line)]
    cut = []
    for at in bad if len(bad) * 2 <= len(lines) else ():
        begins = islice(re.finditer(r'\{"', lines[at][:_MAX_FIELD]), 1, _MAX_SAMPLE)
        behind = next((end for begin in begins if _is_object(end := lines[at][begin.start() :])), "")
        if behind or any(map(str.strip, lines[at + 1 :])):
            lines[at] = behind
            cut.append(at + 1)
    return "\n".join(lines), cut


def _is_object(text: str) -> bool:
    try:
        return isinstance(json.loads(text), dict)
    except (ValueError, RecursionError):
        return False


# Training beside its evaluations


def are_splits(names: Iterable[str]) -> bool:
    """Return whether names are those of training and its evaluations, and not of runs."""
    return all(_TRAINING.fullmatch(name) or _EVALUATION.fullmatch(name) for name in names)


def of_split(name: str, row: Mapping[str, Any]) -> dict[str, Any]:
    """Put the name of an evaluation before its metrics: {"eval": [{"step": 1, "acc": 0.5}]} has a column eval/acc."""
    if _TRAINING.fullmatch(name):
        return dict(row)
    own = (*STEP, *COARSE, *LABELS, *WALL_CLOCK)
    return {key if plain(key) in own else f"{name}/{key}": cell for key, cell in row.items()}


def with_evaluations(placed: Sequence[Placed]) -> tuple[list[Placed], tuple[str, ...]]:
    """Give evaluations that share a column with training, and differ in a word such as split=eval, one of their own.

    Return the rows and the names of the new columns.
    """
    rows = [row for _, row in placed]
    columns = _columns(rows)
    split = find(SPLIT, columns) or ""
    words = {str(row[split]) for row in rows if row.get(split) is not None}
    if len(words) < 2 or not are_splits(words) or not any(map(_TRAINING.fullmatch, words)):
        return list(placed), ()
    rewards = [column for column in columns if choose_y([column], rows)]
    rewards = [name for name in rewards if len({row.get(split) for row in rows if row.get(name) is not None}) > 1]
    shared = [{name: row[name] for name in rewards if name in row} for row in rows]
    added = [of_split(str(row.get(split) or "train"), own) for row, own in zip(rows, shared, strict=True)]
    new = dict.fromkeys(name for values in added for name in values if name not in rewards)
    return [(place, {**row, **values}) for (place, row), values in zip(placed, added, strict=True)], tuple(new)


# Tables of other shapes

_METRIC = ("tag", "metric", "metric_name", "metric_key", "key", "name", "variable")
_VALUE = "value"
_SEPARATOR = " - "
_COMPANIONS = ("__MIN", "__MAX")
# Columns of one metric have peaks within this factor.
_ALIKE = 10.0


def reshaped(placed: Sequence[Placed]) -> tuple[list[Placed], str | None, tuple[Fact, ...]]:
    """Return rows as one per step and run, the metric where there is only one, and what was done.

    Tables with one metric per row (run, tag, step, value) and tables with one column per run become that.
    """
    columns = _columns(row for _, row in placed)
    series = _run_columns(columns, placed)
    if not series:
        return _one_row_per_step(columns, placed), None, ()
    rows: list[Placed] = []
    for place, row in placed:
        base = {name: cell for name, cell in row.items() if name not in series and not name.endswith(_COMPANIONS)}
        runs: dict[str, dict[str, Any]] = {}
        for column, (run, metric) in series.items():
            if row.get(column) is not None:
                runs.setdefault(run, {**base, "run": run})[metric] = row[column]
        rows += [(place, own) for own in runs.values()]
    metrics = {metric for _, metric in series.values() if not metric.startswith("_")}
    fact = Fact(kind="one_column_per_run", values={"columns": tuple(dict.fromkeys(run for run, _ in series.values()))})
    return rows, metrics.pop() if len(metrics) == 1 else None, (fact,)


def _columns(rows: Iterable[Mapping[str, Any]]) -> list[str]:
    return list(dict.fromkeys(column for row in rows for column in row))


def _run_columns(columns: Sequence[str], placed: Sequence[Placed]) -> dict[str, tuple[str, str]]:
    """Map columns to (run, metric) in a table with one column per run.

    wandb exports 'run - metric' beside its __MIN and __MAX. Other tables have a step and columns of numbers, none of
    which is named as anything that trainers measure.
    """
    parts = {column: column.rpartition(_SEPARATOR) for column in columns if not column.endswith(_COMPANIONS)}
    exported = {column: (run, metric) for column, (run, separator, metric) in parts.items() if separator}
    if any(f"{column}__MIN" in columns for column in exported) or len(exported) == len(columns) - 1 > 0:
        return exported
    step = find((*STEP, *COARSE), columns)
    others = [column for column in columns if column != step]
    if step is None or len(others) < 2 or any(map(is_measured, others)):
        return {}
    cells = {name: [str(row[name]) for _, row in placed if row.get(name) is not None] for name in others}
    values = {name: as_numbers(own) for name, own in cells.items()}
    if any(None in own or not own for own in values.values()):
        return {}
    ends = [
        (min(filter(is_number, own), default=0.0), max(map(abs, filter(is_number, own)), default=0.0))
        for own in values.values()
    ]
    peaks = [peak for _, peak in ends]
    is_rate = min(low for low, _ in ends) >= -1 and max(peaks) <= 100
    return {column: (column, _VALUE) for column in others} if is_rate or max(peaks) <= _ALIKE * min(peaks) else {}


def _one_row_per_step(columns: Sequence[str], placed: Sequence[Placed]) -> list[Placed]:
    """Return one row per step and run with a column per metric; the same rows for any other table."""
    step, value, metric = (find(names, columns) for names in (STEP, (_VALUE,), _METRIC))
    words = Counter(row.get(metric or "") for _, row in placed)
    if not (step and value and metric) or 2 * len(words) > len(placed) or {str} != set(map(type, words)):
        return list(placed)
    # A "name" may be that of a run.
    if plain(metric) == "name" and not choose_y(
        list(map(str, words)), [{row[metric]: row.get(value)} for _, row in placed]
    ):
        return list(placed)
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
    words = {value for value in values if isinstance(value, str) and number(value) is None}
    return plain(column) in LABELS or (bool(words) and len(words) * 2 <= len(values))
