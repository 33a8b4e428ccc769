"""The trainer's side of forked processes (supervisor.py): start their supervisor, send it orders, read what it says."""

import math
import os
import pickle
import queue
import socket
import subprocess
import sys
import threading
import weakref
from contextlib import suppress
from multiprocessing.connection import Connection
from typing import IO, Any

from scalerl.config.secrets import redact
from scalerl.errors import GraderError, GraderPoolError
from scalerl.graders.supervisor import Limits, Reply

News = queue.SimpleQueue[tuple[Any, ...] | None]
"""What the supervisor has sent; None after the last."""

_CLOSE_TIMEOUT_S = 10.0
_LOAD_TIMEOUT_S = 120.0
"""For a grader with large packages on a busy machine."""
_MOST_LINES = 200
"""Lines on stderr that are shown; a grader that reports every answer would bury everything else."""
_LONGEST_LINE = 500


class Children:
    """Forked processes. A bad message affects only itself: it ends with a reason. Use it from one thread only."""

    def __init__(self, name: str, work: str, *given: Any, limits: Limits) -> None:
        """Start the supervisor; `work` is the import path of supervisor.Work, and `name` is for messages.

        Wait until it has loaded the work, so that no message waits for imports. UserError if it cannot.
        """
        if os.name != "posix":
            raise GraderPoolError(f"graders cannot run in child processes on {sys.platform}: that needs Linux or macOS")
        self._name, self._num_given = name, 0
        self._replies: list[tuple[int, Reply]] = []
        try:
            pickled = pickle.dumps((limits, work, given))
        except Exception as error:
            raise GraderPoolError(f"its settings cannot be sent to another process: {error}") from None
        self._process, self._end = _started(pickled)
        self._news = News()
        threading.Thread(target=_read, args=(self._end, self._news), name="news of children", daemon=True).start()
        self._close = weakref.finalize(self, _stop, self._process, self._end, os.getpid())
        if not self._receive(_LOAD_TIMEOUT_S):
            self.close()
            raise GraderPoolError(f"{name} cannot be loaded: its import took over {_LOAD_TIMEOUT_S:.0f} s")

    @property
    def pid(self) -> int:
        """Process id of the supervisor; also the session id of all processes."""
        return self._process.pid

    def begin(self, message: Any, limit_s: float) -> int:
        """Give a message to a fork of its own, and return its number, which is that of the fork's seat too."""
        return self.give(message, limit_s, self._num_given)

    def give(self, message: Any, limit_s: float, seat: int | None = None) -> int:
        """Give a message to a free worker, or to the fork in a seat, and return its number."""
        number, self._num_given = self._num_given, self._num_given + 1
        self._send("give", number, seat, message, limit_s)
        return number

    def end(self, seat: int) -> None:
        """End the fork in a seat; one that has no message closes its work first."""
        self._send("end", seat)

    def poll(self, timeout_s: float = 0.0) -> list[tuple[int, Reply]]:
        """Return the replies since the last call, by number; wait up to `timeout_s` for at least one."""
        self._receive(0.0 if self._replies else timeout_s)
        while self._receive(0.0):
            pass
        replies, self._replies = self._replies, []
        return replies

    def close(self) -> None:
        """End all processes; what was not answered is dropped."""
        self._close()

    def _send(self, *message: object) -> None:
        # Whoever asks next is told why.
        with suppress(OSError):
            self._end.send(message)

    def _receive(self, timeout_s: float) -> bool:
        """Take the supervisor's next message; return whether one came in time."""
        if not self._close.alive:
            raise GraderPoolError(f"{self._name} is closed")
        try:
            message = self._news.get(timeout_s > 0, None if timeout_s == math.inf else timeout_s)
        except queue.Empty:
            return False
        match message:
            case ("ended", number, reply):
                self._replies.append((number, reply))
            case ("ready",):
                pass
            case ("refused", reason):
                raise GraderError(reason)
            case ("failed", reason):
                raise GraderPoolError(f"{self._name} failed: {reason}")
            case _:
                self._news.put(None)
                status = self._process.wait()
                raise GraderPoolError(
                    f"{self._name} died, with exit status {status}: a run continues from its last checkpoint with "
                    "--resume"
                )
        return True


def _started(given: bytes) -> tuple[subprocess.Popen[bytes], Connection]:
    """Start the supervisor with these pickled arguments; return it and a connection to it."""
    ours, theirs = socket.socketpair()
    with theirs:
        # Not multiprocessing: its children import the main module again, which breaks scripts without a main guard.
        code = (
            f"import pickle, sys; sys.path[:] = {[str(path) for path in sys.path]!r}\n"
            f"from scalerl.graders.supervisor import serve\n"
            f"serve({theirs.fileno()}, {os.getpid()}, *pickle.load(sys.stdin.buffer))"
        )
        try:
            process = subprocess.Popen(
                [sys.executable, "-c", code],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                pass_fds=[theirs.fileno()],
                # Ctrl-C is handled by the trainer.
                start_new_session=True,
                # Many workers share few cores, and a verdict must not depend on the order of a set.
                env=os.environ | {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "PYTHONHASHSEED": "0"},
            )
        except OSError as error:
            ours.close()
            raise GraderPoolError(f"a child process cannot be started: {error}") from error
    assert process.stdin is not None
    # Not in the command line, which everyone on the machine can read: settings may hold keys. A child that is gone is
    # noticed at its socket.
    with suppress(OSError), process.stdin as stdin:
        stdin.write(given)
    threading.Thread(target=_show_stderr, args=(process.stderr,), name="child's stderr", daemon=True).start()
    return process, Connection(ours.detach())


def _read(end: Connection, news: News) -> None:
    """Pass on what the supervisor sends: unread, it would keep the supervisor from its work."""
    try:
        while True:
            news.put(end.recv())
    except (EOFError, OSError):
        news.put(None)


def _show_stderr(stream: IO[bytes]) -> None:
    """Pass on what is written to stderr, line by line, through sys.stderr: a progress bar stays whole then."""
    num, begins = 0, True
    # At the end of a process its stderr may be closed before a child's.
    with stream, suppress(ValueError):
        # One may have a gigabyte: what is beyond the longest that is shown is dropped. A secret that the cut divides
        # would not be recognised, so half as much is shown as was read.
        while line := stream.readline(2 * _LONGEST_LINE):
            if begins and num <= _MOST_LINES:
                shown = redact(line.decode(errors="replace"))
                shown = shown if line.endswith(b"\n") else f"{shown[:_LONGEST_LINE]} ...\n"
                more = f"a child process wrote {num} lines to stderr; what follows is not shown\n"
                sys.stderr.write(shown if num < _MOST_LINES else more)
            num, begins = num + begins, line.endswith(b"\n")


def _stop(process: subprocess.Popen[bytes], end: Connection, owner: int) -> None:
    # A fork of the trainer has a copy of this, but does not own the processes.
    if os.getpid() != owner:
        end.close()
        return
    # Not closed at once: a thread reads from it until the supervisor has ended.
    with socket.socket(fileno=os.dup(end.fileno())) as both:
        both.shutdown(socket.SHUT_WR)
    try:
        process.wait(_CLOSE_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
