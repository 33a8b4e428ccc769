"""What the cells of a Jupyter notebook printed, as text: a notebook is a log like any other."""

import json
import re
from collections.abc import Iterator
from typing import Any

_IS_NOTEBOOK = re.compile(r"\s*\{")
# None of these may look for the same end from many beginnings: a notebook is a text of strangers.
_ROW = re.compile(r"<tr\b[^<>]*+>((?:[^<]++|<(?!/?tr\b))*+)</tr>", re.IGNORECASE)
_CELL = re.compile(r"<t([hd])\b[^<>]*+>((?:[^<]++|<(?!/?t[hd]\b))*+)</t[hd]>", re.IGNORECASE)
_MARKUP = re.compile(r"<[^<>]*+>")


def printed_by_cells(text: str) -> str:
    """Return what the cells of a notebook printed, a table as Markdown; "" for a text that is not a notebook."""
    if '"cells"' not in text or '"nbformat"' not in text or not _IS_NOTEBOOK.match(text):
        return ""
    try:
        notebook = json.loads(text)
    except (ValueError, RecursionError):
        return ""
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
