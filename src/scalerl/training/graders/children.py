"""The trainer's side of forked processes (supervisor.py): start it, send orders and read its messages."""

import math
import os
import pickle
import queue
import socket
import subprocess
import sys
import threading
import weakref
from collections.abc import Callable, Hashable
from contextlib import suppress
from multiprocessing.connection import Connection
from typing import IO, Any

from scalerl.errors import GraderError, GraderPoolError
from scalerl.processes import end_process, start
from scalerl.recipe.secrets import redact
from scalerl.training.graders.supervisor import ForkLimits, ForkWork, Reply

News = queue.SimpleQueue[tuple[Any, ...]]
"""Messages of the supervisor; ("gone",) after the last one."""

_CLOSE_TIMEOUT_S = 10.0
_LOAD_TIMEOUT_S = 120.0
"""Time limit for loading; enough for a grader with large packages on a busy machine."""
_MOST_LINES = 200
"""Number of lines shown from stderr, so that a grader that reports every answer does not hide other output."""
_LONGEST_LINE = 500


class Children:
    """Forked processes that reply to messages. If a message fails, its reply is a reason; others are not affected.

    Messages and replies have keys. Use this from one thread only.
    """

    def __init__(self, name: str, make: Callable[..., ForkWork], *given: Any, limits: ForkLimits) -> None:
        """Start the supervisor; `make(*given)` returns its work there, and `name` is for error messages.

        Wait until it has made the work, so that no message waits for imports; UserError if that fails.
        """
        self._name = name
        self._num_given = 0
        self._pending: dict[int, tuple[Hashable, int | None]] = {}
        """Key and seat of each message that has no reply yet, by number."""
        self._seats: dict[Hashable, int] = {}
        try:
            pickled = pickle.dumps((limits, make, given))
        except Exception as error:
            raise GraderPoolError(f"its settings cannot be sent to another process: {error}") from None
        self._process, self._end = _started(pickled)
        self._news = News()
        threading.Thread(target=_read, args=(self._end, self._news), name="news of children", daemon=True).start()
        self._close = weakref.finalize(self, _stop, self._process, self._end, os.getpid())
        if self._receive(_LOAD_TIMEOUT_S) is None:
            self.close()
            raise GraderPoolError(f"{name} cannot be loaded: its import takes more than {_LOAD_TIMEOUT_S:.0f} s")

    @property
    def pid(self) -> int:
        """Process id of the supervisor; also the session id of all processes."""
        return self._process.pid

    @property
    def num_pending(self) -> int:
        """Number of messages whose replies `poll` has not returned yet."""
        return len(self._pending)

    def give(self, key: Hashable, message: Any) -> None:
        """Send a message to any free worker."""
        self._give(key, None, message)

    def tell(self, key: Hashable, message: Any) -> None:
        """Send a message to the fork reserved for this key, which exists from the first message until `end`."""
        self._give(key, self._seats.setdefault(key, self._num_given), message)

    def end(self, key: Hashable) -> None:
        """End the fork of a key; if it is idle, it closes its work first."""
        self._send("end", self._seats.pop(key))

    def poll(self, timeout_s: float = 0.0) -> list[tuple[Hashable, Reply]]:
        """Return the replies since the last call, by key; wait up to `timeout_s` for at least one."""
        replies: list[tuple[Hashable, Reply]] = []
        while message := self._receive(0.0 if replies else timeout_s):
            _, number, reply = message
            key, seat = self._pending.pop(number)
            # Ignore replies of forks that were ended.
            if seat is None or seat == self._seats.get(key):
                replies.append((key, reply))
        return replies

    def close(self) -> None:
        """End all processes; messages without a reply are dropped."""
        self._close()

    def _give(self, key: Hashable, seat: int | None, message: Any) -> None:
        number = self._num_given
        self._num_given += 1
        self._pending[number] = key, seat
        self._send("give", number, seat, message)

    def _send(self, *order: object) -> None:
        # Ignore errors: the next `poll` reports the reason.
        with suppress(OSError):
            self._end.send(order)

    def _receive(self, timeout_s: float) -> tuple[Any, ...] | None:
        """Return the supervisor's next message: that it is ready, or a reply with its number."""
        if not self._close.alive:
            raise GraderPoolError(f"{self._name} is closed")
        try:
            kind, *content = self._news.get(timeout_s > 0, None if timeout_s == math.inf else timeout_s)
        except queue.Empty:
            return None
        match kind:
            case "refused":
                raise GraderError(*content)
            case "failed":
                raise GraderPoolError(f"{self._name} failed: {content[0]}")
            case "gone":
                self._news.put((kind,))
                status = self._process.wait()
                raise GraderPoolError(
                    f"{self._name} died, with exit status {status}: a run continues from its last checkpoint with "
                    "--resume"
                )
        return (kind, *content)


def _started(given: bytes) -> tuple[subprocess.Popen[bytes], Connection]:
    """Start the supervisor with these pickled arguments; return it and a connection to it."""
    parent_end, child_end = socket.socketpair()
    with child_end:
        # Do not use multiprocessing: its children import the main module, which breaks scripts without a main guard.
        code = (
            f"import pickle, sys; sys.path[:] = {[str(path) for path in sys.path]!r}\n"
            f"from scalerl.training.graders.supervisor import serve\n"
            f"serve({child_end.fileno()}, {os.getpid()}, *pickle.load(sys.stdin.buffer))"
        )
        try:
            process = start(
                [sys.executable, "-P", "-c", code],
                # Many workers share few cores, and verdicts must not depend on the order of sets.
                environment={"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "PYTHONHASHSEED": "0"},
                descriptors=[child_end.fileno()],
                stdin=subprocess.PIPE,
                stderr=subprocess.PIPE,
            )
        except OSError as error:
            parent_end.close()
            raise GraderPoolError(f"a child process cannot be started: {error}") from error
    assert process.stdin is not None
    # Do not pass the arguments on the command line, which other users can read: settings may contain keys. If the child
    # has died, its socket shows it.
    with suppress(OSError), process.stdin as stdin:
        stdin.write(given)
    threading.Thread(target=_show_stderr, args=(process.stderr,), name="child's stderr", daemon=True).start()
    return process, Connection(parent_end.detach())


def _read(end: Connection, news: News) -> None:
    """Read the supervisor's messages at once; otherwise a full socket would block it."""
    try:
        while True:
            news.put(end.recv())
    except (EOFError, OSError):
        news.put(("gone",))


def _show_stderr(stream: IO[bytes]) -> None:
    """Copy stderr of the processes to sys.stderr line by line, so that a progress bar is not broken."""
    num_lines = 0
    is_beginning = True
    # When a process ends, its stderr may be closed before a child's.
    with stream, suppress(ValueError):
        # A line may be very long: only its beginning is read. A secret that the cut divides would not be recognised,
        # so only half of what was read is shown.
        while line := stream.readline(2 * _LONGEST_LINE):
            is_whole = line.endswith(b"\n")
            if is_beginning:
                if num_lines < _MOST_LINES:
                    shown = redact(line.decode(errors="replace"))
                    sys.stderr.write(shown if is_whole else f"{shown[:_LONGEST_LINE]} ...\n")
                elif num_lines == _MOST_LINES:
                    sys.stderr.write(
                        f"a child process wrote {num_lines} lines to stderr; further lines are not shown\n"
                    )
                num_lines += 1
            is_beginning = is_whole


def _stop(process: subprocess.Popen[bytes], end: Connection, owner: int) -> None:
    # A fork of the trainer has a copy of this object, but does not own the processes.
    if os.getpid() != owner:
        end.close()
        return
    # Do not close it at once: a thread reads from it until the supervisor has ended.
    with socket.socket(fileno=os.dup(end.fileno())) as both:
        both.shutdown(socket.SHUT_WR)
    end_process(process, patience_s=_CLOSE_TIMEOUT_S)
