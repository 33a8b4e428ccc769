"""JSON of any shape as rows: one document, or one object after the other.

One rule finds the rows of a document, wherever they lie in it. A list of objects is a table; so are lists of equal
length, pairs of step and value, and a map from step to value. The keys above a table, and the words beside it, are its
labels: `{"results": {"pro": {"1": 58.4}}}` is a row with results=pro and step=1. Of all tables the one with a reward,
a step and the most rows is read, together with those that lie at the same depth under other labels.
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Any

from scalerl.errors import InputError
from scalerl.logs.columns import are_splits, has_role, is_measured, reward_rank, with_role
from scalerl.logs.frame import Placed
from scalerl.logs.source import Source

Row = Mapping[str, Any]

_MAX_DEPTH = 8
# Objects that some loggers put the metrics of a row into: verl's {"step": 1, "data": {...}}, events with "metrics".
_WRAPPERS = frozenset({"data", "metrics", "payload", "values"})
# Points as lists of numbers; those with three are what tensorboard's page saves.
_POINTS = {2: ("step", "value"), 3: ("wall_time", "step", "value")}
_STEP_KEY = re.compile(r"(?:[A-Za-z][A-Za-z_ -]*+)?(\d{1,12})")
_MIN_NUMBERS = 3
_SCALARS = {int, float, str, bool, type(None)}
_NUMBERS = {int, float, type(None)}


def flatten(row: Row, wrappers: frozenset[str] = frozenset(), prefix: str = "", depth: int = 0) -> dict[str, Any]:
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


def metrics_of(row: Row) -> dict[str, Any]:
    """Return the values of a row that was logged, without the objects that loggers put them into."""
    return flatten(row, _WRAPPERS)


def loaded(text: Any) -> Any:
    """Return what JSON says; None for what is not JSON."""
    try:
        return json.loads(text)
    except (TypeError, ValueError, RecursionError):
        return None


# One document


@dataclass(frozen=True, slots=True)
class Table:
    """Rows somewhere in a document."""

    rows: Sequence[Row]
    labels: Mapping[str, str] = field(default_factory=dict)
    """What stands above the rows: column and word."""
    are_lists: bool = False
    """Whether they were lists of values, whose places are the steps where no others are given."""

    def placed(self, counted: bool) -> list[Row]:
        """Return the rows with their labels; their number is the step where they are counted."""
        return [
            {**self.labels, **({"step": at} if counted else {}), **row} for at, row in enumerate(self.rows, start=1)
        ]


def json_rows(source: Source) -> list[Placed] | None:
    """Return the rows of one JSON document; None if it is not one."""
    body = source.text.strip()
    if body[:1] not in ("{", "["):
        return None
    try:
        document = json.loads(body)
    except ValueError as fault:
        if body[0] == "{" or not re.match(r"\[\s*[{\[\]]", body):
            return None
        where = f", line {fault.lineno}" if isinstance(fault, json.JSONDecodeError) else ""
        reason = getattr(fault, "msg", fault)
        raise InputError(f"{source.path}{where}: not JSON ({reason}); repair or remove it.") from None
    found = list(_tables(document, ()))
    if not found:
        return _without_table(source, document)
    depths: dict[tuple[str, ...], list[Table]] = {}
    for table in found:
        source.spend(len(table.rows))
        depths.setdefault(tuple(table.labels), []).append(table)
    best = max(depths.values(), key=_fitness)
    # A label that all tables share tells nothing.
    constant = {name for name in best[0].labels if len({table.labels[name] for table in best}) == 1}
    best = [replace(table, labels=_without(table.labels, constant)) for table in best]
    counted = not _has_step(best) and (best[0].are_lists or _has_reward(best))
    if counted:
        source.note("rows_counted", num=max(len(table.rows) for table in best))
    rows = [row for table in best for row in table.placed(counted)]
    return [(f"row {at}", row) for at, row in enumerate(rows, start=1)]


def _without_table(source: Source, document: Any) -> list[Placed] | None:
    if document == [] or (isinstance(document, dict) and document.get("log_history") == []):
        return []
    if isinstance(document, dict) and "\n" not in source.text.strip():
        return None  # the first of many lines, perhaps
    raise InputError(
        f"{source.path} is JSON, but holds neither a list of rows, nor lists of equal length, nor values by step."
    )


def _without(labels: Mapping[str, str], gone: set[str]) -> dict[str, str]:
    return {name: word for name, word in labels.items() if name not in gone}


def _has_step(tables: Sequence[Table]) -> bool:
    return bool(with_role({name for table in tables for row in table.rows for name in row}, "step", "coarse"))


def _has_reward(tables: Sequence[Table]) -> bool:
    """Return whether a column of reward is there that is more than right or wrong answers."""
    values: dict[str, set[Any]] = {}
    for row in (row for table in tables for row in table.rows):
        for name in row:
            if reward_rank(name):
                values.setdefault(name, set()).add(str(row[name]))
    return any(len(words) >= _MIN_NUMBERS for words in values.values())


def _fitness(tables: Sequence[Table]) -> tuple[int, int]:
    is_reward, is_step = _has_reward(tables), _has_step(tables)
    return 2 * is_reward + (is_reward and is_step), sum(len(table.rows) for table in tables)


def _tables(value: Any, path: tuple[str, ...], labels: Mapping[str, str] | None = None) -> Iterator[Table]:
    """Yield the tables in a value, under the keys of `path`."""
    labels = labels or {}
    if len(path) > _MAX_DEPTH:
        return
    kinds = set(map(type, value)) if isinstance(value, list) else set()
    if kinds == {dict}:
        yield Table([metrics_of(row) for row in value], labels)
        for row in value:
            words = {name: cell for name, cell in row.items() if isinstance(cell, str)}
            yield from _tables_inside(row, path, {**labels, **words})
    elif kinds == {list} and all(len(row) in _POINTS and set(map(type, row)) <= _NUMBERS for row in value):
        points = [dict(zip(_POINTS[len(row)], row, strict=True)) for row in value]
        yield _series(points, path, labels)
    elif kinds <= _NUMBERS and len(kinds - {type(None)}) > 0 and len(value) >= _MIN_NUMBERS:
        yield replace(_series([{"value": cell} for cell in value], path, labels), are_lists=True)
    elif isinstance(value, dict):
        yield from _tables_inside(value, path, labels)


def _tables_inside(value: Row, path: tuple[str, ...], labels: Mapping[str, str]) -> Iterator[Table]:
    """Yield the tables in an object: a map from step to value, columns, and what lies under its keys."""
    steps = [_STEP_KEY.fullmatch(key) for key in value]
    if steps and all(steps):
        cells = list(value.values())
        rows = [metrics_of(cell) if isinstance(cell, dict) else {"value": cell} for cell in cells]
        if set(map(type, cells)) <= {dict, *_NUMBERS}:
            yield _series([{"step": int(step[1]), **row} for step, row in zip(steps, rows, strict=True) if step], path, labels)
        return
    lists = {key: cells for key, cells in _lists(value).items() if set(map(type, cells)) <= _SCALARS}
    for length in dict.fromkeys(map(len, lists.values())):
        columns = {key: cells for key, cells in lists.items() if len(cells) == length > 0}
        if len(columns) > 1 or any(map(is_measured, columns)):
            rows = [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
            yield Table(rows, labels, are_lists=True)
        elif columns:
            yield from _tables(next(iter(columns.values())), (*path, *columns), labels)
    inner = {key: part for key, part in value.items() if isinstance(part, dict | list) and key not in lists}
    for key, part in inner.items():
        column = "split" if are_splits(inner) else path[-1] if path else "run"
        above = {} if is_measured(key) else {column: key}
        yield from _tables(part, (*path, key), {**labels, **above})


def _lists(value: Row) -> dict[str, list[Any]]:
    """Return the lists of an object; objects by row, as pandas writes columns, are lists too."""
    by_row = [part for part in value.values() if isinstance(part, dict) and all(map(str.isdecimal, part))]
    if len(by_row) == len(value) and any(has_role(key, "step", "coarse") for key in value):
        return {key: list(part.values()) for key, part in value.items()}
    return {key: part for key, part in value.items() if isinstance(part, list)}


def _series(rows: Sequence[Row], path: tuple[str, ...], labels: Mapping[str, str]) -> Table:
    """Return values under a key: it is the name of what was measured, or of a run."""
    name = path[-1] if path else ""
    if is_measured(name):
        return Table([{name if key == "value" else key: cell for key, cell in row.items()} for row in rows], labels)
    return Table(rows, labels if not path or name in labels.values() else {**labels, "run": name})


# One object after the other

_OBJECT = re.compile(r'\{(?=\s*(?:["}]|$))')
_LINE_END = re.compile(r"[ \t\r]*(?:\n|$)")
_MAX_LINE = 131_072
_MAX_TRIES = 50


def jsonl_rows(source: Source) -> list[Placed] | None:
    """Return one row per object, on one line or on several; what was cut while it was written is left out."""
    if not re.match(r'\s*\{\s*(?:"|\}|$)', source.head):
        return None
    text, decode = source.text, json.JSONDecoder().raw_decode
    rows: list[Placed] = []
    bad: list[int] = []
    after = end = last = 0
    for at, line in enumerate(text.split("\n"), start=1):
        begin, after = after, after + len(line) + 1
        if begin < end or not line.strip():
            continue  # within the object before
        for match in islice(_OBJECT.finditer(line[:_MAX_LINE]), _MAX_TRIES):
            source.spend(0)
            try:
                row, stop = decode(text, begin + match.start())
            except (ValueError, RecursionError):
                continue
            # An object within a line that was cut is none; a row that a successor wrote behind such a line is.
            if _LINE_END.match(text, stop):
                bad += [at] if line[: match.start()].strip() else []
                end, last = stop, at
                rows.append((f"line {at}", metrics_of(row)))
                break
        else:
            bad.append(at)
    if rows and text[end:].lstrip().startswith("{"):
        bad = [at for at in bad if at <= last]  # the last line may be one that is being written
    if len(bad) > len(rows):
        raise InputError(f"{source.path}, line {bad[0]}: not JSON lines; repair or remove what is none.")
    if bad:
        source.note("cut_lines", num=len(bad), line=bad[0])
    return rows
