"""The messages between the processes of a grader pool: the pool, its supervisor and the workers.

A frame is a kind, the number of a grader, the number of an item and a body. Sockets never block: data that cannot be
sent yet stays in the channel's buffer, so that no two processes wait for each other.
"""

import enum
import select
import socket
import struct
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from typing import NamedTuple


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """The number of workers, and the limits for grading one item."""

    num_workers: int
    timeout_s: float
    cpu_limit_s: float
    memory_limit_mb: int
    max_calls: int = 64
    """Calls of coroutine functions under way at the same time."""


class Kind(enum.IntEnum):
    """What a frame says. From VALUE on it is how the grading of an item ended."""

    LOAD = enum.auto()
    LOADED = enum.auto()
    """The body says why not; empty where all is well."""
    GRADE = enum.auto()
    STARTED = enum.auto()
    FAILED = enum.auto()
    """The supervisor cannot go on; the body says why."""
    VALUE = enum.auto()
    """The body is the value, from 0 (wrong) to 1 (right), packed by VALUE, and the name of its outcome, if any."""
    NO_ANSWER = enum.auto()
    """The body is the name of its outcome, if any."""
    TIMEOUT = enum.auto()
    CRASH = enum.auto()
    MEMORY = enum.auto()
    ERROR = enum.auto()
    """The body is the exception."""


class Frame(NamedTuple):
    kind: Kind
    number: int = 0
    body: bytes = b""
    grader: int = 0


VALUE = struct.Struct("!d")

_HEAD = struct.Struct("!BQII")
_CHUNK = 1 << 18


class Channel:
    """Frames over one end of a stream socket."""

    def __init__(self, end: socket.socket) -> None:
        end.setblocking(False)
        self._end = end
        self._received = bytearray()
        self._unsent = bytearray()
        self.closed = False
        """Whether the other end is closed and everything it sent has been received."""

    def fileno(self) -> int:
        return self._end.fileno()

    @property
    def has_unsent(self) -> bool:
        return bool(self._unsent)

    def send(self, frame: Frame) -> None:
        """Queue a frame and send as much as possible without waiting."""
        self._unsent += _HEAD.pack(frame.kind, frame.number, frame.grader, len(frame.body)) + frame.body
        self.flush()

    def flush(self) -> None:
        try:
            while self._unsent:
                del self._unsent[: self._end.send(self._unsent[:_CHUNK])]
        except BlockingIOError:
            pass
        except OSError:
            # The other end is closed; receive() reports that after returning what was sent before.
            self._unsent.clear()

    def send_all(self, frame: Frame) -> None:
        """Send a frame and wait until all of it is sent."""
        self.send(frame)
        while self._unsent:
            wait([self], None, receiving=False)
            self.flush()

    def receive(self) -> list[Frame]:
        """Return the frames that have arrived."""
        try:
            while chunk := self._end.recv(_CHUNK):
                self._received += chunk
                if len(chunk) < _CHUNK:
                    return self._frames()
            self.closed = True
        except BlockingIOError:
            pass
        except OSError:
            self.closed = True
        return self._frames()

    def close(self) -> None:
        self._end.close()

    def _frames(self) -> list[Frame]:
        frames, at = [], 0
        while len(self._received) >= at + _HEAD.size:
            kind, number, grader, length = _HEAD.unpack_from(self._received, at)
            end = at + _HEAD.size + length
            if len(self._received) < end:
                break
            frames.append(Frame(Kind(kind), number, bytes(self._received[at + _HEAD.size : end]), grader))
            at = end
        del self._received[:at]
        return frames


def wait(channels: Iterable[Channel], timeout_s: float | None, *, receiving: bool = True) -> list[Channel]:
    """Wait until a channel can receive, or can send what it has queued; return the channels that can."""
    # Not select.select: a process that trains has more than 1024 open files.
    poller = select.poll()
    by_file = {channel.fileno(): channel for channel in channels}
    for file, channel in by_file.items():
        poller.register(file, (select.POLLIN if receiving else 0) | (select.POLLOUT if channel.has_unsent else 0))
    milliseconds = None if timeout_s is None else 1e3 * max(0.0, timeout_s)
    with suppress(InterruptedError):
        return [by_file[file] for file, _ in poller.poll(milliseconds)]
    return []
