"""Send and receive messages over a stream socket: a length, then JSON."""

import json
import socket
import struct
from typing import Any

_HEAD = struct.Struct("!Q")

LARGEST_MESSAGE = 16 * 2**20
"""Largest number of bytes in a message. Longer messages are rejected unread."""


class BadMessage(ValueError):
    """The other end sent an invalid or too long message."""


class Closed(EOFError):
    """The other end has closed the connection."""


def send(end: socket.socket, message: Any, most: int = LARGEST_MESSAGE) -> None:
    """Send a message and wait until it is written; BadMessage if it is too long."""
    body = json.dumps(message, separators=(",", ":")).encode()
    if len(body) > most:
        raise BadMessage(f"a message of {len(body)} bytes is too long")
    end.sendall(_HEAD.pack(len(body)) + body)


def receive(end: socket.socket, most: int = LARGEST_MESSAGE) -> Any:
    """Return the next message; Closed if there is none, BadMessage if it cannot be read."""
    (length,) = _HEAD.unpack(_exactly(end, _HEAD.size))
    if length > most:
        raise BadMessage(f"a message of {length} bytes is too long")
    try:
        return json.loads(_exactly(end, length))
    except (ValueError, RecursionError) as error:
        raise BadMessage(f"not JSON: {error}") from None


def _exactly(end: socket.socket, num: int) -> bytes:
    received = bytearray()
    while len(received) < num:
        chunk = end.recv(min(num - len(received), 1 << 20))
        if not chunk:
            raise Closed("the other end is gone")
        received += chunk
    return bytes(received)
