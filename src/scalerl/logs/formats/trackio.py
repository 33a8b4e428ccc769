"""trackio's local database, one SQLite file per project, read without trackio while runs are being logged to it."""

import json
import sqlite3
from pathlib import Path
from typing import Any
from urllib.parse import quote

from scalerl.errors import InputError
from scalerl.logs.table import Table, flatten, make_table

_HEAD = b"SQLite format 3\0"


def is_database(head: bytes) -> bool:
    return head[: len(_HEAD)] == _HEAD


def read_trackio(path: Path) -> Table:
    """Read what was logged, in the order in which it was; runs are separate curves."""
    placed, runs = [], set()
    for number, (run, step, text) in enumerate(_logged(path), start=1):
        row = _values(text)
        if row:
            runs.add(run)
            placed.append((f"row {number}", {"run": run, "step": step, **row}))
    if not placed:
        raise InputError(f"{path} holds no logged values yet: wait until a run has logged something.")
    if len(runs) == 1:
        placed = [(place, {key: value for key, value in row.items() if key != "run"}) for place, row in placed]
    return make_table(path, "trackio", placed, apart=("run",) if len(runs) > 1 else ())


def _logged(path: Path) -> list[tuple[str, int, str]]:
    """Return (run, step, values as JSON) of each row, without ever writing to the database."""
    for mode in ("mode=ro", "immutable=1"):  # the second where the folder may not be written: without the newest rows
        try:
            connection = sqlite3.connect(f"file:{quote(str(path.absolute()))}?{mode}", uri=True, timeout=2.0)
        except sqlite3.Error:
            continue
        try:
            return connection.execute("SELECT run_name, step, metrics FROM metrics ORDER BY id").fetchall()
        except sqlite3.OperationalError as fault:
            if "no such" in str(fault):
                break
        except sqlite3.DatabaseError:
            break
        finally:
            connection.close()
    raise InputError(
        f"{path} is an SQLite database that trackio did not write: give a log or a trackio project's file."
    )


def _values(text: Any) -> dict[str, Any]:
    try:
        row = json.loads(text)
    except (TypeError, ValueError):
        return {}
    return flatten(row) if isinstance(row, dict) else {}
