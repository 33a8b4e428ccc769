"""Files of wandb, read without its package: only the history, that is what was given to `wandb.log`.

A .wandb file is a LevelDB log: blocks of 32 KiB with records of (crc, length, type, data), which are protobuf messages.
"""

import struct
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from scalerl.forecast.logs.frame import Placed, Row
from scalerl.forecast.logs.readers.protobuf import Message, parse
from scalerl.forecast.logs.readers.source import Source
from scalerl.runfolder.json_text import parse_or_none

_FILE_HEADER_BYTES = 7
_BLOCK_BYTES = 32768
_PART = struct.Struct("<IHB")
_WHOLE, _FIRST, _LAST = 1, 2, 4
# Field numbers of wandb's messages.
_RECORD_HISTORY, _RECORD_RUN = 2, 17
_HISTORY_ITEM, _HISTORY_STEP, _STEP_NUMBER = 1, 2, 1
_ITEM_KEY, _ITEM_NESTED_KEY, _ITEM_JSON = 1, 2, 16
_RUN_ID, _RUN_NAME = 1, 8
_NOT_FINITE = {"NaN": float("nan"), "Infinity": float("inf"), "-Infinity": float("-inf")}


def wandb_rows(source: Source, files: Sequence[Path] = ()) -> Placed:
    """Return the history of each run, with the run's name."""
    placed: Placed = []
    for file in dict.fromkeys(file.resolve() for file in files) or (source.path,):
        run = file.parent.name
        rows: list[Row] = []
        for record in map(parse, _records(source.content_of(file))):
            for message in record.messages(_RECORD_RUN):
                run = message.text(_RUN_NAME) or message.text(_RUN_ID) or run
            for history in record.messages(_RECORD_HISTORY):
                row = _history_row(history)
                source.budget.spend(len(row) + 1)
                rows.append(row)
            source.budget.spend()
        placed += [(f"row {at}", {"run": run, **row}) for at, row in enumerate(rows, start=1) if row]
    return placed


def _history_row(history: Message) -> Row:
    """Return the numbers of one row of a history."""
    row: Row = {}
    for step in history.messages(_HISTORY_STEP):
        row["_step"] = step.last(_STEP_NUMBER, 0)
    for item in history.messages(_HISTORY_ITEM):
        keys = [*item.get(_ITEM_KEY, []), *item.get(_ITEM_NESTED_KEY, [])]
        row[b"/".join(keys).decode("utf-8", errors="replace")] = parse_or_none(item.text(_ITEM_JSON))
    return numbers_of(row)


def numbers_of(row: Mapping[str, Any]) -> Row:
    """Return the numbers of a row, also those that JSON cannot write; pictures, tables and words are left out."""
    numbers: Row = {}
    for key, value in row.items():
        number = _NOT_FINITE.get(value) if isinstance(value, str) else value
        if type(number) in (int, float):
            numbers[key] = number
    return numbers


def _records(data: bytes) -> Iterator[bytes]:
    """Yield whole records; one that is cut at the end of the file is left out."""
    at = _FILE_HEADER_BYTES
    parts: list[bytes] = []
    while at + _PART.size <= len(data):
        left = _BLOCK_BYTES - at % _BLOCK_BYTES
        _, length, kind = _PART.unpack_from(data, at)
        if left < _PART.size or kind == length == 0:  # the rest of the block is padding
            at += left
            continue
        begin = at + _PART.size
        at = begin + length
        if at > len(data):
            return
        if kind in (_WHOLE, _FIRST):
            parts = []
        parts.append(data[begin:at])
        if kind in (_WHOLE, _LAST):
            yield b"".join(parts)
