"""Pools of child processes with limits, for graders that may hang, crash, use much memory or wait for an answer.

pool = GraderPool()
pool.check(GraderSpec(name="math"))                    # raises GraderError if it cannot be used
pool.submit(key, GraderSpec(name="math"), text, answer)
for graded in pool.poll(): ...                         # Graded(key, value, reason), in any order

A bad item affects only itself: it ends without a verdict, with a reason, and the items behind it go to another worker.
"""

import dataclasses
import math
import os
import pickle
import queue
import socket
import subprocess
import sys
import threading
import time
import weakref
from collections import Counter
from collections.abc import Hashable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from typing import IO, Any, Self

from scalerl.config.secrets import redact
from scalerl.errors import GraderError, GraderPoolError
from scalerl.graders.workers import Ended, Limits, Reason

News = queue.SimpleQueue[tuple[Any, ...] | None]
"""What the supervisor has sent; None after the last."""

_LOAD_TIMEOUT_S = 120.0
"""For importing a grader and its packages on a busy machine."""
_CLOSE_TIMEOUT_S = 5.0
_MOST_LINES = 200
"""Lines on stderr that are shown; a grader that reports every answer would bury everything else."""
_LONGEST_LINE = 500


@dataclass(frozen=True, slots=True, kw_only=True)
class GraderSpec:
    """A grader and its settings."""

    name: str
    """A name in GRADERS, or "package.module:function" with the same signature, imported in the child processes."""
    settings: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Item:
    """A completion to grade."""

    key: Hashable
    spec: GraderSpec
    text: str
    answer: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Graded:
    """The result of grading an item."""

    key: Hashable
    value: float | None
    """From 0 (wrong) to 1 (right); None where there is no verdict."""
    reason: Reason | None = None
    """Why there is no verdict; None if there is one."""
    outcome: str = ""
    """The name that the grader gave to what it saw, if any."""


class GraderPool:
    """Grades items in child processes. Use a pool from one thread only.

    The limits apply to each item, from the start of its grading: `cpu_limit_s` of CPU time, which does not depend on
    the machine's load, and `timeout_s` of wall time for a grader that waits. Memory is limited on Linux, to
    `memory_limit_mb` above a worker's size after its imports. num_workers = 0 means twice the number of cores, at most
    32. Coroutine functions share one more worker, where `max_calls` wait at the same time.
    """

    def __init__(
        self,
        *,
        num_workers: int = 0,
        timeout_s: float = 10.0,
        cpu_limit_s: float = 3.0,
        memory_limit_mb: int = 512,
        max_calls: int = 64,
    ) -> None:
        if os.name != "posix":
            raise GraderPoolError(f"graders cannot run in child processes on {sys.platform}: that needs Linux or macOS")
        limits = Limits(
            num_workers=num_workers or _default_num_workers(),
            timeout_s=timeout_s,
            cpu_limit_s=cpu_limit_s,
            memory_limit_mb=memory_limit_mb,
            max_calls=max_calls,
        )
        self.num_ended: Counter[str] = Counter()
        """How many items ended how: right, wrong, partly, or a reason."""
        self.first_errors: dict[str, str] = {}
        """The first exception of each grader that raised on an item."""
        self._specs: list[GraderSpec] = []
        self._pending: dict[int, tuple[Hashable, GraderSpec]] = {}
        self._num_submitted = 0
        self._graded: list[Graded] = []
        self._loaded: dict[int, str] = {}
        self._process, self._end, self._news = _start(limits)
        self._close = weakref.finalize(self, _stop, self._process, self._end, os.getpid())

    @property
    def pid(self) -> int:
        """Process id of the supervisor; also the session id of all processes of the pool."""
        return self._process.pid

    @property
    def num_pending(self) -> int:
        """Items submitted and not yet returned by poll()."""
        return len(self._pending) + len(self._graded)

    def check(self, spec: GraderSpec) -> int:
        """Load a grader in the child processes, once; GraderError says why it cannot be used."""
        if spec in self._specs:
            return self._specs.index(spec)
        number = len(self._specs)
        try:
            pickle.dumps(spec.settings)
        except Exception as error:
            raise GraderError(f'the settings of "{spec.name}" cannot be sent to another process: {error}') from None
        self._send("load", number, spec.name, dict(spec.settings))
        deadline = time.monotonic() + _LOAD_TIMEOUT_S
        while number not in self._loaded:
            if time.monotonic() > deadline:
                self.close()
                raise GraderError(f'"{spec.name}" cannot be loaded: its import took over {_LOAD_TIMEOUT_S:.0f} s')
            try:
                self._receive(_LOAD_TIMEOUT_S)
            except GraderPoolError as error:
                raise GraderError(f'"{spec.name}" cannot be loaded: {error}') from None
        if reason := self._loaded.pop(number):
            raise GraderError(reason)
        self._specs.append(spec)
        return number

    def submit(self, key: Hashable, spec: GraderSpec, text: str, answer: str) -> None:
        """Have an item graded; the result comes by poll() under its key."""
        grader = self.check(spec)
        number, self._num_submitted = self._num_submitted, self._num_submitted + 1
        self._pending[number] = (key, spec)
        self._send("grade", number, grader, text, answer)

    def poll(self, timeout: float = 0.0) -> list[Graded]:
        """Return what was graded since the last call; with a timeout, wait up to that long for at least one."""
        deadline = time.monotonic() + timeout
        self._receive(0.0)
        while not self._graded and self._pending and (left := deadline - time.monotonic()) > 0:
            self._receive(left)
        graded, self._graded = self._graded, []
        return graded

    def grade_all(self, items: Iterable[Item]) -> list[Graded]:
        """Grade these items and return the results in their order. Nothing else may be pending."""
        assert not self.num_pending
        keys = []
        for item in items:
            self.submit(len(keys), item.spec, item.text, item.answer)
            keys.append(item.key)
        graded: dict[Hashable, Graded] = {}
        while len(graded) < len(keys):
            graded |= {result.key: result for result in self.poll(math.inf)}
        return [dataclasses.replace(graded[index], key=key) for index, key in enumerate(keys)]

    def close(self) -> None:
        """End all child processes; pending items are dropped."""
        self._close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _send(self, *message: object) -> None:
        try:
            self._end.send(message)
        except OSError:
            # Whoever polls next is told why.
            return

    def _receive(self, timeout_s: float) -> None:
        """Wait for news, up to that long, and take all that has come."""
        if not self._close.alive:
            raise GraderPoolError("the grader pool is closed")
        try:
            self._take(self._news.get(timeout_s > 0, None if timeout_s == math.inf else timeout_s))
            while True:
                self._take(self._news.get_nowait())
        except queue.Empty:
            return

    def _take(self, message: tuple[Any, ...] | None) -> None:
        match message:
            case ("loaded", number, reason):
                self._loaded[number] = reason
            case ("ended", number, *ended):
                key, spec = self._pending.pop(number)
                value, reason, outcome, error = Ended(*ended)
                ending = "right" if value == 1 else "wrong" if value == 0 else "partly"
                self.num_ended[reason or ending] += 1
                self._graded.append(Graded(key=key, value=value, reason=reason, outcome=outcome))
                if error:
                    self.first_errors.setdefault(spec.name, error)
            case ("failed", reason):
                raise GraderPoolError(f"the grading process failed: {reason}")
            case _:
                self._news.put(None)
                status = self._process.wait()
                raise GraderPoolError(
                    f"the grading process died, with exit status {status}: a run continues from its last checkpoint "
                    "with --resume"
                )


def _default_num_workers() -> int:
    """Return twice the cores, so that waiting graders do not block others, up to what a large run needs."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min(2 * cores, 32)


def _start(limits: Limits) -> tuple[subprocess.Popen[bytes], Connection, News]:
    process, ours = start_server("scalerl.graders.workers:serve", limits)
    end, news = Connection(ours.detach()), News()
    threading.Thread(target=_read, args=(end, news), name="grader news", daemon=True).start()
    return process, end, news


def start_server(serve: str, *arguments: Any) -> tuple[subprocess.Popen[bytes], socket.socket]:
    """Start a Python process that calls the function at the import path `serve`; return it and a socket to it.

    The function gets the number of its end of the socket, the id of this process, and the arguments.
    """
    module, _, function = serve.partition(":")
    given = pickle.dumps(arguments)
    ours, theirs = socket.socketpair()
    with theirs:
        # Not multiprocessing: its children import the main module again, which breaks scripts without a main guard.
        code = (
            f"import pickle, sys; sys.path[:] = {[str(path) for path in sys.path]!r}\n"
            f"from {module} import {function} as serve\n"
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
    return process, ours


def _read(end: Connection, news: News) -> None:
    """Pass on what the supervisor sends: unread, it would keep the supervisor from its work."""
    try:
        while True:
            news.put(end.recv())
    except (EOFError, OSError):
        news.put(None)


def _show_stderr(stream: IO[bytes]) -> None:
    """Pass on what is written to stderr, line by line, through sys.stderr: a progress bar stays whole then."""
    with stream:
        for number, line in enumerate(_lines(stream)):
            # At the end of a process its stderr may be closed before a child's.
            with suppress(ValueError):
                if number < _MOST_LINES:
                    sys.stderr.write(line)
                elif number == _MOST_LINES:
                    sys.stderr.write(f"a child process wrote {number} lines to stderr; what follows is not shown\n")


def _lines(stream: IO[bytes]) -> Iterator[str]:
    """Yield lines without secrets. One may have a gigabyte: what is beyond the longest that is shown is dropped."""
    while line := stream.readline(2 * _LONGEST_LINE):
        is_whole = line.endswith(b"\n")
        while not is_whole and (rest := stream.readline(1 << 20)):
            is_whole = rest.endswith(b"\n")
        shown = redact(line.decode(errors="replace"))
        # A secret that the cut divides would not be recognised, so half as much is shown as was read.
        yield shown if len(line) < 2 * _LONGEST_LINE else f"{shown[:_LONGEST_LINE]} ...\n"


def _stop(process: subprocess.Popen[bytes], end: Connection, owner: int) -> None:
    # A fork of the trainer has a copy of the pool, but does not own the processes.
    if os.getpid() != owner:
        end.close()
        return
    # Not closed at once: a thread reads from it until the supervisor has ended.
    with socket.socket(fileno=os.dup(end.fileno())) as both:
        both.shutdown(socket.SHUT_WR)
    end_server(process)


def end_server(process: subprocess.Popen[bytes]) -> None:
    """Wait for a server whose socket is closed to end, and kill it if it does not."""
    try:
        process.wait(_CLOSE_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
