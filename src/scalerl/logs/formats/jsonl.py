"""JSON lines: tinker-cookbook, prime-rl, verl's file logger and any other trainer that writes one object per line."""

import json
from pathlib import Path
from typing import Any

from scalerl import store
from scalerl.logs.facts import Fact
from scalerl.logs.formats.long import widen
from scalerl.logs.table import Table, flatten, make_table


def read_lines(path: Path, text: str) -> Table:
    """Read one row per line; lines that were cut while they were written are left out."""
    text, cut = _mended(text)
    placed = []
    for line, row in store.parse_lines(text, path):
        if row.keys() == {"step", "data"} and isinstance(row["data"], dict):  # verl's file logger
            row = {"step": row["step"], **row["data"]}
        placed.append((f"line {line}", flatten(row)))
    facts = (Fact(kind="cut_lines", values={"num": len(cut), "line": cut[0]}),) if cut else ()
    return make_table(path, "jsonl", widen(placed) or placed, facts=facts)


def _mended(text: str) -> tuple[str, list[int]]:
    """Blank the lines that a killed writer cut, keeping the row that its successor wrote behind; return their numbers.

    The last line may be cut because it is being written: the parser of lines knows that one.
    """
    lines = text.split("\n")
    bad = [at for at, line in enumerate(lines) if line.lstrip().startswith('{"') and _parsed(line) is None]
    if len(bad) * 2 > len(lines):
        return text, []
    cut = []
    for at in bad:
        behind = _row_behind(lines[at])
        if behind or any(line.strip() for line in lines[at + 1 :]):
            lines[at] = behind
            cut.append(at + 1)
    return "\n".join(lines), cut


def _row_behind(line: str) -> str:
    """Return the whole object at the end of a line, empty where there is none."""
    begin = line.find('{"', 1)
    while begin > 0:
        if isinstance(_parsed(line[begin:]), dict):
            return line[begin:]
        begin = line.find('{"', begin + 1)
    return ""


def _parsed(line: str) -> Any:
    try:
        return json.loads(line)
    except json.JSONDecodeError:
        return None
