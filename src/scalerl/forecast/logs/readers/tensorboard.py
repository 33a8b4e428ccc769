"""Event files of tensorboard, read without its package.

A TFRecord is length (uint64), crc of the length, data, crc of the data. The crc of the length is checked (it recognises
an event file and finds damage); that of the data is not: in pure Python it would take most of the time.
"""

import functools
import struct
from collections.abc import Iterator, Sequence
from pathlib import Path

from scalerl.forecast.logs.frame import Placed, Row
from scalerl.forecast.logs.readers.protobuf import Message, parse
from scalerl.forecast.logs.readers.source import Source

_RECORD = struct.Struct("<QI")
_CRC_BYTES = 4
# TensorProto: data type -> (struct letter, width, field of the typed list)
_TENSOR_FLOATS = {1: ("f", 4, 5), 2: ("d", 8, 6)}
# Field numbers of tensorboard's messages.
_EVENT_TIME, _EVENT_STEP, _EVENT_SUMMARY, _SUMMARY_VALUE = 1, 2, 5, 1
_VALUE_TAG, _VALUE_FLOAT, _VALUE_TENSOR = 1, 2, 8
_TENSOR_TYPE, _TENSOR_CONTENT = 1, 4


def is_event_file(data: bytes) -> bool:
    """Return whether data begins with a record whose length has its checksum."""
    head = data[: _RECORD.size]
    return b"\0" in head and len(head) == _RECORD.size and _RECORD.unpack(head)[1] == _masked_crc32c(head[:8])


def event_rows(source: Source, files: Sequence[Path] = ()) -> Placed:
    """Return one row per file and step, with the folder of the file as its run."""
    root = source.path if source.path.is_dir() else source.path.parent
    placed: Placed = []
    for file in files or (source.path,):
        folder = file.parent.relative_to(root).as_posix()
        for step, row in _scalars_by_step(file, source).items():
            placed.append((f"step {step}", {"run": folder, **row}))
    return placed


def _scalars_by_step(file: Path, source: Source) -> dict[int, Row]:
    """Return the scalars of one file by step, in the order in which they were written."""
    rows: dict[int, Row] = {}
    for record in _records(source.content_of(file), file):
        event = parse(record)
        (wall_time,) = struct.unpack("<d", event.last(_EVENT_TIME, bytes(8)))
        step = event.last(_EVENT_STEP, 0)
        step -= (step >= 1 << 63) << 64
        values = [value for summary in event.messages(_EVENT_SUMMARY) for value in summary.messages(_SUMMARY_VALUE)]
        source.budget.spend(len(values))
        for value in values:
            scalar = _scalar(value)
            if scalar is not None:
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
    view = memoryview(data)
    at = 0
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
