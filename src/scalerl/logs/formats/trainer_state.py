"""JSON documents: the trainer_state.json of transformers and TRL, or a plain list of rows."""

import json
from pathlib import Path

from scalerl.errors import InputError
from scalerl.logs.table import Table, flatten, make_table


def read_json(path: Path, text: str) -> Table:
    """Read the `log_history` of a trainer state, or a list of objects."""
    try:
        value = json.loads(text)
    except json.JSONDecodeError as fault:
        raise InputError(f"{path}, line {fault.lineno}: not JSON ({fault.msg}); mend or remove it.") from None
    rows, kind, unit = value, "jsonl", "row"
    if isinstance(value, dict):
        rows, kind, unit = value.get("log_history"), "trainer_state", "log_history row"
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise InputError(f"{path} is JSON, but neither a list of rows nor a trainer_state.json with a log_history.")
    return make_table(path, kind, ((f"{unit} {number}", flatten(row)) for number, row in enumerate(rows, start=1)))
