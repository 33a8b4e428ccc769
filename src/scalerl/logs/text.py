"""Tables and JSON as rows: CSV of any delimiter, drawn tables, JSON lines, JSON documents.

Each format is a function that returns rows, or None for another format. Cells stay text; table.py reads the numbers.
"""

import csv
import io
import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

from scalerl.errors import InputError
from scalerl.logs.columns import ENOUGH_ROWS, find, is_measured, rank_of
from scalerl.logs.names import listed
from scalerl.logs.source import Source
from scalerl.logs.table import Placed, are_splits, flatten
from scalerl.logs.units import has_decimal_commas, is_number, number

_MAX_SAMPLE = 50
_MAX_FIELD = 131_072
_MAX_LINE = 2_000
_MIN_DRAWN = 6
_MIN_STEPS = 3
_RULE = re.compile(r"[-:+=|\s]+")
_PREAMBLE = re.compile(r"\s*$|#|\s*\"?sep=.\"?\s*$", re.IGNORECASE)
_STEP_NAME = re.compile(
    r"(?P<run>.*?)[-_ ]?(global_?)?(step|iter|iteration|checkpoint|ckpt|update|epoch)s?[-_ ]?(?P<step>\d{1,12})",
    re.IGNORECASE,
)
_EVALUATION = re.compile(r"result|eval|metric|score|summary", re.IGNORECASE)
_FRACTION = re.compile(r"[-+]?\d*\.\d")
_NUMBER = re.compile(r"[-+]?\d[\d.,]*(e[-+]?\d+)?", re.IGNORECASE)


# CSV


def is_named_as_table(source: Source) -> bool:
    return source.path.suffix.lower() in (".csv", ".tsv", ".gz")


def _cells(text: str) -> Iterator[tuple[int, str, list[str]]]:
    """Yield (line, delimiter, cells) of each line from the header on that holds something."""
    lines = text.splitlines(keepends=True)
    first = next((at for at, line in enumerate(lines) if not _PREAMBLE.match(line)), 0)
    header = lines[first] if len(lines[first]) < _MAX_FIELD else ""
    delimiter = max(",;\t", key=lambda mark: len(next(csv.reader([header], delimiter=mark), [])))
    reader = csv.reader(io.StringIO("".join(lines[first:]), newline=""), delimiter=delimiter)
    yield from ((first + reader.line_num, delimiter, cells) for cells in reader if any(map(str.strip, cells)))


def is_table(source: Source) -> bool:
    """Return whether lines look like a table: a header, and under it rows of as many cells, or of numbers alone."""
    try:
        header, *rows = [cells for _, _, cells in islice(_cells(source.text), _MAX_SAMPLE)]
    except csv.Error:
        return False
    if len(header) < 2:
        return bool(rows) and all(len(row) == 1 and number(row[0]) is not None for row in rows)
    # Lines that say the same with other numbers are no table.
    shapes = [[_NUMBER.sub("0", cell) for cell in row] for row in (header, *(rows or [[]]))][:2]
    alike = [one for one, other in zip(*shapes, strict=False) if one == other and re.search("[A-Za-z]", one)]
    if any(map(_NUMBER.search, alike)):
        return False
    # The last line may be cut where a run is still writing.
    return {len(header)}.issuperset(map(len, rows[:-1])) and len(header) >= max(map(len, rows[-1:]), default=0)


def csv_rows(source: Source, files: Sequence[Path]) -> Iterator[Placed]:
    """Yield the rows of a table; InputError says what is wrong with one."""
    path, found = source.path, []
    try:
        found.extend(_cells(source.text))
    except csv.Error as fault:
        line = found[-1][0] + 1 if found else 1
        raise InputError(f"{path}, line {line}: not CSV ({fault}); repair or remove that line.") from None
    (line, delimiter, header), *body = found
    if all(number(cell) is not None for cell in header):
        raise InputError(
            f"{path}, line {line}: numbers ({listed(header)}) where column names belong; add a header line."
        )
    names = [cell.strip() or f"column {at}" for at, cell in enumerate(header, start=1)]
    # A repeated name keeps its first column; the others stay reachable by their position.
    names = [name if name not in names[:at] else f"{name}.{at + 1}" for at, name in enumerate(names)]
    if len(body) > 1 and not source.text.endswith(("\n", "\r")):  # still being written
        *others, last = (cells[-1].strip() for _, _, cells in body)
        # 0.45 of which 0 or 0. was written is a wrong value.
        is_begun = re.fullmatch(r"[-+]?\d+\.?", last) and others[-1].startswith(last)
        if len(body[-1][2]) < len(names):
            body.pop()
        elif is_begun and all(map(_FRACTION.match, others)):
            source.note("cut_lines", num=1, line=body.pop()[0])
    # Where commas separate cells, those within a cell group thousands.
    source.decimal_comma = delimiter != "," and has_decimal_commas(cell for _, _, cells in body for cell in cells)
    for line, _, cells in body:
        if any(map(str.strip, cells[len(names) :])):
            raise InputError(
                f"{path}, line {line}: {len(cells)} values under {len(names)} columns; quote values that hold "
                f"{delimiter!r}."
            )
        # A run that is restarted may write its header again.
        if cells != header:
            yield f"line {line}", dict(zip(names, map(str.strip, cells), strict=False))


def drawn_rows(source: Source, files: Sequence[Path]) -> list[Placed] | None:
    """Return the rows of the longest table drawn in a text with a column of steps.

    Cells are separated by pipes, as in Markdown, by two blanks, as pandas prints them, or by any blanks.
    """
    lines = [line for line in source.text.splitlines() if len(line) <= _MAX_LINE and not _RULE.fullmatch(line)]
    for blanks in (r"\s{2,}", r"\s+") if not is_named_as_table(source) else ():
        tables: list[list[list[str]]] = [[]]
        for line in lines:
            cells = [cell.strip() for cell in re.split(r"\|" if line.count("|") > 1 else blanks, line.strip(" |\t"))]
            if len(tables[-1]) == 1 and len(cells) == len(tables[-1][0]) + 1:
                tables[-1][0].insert(0, "")  # pandas does not name its index
            if not tables[-1] or len(tables[-1][0]) != len(cells):
                tables.append([])
            tables[-1].append(cells)
        header, *rows = max(tables, key=len) or [[]]
        if len(rows) >= _MIN_DRAWN and len(header) > 1 and find(header, "step", "coarse") is not None:
            return [(f"row {at}", dict(zip(header, cells, strict=True))) for at, cells in enumerate(rows, start=1)]
    return None


# JSON

# Points as lists of numbers; those with three are what tensorboard's page saves.
_POINTS = {2: ("step", "value"), 3: ("wall_time", "step", "value")}
_STEP_KEY = re.compile(r"(?:[A-Za-z][A-Za-z_ -]*)?(\d{1,12})")


def json_rows(source: Source, files: Sequence[Path]) -> list[Placed] | None:
    """Return the rows of one JSON document: a `log_history`, a list of rows or numbers, columns, or lists of a run."""
    path, body = source.path, source.text.lstrip()
    try:
        value = json.loads(body)
    except json.JSONDecodeError as fault:
        if body[0] == "{" or not re.match(r"\[\s*[{\[\]]", body):
            return None
        raise InputError(f"{path}, line {fault.lineno}: not JSON ({fault.msg}); repair or remove it.") from None
    found = _rows_in(value)
    if found is None:
        if body[0] == "{" and "\n" not in body.strip():
            return None
        raise InputError(
            f"{path} is JSON, but neither a list of rows, nor columns of equal length, nor a trainer_state.json with a "
            "log_history."
        )
    rows = [flatten(row) for row in found]
    columns = list(dict.fromkeys(column for row in rows for column in row))
    if find(columns, "step", "coarse") is None and any(map(rank_of, columns)):
        source.note("rows_counted", num=len(rows))
        rows = [{"step": at, **row} for at, row in enumerate(rows, start=1)]
    unit = "log_history row" if isinstance(value, dict) and "log_history" in value else "row"
    return [(f"{unit} {at}", row) for at, row in enumerate(rows, start=1)]


def _rows_in(value: Any) -> list[dict[str, Any]] | None:
    """Return the rows that a JSON value holds; None where it holds none."""
    if isinstance(value, list):
        return _rows_of(value)
    if not isinstance(value, dict):
        return None
    if "log_history" in value:
        return _rows_in(value["log_history"])
    if columns := _columns_in(value):
        return [dict(zip(columns, cells, strict=True)) for cells in zip(*columns.values(), strict=True)]
    found = {name: _rows_in(part) for name, part in value.items() if isinstance(part, list | dict)}
    parts = {name: rows for name, rows in found.items() if rows and set(rows[0]) != {"value"}}
    if len(parts) < 2:
        return next(iter(parts.values()), None) or _rows_by_step(value) or _rows_of_lists(value)
    if any(map(is_measured, parts)) and all(row.keys() <= set(_POINTS[3]) for rows in parts.values() for row in rows):
        # Points by metric.
        return [{key if key != "value" else name: row[key] for key in row} for name in parts for row in parts[name]]
    if not are_splits(parts) and len(parts) < len(value):
        return None
    label = "split" if are_splits(parts) else "run"
    return [{label: name, **row} for name, rows in parts.items() for row in rows]


def _rows_of(items: Sequence[Any]) -> list[dict[str, Any]] | None:
    """Return the rows of a list: numbers, points as lists of numbers, or objects."""
    if len(items) > 2 and all(map(is_number, items)):
        return [{"value": item} for item in items]
    kinds = set(map(type, items))
    if kinds == {list} and all(len(item) in _POINTS and all(map(is_number, item)) for item in items):
        return [dict(zip(_POINTS[len(item)], item, strict=True)) for item in items]
    if not {dict} >= kinds:
        return None
    # Runs with their rows inside: [{"name": "a", "history": [...]}].
    inner = [_rows_in({key: part for key, part in item.items() if isinstance(part, list)}) for item in items]
    if len(items) > 1 and all(rows and find(rows[0], "step", "coarse") for rows in inner):
        names = [next((cell for cell in item.values() if isinstance(cell, str)), at) for at, item in enumerate(items)]
        return [{"run": name, **row} for name, rows in zip(names, inner, strict=True) for row in rows or ()]
    return list(items)


def _rows_by_step(value: Mapping[str, Any]) -> list[dict[str, Any]] | None:
    """Return the rows of an object whose keys are steps, as {"step_10": {"acc": 0.5}, ...}; None for any other."""
    steps = [step[1] for step in map(_STEP_KEY.fullmatch, value) if step]
    rows = [{"value": part} if is_number(part) else part for part in value.values()]
    if not _MIN_STEPS <= len(steps) == len(value) or not all(isinstance(row, dict) for row in rows):
        return None
    return [{"step": int(step), **row} for step, row in zip(steps, rows, strict=True)]


def rows_of_step_files(source: Source, files: Sequence[Path]) -> list[Placed] | None:
    """Return a row for each step whose evaluation is a file: step_10/results.json, or grpo_step_10.json of run grpo.

    Files of a step with other values of the same columns, as of two benchmarks, put their name before each column. A
    name of one step only, such as one with a date, tells nothing: of those the last one counts.
    """
    steps: dict[str, dict[str, Any]] = {}
    found: dict[str, dict[str, dict[str, Any]]] = {}
    for file in files:
        inside = file.relative_to(source.path)
        name = _STEP_NAME.fullmatch(inside.parts[0].removesuffix(".json"))
        # A folder of weights holds other JSON too.
        if name is None or (len(inside.parts) > 1 and not _EVALUATION.search(file.stem)):
            continue
        try:
            value = json.loads(Source(file).text)
        except ValueError:  # still being written
            continue
        if isinstance(value, dict):
            run = {"run": name["run"]} if name["run"] else {}
            steps[name[0]] = {**run, "step": int(name["step"])}
            found.setdefault(name[0], {})["/".join(inside.with_suffix("").parts[1:])] = flatten(value)
    times = Counter(name for parts in found.values() for name in parts)
    usual = [[cells.items() for name, cells in parts.items() if times[name] > 1] for parts in found.values()]
    pairs = [{(column, repr(value)) for cells in parts for column, value in cells} for parts in usual]
    is_told = any(len(own) > len(dict(own)) for own in pairs)
    for step, parts in found.items():
        for name, cells in parts.items():
            steps[step] |= flatten({name: cells}) if is_told and times[name] > 1 else cells
    return list(steps.items()) if len(steps) >= _MIN_STEPS else None


def _rows_of_lists(value: Mapping[str, Any]) -> list[dict[str, Any]] | None:
    """Return the rows of the list that looks most like a reward, and of those as long, among other things."""
    lists = {name: part for name, part in value.items() if isinstance(part, list) and all(map(is_number, part))}
    rewards = [(len(part) < ENOUGH_ROWS, rank, name) for name, part in lists.items() if (rank := rank_of(name))]
    num = len(lists[min(rewards)[-1]]) if rewards else 0
    columns = {name: part for name, part in lists.items() if len(part) == num}
    return [dict(zip(columns, cells, strict=True)) for cells in zip(*columns.values(), strict=True)] or None


def _columns_in(value: Mapping[str, Any]) -> dict[str, list[Any]]:
    """Return columns: lists of equal length, or objects by row as pandas writes them; none for any other object."""
    parts = list(value.values())
    if all(isinstance(part, dict) and part and all(map(str.isdecimal, part)) for part in parts):
        parts = [list(part.values()) for part in parts]
    is_plain = all(isinstance(part, list) and not {list, dict} & set(map(type, part)) for part in parts)
    return dict(zip(value, parts, strict=True)) if is_plain and len({len(part) for part in parts}) == 1 else {}


# Objects that some loggers put the metrics of a row into: verl's {"step": 1, "data": {...}}, events with "metrics".
_WRAPPERS = ("data", "metrics", "payload", "values")
_OBJECT = re.compile(r'\{(?=\s*(?:["}]|$))')
_LINE_END = re.compile(r"[ \t\r]*(\n|$)")


def jsonl_rows(source: Source, files: Sequence[Path]) -> Iterator[Placed]:
    """Yield one row per object, on one line or on several; what was cut while it was written is left out."""
    text, decode = source.text, json.JSONDecoder().raw_decode
    after = end = num = last = 0
    bad: list[int] = []
    for at, line in enumerate(text.split("\n"), start=1):
        begin, after = after, after + len(line) + 1
        if begin < end or not line.strip():
            continue  # within the object before
        for match in islice(_OBJECT.finditer(line[:_MAX_FIELD]), _MAX_SAMPLE):
            try:
                row, stop = decode(text, begin + match.start())
            except (ValueError, RecursionError):
                source.spend()
                continue
            # An object within a line that was cut is none; a row that a successor wrote behind such a line is.
            if _LINE_END.match(text, stop):
                bad += [at] if line[: match.start()].strip() else []
                end, num, last = stop, num + 1, at
                if dict in set(map(type, row.values())):
                    for inner in [inner for name in _WRAPPERS if isinstance(inner := row.get(name), dict)]:
                        row = {**inner, **{key: value for key, value in row.items() if value is not inner}}
                    row = flatten(row)
                yield f"line {at}", row
                break
        else:
            bad.append(at)
    if num and text[end:].lstrip().startswith("{"):
        bad = [at for at in bad if at <= last]  # the last line may be one that is being written
    if len(bad) > num:
        raise InputError(f"{source.path}, line {bad[0]}: not JSON lines; repair or remove what is none.")
    if bad:
        source.note("cut_lines", num=len(bad), line=bad[0])
