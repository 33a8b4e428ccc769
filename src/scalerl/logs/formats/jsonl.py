"""JSON lines: tinker-cookbook, prime-rl, verl's file logger and any other trainer that writes one object per line."""

from pathlib import Path

from scalerl import store
from scalerl.logs.table import Table, flatten, make_table


def read_lines(path: Path, text: str) -> Table:
    """Read one row per line; a last line that is still being written is left out."""
    placed = []
    for line, row in store.parse_lines(text, path):
        if row.keys() == {"step", "data"} and isinstance(row["data"], dict):  # verl's file logger
            row = {"step": row["step"], **row["data"]}
        placed.append((f"line {line}", flatten(row)))
    return make_table(path, "jsonl", placed)
