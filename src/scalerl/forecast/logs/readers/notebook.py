"""Jupyter notebooks: what their cells printed, as text."""

import re
from collections.abc import Iterator
from typing import Any

from scalerl.runfolder.json_text import parse_or_none

# Where rows of a table begin and end, where its cells end, and other markup.
_ROW = re.compile("<tr\\b|</tr>", re.IGNORECASE)
_CELL_END = re.compile("</t[hd]>", re.IGNORECASE)
_MARKUP = re.compile("<[^<>]*+>")


def is_notebook(data: bytes) -> bool:
    """Return whether data is that of a Jupyter notebook, by how it begins and what it names."""
    return data.lstrip()[:1] == b"{" and b'"nbformat"' in data and b'"cells"' in data


def printed_by_cells(data: bytes) -> str:
    """Return what the cells of a notebook printed, tables with bars; "" where they printed nothing."""
    notebook = parse_or_none(data)
    cells = notebook.get("cells") if isinstance(notebook, dict) else None
    parts: list[str] = []
    for cell in _objects(cells):
        for output in _objects(cell.get("outputs")):
            parts += _shown(output)
    return "\n".join(parts)


def _objects(value: Any) -> list[dict[str, Any]]:
    return [each for each in value if isinstance(each, dict)] if isinstance(value, list) else []


def _shown(output: dict[str, Any]) -> Iterator[str]:
    """Yield what one output shows: a stream, a table, or plain text."""
    yield _text(output.get("text"))
    data = output.get("data")
    if isinstance(data, dict):
        html = _text(data.get("text/html"))
        yield _table(html) if "<tr" in html else _text(data.get("text/plain"))


def _text(lines: Any) -> str:
    if isinstance(lines, list):
        return "".join(map(str, lines))
    return lines if isinstance(lines, str) else ""


def _table(html: str) -> str:
    """Return the rows of tables in HTML as lines, with bars between their cells."""
    rows = _ROW.sub(r"\n\g<0>", " ".join(html.split()))
    return _MARKUP.sub("", _CELL_END.sub("|", rows))
