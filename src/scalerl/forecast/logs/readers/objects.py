"""JSON of any shape as rows: one document, or one object after the other.

One rule finds the tables of a document, wherever they lie in it. A list of objects is a table; so are lists of equal
length, pairs of step and value, and a map from step to values. The keys that lead to a table stand beside it.
"""

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

from scalerl.errors import InputError
from scalerl.forecast.logs.frame import Placed, Row
from scalerl.forecast.logs.readers.budget import MAX_COLUMNS
from scalerl.forecast.logs.readers.source import Source, Table
from scalerl.runfolder.json_text import parse_or_none

_MAX_DEPTH = 8
# Objects that some loggers put the metrics of a row into: verl's {"step": 1, "data": {...}}, events with "metrics".
_WRAPPERS = frozenset({"data", "metrics", "payload", "values"})
# Points as lists of numbers; those with three are what tensorboard's page saves.
_POINTS = {2: ("step", "value"), 3: ("wall_time", "step", "value")}
_STEP_KEY = re.compile(r"([A-Za-z][A-Za-z_ -]*+)?(\d{1,12})")
_COUNTER = re.compile(
    r"step|iter|epoch|update|checkpoint|ckpt|round|batch|rollout|episode|generation|train", re.IGNORECASE
)
_MIN_VALUES = 3
_NUMBERS = {int, float, type(None)}
_PLAIN = {*_NUMBERS, str, bool}


def flatten(row: Mapping[str, Any], wrappers: frozenset[str] = frozenset()) -> Row:
    """Turn nested objects into one level: {'loss': {'kl': 1}} becomes {'loss/kl': 1}.

    What is inside a wrapper stands as if it were beside it. A list of numbers is their mean; other lists are left out.
    """
    flat: Row = {}
    _flatten_into(flat, row, wrappers, "", 0)
    return flat


def _flatten_into(flat: Row, row: Mapping[str, Any], wrappers: frozenset[str], prefix: str, depth: int) -> None:
    for key, value in row.items():
        name = f"{prefix}{key}"
        if isinstance(value, dict):
            if depth < _MAX_DEPTH:
                _flatten_into(flat, value, wrappers, prefix if key in wrappers else f"{name}/", depth + 1)
        elif isinstance(value, list):
            if value and {*map(type, value)} <= {int, float, bool}:
                flat.setdefault(name, sum(value) / len(value))
        elif depth == 0 or name not in flat:
            flat[name] = value
        if len(flat) > MAX_COLUMNS:
            raise ValueError(f"a row has more than {MAX_COLUMNS:,} columns")


def metrics_of(row: Row) -> Row:
    """Return the values of a row that was logged, without the objects that loggers put them into."""
    return flatten(row, _WRAPPERS)


# One document


def document_tables(source: Source) -> Iterator[list[Table]]:
    """Yield the tables of a JSON document; none for another text."""
    body = source.text.strip()
    document = parse_or_none(body) if body[:1] in ("{", "[") else None
    if document is None:
        if re.match(r"\[\s*[{\[\]]", body):
            raise InputError(f"{source.path} begins as a JSON list, but is not JSON: repair it.")
        return
    tables = list(_tables(document))
    source.budget.spend(sum(len(row) + 1 for table in tables for _, row in table.rows))
    if tables:
        yield tables
    elif document == [] or (isinstance(document, dict) and [] in document.values()):
        yield [Table("json", [])]
    elif isinstance(document, list) or "\n" in body or not metrics_of(document):  # else a line of one object
        raise InputError(
            f"{source.path} is JSON, but holds no list of rows, lists of equal length or values by step: settings and "
            "results are no history; give what the run logged, such as metrics.jsonl or trainer_state.json."
        )


def _tables(value: Any, keys: tuple[str, ...] = (), words: tuple[tuple[str, str], ...] = ()) -> Iterator[Table]:
    """Yield the tables in a value that lies under these keys."""
    if len(keys) > _MAX_DEPTH:
        return
    rows = _rows(value)
    if rows:
        yield _table(rows, keys, words)
    elif isinstance(value, dict):
        yield from _tables_in(value, keys, words)
    if rows and isinstance(value, list) and isinstance(value[0], dict):
        for row in value:
            beside = tuple((name, cell) for name, cell in row.items() if isinstance(cell, str))
            yield from _tables_in(row, keys, words + beside)


def _table(rows: list[Row], keys: tuple[str, ...], words: tuple[tuple[str, str], ...], name: str = "") -> Table:
    placed = [(f"row {at}", row) for at, row in enumerate(rows, start=1)]
    return Table("json", placed, keys=keys, words=words, name=name)


def _rows(value: Any) -> list[Row]:
    """Return a list of objects, points or numbers, or a map from step to values, as rows; none for anything else."""
    if isinstance(value, dict):
        return _rows_by_step(value)
    kinds = set(map(type, value)) if isinstance(value, list) else set()
    if kinds == {dict}:
        return [metrics_of(row) for row in value]
    if kinds == {list} and all(len(row) in _POINTS and set(map(type, row)) <= _NUMBERS for row in value):
        return [dict(zip(_POINTS[len(row)], row, strict=True)) for row in value]
    if kinds and kinds <= _NUMBERS and len(value) >= _MIN_VALUES:
        return [{"value": cell} for cell in value]
    return []


def _rows_by_step(value: Row) -> list[Row]:
    """Return {"step_10": values, "step_20": values} as rows; none where the keys do not count steps upwards."""
    matches = [_STEP_KEY.fullmatch(key) for key in value]
    steps = [match for match in matches if match]
    if len(steps) < 2 or len(steps) < len(value) or len({step[1] for step in steps}) > 1:
        return []
    word = (steps[0][1] or "").strip("-_ ")
    numbers = [int(step[2]) for step in steps]
    is_tally = sorted(numbers) != numbers and sorted(value) != [*value]
    if is_tally or (word and not _COUNTER.search(word)):  # a seed, a sample or a level is no step
        return []
    rows: list[Row] = []
    for step, cell in zip(numbers, value.values(), strict=True):
        rows.append({"step": step, **(metrics_of(cell) if isinstance(cell, dict) else {"value": cell})})
    return rows


def _tables_in(value: Row, keys: tuple[str, ...], words: tuple[tuple[str, str], ...]) -> Iterator[Table]:
    """Yield the tables in an object: its lists of one length as columns, and what lies under its keys."""
    lists = _lists(value)
    for length in dict.fromkeys(map(len, lists.values())):
        columns = {key: cells for key, cells in lists.items() if len(cells) == length > 0}
        if len(columns) > 1:
            rows = [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
            yield _table(rows, keys, words)
        elif columns:
            [(name, cells)] = columns.items()
            if rows := _rows(cells):
                yield _table(rows, keys, words, name)
    for key, part in value.items():
        if isinstance(part, dict | list) and key not in lists:
            yield from _tables(part, (*keys, key), words)


def _lists(value: Row) -> dict[str, list[Any]]:
    """Return the lists of plain values in an object; objects by row, as pandas writes columns, are lists too."""
    by_row = [part.keys() for part in value.values() if isinstance(part, dict) and all(map(str.isdecimal, part))]
    if len(by_row) == len(value) and len(by_row) > 1 and all(_are_row_numbers(part, by_row[0]) for part in by_row):
        return {key: [*part.values()] for key, part in value.items()}
    lists = {key: part for key, part in value.items() if isinstance(part, list)}
    return {key: part for key, part in lists.items() if set(map(type, part)) <= _PLAIN}


def _are_row_numbers(keys: Any, others: Any) -> bool:
    """Return whether keys are those of the other columns, and count from 0."""
    return keys == others and [*keys] == [str(at) for at in range(len(keys))]


# One object after the other

_LINE_END = re.compile(r"[ \t\r]*+(?:\n|$)")
_DECODER = json.JSONDecoder()
_MAX_TRIES = 50  # objects in a line that was cut


def line_tables(source: Source) -> Iterator[list[Table]]:
    """Yield one row per object, on one line or on several; what was cut while it was written is left out.

    An object within a line that was cut is none; a row that a successor wrote behind such a line is.
    """
    text = source.text
    if not re.match(r'\s*+\{\s*+(?:"|\}|$)', text):
        return
    rows: Placed = []
    bad: dict[int, int] = {}
    """How many braces of a line begin no object."""
    is_open = False
    line = 1
    at = 0
    while (begin := text.find("{", at)) >= 0:
        line += text.count("\n", at, begin)
        row, end = _object_at(text, begin)
        is_open = end == begin
        if is_open:
            source.budget.spend()
            bad[line] = bad.get(line, 0) + 1
            end = begin + 1
            if bad[line] > _MAX_TRIES:
                end += len(text[end:].partition("\n")[0])
        else:
            cells = metrics_of(row)
            source.budget.spend(len(cells) + 1)
            rows.append((f"line {line}", cells))
            line += text.count("\n", begin, end)
        at = end
    if is_open and rows:  # the last line may be one that is being written
        bad.popitem()
    if len(bad) > len(rows) or not rows:
        raise InputError(f"{source.path}, line {min(bad, default=1)}: not JSON lines; repair or remove what is none.")
    table = Table("jsonl", rows)
    yield [table.with_fact("cut_lines", num=len(bad), line=min(bad)) if bad else table]


def _object_at(text: str, begin: int) -> tuple[Row, int]:
    """Return the object that begins at a place and ends with a line, and where it ends; there if it is none."""
    try:
        row, end = _DECODER.raw_decode(text, begin)
    except (ValueError, RecursionError):
        return {}, begin
    return (row, end) if _LINE_END.match(text, end) else ({}, begin)
