"""A supervisor process and its forks, which answer messages within limits.

    trainer --give, end--> supervisor --message (pickle)--> fork --reply (line of JSON)--> supervisor --> trainer

The supervisor loads the code of its forks once, so that replacing a hung or dead fork takes only a few milliseconds. It
has a single thread, so that forking is safe, and it runs while the trainer computes, so that time limits do not depend
on how often the trainer polls.

A message goes to any free worker, or to the fork with a certain seat; a fork has one message at a time. Forks are not
trusted: their replies are JSON of bounded length, and when a fork ends, its process group is killed. Processes that
have left the group are killed with the supervisor at the latest.
"""

import functools
import gc
import json
import os
import resource
import selectors
import signal
import socket
import struct
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass
from multiprocessing.connection import Connection
from typing import Any, Literal, Protocol, get_args

from scalerl.errors import UserError
from scalerl.processes import TimeLimit, adopt_orphans, kill_children, kill_group, lead_group, limit_data, num_cores
from scalerl.recipe.import_path import one_line
from scalerl.runfolder.json_text import parse_json
from scalerl.training.graders.limit import TOO_SLOW, WRONG

Reason = Literal["no_answer", "timeout", "crash", "memory", "error"]
"""Reasons for a missing verdict: unreadable reference, time limit, dead process, memory limit, exception."""

Reply = dict[str, Any]
"""The reply to a message; if there is no result, it has a Reason as "reason", and an "error"."""

_CHECK_S = 1.0
"""Seconds between checks that the trainer is alive, in case another process keeps its end of the socket open."""
_CLOSE_S = 5.0
"""Time limit for closing the work of a seat."""
_LONGEST_ERROR = 2000
_MOST_DESCRIPTORS = 65536
_MOST_COMPUTING, _MOST_WAITING = 32, 64
"""Largest number of workers if it is not set, for work that computes and for work that waits."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ForkLimits:
    """Limits of forks; each applies to one message."""

    num_workers: int = 0
    """Number of workers; 0 means twice the number of cores, at most 32, or 64 if the work waits for others."""
    timeout_s: float = 10.0
    """Seconds after a fork receives the message, without those in which it waits for a core of a busy machine."""
    cpu_limit_s: float = 3.0
    """Seconds of CPU time, which do not depend on the machine's load."""
    memory_limit_mb: int = 512
    """Memory above the size of a fork at its start; on Linux only."""
    longest_reply: int = 20_000
    """Largest number of bytes in a reply."""
    settings: tuple[str, str] = ("grading.timeout_s", "grading.cpu_limit_s")
    """The settings for the time limits, for error messages."""


class ForkWork(Protocol):
    """The work of forks. It is created once in the supervisor; every fork has its own copy, which may have a state."""

    waits: bool
    """Whether it mostly waits for others, such as a server."""

    def __call__(self, message: Any, /) -> Reply: ...

    def close(self) -> None:
        """End everything that messages to a seat have started."""
        ...


@dataclass(slots=True, kw_only=True, eq=False)
class _Fork:
    pid: int
    end: Connection
    seat: int
    """Number of its seat; negative for a worker, which takes any message."""
    number: int | None = None
    """Number of its current message."""
    limit: TimeLimit | None = None
    """The time in which it must have replied or ended; None while it has nothing to do."""
    received: bytes = b""


class _Supervisor:
    def __init__(self, trainer: Connection, limits: ForkLimits, work: ForkWork) -> None:
        self._trainer = trainer
        self._limits = limits
        self._work = work
        most = _MOST_WAITING if work.waits else min(2 * num_cores(), _MOST_COMPUTING)
        self._most_workers = limits.num_workers or most
        self._queue: deque[tuple[int, Any]] = deque()
        """Messages that no worker has yet."""
        self._forks: dict[int, _Fork] = {}
        """Forks by seat."""
        self._num_workers = 0
        """Number of workers forked so far."""
        self._ready = selectors.DefaultSelector()
        self._ready.register(trainer, selectors.EVENT_READ)
        self._first_bytes = _data_bytes()

    def run(self, parent: int) -> None:
        """Serve until the trainer closes the connection or has ended."""
        try:
            while os.getppid() == parent:
                self._advance()
                self._hand_out()
        except EOFError:
            self._ready.unregister(self._trainer)
            with suppress(OSError):  # The trainer may have ended.
                for seat in list(self._forks):
                    self._leave(seat)
                while self._forks:
                    self._advance()
        finally:
            for fork in self._forks.values():
                kill_group(fork.pid)
            kill_children()

    def _advance(self) -> None:
        """Wait a moment for the trainer and the forks; handle their messages, and end forks that are late."""
        wait_s = min((fork.limit.left_s() for fork in self._forks.values() if fork.limit), default=_CHECK_S)
        for key, _ in self._ready.select(min(max(wait_s, 0.0), _CHECK_S)):
            if key.data is None:
                order, *arguments = self._trainer.recv()
                if order == "give":
                    self._take(*arguments)
                else:
                    self._leave(*arguments)
            elif not key.data.end.closed:
                self._receive(key.data)
        for fork in list(self._forks.values()):
            if fork.limit is not None and fork.limit.left_s() <= 0:
                self._end(fork, _late(self._limits.timeout_s, "s", self._limits.settings[0]))

    def _take(self, number: int, seat: int | None, message: Any) -> None:
        """Assign a message to the workers or to the fork in a seat; its first message creates the fork."""
        if seat is None:
            self._queue.append((number, message))
            return
        fork = self._fork(seat) if number == seat else self._forks.get(seat)
        if fork is None:
            self._trainer.send(("ended", number, _DIED))
        else:
            self._give(fork, number, message)

    def _leave(self, seat: int) -> None:
        """Let the fork in a seat end by itself, which may take a while if its work has to be closed."""
        if (fork := self._forks.get(seat)) is None:
            return
        if fork.number is not None:
            self._end(fork)
            return
        fork.limit = TimeLimit(min(_CLOSE_S, self._limits.timeout_s), fork.pid)
        with socket.socket(fileno=os.dup(fork.end.fileno())) as both, suppress(OSError):
            both.shutdown(socket.SHUT_WR)

    def _hand_out(self) -> None:
        while self._queue:
            idle = [fork for fork in self._forks.values() if fork.seat < 0 and fork.number is None]
            if not idle and len(self._forks) >= self._most_workers:
                return
            if not idle:
                self._num_workers += 1
                idle = [self._fork(-self._num_workers)]
            number, message = self._queue.popleft()
            self._give(idle[0], number, message)

    def _give(self, fork: _Fork, number: int, message: Any) -> None:
        fork.number = number
        fork.limit = TimeLimit(self._limits.timeout_s, fork.pid)
        try:
            fork.end.send((number, message))
        except OSError:  # The fork has died or does not read.
            self._end(fork)

    def _fork(self, seat: int) -> _Fork:
        parent_end, child_end = socket.socketpair()
        # A stopped fork must not block the supervisor.
        send_limit = struct.pack("ll", int(self._limits.timeout_s) + 1, 0)
        parent_end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, send_limit)
        pid = os.fork()
        if pid == 0:
            try:
                parent_end.close()
                for end in [self._trainer, *(fork.end for fork in self._forks.values())]:
                    end.close()
                lead_group()
                _limit_process(self._limits.memory_limit_mb)
                _answer(child_end, self._work, self._limits.cpu_limit_s)
                os._exit(0)
            finally:
                os._exit(1)
        child_end.close()
        # Both processes do this, so that the group exists before anything has to be killed.
        with suppress(OSError):
            os.setpgid(pid, pid)
        fork = _Fork(pid=pid, end=Connection(parent_end.detach()), seat=seat)
        self._forks[seat] = fork
        self._ready.register(fork.end, selectors.EVENT_READ, fork)
        return fork

    def _receive(self, fork: _Fork) -> None:
        try:
            reply = self._pass_on(fork)
        except (EOFError, OSError):
            self._end(fork)
        except Exception as error:
            self._end(fork, {**_DIED, "error": f"its process sent more than one reply to a message: {one_line(error)}"})
        else:
            # Memory left by earlier messages must not count against a later one. A new worker takes milliseconds.
            if reply and fork.seat < 0 and (reply.get("reason") == "memory" or self._has_grown(fork)):
                self._end(fork)

    def _has_grown(self, fork: _Fork) -> bool:
        """Return whether a fork has kept half of its memory limit."""
        return _data_bytes(fork.pid) - self._first_bytes > self._limits.memory_limit_mb * 2**20 // 2

    def _pass_on(self, fork: _Fork) -> Reply | None:
        """Forward the reply if it is complete, and return it."""
        chunk = os.read(fork.end.fileno(), 1 << 20)
        fork.received += chunk
        if len(fork.received) > self._limits.longest_reply:
            raise ValueError("too long")
        if not chunk:
            raise EOFError
        if b"\n" not in chunk:
            return None
        number, reply = parse_json(fork.received)
        if fork.number is None or number != fork.number:
            raise ValueError("to another message")
        if reply.get("reason") not in (None, *get_args(Reason)):
            raise ValueError("an unknown reason")
        # Forward it first: a reply that cannot be forwarded counts as missing.
        self._trainer.send(("ended", number, {**reply}))
        fork.number = None
        fork.limit = None
        fork.received = b""
        return reply

    def _end(self, fork: _Fork, reply: Reply | None = None) -> None:
        """End a fork and answer its message with `reply`."""
        del self._forks[fork.seat]
        status = kill_group(fork.pid)
        if os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGPROF:
            reply = _late(self._limits.cpu_limit_s, "s of CPU time", self._limits.settings[1])
        elif os.WIFSIGNALED(status) and os.WTERMSIG(status) == TOO_SLOW:
            reply = WRONG
        # It may have replied after the deadline. Poll first: a process that left its group and holds its socket could
        # otherwise block the supervisor.
        with suppress(Exception):
            if fork.end.poll():
                self._pass_on(fork)
        self._ready.unregister(fork.end)
        fork.end.close()
        if fork.number is not None:
            self._trainer.send(("ended", fork.number, reply or _DIED))


_DIED: Reply = {"reason": "crash", "error": "its process died"}


def _late(limit_s: float, unit: str, setting: str) -> Reply:
    return {"reason": "timeout", "error": f"it took more than {limit_s:g} {unit} ({setting})"}


def serve(file: int, parent: int, limits: ForkLimits, make: Callable[..., ForkWork], given: tuple[Any, ...]) -> None:
    """Run the supervisor; orders arrive from the process `parent` over the socket `file`.

    `make` returns the work, and `given` are its arguments.
    """
    trainer = Connection(file)
    # Adopt child processes of dead forks, to reap them here.
    adopt_orphans()
    _allow_descriptors()
    try:
        work = make(*given)
        # Forks share memory until it is written to, which garbage collection would do.
        gc.collect()
        gc.freeze()
        trainer.send(("ready",))
        _Supervisor(trainer, limits, work).run(parent)
    except UserError as error:
        trainer.send(("refused", str(error)))
    except Exception as error:
        trainer.send(("failed", one_line(error)))


# In a fork ------------------------------------------------------------------------------------------------------------


def _answer(supervisor: socket.socket, work: ForkWork, cpu_limit_s: float) -> None:
    """Answer messages until the supervisor closes the connection."""
    messages = Connection(os.dup(supervisor.fileno()))
    own_pid = os.getpid()
    # Without a handler, the system ends the process even inside a computation that never returns to Python.
    limit = functools.partial(signal.setitimer, signal.ITIMER_PROF)
    with suppress(EOFError):
        while True:
            number, message = messages.recv()
            limit(cpu_limit_s)
            try:
                reply = work(message)
            except BaseException as error:
                reply = failure(error)
            limit(0)
            if os.getpid() != own_pid:
                # This is a process that the work has forked and that returned from it.
                return
            supervisor.sendall(json.dumps([number, reply], default=asdict).encode() + b"\n")
    limit(cpu_limit_s)
    work.close()


def failure(error: BaseException) -> Reply:
    """Return the reply for a message that raised an exception."""
    text = one_line(error)[:_LONGEST_ERROR].encode(errors="backslashreplace").decode()
    return {"reason": "memory" if isinstance(error, MemoryError) else "error", "error": text}


# Limits of the system -------------------------------------------------------------------------------------------------


def _limit_process(memory_limit_mb: int) -> None:
    """Set the limits that the system enforces; memory is limited only on Linux."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    limit_data(_data_bytes() + memory_limit_mb * 2**20)


def _allow_descriptors() -> None:
    """Raise the limit of open files as far as possible, because each fork has a socket."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = _MOST_DESCRIPTORS if hard == resource.RLIM_INFINITY else min(hard, _MOST_DESCRIPTORS)
    if soft != resource.RLIM_INFINITY and soft < most:
        with suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))


def _data_bytes(pid: int | Literal["self"] = "self") -> int:
    """Return the size of a process's data; 0 if the system is not Linux or the process has ended."""
    try:
        with open(f"/proc/{pid}/statm", "rb", buffering=0) as file:
            return int(file.read().split()[5]) * resource.getpagesize()
    except OSError:
        return 0
