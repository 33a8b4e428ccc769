"""Scalars from tensorboard event files, without tensorboard: TFRecord framing and the few protobuf fields they need.

A record is length (uint64), crc of the length, data, crc of the data. The crc of the length is checked (it tells an
event file from any other, and a damaged one from a whole one); that of the data is not: in pure Python it would take
most of the time.
"""

import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from scalerl.logs.table import Table, make_table

_HEADER = struct.Struct("<QI")
_CRC_BYTES = 4
_WIRE_VARINT, _WIRE_64, _WIRE_BYTES, _WIRE_32 = 0, 1, 2, 5
# TensorProto: data type -> (struct letter, width, field of the typed list)
_TENSOR_FLOATS = {1: ("f", 4, 5), 2: ("d", 8, 6)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Scalar:
    tag: str
    step: int
    wall_time: float
    value: float


@dataclass(frozen=True, slots=True, kw_only=True)
class EventFile:
    """One file's scalars; `first` and `last` are the wall times of its first and last event of any kind."""

    scalars: tuple[Scalar, ...]
    first: float
    last: float


def read_event_files(path: Path, files: Sequence[Path]) -> Table:
    """Scalars by step; files of one folder are one run, restarted, and sub-folders are runs of their own."""
    folders: dict[str, list[EventFile]] = {}
    for file in files:
        folders.setdefault(file.parent.relative_to(path).as_posix() if file != path else ".", []).append(
            read_events(file)
        )
    placed = []
    for run, parts in folders.items():
        label = {"run": run} if len(folders) > 1 else {}
        steps: dict[int, dict[str, Any]] = {}
        for scalar in sorted(
            (scalar for part in parts for scalar in part.scalars), key=lambda scalar: scalar.wall_time
        ):
            row = steps.setdefault(scalar.step, {"step": scalar.step, **label})
            row |= {"wall_time": scalar.wall_time, scalar.tag: scalar.value}
        for step, row in sorted(steps.items()):
            row["elapsed_s"] = active_seconds(parts, row["wall_time"])
            placed.append((f"step {step}", row))
    return make_table(path, "tensorboard", placed, apart=("run",) if len(folders) > 1 else ())


def is_event_file(head: bytes) -> bool:
    """Whether these first bytes open a TFRecord file."""
    if len(head) < _HEADER.size:
        return False
    _, crc = _HEADER.unpack_from(head)
    return crc == _masked_crc32c(head[:8])


def read_events(path: Path) -> EventFile:
    """All scalars of one file; a last record cut while being written is left out."""
    data = path.read_bytes()
    scalars: list[Scalar] = []
    times: list[float] = []
    for record in _records(data, path):
        try:
            wall_time, found = _event(record)
        except (struct.error, IndexError, ValueError, UnicodeDecodeError) as fault:
            raise ValueError(f"{path}: an event cannot be decoded ({fault})") from None
        times.append(wall_time)
        scalars.extend(found)
    return EventFile(scalars=tuple(scalars), first=min(times, default=0.0), last=max(times, default=0.0))


def active_seconds(files: Sequence[EventFile], wall_time: float) -> float:
    """Seconds until `wall_time` while some file was being written: a run waiting to be restarted costs no compute."""
    total, reached = 0.0, float("-inf")
    for file in sorted(files, key=lambda file: file.first):
        begin, end = max(file.first, reached), min(file.last, wall_time)
        total += max(0.0, end - begin)
        reached = max(reached, file.last)
    return total


def _records(data: bytes, path: Path) -> Iterator[memoryview]:
    view, at = memoryview(data), 0
    while at + _HEADER.size <= len(data):
        length, crc = _HEADER.unpack_from(data, at)
        if crc != _masked_crc32c(data[at : at + 8]):
            # Some file systems pad a torn write with zeros; anything else is damage, and a guess past it loses points.
            if not any(view[at:]):
                return
            raise ValueError(f"{path}: damaged at byte {at} of {len(data)} (the record's length fails its checksum)")
        begin = at + _HEADER.size
        at = begin + length + _CRC_BYTES
        if at > len(data):
            return
        yield view[begin : begin + length]


def _event(record: memoryview) -> tuple[float, list[Scalar]]:
    wall_time, step, values = 0.0, 0, []
    for field, wire, value in _fields(record):
        if field == 1 and wire == _WIRE_64:
            wall_time = struct.unpack("<d", value)[0]
        elif field == 2 and wire == _WIRE_VARINT:
            step = value if value < 1 << 63 else value - (1 << 64)
        elif field == 5 and wire == _WIRE_BYTES:
            values = [
                _summary_value(item) for number, kind, item in _fields(value) if (number, kind) == (1, _WIRE_BYTES)
            ]
    named = [(tag, value) for tag, value in values if value is not None]
    return wall_time, [Scalar(tag=tag, step=step, wall_time=wall_time, value=value) for tag, value in named]


def _summary_value(message: memoryview) -> tuple[str, float | None]:
    tag, scalar = "", None
    for field, wire, value in _fields(message):
        if field == 1 and wire == _WIRE_BYTES:
            tag = bytes(value).decode("utf-8")
        elif field == 2 and wire == _WIRE_32:
            scalar = float(struct.unpack("<f", value)[0])
        elif field == 8 and wire == _WIRE_BYTES:
            scalar = _tensor_scalar(value)
    return tag, scalar


def _tensor_scalar(message: memoryview) -> float | None:
    """The number in a one-element float tensor, None for any other tensor (text, histograms)."""
    fields = list(_fields(message))
    kind = next((value for field, wire, value in fields if (field, wire) == (1, _WIRE_VARINT)), 0)
    if kind not in _TENSOR_FLOATS:
        return None
    letter, width, typed_field = _TENSOR_FLOATS[kind]
    # tensor_content (field 4) and packed or single entries of the typed list hold the same little-endian bytes.
    content = b"".join(
        bytes(value) for field, wire, value in fields if field in (4, typed_field) and wire != _WIRE_VARINT
    )
    return float(struct.unpack(f"<{letter}", content)[0]) if len(content) == width else None


def _fields(message: memoryview) -> Iterator[tuple[int, int, Any]]:
    """(field number, wire type, value) of a protobuf message: an int for varints, else the bytes."""
    at = 0
    while at < len(message):
        key, at = _varint(message, at)
        field, wire = key >> 3, key & 7
        if wire == _WIRE_VARINT:
            value, at = _varint(message, at)
            yield field, wire, value
            continue
        if wire == _WIRE_BYTES:
            width, at = _varint(message, at)
        elif wire in (_WIRE_64, _WIRE_32):
            width = 8 if wire == _WIRE_64 else 4
        else:
            raise ValueError(f"unknown wire type {wire}")
        if at + width > len(message):
            raise ValueError("a field runs past the end of its message")
        yield field, wire, message[at : at + width]
        at += width


def _varint(message: memoryview, at: int) -> tuple[int, int]:
    value, shift = 0, 0
    while True:
        byte = message[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value & 0xFFFFFFFFFFFFFFFF, at
        shift += 7


def _crc_table() -> tuple[int, ...]:
    table = []
    for entry in range(256):
        for _ in range(8):
            entry = (entry >> 1) ^ (0x82F63B78 if entry & 1 else 0)
        table.append(entry)
    return tuple(table)


_CRC_TABLE = _crc_table()


def _masked_crc32c(data: bytes) -> int:
    """CRC-32C, rotated and offset as TFRecord stores it."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc = (crc >> 8) ^ _CRC_TABLE[(crc ^ byte) & 0xFF]
    crc ^= 0xFFFFFFFF
    return (((crc >> 15) | (crc << 17)) + 0xA282EAD8) & 0xFFFFFFFF
