"""Just enough of protobuf to read the records of tensorboard and wandb without their packages."""

from collections.abc import Iterator
from typing import Any

WIRE_VARINT, WIRE_64, WIRE_BYTES, WIRE_32 = 0, 1, 2, 5


def read_fields(message: memoryview) -> Iterator[tuple[int, int, Any]]:
    """Yield (field number, wire type, value) of a message: an int for varints, else the bytes."""
    at = 0
    while at < len(message):
        key, at = _varint(message, at)
        field, wire = key >> 3, key & 7
        if wire == WIRE_VARINT:
            value, at = _varint(message, at)
            yield field, wire, value
            continue
        if wire == WIRE_BYTES:
            width, at = _varint(message, at)
        elif wire in (WIRE_64, WIRE_32):
            width = 8 if wire == WIRE_64 else 4
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
