"""JSON of any shape as rows: one document, or one object after the other.

One rule finds the rows of a document, wherever they lie in it. A list of objects is a table; so are lists of equal
length, pairs of step and value, and a map from step to value. The keys above a table, and the words beside it, are its
labels: `{"results": {"pro": {"1": 58.4}}}` is a row with results=pro and step=1. Of all tables the one with a reward,
a step and the most rows is read, together with those that lie at the same depth under other labels.
"""

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from scalerl.errors import InputError
from scalerl.logs.columns import are_splits, has_role, is_measured, reward_rank, with_role
from scalerl.logs.frame import Placed, Row
from scalerl.logs.source import Source

Labels = dict[str, str]

_MAX_DEPTH = 8
# Objects that some loggers put the metrics of a row into: verl's {"step": 1, "data": {...}}, events with "metrics".
_WRAPPERS = frozenset({"data", "metrics", "payload", "values"})
# Points as lists of numbers; those with three are what tensorboard's page saves.
_POINTS = {2: ("step", "value"), 3: ("wall_time", "step", "value")}
_STEP_KEY = re.compile(r"(?:[A-Za-z][A-Za-z_ -]*+)?(\d{1,12})")
_MIN_VALUES = 3
_NUMBERS = {int, float, type(None)}


def flatten(row: Mapping[str, Any], wrappers: frozenset[str] = frozenset(), prefix: str = "", depth: int = 0) -> Row:
    """Turn nested objects into one level: {'loss': {'kl': 1}} becomes {'loss/kl': 1}. Lists are left out.

    What is inside a wrapper stands as if it were beside it.
    """
    flat: dict[str, Any] = {}
    for key, value in row.items():
        if isinstance(value, dict) and depth < _MAX_DEPTH:
            inside = prefix if key in wrappers else f"{prefix}{key}/"
            flat = {**flatten(value, wrappers, inside, depth + 1), **flat}
        elif not isinstance(value, dict | list):
            flat[f"{prefix}{key}"] = value
    return flat


def metrics_of(row: Row) -> Row:
    """Return the values of a row that was logged, without the objects that loggers put them into."""
    return flatten(row, _WRAPPERS)


def loaded(text: Any) -> Any:
    """Return what JSON says; None for what is not JSON."""
    try:
        return json.loads(text)
    except (TypeError, ValueError, RecursionError):
        return None


# One document


class Table(NamedTuple):
    """Rows somewhere in a document, and what stands above them."""

    rows: list[Row]
    labels: Labels
    are_values: bool = False
    """Whether they were a list of values, whose places are the steps where no others are given."""


def json_rows(source: Source) -> Placed | None:
    """Return the rows of one JSON document; None if it is not one."""
    body = source.text.strip()
    document = loaded(body) if body[:1] in ("{", "[") else None
    if document == [] or (isinstance(document, dict) and [] in document.values()):
        return []
    if document is None and re.match(r"\[\s*[{\[\]]", body):
        raise InputError(f"{source.path} begins as a JSON list, but is not JSON: repair it.")
    if document is None or (isinstance(document, dict) and "\n" not in body and not list(_tables(document))):
        return None  # lines of objects, perhaps
    depths: dict[tuple[str, ...], list[Table]] = {}
    for table in _tables(document):
        source.spend(len(table.rows))
        depths.setdefault(tuple(table.labels), []).append(table)
    if not depths:
        raise InputError(f"{source.path} is JSON, but holds no list of rows, lists of equal length or values by step.")
    tables = max(depths.values(), key=_fitness)
    # A label that all tables share says nothing.
    apart = [name for name in tables[0].labels if len({table.labels[name] for table in tables}) > 1]
    is_counted = _fitness(tables)[0] == 2 or any(table.are_values for table in tables if not _fitness(tables)[0] % 2)
    rows: list[Row] = []
    for table in tables:
        labels = {name: table.labels[name] for name in apart}
        rows += [labels | ({"step": at} if is_counted else {}) | row for at, row in enumerate(table.rows, start=1)]
    if is_counted:
        source.note("rows_counted", num=max(len(table.rows) for table in tables))
    return [(f"row {at}", row) for at, row in enumerate(rows, start=1)]


def _fitness(tables: list[Table]) -> tuple[int, int]:
    """Return 3 for tables with a reward and a step, 2 for a reward and 1 for a step alone, and the number of rows."""
    names = {name for table in tables for row in table.rows for name in row}
    values = {
        name: {str(row.get(name)) for table in tables for row in table.rows} for name in names if reward_rank(name)
    }
    # A reward that has hardly two values is a right or wrong answer.
    is_reward = any(len(each) >= _MIN_VALUES for each in values.values())
    return 2 * is_reward + bool(with_role(names, "step", "coarse")), sum(len(table.rows) for table in tables)


def _tables(value: Any, path: tuple[str, ...] = (), labels: Labels = {}) -> Iterator[Table]:  # noqa: B006
    """Yield the tables in a value, under the keys of `path`."""
    kinds = set(map(type, value)) if isinstance(value, list) and len(path) <= _MAX_DEPTH else set()
    if kinds == {dict}:
        yield Table([metrics_of(row) for row in value], labels)
        for row in value:
            words = {name: cell for name, cell in row.items() if isinstance(cell, str)}
            yield from _tables_in(row, path, {**labels, **words})
    elif kinds == {list} and all(len(row) in _POINTS and set(map(type, row)) <= _NUMBERS for row in value):
        yield _series([dict(zip(_POINTS[len(row)], row, strict=True)) for row in value], path, labels)
    elif kinds and kinds <= _NUMBERS and len(value) >= _MIN_VALUES:
        yield _series([{"value": cell} for cell in value], path, labels)._replace(are_values=True)
    elif isinstance(value, dict) and len(path) <= _MAX_DEPTH:
        yield from _tables_in(value, path, labels)


def _tables_in(value: Row, path: tuple[str, ...], labels: Labels) -> Iterator[Table]:
    """Yield the tables in an object: a map from step to value, columns, and what lies under its keys."""
    steps = [_STEP_KEY.fullmatch(key) for key in value]
    if steps and all(steps):
        rows = [metrics_of(cell) if isinstance(cell, dict) else {"value": cell} for cell in value.values()]
        yield _series(
            [{"step": int(step[1]), **row} for step, row in zip(steps, rows, strict=True) if step], path, labels
        )
        return
    lists = _lists(value)
    for length in dict.fromkeys(map(len, lists.values())):
        columns = {key: cells for key, cells in lists.items() if len(cells) == length > 0}
        if len(columns) > 1 or any(map(is_measured, columns)):
            yield Table(
                [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)], labels, True
            )
        elif columns:
            yield from _tables(next(iter(columns.values())), (*path, *columns), labels)
    inner = {key: part for key, part in value.items() if isinstance(part, dict | list) and key not in lists}
    column = "split" if are_splits(inner) else path[-1] if path else "run"
    for key, part in inner.items():
        yield from _tables(part, (*path, key), labels if is_measured(key) else {**labels, column: key})


def _lists(value: Row) -> dict[str, list[Any]]:
    """Return the lists of plain values in an object; objects by row, as pandas writes columns, are lists too."""
    by_row = {
        key: [*part.values()] for key, part in value.items() if isinstance(part, dict) and all(map(str.isdecimal, part))
    }
    if len(by_row) == len(value) and any(has_role(key, "step", "coarse") for key in value):
        return by_row
    lists = {key: part for key, part in value.items() if isinstance(part, list)}
    return {key: part for key, part in lists.items() if set(map(type, part)) <= {*_NUMBERS, str, bool}}


def _series(rows: list[Row], path: tuple[str, ...], labels: Labels) -> Table:
    """Return values under a key: it is the name of what was measured, or of a run."""
    name = path[-1] if path else ""
    if is_measured(name):
        return Table([{name if key == "value" else key: cell for key, cell in row.items()} for row in rows], labels)
    return Table(rows, labels if not path or name in labels.values() else {**labels, "run": name})


# One object after the other

_LINE_END = re.compile(r"[ \t\r]*+(?:\n|$)")
_MAX_TRIES = 50  # objects in a line that was cut


def jsonl_rows(source: Source) -> Placed | None:
    """Return one row per object, on one line or on several; what was cut while it was written is left out.

    An object within a line that was cut is none; a row that a successor wrote behind such a line is.
    """
    text, decode = source.text, json.JSONDecoder().raw_decode
    if not re.match(r'\s*+\{\s*+(?:"|\}|$)', text):
        return None
    rows: Placed = []
    tries: dict[int, int] = {}
    at = end = line = 0
    while (begin := text.find("{", at)) >= 0:
        source.spend()
        line, at = line + text.count("\n", at, begin), begin + 1
        try:
            row, stop = decode(text, begin)
        except (ValueError, RecursionError):
            row, stop = {}, at
        if stop > at and _LINE_END.match(text, stop):
            rows.append((f"line {line + 1}", metrics_of(row)))
            line, at, end = line + text.count("\n", begin, stop), stop, stop
            continue
        tries[line] = tries.get(line, 0) + 1
        if tries[line] > _MAX_TRIES:
            at += len(text[at:].partition("\n")[0])
    is_open = "{" in text[end:]  # the last line may be one that is being written
    bad = sorted(tries)[: len(tries) - (is_open and bool(rows))]
    if len(bad) > len(rows) or not rows:
        raise InputError(
            f"{source.path}, line {min(tries, default=0) + 1}: not JSON lines; repair or remove what is none."
        )
    if bad:
        source.note("cut_lines", num=len(bad), line=bad[0] + 1)
    return rows
