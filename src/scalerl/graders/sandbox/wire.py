"""Messages over a stream socket: a length, then JSON. Descriptors may travel with a message."""

import json
import socket
import struct
from collections.abc import Sequence
from typing import Any

_HEAD = struct.Struct("!I")

LARGEST_MESSAGE = 16 * 2**20
"""Bytes. A longer message is refused unread; so is a return value that needs one."""


class BadMessage(ValueError):
    """The other end sent something that is not a message, or more than is accepted."""


class Closed(EOFError):
    """The other end is gone."""


def send(end: socket.socket, message: Any, descriptors: Sequence[int] = ()) -> None:
    """Send a message and wait until it is written. BadMessage where it is too long."""
    body = json.dumps(message, separators=(",", ":")).encode()
    if len(body) > LARGEST_MESSAGE:
        raise BadMessage(f"a message of {len(body)} bytes is too long")
    head = _HEAD.pack(len(body))
    if descriptors:
        socket.send_fds(end, [head], list(descriptors))
        end.sendall(body)
    else:
        end.sendall(head + body)


def receive(end: socket.socket) -> Any:
    """Return the next message. Closed where there is none, BadMessage where it cannot be read."""
    (length,) = _HEAD.unpack(_exactly(end, _HEAD.size))
    return _parse(end, length)


def receive_with_descriptors(end: socket.socket, most: int) -> tuple[Any, list[int]]:
    """Return the next message and the descriptors that came with it."""
    head, descriptors, _, _ = socket.recv_fds(end, _HEAD.size, most)
    if not head:
        raise Closed("the other end is gone")
    head += _exactly(end, _HEAD.size - len(head))
    (length,) = _HEAD.unpack(head)
    return _parse(end, length), descriptors


def _parse(end: socket.socket, length: int) -> Any:
    if length > LARGEST_MESSAGE:
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
