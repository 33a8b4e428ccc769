"""Console output inside other files, as text: the cells of a Jupyter notebook, and the lines of a container.

Docker, Kubernetes and clouds write each line that was printed as an object, such as {"log": "step 3 ...", "time": ...},
or as a cell of a table.
"""

import csv
import io
import re
from collections.abc import Iterator
from typing import Any

from scalerl.json_text import parse_or_none
from scalerl.logs.columns import reward_rank

_IS_NOTEBOOK = re.compile(r"\s*\{")
# What a line that was printed is called, inside the other things that are said about it.
_LINE_NAMES = ("log", "message", "msg", "textPayload", "line", "text", "MESSAGE", "@message")
_SAMPLE = 10_000
_MAX_DEPTH = 6
_MAX_HEAD = 1_000
# A name in the head of a table; a line that was printed holds numbers.
_NAME = re.compile(r"[@_]{0,2}[A-Za-z][A-Za-z_@./ -]{0,60}")
# A value with its name, anywhere in a cell.
_SAID = re.compile(r"(?<![\w./@-])([A-Za-z_][\w./@-]{0,80}+)['\"]?\s{0,3}[:=]?\s{0,3}['\"]?[-+]?\.?\d")
_MAX_LINE = 2_000
_MAX_SAMPLE = 200_000
_KEY = re.compile(r'"([^"\\]{1,200})"\s*+:')
# None of these may look for the same end from many beginnings: a notebook is a text of strangers.
_ROW = re.compile(r"<tr\b[^<>]*+>((?:[^<]++|<(?!/?tr\b))*+)</tr>", re.IGNORECASE)
_CELL = re.compile(r"<t([hd])\b[^<>]*+>((?:[^<]++|<(?!/?t[hd]\b))*+)</t[hd]>", re.IGNORECASE)
_MARKUP = re.compile(r"<[^<>]*+>")


def printed_inside(text: str) -> str:
    """Return what was printed, if the text is a notebook or the log of a container; "" for any other text."""
    return _printed_by_cells(text) or _printed_in_container(text) or _printed_in_table(text)


def _printed_in_table(text: str) -> str:
    """Return the cells of the column of a table that holds printed lines, if no other column is a reward."""
    head = text.lstrip().partition("\n")[0][:_MAX_HEAD].rstrip()
    mark = max(",;\t", key=head.count)
    names = [name.strip('" ') for name in head.split(mark)]
    if len({*names}) < max(len(names), 2) or not all(map(_NAME.fullmatch, names)) or any(map(reward_rank, names)):
        return ""
    if not _says(text, _MAX_SAMPLE):
        return ""
    try:
        rows = [row for row in csv.reader(io.StringIO(text.lstrip(), newline=""), delimiter=mark) if any(row)][1:]
    except csv.Error:
        return ""
    if not rows or any(len(row) != len(names) for row in rows[:-1]):
        return ""
    columns = [[row[at] for row in rows if len(row) == len(names)] for at in range(len(names))]
    said = {name: (sum(map(_says, cells)), cells) for name, cells in zip(names, columns, strict=True)}
    name, (num, cells) = max(said.items(), key=lambda item: item[1][0])
    is_named = name.lower() in {*map(str.lower, _LINE_NAMES)}
    return "".join(f"{cell.rstrip()}\n" for cell in cells) if num > (1 if is_named else len(rows) / 2) else ""


def _says(text: str, most: int = _MAX_LINE) -> bool:
    """Return whether a text names a reward with its value in its first characters."""
    return any(map(reward_rank, _SAID.findall(text[:most]))) if " " in text or "=" in text else False


def _printed_in_container(text: str) -> str:
    """Return the lines inside the objects of a document, or of each line, if they say nothing about a reward else."""
    sample = text.lstrip()[:_SAMPLE]
    if not any(f'"{name}"' in sample for name in _LINE_NAMES) or any(
        map(reward_rank, {*_KEY.findall(sample)} - {"value"})
    ):
        return ""
    document = parse_or_none(text) if sample[:1] in ("{", "[") else None
    documents = map(parse_or_none, text.splitlines()) if document is None else [document]
    return "".join(f"{line.rstrip()}\n" for each in documents for line in _lines_in(each))


def _lines_in(value: Any, depth: int = 0) -> Iterator[str]:
    """Yield the printed lines in an object, in its lists, or in its pairs of field and value, as a query has them."""
    if isinstance(value, list) and _dicts(value) and all({*each} >= {"field", "value"} for each in _dicts(value)):
        value = {str(each["field"]): each["value"] for each in _dicts(value)}
    if isinstance(value, dict) and (named := [name for name in _LINE_NAMES if isinstance(value.get(name), str)]):
        yield value[named[0]]
    elif isinstance(value, dict | list) and depth < _MAX_DEPTH:
        for part in value.values() if isinstance(value, dict) else value:
            yield from _lines_in(part, depth + 1)


def _printed_by_cells(text: str) -> str:
    """Return what the cells of a notebook printed, a table as Markdown; "" for a text that is not a notebook."""
    if '"cells"' not in text or '"nbformat"' not in text or not _IS_NOTEBOOK.match(text):
        return ""
    notebook = parse_or_none(text) or {}
    cells = notebook.get("cells")
    outputs = [output for cell in _dicts(cells) for output in _dicts(cell.get("outputs"))]
    return "\n".join(part for output in outputs for part in _parts(output))


def _dicts(value: Any) -> list[dict[str, Any]]:
    return [each for each in value if isinstance(each, dict)] if isinstance(value, list) else []


def _parts(output: dict[str, Any]) -> Iterator[str]:
    """Yield what one output shows: a stream, a table, or plain text."""
    data = output.get("data")
    shown = data if isinstance(data, dict) else {}
    html = _text(shown.get("text/html"))
    yield _text(output.get("text"))
    yield _tables(html) if "<tr" in html else _text(shown.get("text/plain"))


def _text(lines: Any) -> str:
    return "".join(map(str, lines)) if isinstance(lines, list) else lines if isinstance(lines, str) else ""


def _tables(html: str) -> str:
    """Return the rows of tables in HTML as those of Markdown, with a rule under each header."""
    lines: list[str] = []
    for row in _ROW.findall(html):
        cells = _CELL.findall(row)
        lines.append("| " + " | ".join(_MARKUP.sub("", cell).strip() for _, cell in cells) + " |")
        lines += ["|---" * len(cells) + "|"] if cells and all(kind == "h" for kind, _ in cells) else []
    return "\n".join(lines)
