"""Console output inside other files, as text: the cells of a Jupyter notebook, and the lines in the rows of a table.

Docker, Kubernetes and clouds write each line that was printed as an object, such as {"log": "step 3 ...", "time": ...},
or as a cell of a table.
"""

import re
from collections.abc import Iterator
from typing import Any

from scalerl.forecast.logs.columns import reward_rank
from scalerl.forecast.logs.frame import Placed
from scalerl.runfolder.json_text import parse_or_none

# What a line that was printed is called, inside the other things that are said about it.
_LINE_NAMES = ("log", "message", "msg", "textpayload", "line", "text", "@message")
# A value with its name, anywhere in a cell.
_SAID = re.compile(r"(?<![\w./@-])([A-Za-z_][\w./@-]{0,80}+)['\"]?\s{0,3}[:=]?\s{0,3}['\"]?[-+]?\.?\d")
_MAX_LINE = 2_000
# The ends of rows and cells of a table, and other markup.
_ROW_END, _CELL_END, _MARKUP = (re.compile(end, re.IGNORECASE) for end in ("</tr>", "</t[hd]>", "<[^<>]*+>"))


def printed_in_rows(rows: Placed) -> str:
    """Return the cells of the column that holds printed lines, if no column is a reward; "" if there is none."""
    names = dict.fromkeys(name for _, row in rows for name in row)
    if any(reward_rank(name) for name in names if name != "value"):
        return ""
    columns = {name: [row[name] for _, row in rows if isinstance(row.get(name), str)] for name in names}
    num_said = {name: sum(map(_says, cells)) for name, cells in columns.items()}
    name = max(names, key=num_said.__getitem__, default="")
    is_named = name.lower().rpartition("/")[2] in _LINE_NAMES
    is_printed = name and num_said[name] > (1 if is_named else len(rows) / 2)
    return "".join(f"{cell.rstrip()}\n" for cell in columns[name]) if is_printed else ""


def _says(text: str) -> bool:
    """Return whether a text names a reward with its value in its first characters."""
    return any(map(reward_rank, _SAID.findall(text[:_MAX_LINE]))) if " " in text or "=" in text else False


def is_notebook(data: bytes) -> bool:
    """Return whether data is that of a Jupyter notebook, by how it begins and what it names."""
    return data.lstrip()[:1] == b"{" and b'"nbformat"' in data and b'"cells"' in data


def printed_by_cells(data: bytes) -> str:
    """Return what the cells of a notebook printed, tables with bars; "" where they printed nothing."""
    notebook = parse_or_none(data)
    cells = notebook.get("cells") if isinstance(notebook, dict) else None
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
    yield _table(html) if "<tr" in html else _text(shown.get("text/plain"))


def _text(lines: Any) -> str:
    return "".join(map(str, lines)) if isinstance(lines, list) else lines if isinstance(lines, str) else ""


def _table(html: str) -> str:
    """Return the rows of tables in HTML as lines, with bars between their cells."""
    lines = _CELL_END.sub("|", _ROW_END.sub("\n", " ".join(html.split())))
    return _MARKUP.sub("", lines)
