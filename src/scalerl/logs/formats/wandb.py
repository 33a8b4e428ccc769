"""The files that wandb keeps on disk, read without wandb: run-*.wandb, or the console output beside it.

A .wandb file is a LevelDB log: blocks of 32 KiB with records of (crc, length, type, data), each a protobuf message.
Only the history is read, that is what was given to `wandb.log`.
"""

import json
import struct
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from scalerl.errors import InputError
from scalerl.logs.formats.console import read_console
from scalerl.logs.formats.protobuf import WIRE_BYTES, WIRE_VARINT, read_fields
from scalerl.logs.table import Table, make_table

_IDENT = b":W&B"
_FILE_HEADER_BYTES = 7
_BLOCK_BYTES = 32768
_HEADER = struct.Struct("<IHB")
_WHOLE, _FIRST, _LAST = 1, 2, 4
# Field numbers of wandb's messages.
_RECORD_HISTORY, _RECORD_RUN = 2, 17
_HISTORY_ITEM, _HISTORY_STEP = 1, 2
_ITEM_KEY, _ITEM_NESTED_KEY, _ITEM_JSON = 1, 2, 16
_RUN_ID, _RUN_NAME = 1, 8


def is_wandb_file(head: bytes) -> bool:
    return head[: len(_IDENT)] == _IDENT


def find_wandb_files(folder: Path) -> list[Path]:
    """Return the .wandb files of a run's folder or of a folder of runs, each file once."""
    files = [*folder.glob("*.wandb"), *folder.glob("*run-*/*.wandb"), *folder.glob("wandb/*run-*/*.wandb")]
    return sorted({file.resolve() for file in files})


def read_wandb_files(path: Path, files: Sequence[Path]) -> Table:
    """Read the history of one run, or of several as separate curves."""
    placed, runs = [], set()
    for file in files:
        run, rows = _history(file)
        runs.add(run)
        placed += [(f"row {number}", {"run": run, **row}) for number, row in enumerate(rows, start=1)]
    printed = [file.parent / "files" / "output.log" for file in files]
    if not placed and len(printed) == 1 and printed[0].is_file():
        text = printed[0].read_text(encoding="utf-8", errors="replace")
        return replace(read_console(printed[0], text), path=path)
    if not placed:
        raise InputError(
            f"{path} holds no logged values yet: wait until the run has logged something, or export a chart as CSV."
        )
    if len(runs) == 1:
        placed = [(place, {key: value for key, value in row.items() if key != "run"}) for place, row in placed]
    return make_table(path, "wandb", placed, apart=("run",) if len(runs) > 1 else ())


def _history(file: Path) -> tuple[str, list[dict[str, Any]]]:
    """Return the run's name and its rows."""
    run, rows = "", []
    for record in _records(file.read_bytes()):
        for field, wire, value in read_fields(memoryview(record)):
            if wire != WIRE_BYTES:
                continue
            if field == _RECORD_HISTORY:
                rows.append(_row(value))
            elif field == _RECORD_RUN:
                texts = {number: bytes(item) for number, kind, item in read_fields(value) if kind == WIRE_BYTES}
                run = (texts.get(_RUN_NAME) or texts.get(_RUN_ID) or b"").decode("utf-8", errors="replace")
    return run or file.parent.name, [row for row in rows if row]


def _row(message: memoryview) -> dict[str, Any]:
    row: dict[str, Any] = {}
    for field, wire, value in read_fields(message):
        if field == _HISTORY_STEP and wire == WIRE_BYTES:
            step = [number for key, kind, number in read_fields(value) if (key, kind) == (1, WIRE_VARINT)]
            row.setdefault("_step", step[0] if step else 0)
        elif field == _HISTORY_ITEM and wire == WIRE_BYTES:
            keys, text = [], "null"
            for number, kind, item in read_fields(value):
                if number in (_ITEM_KEY, _ITEM_NESTED_KEY) and kind == WIRE_BYTES:
                    keys.append(bytes(item).decode("utf-8", errors="replace"))
                elif number == _ITEM_JSON and kind == WIRE_BYTES:
                    text = bytes(item).decode("utf-8", errors="replace")
            row |= _numbers("/".join(keys), text)
    return row


def _numbers(key: str, text: str) -> dict[str, Any]:
    """Return the number under a key; pictures, tables and histograms are left out."""
    try:
        value = json.loads(text)
    except json.JSONDecodeError:
        return {}
    if isinstance(value, str) and value in ("NaN", "Infinity", "-Infinity"):
        value = float(value)
    return {key: value} if isinstance(value, int | float) and not isinstance(value, bool) else {}


def _records(data: bytes) -> Iterator[bytes]:
    """Yield whole records; one that is cut at the end of the file is left out."""
    at, parts = _FILE_HEADER_BYTES, []
    while at + _HEADER.size <= len(data):
        left = _BLOCK_BYTES - at % _BLOCK_BYTES
        if left < _HEADER.size:
            at += left
            continue
        _, length, kind = _HEADER.unpack_from(data, at)
        begin, end = at + _HEADER.size, at + _HEADER.size + length
        if kind == 0 and length == 0:  # the rest of the block is padding
            at += left
            continue
        if end > len(data):
            return
        if kind in (_WHOLE, _FIRST):
            parts = []
        parts.append(data[begin:end])
        if kind in (_WHOLE, _LAST):
            yield b"".join(parts)
        at = end
