"""Files of trackers, read without their packages: tensorboard's events, wandb, and databases of trackio and MLflow.

A TFRecord is length (uint64), crc of the length, data, crc of the data. The crc of the length is checked (it recognises
an event file and finds damage); that of the data is not: in pure Python it would take most of the time. A .wandb file
is a LevelDB log: blocks of 32 KiB with records of (crc, length, type, data). Records of both are protobuf messages, of
which a few fields are read. Every loop moves forward in the file or spends the budget.
"""

import functools
import struct
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from scalerl.errors import InputError
from scalerl.forecast.logs.columns import are_splits
from scalerl.forecast.logs.frame import Placed, Row
from scalerl.forecast.logs.readers.objects import metrics_of
from scalerl.forecast.logs.readers.source import MAX_BYTES, MAX_COLUMNS, Source, bounded_bytes
from scalerl.runfolder.json_text import parse_or_none

if TYPE_CHECKING:
    import sqlite3

_VARINT, _BYTES = 0, 2
_WIDTHS = {1: 8, 5: 4}
_MAX_VARINT_BITS = 70


class Message(dict[int, list[Any]]):
    """The fields of a protobuf message by their number: integers for varints, else bytes."""

    def last(self, field: int, default: Any) -> Any:
        return self.get(field, [default])[-1]

    def text(self, field: int) -> str:
        return self.last(field, b"").decode("utf-8", errors="replace")

    def messages(self, field: int) -> list["Message"]:
        return [parse(message) for message in self.get(field, ())]


def parse(message: bytes | memoryview) -> Message:
    """Return the fields of a protobuf message."""
    fields = Message()
    at = 0
    while at < len(message):
        key, at = _varint(message, at)
        value, end = _varint(message, at) if key & 7 in (_VARINT, _BYTES) else (0, at)
        if key & 7 != _VARINT:
            begin, end = end, end + (value if key & 7 == _BYTES else _WIDTHS[key & 7])
            if end > len(message):
                raise ValueError("a field runs past the end of its message")
            value = bytes(message[begin:end])
        fields.setdefault(key >> 3, []).append(value)
        at = end
    return fields


def _varint(message: bytes | memoryview, at: int) -> tuple[int, int]:
    value = 0
    for shift in range(0, _MAX_VARINT_BITS, 7):
        byte = message[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value & 0xFFFFFFFFFFFFFFFF, at
    raise ValueError("a number has more than ten bytes")


def _content(file: Path, source: Source) -> bytes:
    """Return the content of a file; that of the source itself is read once, for a pipe is empty then."""
    return source.data if file == source.path else bounded_bytes(file)


# tensorboard

_RECORD = struct.Struct("<QI")
_CRC_BYTES = 4
# TensorProto: data type -> (struct letter, width, field of the typed list)
_TENSOR_FLOATS = {1: ("f", 4, 5), 2: ("d", 8, 6)}
# Field numbers of tensorboard's messages.
_EVENT_TIME, _EVENT_STEP, _EVENT_SUMMARY, _SUMMARY_VALUE = 1, 2, 5, 1
_VALUE_TAG, _VALUE_FLOAT, _VALUE_TENSOR = 1, 2, 8
_TENSOR_TYPE, _TENSOR_CONTENT = 1, 4


def event_file_rows(source: Source) -> Placed | None:
    """Return the rows of an event file: it begins with a record whose length has its checksum."""
    data = source.data[: _RECORD.size]
    is_record = b"\0" in data and len(data) == _RECORD.size and _RECORD.unpack(data)[1] == _masked_crc32c(data[:8])
    return event_rows(source) if is_record else None


def event_rows(source: Source, files: Sequence[Path] = ()) -> Placed:
    """Return one row per file and step. Sub-folders are runs, or training and its evaluations where named so."""
    rows_of = {file: rows for file in files or (source.path,) if (rows := _events_by_step(file, source))}
    folders = {file.parent for file in rows_of}
    label = "split" if len(folders) > 1 and are_splits(folder.name for folder in folders) else "run"
    root = source.path if source.path.is_dir() else source.path.parent
    return [
        (f"step {step}", {label: file.parent.relative_to(root).as_posix(), **row})
        for file, rows in rows_of.items()
        for step, row in rows.items()
    ]


def _events_by_step(file: Path, source: Source) -> dict[int, Row]:
    """Return the scalars of one file by step, in the order in which they were written."""
    rows: dict[int, Row] = {}
    for record in _records(_content(file, source), file):
        source.spend()
        event = parse(record)
        (wall_time,) = struct.unpack("<d", event.last(_EVENT_TIME, bytes(8)))
        step = event.last(_EVENT_STEP, 0)
        step -= (step >= 1 << 63) << 64
        values = [value for summary in event.messages(_EVENT_SUMMARY) for value in summary.messages(_SUMMARY_VALUE)]
        for value in values:
            if (scalar := _scalar(value)) is not None:
                row = rows.setdefault(step, {"step": step})
                row |= {"wall_time": wall_time, value.text(_VALUE_TAG): scalar}
    return rows


def _scalar(value: Message) -> float | None:
    """Return the number of a value: a float, or a tensor with one; None for any other (text, histograms)."""
    if _VALUE_FLOAT in value:
        return struct.unpack("<f", value.last(_VALUE_FLOAT, b""))[0]
    tensor = parse(value.last(_VALUE_TENSOR, b""))
    letter, width, typed_field = _TENSOR_FLOATS.get(tensor.last(_TENSOR_TYPE, 0), ("", 0, 0))
    # tensor_content and packed or single entries of the typed list hold the same little-endian bytes.
    content = b"".join([*tensor.get(_TENSOR_CONTENT, []), *tensor.get(typed_field, [])])
    return struct.unpack(f"<{letter}", content)[0] if letter and len(content) == width else None


def _records(data: bytes, path: Path) -> Iterator[memoryview]:
    view, at = memoryview(data), 0
    while at + _RECORD.size <= len(data):
        length, crc = _RECORD.unpack_from(data, at)
        if crc != _masked_crc32c(data[at : at + 8]):
            # Some file systems pad a torn write with zeros; anything else is damage, and a guess past it loses points.
            if not any(view[at:]):
                return
            raise ValueError(f"{path}: damaged at byte {at} of {len(data)} (the record's length fails its checksum)")
        begin = at + _RECORD.size
        at = begin + length + _CRC_BYTES
        if at > len(data):
            return
        yield view[begin : begin + length]


@functools.lru_cache(maxsize=1024)
def _masked_crc32c(data: bytes) -> int:
    """Return the CRC-32C, rotated and offset as TFRecord stores it."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = (crc >> 1) ^ (0x82F63B78 * (crc & 1))
    crc ^= 0xFFFFFFFF
    return (((crc >> 15) | (crc << 17)) + 0xA282EAD8) & 0xFFFFFFFF


# wandb: only the history is read, that is what was given to `wandb.log`

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
        run, rows = file.parent.name, list[Row]()
        for record in map(parse, _wandb_records(_content(file, source))):
            source.spend()
            for message in record.messages(_RECORD_RUN):
                run = message.text(_RUN_NAME) or message.text(_RUN_ID) or run
            rows += map(_history_row, record.messages(_RECORD_HISTORY))
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
    values = {key: _NOT_FINITE.get(value) if isinstance(value, str) else value for key, value in row.items()}
    return {key: value for key, value in values.items() if type(value) in (int, float)}


def _wandb_records(data: bytes) -> Iterator[bytes]:
    """Yield whole records; one that is cut at the end of the file is left out."""
    at, parts = _FILE_HEADER_BYTES, []
    while at + _PART.size <= len(data):
        left = _BLOCK_BYTES - at % _BLOCK_BYTES
        _, length, kind = _PART.unpack_from(data, at)
        if left < _PART.size or kind == length == 0:  # the rest of the block is padding
            at += left
            continue
        begin, at = at + _PART.size, at + _PART.size + length
        if at > len(data):
            return
        parts = [] if kind in (_WHOLE, _FIRST) else parts
        parts.append(data[begin:at])
        if kind in (_WHOLE, _LAST):
            yield b"".join(parts)


# SQLite: trackio has one file per project and one row per step, MLflow one row per metric; both may be written to now

_SQLITE_NAMES = {"run_name": "run", "run_uuid": "run", "run_id": "", "id": "", "is_nan": ""}
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
            connection.set_progress_handler(source.spend, _STEPS_BETWEEN_LOOKS)
            if not connection.execute(_METRICS).fetchall():
                raise InputError(
                    f"{source.path} is an SQLite database without a table 'metrics', as trackio and MLflow have."
                )
            placed: Placed = []
            num_characters = 0
            for at, row in enumerate(connection.execute("SELECT * FROM metrics ORDER BY rowid"), start=1):
                source.spend(len(row))
                num_characters += sum(len(value) for value in row if isinstance(value, str | bytes))
                source.limit(num_characters, MAX_BYTES, "characters")
                placed.append((f"row {at}", _sqlite_row(dict(row))))
            return placed
    except sqlite3.Error as fault:
        if getattr(fault, "sqlite_errorcode", None) == sqlite3.SQLITE_BUSY:
            raise InputError(f"{source.path} is locked by a program that writes to it: read it later.") from None
        source.spend()
        raise InputError(f"{source.path} is a damaged SQLite database ({fault}).") from None


def _sqlite_row(row: Row) -> Row:
    metrics = parse_or_none(row.pop("metrics", None))
    named = {_SQLITE_NAMES.get(name, name): value for name, value in row.items()}
    named.pop("", None)
    return named | (metrics_of(metrics) if isinstance(metrics, dict) else {})


def _opened(path: Path) -> "sqlite3.Connection":
    """Open a database so that nothing is written and no lock is waited for.

    Without a file beside it in which a writer keeps its newest rows it counts as one that nobody changes.
    """
    import sqlite3

    if not path.is_file():
        raise InputError(f"{path} is a pipe, from which no SQLite database can be read: write it to a file first.")
    how = "mode=ro" if path.with_name(f"{path.name}-wal").exists() else "immutable=1"
    return sqlite3.connect(f"file:{quote(str(path.absolute()))}?{how}", uri=True, timeout=0.1)


# Parquet, as wandb's exports of a history


def parquet_rows(source: Source) -> Placed:
    """Return the rows of a Parquet file, if pyarrow is installed."""
    try:
        from pyarrow import BufferReader, parquet
    except ModuleNotFoundError:
        raise InputError(f"{source.path} is Parquet, which needs pyarrow: pip install pyarrow, or give CSV.") from None
    file = parquet.ParquetFile(BufferReader(source.data))
    source.limit(len(file.schema_arrow), MAX_COLUMNS, "columns")
    source.spend(file.metadata.num_rows * len(file.schema_arrow))
    return [(f"row {at}", metrics_of(row)) for at, row in enumerate(file.read().to_pylist(), start=1)]
