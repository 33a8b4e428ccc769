"""JSON documents: the trainer_state.json of transformers and TRL, a list of rows, or an object of columns."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from scalerl.errors import InputError
from scalerl.logs.facts import Fact
from scalerl.logs.table import Table, flatten, make_table

FILE_NAME = "trainer_state.json"


def find_trainer_states(folder: Path) -> list[Path]:
    """Return the state files of a Trainer's output folder: its own and those of its checkpoints."""
    own = folder / FILE_NAME
    checkpoints = sorted(folder.glob(f"checkpoint-*/{FILE_NAME}"), key=lambda path: (len(str(path)), path))
    return [path for path in (*checkpoints, own) if path.is_file()]


def read_json(path: Path, text: str) -> Table:
    """Read the `log_history` of a trainer state, or a list of objects."""
    try:
        value = json.loads(text)
    except json.JSONDecodeError as fault:
        raise InputError(f"{path}, line {fault.lineno}: not JSON ({fault.msg}); mend or remove it.") from None
    rows, kind, unit = value, "jsonl", "row"
    if isinstance(value, dict) and "log_history" not in value:
        rows = rows_of_columns(value) or rows_inside(value)
    elif isinstance(value, dict):
        rows, kind, unit = value["log_history"], "trainer_state", "log_history row"
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise InputError(
            f"{path} is JSON, but neither a list of rows, nor columns of equal length, nor a trainer_state.json with a "
            "log_history."
        )
    return make_table(path, kind, ((f"{unit} {number}", flatten(row)) for number, row in enumerate(rows, start=1)))


def rows_inside(value: Mapping[str, Any]) -> list[dict[str, Any]] | None:
    """Return the one list of rows that an object holds, such as its history; None where there is none or several."""
    lists = [part for part in value.values() if isinstance(part, list) and part and isinstance(part[0], dict)]
    return lists[0] if len(lists) == 1 else None


def rows_of_columns(value: Mapping[str, Any]) -> list[dict[str, Any]] | None:
    """Return the rows of an object of columns, lists of equal length or objects by row as pandas writes them.

    None for any other object.
    """
    parts = list(value.values())
    if all(isinstance(part, dict) for part in parts):
        numbers = [list(part) for part in parts]
        is_table = all(keys == numbers[0] for keys in numbers) and all(key.isdecimal() for key in numbers[0])
        parts = [list(part.values()) for part in parts] if is_table else []
    if not parts or not all(isinstance(part, list) for part in parts) or len({len(part) for part in parts}) > 1:
        return None
    if any(isinstance(cell, list | dict) for part in parts for cell in part):
        return None
    return [dict(zip(value, cells, strict=True)) for cells in zip(*parts, strict=True)]


def read_trainer_folder(folder: Path, files: Sequence[Path]) -> Table:
    """Read the state with the longest history: each checkpoint repeats what was logged before it."""
    best, length, unreadable = files[-1], -1, 0
    for file in files:
        num_rows = _history_length(file)
        unreadable += num_rows is None
        if num_rows is not None and num_rows >= length:
            best, length = file, num_rows
    table = read_json(best, best.read_text(encoding="utf-8-sig"))
    values: dict[str, Any] = {"file": best.relative_to(folder).as_posix(), "num_rows": len(table.rows)}
    values |= {"num_files": len(files), "num_unreadable": unreadable}
    facts = (Fact(kind="longest_history", values=values),) if len(files) > 1 else ()
    return replace(table, path=folder, facts=facts)


def _history_length(file: Path) -> int | None:
    """Return the number of rows; None for a file that is still being written or damaged."""
    try:
        history = json.loads(file.read_text(encoding="utf-8-sig")).get("log_history")
    except (OSError, ValueError, AttributeError):
        return None
    return len(history) if isinstance(history, list) else None
