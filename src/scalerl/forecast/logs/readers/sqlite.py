"""SQLite databases of trackers: trackio has one per project and one row per step, MLflow one row per metric."""

from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote

from scalerl.errors import InputError
from scalerl.forecast.logs.frame import Placed, Row
from scalerl.forecast.logs.readers.objects import metrics_of
from scalerl.forecast.logs.readers.source import MAX_BYTES, Source
from scalerl.runfolder.json_text import parse_or_none

if TYPE_CHECKING:
    import sqlite3

_NAMES = {"run_name": "run", "run_uuid": "run"}
_UNUSED = frozenset({"run_id", "id", "is_nan"})
_LONGEST_VALUE = 1 << 20
_STEPS_BETWEEN_LOOKS = 100_000
_METRICS = "SELECT name FROM sqlite_master WHERE type = 'table' AND name = 'metrics'"


def sqlite_rows(source: Source) -> Placed:
    """Return the rows of the table `metrics`, in the order in which they were logged; a view is none."""
    import sqlite3

    try:
        with closing(_opened(source.path)) as connection:
            connection.row_factory = sqlite3.Row
            # A stranger's table may compute its values.
            connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, _LONGEST_VALUE)
            connection.set_progress_handler(source.budget.spend, _STEPS_BETWEEN_LOOKS)
            if not connection.execute(_METRICS).fetchall():
                raise InputError(
                    f"{source.path} is an SQLite database without a table 'metrics', as trackio and MLflow have."
                )
            placed: Placed = []
            num_characters = 0
            for at, row in enumerate(connection.execute("SELECT * FROM metrics ORDER BY rowid"), start=1):
                num_characters += sum(len(value) for value in row if isinstance(value, str | bytes))
                source.budget.limit(num_characters, MAX_BYTES, "characters")
                cells = _cells(dict(row))
                source.budget.spend(len(cells) + 1)
                placed.append((f"row {at}", cells))
            return placed
    except sqlite3.Error as fault:
        if getattr(fault, "sqlite_errorcode", None) == sqlite3.SQLITE_BUSY:
            raise InputError(f"{source.path} is locked by a program that writes to it: read it later.") from None
        source.budget.spend()
        raise InputError(f"{source.path} is a damaged SQLite database ({fault}).") from None


def _cells(row: Row) -> Row:
    """Return a row with the names of its columns as logs have them; trackio's metrics are an object in one cell."""
    metrics = parse_or_none(row.pop("metrics", None))
    cells = {_NAMES.get(name, name): value for name, value in row.items() if name not in _UNUSED}
    return cells | (metrics_of(metrics) if isinstance(metrics, dict) else {})


def _opened(path: Path) -> "sqlite3.Connection":
    """Open a database so that nothing is written and no lock is waited for.

    Without a file beside it in which a writer keeps its newest rows it counts as one that nobody changes.
    """
    import sqlite3

    if not path.is_file():
        raise InputError(f"{path} is a pipe, from which no SQLite database can be read: write it to a file first.")
    how = "mode=ro" if path.with_name(f"{path.name}-wal").exists() else "immutable=1"
    return sqlite3.connect(f"file:{quote(str(path.absolute()))}?{how}", uri=True, timeout=0.1)
