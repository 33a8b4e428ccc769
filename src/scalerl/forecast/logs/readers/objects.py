"""JSON of any shape as rows: one document, or one object after the other.

One rule finds the rows of a document, wherever they lie in it. A list of objects is a table; so are lists of equal
length, pairs of step and value, and a map from step to value. The keys above a table, and the words beside it, are its
labels: `{"results": {"pro": {"1": 58.4}}}` is a row with results=pro and step=1. Of all tables the one with a reward,
a step and the most rows is read, together with those that lie at the same depth under other labels.
"""

import json
import re
from bisect import bisect
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from scalerl.errors import InputError
from scalerl.forecast.logs.columns import AXES, are_splits, has_role, is_measured, reward_rank, with_role
from scalerl.forecast.logs.frame import Placed, Row, grouped
from scalerl.forecast.logs.readers.source import MAX_COLUMNS, Source
from scalerl.runfolder.json_text import parse_or_none

Labels = dict[str, str]

_MAX_DEPTH = 8
# Objects that some loggers put the metrics of a row into: verl's {"step": 1, "data": {...}}, events with "metrics".
_WRAPPERS = frozenset({"data", "metrics", "payload", "values"})
# Points as lists of numbers; those with three are what tensorboard's page saves.
_POINTS = {2: ("step", "value"), 3: ("wall_time", "step", "value")}
_STEP_KEY = re.compile(r"([A-Za-z][A-Za-z_ -]*+)?(\d{1,12})")
_COUNTER = re.compile(
    r"step|iter|epoch|update|checkpoint|ckpt|round|batch|rollout|episode|generation|train", re.IGNORECASE
)
# The list of steps that another list of evaluations belongs to: eval_steps.
_STEPS_OF = re.compile(r"(?:train|training|eval|evaluation|val|validation|test)[_/ ]", re.IGNORECASE)
_MIN_VALUES = 3
_NUMBERS = {int, float, type(None)}


def flatten(row: Mapping[str, Any], wrappers: frozenset[str] = frozenset()) -> Row:
    """Turn nested objects into one level: {'loss': {'kl': 1}} becomes {'loss/kl': 1}.

    What is inside a wrapper stands as if it were beside it. A list of numbers under the name of a reward is their mean;
    other lists are left out.
    """
    flat: Row = {}
    _flatten_into(flat, row, wrappers, "", 0)
    return flat


def _flatten_into(flat: Row, row: Mapping[str, Any], wrappers: frozenset[str], prefix: str, depth: int) -> None:
    for key, value in row.items():
        name = f"{prefix}{key}"
        if isinstance(value, dict) and depth < _MAX_DEPTH:
            _flatten_into(flat, value, wrappers, prefix if key in wrappers else f"{name}/", depth + 1)
        elif isinstance(value, list):
            mean = _mean_of_rewards(name, value)
            if mean is not None:
                flat.setdefault(name, mean)
        elif not isinstance(value, dict) and (depth == 0 or name not in flat):
            flat[name] = value
        if len(flat) > MAX_COLUMNS:
            raise ValueError(f"a row has more than {MAX_COLUMNS:,} columns")


def _mean_of_rewards(name: str, values: list[Any]) -> float | None:
    """Return the mean of a list of numbers under the name of a reward; None for other lists."""
    are_numbers = bool(values) and all(type(value) in (int, float, bool) for value in values)
    if not are_numbers or reward_rank(name) is None:
        return None
    return sum(values) / len(values)


def metrics_of(row: Row) -> Row:
    """Return the values of a row that was logged, without the objects that loggers put them into."""
    return flatten(row, _WRAPPERS)


# One document


class Table(NamedTuple):
    """Rows somewhere in a document, and what stands above them."""

    rows: list[Row]
    labels: Labels

    @property
    def names(self) -> set[str]:
        return {name for row in self.rows for name in row}


def json_rows(source: Source) -> Placed | None:
    """Return the rows of one JSON document; None if it is not one."""
    body = source.text.strip()
    document = parse_or_none(body) if body[:1] in ("{", "[") else None
    if document is None and re.match(r"\[\s*[{\[\]]", body):
        raise InputError(f"{source.path} begins as a JSON list, but is not JSON: repair it.")
    tables = [] if document is None else [*_tables(document)]
    source.spend(sum(len(table.rows) for table in tables))
    if not tables and (document == [] or (isinstance(document, dict) and [] in document.values())):
        return []
    if not tables and isinstance(document, dict | None) and (document is None or "\n" not in body):
        return None  # lines of objects, perhaps
    if not tables:
        raise InputError(
            f"{source.path} is JSON, but holds no list of rows, lists of equal length or values by step: settings and "
            "results are no history; give what the run logged, such as metrics.jsonl or trainer_state.json."
        )
    tables = max(grouped(tables, lambda table: tuple(table.labels)), key=_fitness)
    # A label that all tables share says nothing, but for the name of what was measured.
    apart = [
        name
        for name in tables[0].labels
        if has_role(name, "metric") or len({table.labels[name] for table in tables}) > 1
    ]
    is_counted = not with_role(set.union(*(table.names for table in tables)), "step", "coarse", *AXES)
    if is_counted:
        source.note("rows_counted", num=max(len(table.rows) for table in tables))
    rows: list[Row] = []
    for table in tables:
        labels = {name: table.labels[name] for name in apart}
        rows += [labels | ({"step": at} if is_counted else {}) | row for at, row in enumerate(table.rows, start=1)]
    return [(f"row {at}", row) for at, row in enumerate(rows, start=1)]


def _fitness(tables: list[Table]) -> tuple[bool, bool, int]:
    """Return whether tables have a reward, whether they have a step, and the number of their rows."""
    rows = [row for table in tables for row in table.rows]
    names = set.union(*(table.names for table in tables))
    # A reward that has hardly two values is a right or wrong answer.
    is_reward = any(len({str(row.get(name)) for row in rows}) >= _MIN_VALUES for name in filter(reward_rank, names))
    return is_reward, bool(with_role(names, "step", "coarse")), len(rows)


def _tables(value: Any, path: tuple[str, ...] = (), labels: Labels = {}) -> Iterator[Table]:  # noqa: B006
    """Yield the tables in a value, under the keys of `path`."""
    if len(path) > _MAX_DEPTH:
        return
    if rows := _rows(value):
        yield _named(rows, path, labels)
    elif isinstance(value, dict):
        yield from _tables_in(value, path, labels)
    if rows and isinstance(value, list) and isinstance(value[0], dict):
        for row in value:
            words = {name: cell for name, cell in row.items() if isinstance(cell, str)}
            yield from _tables_in(row, path, {**labels, **words})


def _rows(value: Any) -> list[Row]:
    """Return a list of objects, points or numbers, or a map from step to values, as rows; none for anything else."""
    if isinstance(value, dict):
        steps = [_STEP_KEY.fullmatch(key) for key in value]
        numbers = [int(step[2]) for step in steps if step]
        if steps and steps[0] and not _counts(steps[0][1] or ""):
            return []
        is_sorted = sorted(numbers) == numbers or sorted(value) == [*value]  # else it is a tally
        if not all(steps) or len(value) < 2 or len({step[1] for step in steps if step}) > 1 or not is_sorted:
            return []
        cells = [metrics_of(cell) if isinstance(cell, dict) else {"value": cell} for cell in value.values()]
        return [{"step": step, **row} for step, row in zip(numbers, cells, strict=True)]
    kinds = set(map(type, value)) if isinstance(value, list) else set()
    if kinds == {dict}:
        return [metrics_of(row) for row in value]
    if kinds == {list} and all(_is_pairs(row) for row in value):
        return [{pair["field"]: pair["value"] for pair in row} for row in value]
    if kinds == {list} and all(len(row) in _POINTS and set(map(type, row)) <= _NUMBERS for row in value):
        return [dict(zip(_POINTS[len(row)], row, strict=True)) for row in value]
    is_numbers = bool(kinds) and kinds <= _NUMBERS and len(value) >= _MIN_VALUES
    return [{"value": cell} for cell in value] if is_numbers else []


def _counts(word: str) -> bool:
    """Return whether the word before a number says that it is a step; a seed, a sample or a level is none."""
    return not word.strip("-_ ") or _COUNTER.search(word) is not None


def _is_pairs(row: list[Any]) -> bool:
    """Return whether a list is an object as pairs of field and value, as the queries of clouds answer."""
    return bool(row) and all(isinstance(pair, dict) and pair.keys() >= {"field", "value"} for pair in row)


def _named(rows: list[Row], path: tuple[str, ...], labels: Labels) -> Table:
    """Return the table of rows under a key: it is the name of what was measured, or of a run."""
    name = path[-1] if path else ""
    if not name or not any("value" in row for row in rows):
        return Table(rows, labels)
    if is_measured(name):
        return Table([{name if key == "value" else key: cell for key, cell in row.items()} for row in rows], labels)
    return Table(rows, labels if name in labels.values() else {**labels, "run": name})


def _tables_in(value: Row, path: tuple[str, ...], labels: Labels) -> Iterator[Table]:
    """Yield the tables in an object: its lists of one length as columns, and what lies under its keys."""
    lists = _lists(value)
    for length in dict.fromkeys(map(len, lists.values())):
        columns = {key: cells for key, cells in lists.items() if len(cells) == length > 0}
        if len(columns) > 1 or any(map(is_measured, columns)):
            names = [_without_split(name, columns) if len(columns) < len(lists) else name for name in columns]
            yield Table([dict(zip(names, row, strict=True)) for row in zip(*columns.values(), strict=True)], labels)
        elif columns:
            yield from _tables(next(iter(columns.values())), (*path, *columns), labels)
    inner = {key: part for key, part in value.items() if isinstance(part, dict | list) and key not in lists}
    column = "split" if are_splits(inner) else path[-1] if path else "run"
    # What each of several keys holds with one reward are runs, also where the name of one is that of a quantity.
    alike = set[str].intersection(*map(_names_in, inner.values())) if len(inner) > 1 else set[str]()
    are_runs = any(reward_rank(name) and not has_role(name, "value") for name in alike)
    for key, part in inner.items():
        # The parts of a run have one name in all runs, and not that of their run.
        inside = (*path, "part" if are_runs else key)
        yield from _tables(part, inside, {**labels, column: key} if are_runs or not is_measured(key) else labels)


def _names_in(value: Any, depth: int = 0) -> set[str]:
    """Return the names in an object, those in its objects and those in the first one of its lists."""
    row = value[0] if isinstance(value, list) and value else value
    if not isinstance(row, dict) or depth > _MAX_DEPTH:
        return set()
    return {*row}.union(*(_names_in(part, depth + 1) for part in row.values()))


def _without_split(name: str, columns: Iterable[str]) -> str:
    """Return `step` for the steps of the other lists of their length, steps and eval_steps; other names stay."""
    steps = [column for column in columns if has_role(_STEPS_OF.sub("", column, count=1), "step")]
    return "step" if [name] == steps else name


def _lists(value: Row) -> dict[str, list[Any]]:
    """Return the lists of plain values in an object; objects by row, as pandas writes columns, are lists too."""
    by_row = {
        key: [*part.values()] for key, part in value.items() if isinstance(part, dict) and all(map(str.isdecimal, part))
    }
    if len(by_row) == len(value) and any(has_role(key, "step", "coarse") for key in value):
        return by_row
    lists = {key: part for key, part in value.items() if isinstance(part, list)}
    return {key: part for key, part in lists.items() if set(map(type, part)) <= {*_NUMBERS, str, bool}}


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
    line_ends = [match.start() for match in re.finditer("\n", text)]
    rows: Placed = []
    tries = Counter[int]()
    at = end = 0
    while (begin := text.find("{", at)) >= 0:
        source.spend()
        line, at = bisect(line_ends, begin) + 1, begin + 1
        try:
            row, stop = decode(text, begin)
        except (ValueError, RecursionError):
            row, stop = {}, begin
        if stop > begin and _LINE_END.match(text, stop):
            rows.append((f"line {line}", metrics_of(row)))
            at = end = stop
            continue
        tries[line] += 1
        if tries[line] > _MAX_TRIES:
            at += len(text[at:].partition("\n")[0])
    is_open = "{" in text[end:]  # the last line may be one that is being written
    bad = sorted(tries)[: len(tries) - (is_open and bool(rows))]
    if len(bad) > len(rows) or not rows:
        raise InputError(f"{source.path}, line {min(tries, default=1)}: not JSON lines; repair or remove what is none.")
    if bad:
        source.note("cut_lines", num=len(bad), line=bad[0])
    return rows
