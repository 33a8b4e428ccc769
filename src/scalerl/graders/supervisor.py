"""A process that forks others, and what runs in each fork: messages in, replies out, within limits.

    trainer --give, end--> supervisor --message (pickle)--> fork --reply (line of JSON)--> supervisor --> trainer

The supervisor loads once what its forks do, so that replacing a hung or dead one takes a fork of a few milliseconds.
It has one thread, so that forking is safe, and it runs while the trainer computes, so that time limits do not depend on
how often the trainer asks.

A message goes to any free worker, or to the fork that has a seat of that number. Work that waits, such as asking a
judge over HTTP, has one worker, where many messages wait at the same time. A call there that takes `timeout_s` is
cancelled; there are no limits on CPU time and memory, which calls share. Nothing in a fork is trusted: its replies are
JSON of a bounded length, and it is killed with its process group when it ends. Whatever left that group is killed at
the latest with the supervisor.
"""

import asyncio
import ctypes
import gc
import json
import math
import os
import resource
import select
import signal
import socket
import struct
import sys
import time
from collections import deque
from collections.abc import Awaitable
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Literal, Protocol, cast, get_args

from scalerl.errors import UserError
from scalerl.import_path import import_function, one_line

Reason = Literal["no_answer", "timeout", "crash", "memory", "error"]
"""Why there is no verdict: unreadable reference, time limit, dead process, memory limit, exception."""

Reply = dict[str, Any]
"""What came of a message; with a Reason as "reason", and "error", if nothing did."""

_CHECK_S = 1.0
"""How often to check that the trainer is alive, in case another process keeps its end of the socket open."""
_LONGEST_ERROR = 2000
_MOST_DESCRIPTORS = 65536

# Options of Linux's prctl(2).
_DIE_WITH_PARENT = 1
_ADOPT_ORPHANS = 36


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What forks may take; each limit applies to one message."""

    num_workers: int = 0
    """Forks that take messages for any of them; 0 means twice the number of cores, at most 32."""
    timeout_s: float = 10.0
    """Seconds on the wall, from when a fork is given the message."""
    cpu_limit_s: float = 3.0
    """Seconds of CPU time, which do not depend on the machine's load."""
    memory_limit_mb: int = 512
    """Above the size of a fork at its start; on Linux only."""
    max_calls: int = 64
    """Calls of coroutine functions under way at the same time."""
    longest_reply: int = 20_000
    """In bytes."""


class Work(Protocol):
    """What forks do. Made once in the supervisor; every fork has its own copy, which may keep a state."""

    @property
    def waits(self) -> bool:
        """Whether it returns awaitables, many at once."""
        ...

    def __call__(self, message: Any, /) -> Reply | Awaitable[Reply]: ...


@dataclass(slots=True, kw_only=True)
class _Fork:
    pid: int
    end: Connection
    seat: int | None
    """None for a worker, which takes messages for any."""
    given: dict[int, float] = field(default_factory=dict)
    """The time by which each of its messages must have been answered."""
    received: bytes = b""


class _Supervisor:
    def __init__(self, trainer: Connection, limits: Limits, work: Work) -> None:
        self._trainer, self._limits, self._work = trainer, limits, work
        self._queue: deque[tuple[int, Any, float]] = deque()
        """Messages for workers that nobody has yet."""
        self._forks: dict[int, _Fork] = {}
        """By the number of the file that each is connected by."""
        self._seats: dict[int, _Fork] = {}
        self._poller = select.poll()
        self._poller.register(trainer.fileno(), select.POLLIN)

    def run(self, parent: int) -> None:
        """Serve until the trainer closes the connection or has ended."""
        try:
            while os.getppid() == parent:
                deadlines = [each for fork in self._forks.values() for each in fork.given.values()]
                wait_s = min(deadlines, default=math.inf) - time.monotonic()
                for file, _ in self._poller.poll(1000 * min(max(wait_s, 0.0), _CHECK_S)):
                    if file == self._trainer.fileno():
                        self._obey(*self._trainer.recv())
                    elif file in self._forks:
                        self._receive(self._forks[file])
                self._end_late()
                self._hand_out()
        except EOFError:
            return
        finally:
            for fork in self._forks.values():
                _kill_group(fork.pid)
            _kill_orphans()

    def _obey(self, number: int, seat: int | None, message: Any, limit_s: float | None) -> None:
        """Give a message to a worker or to the fork in a seat; without a limit there is no message: end that fork."""
        if limit_s is None:
            if seat in self._seats:
                self._end(self._seats[seat])
        elif seat is None:
            # A call is cancelled by its own process, unless that hangs.
            self._queue.append((number, message, limit_s * (2 if self._work.waits else 1)))
        # The number of a seat is that of its first message.
        elif fork := self._fork(seat) if number == seat else self._seats.get(seat):
            self._give(fork, number, message, limit_s)
        else:
            self._trainer.send(("ended", number, _DIED))

    def _hand_out(self) -> None:
        most_workers, most_given = (1, self._limits.max_calls) if self._work.waits else (self._limits.num_workers, 1)
        while self._queue:
            workers = [fork for fork in self._forks.values() if fork.seat is None]
            worker = next((worker for worker in workers if len(worker.given) < most_given), None)
            if worker is None:
                if len(workers) >= most_workers:
                    return
                worker = self._fork()
            self._give(worker, *self._queue.popleft())

    def _give(self, fork: _Fork, number: int, message: Any, limit_s: float) -> None:
        fork.given[number] = time.monotonic() + limit_s
        try:
            fork.end.send((number, message))
        except OSError:  # It has died, or does not read.
            self._end(fork)

    def _fork(self, seat: int | None = None) -> _Fork:
        ours, theirs = socket.socketpair()
        # One that is stopped must not stop the supervisor.
        ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("ll", int(self._limits.timeout_s) + 1, 0))
        pid = os.fork()
        if pid == 0:
            try:
                ours.close()
                for end in [self._trainer, *(fork.end for fork in self._forks.values())]:
                    end.close()
                end = Connection(theirs.detach())
                _lead_group()
                if self._work.waits:
                    asyncio.run(_answer_calls(end, self._work, self._limits.timeout_s))
                else:
                    _answer(end, self._work, self._limits, is_worker=seat is None)
                os._exit(0)
            finally:
                os._exit(1)
        theirs.close()
        # Both do this: whoever is first, the group exists before anything is to be killed.
        with suppress(OSError):
            os.setpgid(pid, pid)
        fork = _Fork(pid=pid, end=Connection(ours.detach()), seat=seat)
        self._forks[fork.end.fileno()] = fork
        if seat is not None:
            self._seats[seat] = fork
        self._poller.register(fork.end.fileno(), select.POLLIN)
        return fork

    def _receive(self, fork: _Fork) -> None:
        try:
            is_last = self._pass_on(fork)
        except (EOFError, OSError):
            self._end(fork)
        except Exception as error:
            self._end(fork, {**_DIED, "error": f"its process did not keep to one reply per message: {one_line(error)}"})
        else:
            if is_last:
                self._end(fork)

    def _pass_on(self, fork: _Fork) -> bool:
        """Send on the replies that have come; return whether the fork ends with them."""
        chunk = os.read(fork.end.fileno(), 1 << 20)
        fork.received += chunk
        *lines, rest = fork.received.split(b"\n")
        if max(map(len, (*lines, rest))) > self._limits.longest_reply:
            raise ValueError("too long")
        if not self._work.waits and (len(lines) > 1 or (lines and rest)):
            raise ValueError("more than one")
        if not chunk:
            raise EOFError
        fork.received, is_last = rest, False
        for line in lines:
            number, is_last, reply = json.loads(line)
            if number not in fork.given:
                raise ValueError("to another message")
            if reply.get("reason") not in (None, *get_args(Reason)):
                raise ValueError("an unknown reason")
            # First: a reply that cannot be sent on is one that did not come.
            self._trainer.send(("ended", number, {**reply}))
            del fork.given[number]
        return is_last

    def _end(self, fork: _Fork, reply: Reply | None = None) -> None:
        """End a fork and answer what it was given by `reply`."""
        del self._forks[fork.end.fileno()]
        if fork.seat is not None:
            del self._seats[fork.seat]
        status = _kill_group(fork.pid)
        if os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGPROF:
            reply = _late(self._limits.cpu_limit_s, "s of CPU time (grading.cpu_limit_s)")
        # Between the deadline and its end it may have replied. Without a look first, whoever has left its group and
        # holds its socket would stop the supervisor.
        with suppress(Exception):
            if fork.end.poll():
                self._pass_on(fork)
        self._poller.unregister(fork.end.fileno())
        fork.end.close()
        for number in fork.given:
            self._trainer.send(("ended", number, reply or _DIED))

    def _end_late(self) -> None:
        now = time.monotonic()
        for fork in list(self._forks.values()):
            if min(fork.given.values(), default=now) < now:
                self._end(fork, _late(self._limits.timeout_s, "s (grading.timeout_s)"))


_DIED: Reply = {"reason": "crash", "error": "its process died"}


def _late(limit_s: float, unit: str) -> Reply:
    return {"reason": "timeout", "error": f"it took more than {limit_s:g} {unit}"}


def serve(file: int, parent: int, limits: Limits, work: str, given: tuple[Any, ...]) -> None:
    """Run the supervisor's process; orders come over the socket `file`, from the process `parent`.

    `work` is the import path of a class, whose arguments are `given`.
    """
    trainer = Connection(file)
    # So that child processes of a dead fork can be reaped here.
    _set_option(_ADOPT_ORPHANS, 1)
    _allow_descriptors()
    try:
        made = import_function(work)(*given)
        # Forks share loaded memory until it is written to, as garbage collection would do.
        gc.collect()
        gc.freeze()
        trainer.send(("ready",))
        _Supervisor(trainer, limits, made).run(parent)
    except UserError as error:
        trainer.send(("refused", str(error)))
    except Exception as error:
        trainer.send(("failed", one_line(error)))


# In a fork ------------------------------------------------------------------------------------------------------------


def _answer(end: Connection, work: Work, limits: Limits, *, is_worker: bool) -> None:
    """Answer messages until the supervisor closes the connection; a worker, until half the memory is used."""
    base_bytes, own_pid = _limit_process(limits.memory_limit_mb), os.getpid()
    most_bytes = math.inf if base_bytes is None else base_bytes + limits.memory_limit_mb * 2**20 // 2
    with suppress(EOFError):
        while True:
            number, message = end.recv()
            # No handler: the system ends the process, even within a computation that never returns to Python.
            signal.setitimer(signal.ITIMER_PROF, limits.cpu_limit_s)
            try:
                reply: Any = work(message)
            except BaseException as error:
                reply = failure(error)
            finally:
                signal.setitimer(signal.ITIMER_PROF, 0)
            if os.getpid() != own_pid:
                # A copy that the work forked and that came back from it.
                return
            # What messages leave behind must not count against a later one: a fresh worker is a few milliseconds away.
            is_last = is_worker and (reply.get("reason") == "memory" or (_data_bytes() or 0) > most_bytes)
            _send_reply(end, number, reply, is_last)


async def _answer_calls(end: Connection, work: Work, timeout_s: float) -> None:
    """Answer messages by coroutine functions until the supervisor closes the connection."""
    is_over, loop = asyncio.Event(), asyncio.get_running_loop()
    # The event loop itself keeps no reference to a task.
    tasks: set[asyncio.Task[None]] = set()

    async def answer(number: int, message: Any) -> None:
        limit = asyncio.timeout(timeout_s)
        try:
            async with limit:
                reply = await cast(Awaitable[Reply], work(message))
        except BaseException as error:
            reply = {"reason": "timeout"} if limit.expired() else failure(error)
        _send_reply(end, number, reply)

    def receive() -> None:
        try:
            number, message = end.recv()
        except EOFError:
            is_over.set()
            return
        tasks.add(task := loop.create_task(answer(number, message)))
        task.add_done_callback(tasks.discard)

    loop.add_reader(end.fileno(), receive)
    await is_over.wait()


def _send_reply(end: Connection, number: int, reply: Reply, is_last: bool = False) -> None:
    left = memoryview(json.dumps([number, is_last, reply], default=asdict).encode() + b"\n")
    while left:
        left = left[os.write(end.fileno(), left) :]


def failure(error: BaseException) -> Reply:
    """Return the reply to a message on which an exception was raised."""
    text = one_line(error)[:_LONGEST_ERROR].encode(errors="backslashreplace").decode()
    return {"reason": "memory" if isinstance(error, MemoryError) else "error", "error": text}


# Processes ------------------------------------------------------------------------------------------------------------


def _kill_group(pid: int) -> int:
    """Kill a fork and its child processes, reap them, and return the fork's wait status."""
    for kill in (os.killpg, os.kill):
        with suppress(ProcessLookupError, PermissionError):
            kill(pid, signal.SIGKILL)
    status = os.waitpid(pid, 0)[1]
    with suppress(ChildProcessError):
        while True:
            os.waitpid(-pid, 0)
    return status


def _kill_orphans() -> None:
    """Kill all that forks have left behind, as far as the system says what that is."""
    listed = Path(f"/proc/self/task/{os.getpid()}/children")
    # What a killed one had started becomes a child of this process in turn.
    for _ in range(1000):
        pids = listed.read_text().split() if listed.exists() else []
        if not pids:
            return
        for act in (lambda pid: os.kill(pid, signal.SIGKILL), lambda pid: os.waitpid(pid, 0)):
            for pid in map(int, pids):
                with suppress(OSError):
                    act(pid)


def _lead_group() -> None:
    """Lead a process group, so that all that a fork starts can be ended with it, and die with the parent."""
    os.setpgid(0, 0)
    _set_option(_DIE_WITH_PARENT, signal.SIGKILL)


def _limit_process(memory_limit_mb: int) -> int | None:
    """Set the limits that the system enforces. Return the size so far on Linux, where memory is limited, else None."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    base_bytes = _data_bytes()
    if base_bytes is not None:
        # Not RLIMIT_AS, which also counts memory that threads and libraries reserve and never use.
        most = base_bytes + memory_limit_mb * 2**20
        _, ceiling = resource.getrlimit(resource.RLIMIT_DATA)
        most = most if ceiling == resource.RLIM_INFINITY else min(most, ceiling)
        resource.setrlimit(resource.RLIMIT_DATA, (most, most))
    return base_bytes


def _allow_descriptors() -> None:
    """Raise the limit of open files, as far as this process may: each fork has a socket."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = _MOST_DESCRIPTORS if hard == resource.RLIM_INFINITY else min(hard, _MOST_DESCRIPTORS)
    if soft != resource.RLIM_INFINITY and soft < most:
        with suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))


def _set_option(option: int, value: int) -> None:
    """Set an option of this process by prctl(2) on Linux; do nothing on other systems."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(option, value)


def _data_bytes() -> int | None:
    """Return the size of this process's data; None on systems other than Linux."""
    if sys.platform != "linux":
        return None
    return int(Path("/proc/self/statm").read_bytes().split()[5]) * resource.getpagesize()
