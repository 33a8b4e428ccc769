"""Logs of trackers without their packages: tensorboard, wandb, and the databases and folders of trackio and MLflow.

A TFRecord is length (uint64), crc of the length, data, crc of the data. The crc of the length is checked (it recognises
an event file and finds damage); that of the data is not: in pure Python it would take most of the time. A .wandb file
is a LevelDB log: blocks of 32 KiB with records of (crc, length, type, data). Records of both are protobuf messages, of
which a few fields are read. Every loop moves forward in the file or spends the budget.
"""

import json
import sqlite3
import struct
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

from scalerl.errors import InputError
from scalerl.logs.source import Source, bounded_bytes
from scalerl.logs.table import Budget, Placed, flatten

_VARINT, _FIXED_64, _BYTES, _FIXED_32 = 0, 1, 2, 5
_WIDTHS = {_FIXED_64: 8, _FIXED_32: 4}
_MAX_VARINT_BITS = 70


def read_fields(message: memoryview) -> Iterator[tuple[int, int, Any]]:
    """Yield (field number, wire type, value) of a protobuf message: an int for varints, else the bytes."""
    at = 0
    while at < len(message):
        key, at = _varint(message, at)
        field, wire = key >> 3, key & 7
        if wire == _VARINT:
            value, at = _varint(message, at)
            yield field, wire, value
            continue
        if wire == _BYTES:
            width, at = _varint(message, at)
        elif wire in _WIDTHS:
            width = _WIDTHS[wire]
        else:
            raise ValueError(f"unknown wire type {wire}")
        if at + width > len(message):
            raise ValueError("a field runs past the end of its message")
        yield field, wire, message[at : at + width]
        at += width


def _varint(message: memoryview, at: int) -> tuple[int, int]:
    value = 0
    for shift in range(0, _MAX_VARINT_BITS, 7):
        if at >= len(message):
            raise ValueError("a number runs past the end of its message")
        byte = message[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value & 0xFFFFFFFFFFFFFFFF, at
    raise ValueError("a number has more than ten bytes")


def _text(value: memoryview) -> str:
    return bytes(value).decode("utf-8", errors="replace")


# tensorboard

_RECORD = struct.Struct("<QI")
_CRC_BYTES = 4
# TensorProto: data type -> (struct letter, width, field of the typed list)
_TENSOR_FLOATS = {1: ("f", 4, 5), 2: ("d", 8, 6)}


def is_event_file(head: bytes) -> bool:
    """Return whether these first bytes open a TFRecord file."""
    return len(head) >= _RECORD.size and _RECORD.unpack_from(head)[1] == _masked_crc32c(head[:8])


def event_rows(path: Path, files: Sequence[Path], budget: Budget) -> Iterator[Placed]:
    """Yield one row per step and writer. Sub-folders are runs; files of one folder follow each other in time.

    Files of one folder that log different tags are written side by side, and their rows are merged by step.
    """
    folders: dict[Path, list[tuple[float, dict[int, dict[str, Any]]]]] = {}
    for file in files:
        rows = _event_rows_of(file, budget)
        if rows:
            begin = min(row["wall_time"] for row in rows.values())
            folders.setdefault(file.parent, []).append((begin, rows))
    for folder, parts in folders.items():
        label = {"run": folder.relative_to(path).as_posix()} if len(folders) > 1 else {}
        writers: list[dict[int, dict[str, Any]]] = []
        for _, rows in sorted(parts, key=lambda part: part[0]):
            tags = set().union(*rows.values()) - {"step", "wall_time"}
            beside = next((own for own in writers if not tags & set().union(*own.values())), None)
            if beside is None:
                if writers and len(writers[-1]) > 1 and next(iter(rows)) == max(writers[-1]):
                    del writers[-1][max(writers[-1])]  # the last row of a step counts
                writers.append(rows)
                continue
            for step, row in rows.items():
                beside[step] = {**row, **beside.get(step, {})}
        for rows in writers:
            yield from ((f"step {step}", {**label, **row}) for step, row in rows.items())


def _event_rows_of(file: Path, budget: Budget) -> dict[int, dict[str, Any]]:
    """Return the scalars of one file by step, in the order in which they were written."""
    rows: dict[int, dict[str, Any]] = {}
    for record in _records(bounded_bytes(file), file):
        wall_time, step, values = 0.0, 0, []
        budget.spend()
        for field, wire, value in read_fields(record):
            if field == 1 and wire == _FIXED_64:
                wall_time = struct.unpack("<d", value)[0]
            elif field == 2 and wire == _VARINT:
                step = value if value < 1 << 63 else value - (1 << 64)
            elif field == 5 and wire == _BYTES:
                values = [
                    _summary_value(item) for number, kind, item in read_fields(value) if (number, kind) == (1, _BYTES)
                ]
        for tag, scalar in values:
            if scalar is not None:
                rows.setdefault(step, {"step": step}).update({"wall_time": wall_time, tag: scalar})
    return rows


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


def _summary_value(message: memoryview) -> tuple[str, float | None]:
    tag, scalar = "", None
    for field, wire, value in read_fields(message):
        if field == 1 and wire == _BYTES:
            tag = _text(value)
        elif field == 2 and wire == _FIXED_32:
            scalar = float(struct.unpack("<f", value)[0])
        elif field == 8 and wire == _BYTES:
            scalar = _tensor_scalar(value)
    return tag, scalar


def _tensor_scalar(message: memoryview) -> float | None:
    """Return the number in a one-element float tensor, None for any other tensor (text, histograms)."""
    fields = list(read_fields(message))
    kind = next((value for field, wire, value in fields if (field, wire) == (1, _VARINT)), 0)
    if kind not in _TENSOR_FLOATS:
        return None
    letter, width, typed_field = _TENSOR_FLOATS[kind]
    # tensor_content (field 4) and packed or single entries of the typed list hold the same little-endian bytes.
    content = b"".join(bytes(value) for field, wire, value in fields if field in (4, typed_field) and wire != _VARINT)
    return float(struct.unpack(f"<{letter}", content)[0]) if len(content) == width else None


def _crc_table() -> tuple[int, ...]:
    table = []
    for entry in range(256):
        for _ in range(8):
            entry = (entry >> 1) ^ (0x82F63B78 if entry & 1 else 0)
        table.append(entry)
    return tuple(table)


_CRC_TABLE = _crc_table()


def _masked_crc32c(data: bytes) -> int:
    """Return the CRC-32C, rotated and offset as TFRecord stores it."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc = (crc >> 8) ^ _CRC_TABLE[(crc ^ byte) & 0xFF]
    crc ^= 0xFFFFFFFF
    return (((crc >> 15) | (crc << 17)) + 0xA282EAD8) & 0xFFFFFFFF


# wandb: only the history is read, that is what was given to `wandb.log`

WANDB_HEAD = b":W&B"
_FILE_HEADER_BYTES = 7
_BLOCK_BYTES = 32768
_PART = struct.Struct("<IHB")
_WHOLE, _FIRST, _LAST = 1, 2, 4
# Field numbers of wandb's messages.
_RECORD_HISTORY, _RECORD_RUN = 2, 17
_HISTORY_ITEM, _HISTORY_STEP = 1, 2
_ITEM_KEYS, _ITEM_JSON = (1, 2), 16
_RUN_ID, _RUN_NAME = 1, 8


def wandb_rows(files: Sequence[Path], budget: Budget) -> Iterator[Placed]:
    """Yield the history of each run, with the run's name."""
    for file in files:
        run, rows = "", []
        for record in _wandb_records(bounded_bytes(file)):
            for field, wire, value in read_fields(memoryview(record)):
                if wire == _BYTES and field == _RECORD_HISTORY:
                    rows.append(_history_row(value))
                    budget.spend(len(rows[-1]) + 1)
                elif wire == _BYTES and field == _RECORD_RUN:
                    texts = {key: _text(item) for key, kind, item in read_fields(value) if kind == _BYTES}
                    run = texts.get(_RUN_NAME) or texts.get(_RUN_ID) or ""
        run = run or file.parent.name
        yield from ((f"row {number}", {"run": run, **row}) for number, row in enumerate(rows, start=1) if row)


def _history_row(message: memoryview) -> dict[str, Any]:
    row: dict[str, Any] = {}
    for field, wire, value in read_fields(message):
        if field == _HISTORY_STEP and wire == _BYTES:
            step = [number for key, kind, number in read_fields(value) if (key, kind) == (1, _VARINT)]
            row.setdefault("_step", step[0] if step else 0)
        elif field == _HISTORY_ITEM and wire == _BYTES:
            keys, text = [], "null"
            for number, kind, item in read_fields(value):
                if number in _ITEM_KEYS and kind == _BYTES:
                    keys.append(_text(item))
                elif number == _ITEM_JSON and kind == _BYTES:
                    text = _text(item)
            row |= _logged_number("/".join(keys), text)
    return row


def _logged_number(key: str, text: str) -> dict[str, Any]:
    """Return the number under a key; pictures, tables and histograms are left out."""
    try:
        value = json.loads(text)
    except json.JSONDecodeError:
        return {}
    if isinstance(value, str) and value in ("NaN", "Infinity", "-Infinity"):
        value = float(value)
    return {key: value} if isinstance(value, int | float) and not isinstance(value, bool) else {}


def _wandb_records(data: bytes) -> Iterator[bytes]:
    """Yield whole records; one that is cut at the end of the file is left out."""
    at, parts = _FILE_HEADER_BYTES, []
    while at + _PART.size <= len(data):
        left = _BLOCK_BYTES - at % _BLOCK_BYTES
        _, length, kind = _PART.unpack_from(data, at)
        if left < _PART.size or (kind == 0 and length == 0):  # the rest of the block is padding
            at += left
            continue
        begin, at = at + _PART.size, at + _PART.size + length
        if at > len(data):
            return
        if kind in (_WHOLE, _FIRST):
            parts = []
        parts.append(data[begin:at])
        if kind in (_WHOLE, _LAST):
            yield b"".join(parts)


# SQLite: trackio has one file per project and one row per step, MLflow one row per metric; both may be written to now

SQLITE_HEAD = b"SQLite format 3\0"
_OPCODES_PER_CHECK = 10_000
_METRICS = "SELECT name FROM sqlite_master WHERE type = 'table' AND name = 'metrics'"


def sqlite_rows(path: Path, data: bytes, budget: Budget) -> Iterator[Placed]:
    """Yield the rows of the table `metrics`, in the order in which they were logged.

    The content is read into memory, so that no lock is waited for and nothing is written; where a writer keeps its
    newest rows in a file beside it, that file is read too. A view may compute for ever, and is not read.
    """
    refused: list[InputError] = []

    def within_budget() -> int:
        try:
            budget.spend()
        except InputError as fault:
            refused.append(fault)
        return len(refused)

    has_newer = path.with_name(f"{path.name}-wal").exists()
    database = f"file:{quote(str(path.absolute()))}?mode=ro" if has_newer else ":memory:"
    connection = sqlite3.connect(database, uri=True, timeout=0.0)
    connection.row_factory = sqlite3.Row
    try:
        if not has_newer:
            connection.deserialize(data)
        connection.set_progress_handler(within_budget, _OPCODES_PER_CHECK)
        if not connection.execute(_METRICS).fetchall():
            raise InputError(f"{path} is an SQLite database without a table 'metrics', as trackio and MLflow have.")
        for at, logged in enumerate(connection.execute("SELECT * FROM metrics ORDER BY rowid"), start=1):
            row = dict(logged)
            row |= _logged_object(row.pop("metrics", None))
            row = {{"run_name": "run", "run_uuid": "run"}.get(name, name): value for name, value in row.items()}
            budget.spend(len(row))
            yield f"row {at}", {name: value for name, value in row.items() if name not in ("id", "is_nan")}
    except sqlite3.Error as fault:
        raise refused[0] if refused else InputError(f"{path} is a damaged SQLite database ({fault}).") from None
    finally:
        connection.close()


def _logged_object(text: Any) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except (TypeError, ValueError, RecursionError):
        return {}
    return flatten(value) if isinstance(value, dict) else {}


# MLflow's folders: one file per metric, with lines of 'milliseconds value step'


def mlflow_files(source: Source) -> list[Path]:
    """Return the metrics of a run, of an experiment's runs, or of all experiments below a folder."""
    found = source.files(
        *(f"{above}metrics/{below}" for above in ("", "*/", "*/*/", "mlruns/*/*/") for below in ("*", "*/*"))
    )
    return [file for file in found if (_mlflow_run(file) / "meta.yaml").is_file()]


def mlflow_rows(files: Sequence[Path], budget: Budget) -> Iterator[Placed]:
    """Yield one row per step of each run; a run is the folder around `metrics`."""
    for folder in dict.fromkeys(_mlflow_run(file) for file in files):
        rows: dict[str, dict[str, Any]] = {}
        for file in (file for file in files if _mlflow_run(file) == folder):
            for line in bounded_bytes(file).decode("utf-8", errors="replace").splitlines():
                time, value, step = (*line.split()[:3], "", "", "")[:3]
                budget.spend(3)
                name = file.relative_to(folder / "metrics").as_posix()
                if step:
                    rows.setdefault(step, {"step": step, "timestamp": time})[name] = value
        named = folder / "tags" / "mlflow.runName"
        run = named.read_text(encoding="utf-8", errors="replace")[:200].strip() if named.is_file() else folder.name
        ordered = sorted(rows.items(), key=lambda item: (len(item[0]), item[0]))
        yield from ((f"step {step}", {"run": run, **row}) for step, row in ordered)


def _mlflow_run(file: Path) -> Path:
    return next(parent.parent for parent in file.parents if parent.name == "metrics")
