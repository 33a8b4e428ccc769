"""The containers of logs, each with a cheap test of the content that recognises it, in the order of trial.

Content decides, not the name of a file. A container may hold text that was printed: the cells of a notebook, or rows of
a log driver such as {"log": "step 3 ...", "time": ...}. Such text is read again, by the same readers.
"""

import re
from collections.abc import Callable, Iterator

from scalerl.errors import InputError
from scalerl.forecast.logs.frame import Placed
from scalerl.forecast.logs.readers.console import console_tables
from scalerl.forecast.logs.readers.delimited import delimited_tables
from scalerl.forecast.logs.readers.notebook import is_notebook, printed_by_cells
from scalerl.forecast.logs.readers.objects import document_tables, line_tables
from scalerl.forecast.logs.readers.parquet import parquet_rows
from scalerl.forecast.logs.readers.source import Source, Table
from scalerl.forecast.logs.readers.sqlite import sqlite_rows
from scalerl.forecast.logs.readers.tensorboard import event_rows, is_event_file
from scalerl.forecast.logs.readers.wandb import wandb_rows

Rows = Callable[[Source], Placed]
Tables = Callable[[Source], Iterator[list[Table]]]

BINARY: dict[str, tuple[Callable[[bytes], bool], Rows]] = {
    "wandb": (lambda data: data.startswith(b":W&B"), wandb_rows),
    "tensorboard": (is_event_file, event_rows),
    "sqlite": (lambda data: data.startswith(b"SQLite format 3"), sqlite_rows),
    "parquet": (lambda data: data.startswith(b"PAR1"), parquet_rows),
}
TEXT: dict[str, Tables] = {
    "json": document_tables,
    "jsonl": line_tables,
    "csv": delimited_tables,
    "console": console_tables,
}

# What a line that was printed is called, inside the other things that are said about it.
_LINE_NAMES = ("log", "message", "msg", "textpayload", "line", "text", "@message")
# A value with its name, anywhere in a cell.
_SAID = re.compile(r"(?<![\w./@-])[A-Za-z_][\w./@-]{0,80}+['\"]?\s{0,3}[:=]?\s{0,3}['\"]?[-+]?\.?\d")
# With a sign between them, as prose hardly ever has it.
_SAID_PLAINLY = re.compile(_SAID.pattern.replace("[:=]?", "[:=]"))
_MAX_LINE = 2_000


def tables_in(source: Source) -> Iterator[list[Table]]:
    """Yield the tables that a file may be read as, those that belong together in one list, the likeliest first."""
    for kind, (is_one, rows_of) in BINARY.items():
        if is_one(source.data):
            yield [Table(kind, rows_of(source))]
            return
    if is_notebook(source.data):
        printed = printed_by_cells(source.data)
        if not printed.strip():
            raise InputError(
                f"{source.path} is a notebook without output: run it, and save it with what its cells print."
            )
        yield from tables_in(source.inside(printed))
        return
    for read in TEXT.values():
        is_one = False
        for tables in read(source):
            is_one = True
            yield tables
            for table in tables:
                if table.kind != "console" and (printed := printed_in(table.rows)):
                    yield from tables_in(source.inside(printed))
        if is_one:
            return


def printed_in(rows: Placed) -> str:
    """Return the cells of the column that holds printed lines; "" if there is none."""
    columns: dict[str, list[str]] = {}
    for _, row in rows:
        for name, cell in row.items():
            if isinstance(cell, str) and (" " in cell or "=" in cell or "{" in cell):
                columns.setdefault(name, []).append(cell)
    num_said: dict[str, int] = {}
    for name, cells in columns.items():
        is_named = name.lower().rpartition("/")[2] in _LINE_NAMES
        pattern = _SAID if is_named else _SAID_PLAINLY
        num = sum(pattern.search(cell[:_MAX_LINE]) is not None for cell in cells)
        num_said[name] = num if num > (1 if is_named else len(rows) / 2) else 0
    name = max(num_said, key=num_said.__getitem__, default="")
    if not name or not num_said[name]:
        return ""
    return "".join(f"{cell.rstrip()}\n" for cell in columns[name])
