"""Protobuf messages: the few fields that are read of the files of tensorboard and wandb."""

from typing import Any

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
        kind = key & 7
        if kind == _VARINT:
            value, at = _varint(message, at)
        else:
            width, at = _varint(message, at) if kind == _BYTES else (_WIDTHS[kind], at)
            if at + width > len(message):
                raise ValueError("a field runs past the end of its message")
            value = bytes(message[at : at + width])
            at += width
        fields.setdefault(key >> 3, []).append(value)
    return fields


def _varint(message: bytes | memoryview, at: int) -> tuple[int, int]:
    """Return the number that begins at a place, and the place behind it."""
    value = 0
    for shift in range(0, _MAX_VARINT_BITS, 7):
        byte = message[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value & 0xFFFFFFFFFFFFFFFF, at
    raise ValueError("a number has more than ten bytes")
