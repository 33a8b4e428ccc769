"""The run folder: its file names, and how its rows are read back.

JSON lines are append-only. A run that is killed leaves at most one cut line, the last; a run that is resumed repeats
steps under a higher `attempt`, and of the rows of one step (and evaluation set) the highest attempt counts.
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

RECIPE = "recipe.json"
METRICS = "metrics.jsonl"
EVALS = "evals.jsonl"
STATUS = "status.json"

Row = dict[str, Any]


def is_run_folder(path: str | Path) -> bool:
    """Whether one of our runs wrote this folder: metrics.jsonl alone says nothing, other trainers write it too."""
    folder = Path(path)
    return folder.is_dir() and ((folder / RECIPE).is_file() or (folder / EVALS).is_file())


def read_evals(folder: str | Path) -> list[Row]:
    """One row an evaluation and set, sorted by step; empty while there is none."""
    return [row for _, row in latest_rows(Path(folder) / EVALS, ("step", "set"))]


def read_metrics(folder: str | Path) -> list[Row]:
    """One row a training step, sorted by step; empty while there is none."""
    return [row for _, row in latest_rows(Path(folder) / METRICS, ("step",))]


def read_recipe(folder: str | Path) -> Row | None:
    """The resolved settings, None where the run has not written them."""
    return _read_object(Path(folder) / RECIPE)


def read_status(folder: str | Path) -> Row | None:
    """Running, done or failed with the reason; None where the run has not said."""
    return _read_object(Path(folder) / STATUS)


def latest_rows(path: Path, keys: Sequence[str]) -> list[tuple[int, Row]]:
    """(line number, row) of the rows that count, one for each value of `keys`, sorted by step."""
    if not path.is_file():
        return []
    latest: dict[tuple[Any, ...], tuple[int, Row]] = {}
    for line, row in parse_lines(path.read_text(encoding="utf-8"), path):
        if not isinstance(row.get("step"), int | float):
            raise ValueError(f"{path}, line {line}: the row has no numeric 'step'")
        key = tuple(row.get(name) for name in keys)
        if key not in latest or row.get("attempt", 0) >= latest[key][1].get("attempt", 0):
            latest[key] = (line, row)
    return sorted(latest.values(), key=lambda item: item[1]["step"])


def parse_lines(text: str, path: Path) -> list[tuple[int, Row]]:
    """(line number, object) for each non-blank JSON line; a last line cut while being written is left out."""
    lines = [(number, line) for number, line in enumerate(text.split("\n"), start=1) if line.strip()]
    rows: list[tuple[int, Row]] = []
    for number, line in lines:
        try:
            row = json.loads(line)
        except json.JSONDecodeError as fault:
            if rows and number == lines[-1][0] and line.lstrip().startswith("{"):
                break
            raise ValueError(f"{path}, line {number}: not JSON ({fault.msg} at column {fault.colno})") from None
        if not isinstance(row, dict):
            raise ValueError(f"{path}, line {number}: a JSON object is needed, not {_short(line)}")
        rows.append((number, row))
    return rows


def _read_object(path: Path) -> Row | None:
    if not path.is_file():
        return None
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except json.JSONDecodeError as fault:
        raise ValueError(f"{path}, line {fault.lineno}: not JSON ({fault.msg})") from None
    if not isinstance(value, dict):
        raise ValueError(f"{path}: a JSON object is needed, not {type(value).__name__}")
    return value


def _short(text: str) -> str:
    return repr(text if len(text) <= 40 else text[:40] + "...")
