"""The processes of a grader pool: a supervisor, and the workers that it forks, any of which may die at any time.

    pool --load, grade--> supervisor --load, grade--> worker --ended--> supervisor --ended--> pool

The supervisor imports the graders once and warms them up, so that replacing a hung or dead worker takes a fork of a few
milliseconds. It has one thread and loads none of the trainer's packages, so that forking is safe. It runs while the
trainer computes, so that time limits do not depend on how often the pool is polled.

A worker has one item at a time, within limits. Coroutine functions, such as one that asks a judge over HTTP, share one
worker, where many wait at the same time. A call there that takes `timeout_s` is cancelled; there are no limits on CPU
time and memory, which calls share.
"""

import asyncio
import ctypes
import functools
import gc
import inspect
import os
import resource
import select
import signal
import socket
import struct
import sys
import time
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Literal, NamedTuple, NoReturn

from scalerl.errors import GraderError, ImportPathError
from scalerl.graders.answer import TAGS
from scalerl.graders.rules import GRADERS, PREPARE, WARM_UP, unknown_grader
from scalerl.graders.values import read_score
from scalerl.import_path import import_function, one_line

Grade = Callable[[str, str], object]

Reason = Literal["no_answer", "timeout", "crash", "memory", "error"]
"""Why there is no verdict: unreadable reference, time limit, dead process, memory limit, exception."""

_CHECK_S = 1.0
"""How often to check that the trainer is alive, in case another process keeps its end of the socket open."""
_LONGEST_ERROR = 2000

# Options of Linux's prctl(2).
_DIE_WITH_PARENT = 1
ADOPT_ORPHANS = 36


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """The number of workers, and the limits for grading one item."""

    num_workers: int
    timeout_s: float
    cpu_limit_s: float
    memory_limit_mb: int
    max_calls: int = 64
    """Calls of coroutine functions under way at the same time."""


class Ended(NamedTuple):
    """How the grading of an item ended."""

    value: float | None = None
    """From 0 (wrong) to 1 (right); None where there is no verdict."""
    reason: Reason | None = None
    """Why there is no verdict; None if there is one."""
    outcome: str = ""
    """The name that the grader gave to what it saw, if any."""
    error: str = ""
    """The exception, in one line."""


class Item(NamedTuple):
    """A text to grade and its reference, by the grader with this number."""

    number: int
    grader: int
    text: str
    answer: str


class LoadError(ValueError):
    """A grader cannot be used; the message is one sentence."""


def load(name: str, settings: Mapping[str, Any]) -> Grade:
    """Return the grader of that name or import path, with its settings bound and warmed up."""
    try:
        function = import_function(name) if ":" in name else GRADERS.get(name)
    except ImportPathError as error:
        raise LoadError(str(error)) from None
    if function is None:
        raise LoadError(unknown_grader(name))
    try:
        settings = _wanted(function, settings)
        inspect.signature(function).bind("", "", **settings)
    except TypeError as error:
        raise LoadError(f'"{name}" cannot be called as grader(text, answer, /, *, settings): {error}') from None
    except ValueError:
        raise LoadError(f'"{name}" does not say which arguments it takes: wrap it in a function') from None
    grade = functools.partial(function, **settings)
    try:
        if name in PREPARE:
            PREPARE[name](**settings)
        for text, answer in WARM_UP.get(name, ()):
            grade(text, answer)
    except GraderError as error:
        raise LoadError(str(error)) from None
    except ModuleNotFoundError as error:
        raise LoadError(f'"{name}" needs {error.name}, which is not installed: pip install "scalerl[math]"') from None
    return grade


def is_async(grade: Grade) -> bool:
    """Return whether a loaded grader is a coroutine function."""
    function = grade.func if isinstance(grade, functools.partial) else grade
    # An instance of a class is a grader too, if its __call__ is a coroutine function.
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(type(function).__call__)


def _wanted(function: Callable[..., object], settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings without the tags that the function does not take; not every grader needs them."""
    parameters = inspect.signature(function).parameters
    takes_any = any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values())
    return {name: value for name, value in settings.items() if takes_any or name in parameters or name not in TAGS}


@dataclass(slots=True, kw_only=True)
class _Worker:
    pid: int
    end: Connection
    waits: bool
    """Whether it runs coroutine functions, many at once."""
    given: dict[int, float] = field(default_factory=dict)
    """The time by which each of its items must have ended."""


class _Supervisor:
    def __init__(self, pool: Connection, limits: Limits) -> None:
        self._pool, self._limits = pool, limits
        self._graders: dict[int, Grade] = {}
        self._waits: dict[int, bool] = {}
        self._queues: dict[bool, deque[Item]] = {False: deque(), True: deque()}
        """Items that nobody has yet: of plain functions, and of coroutine functions."""
        self._workers: dict[int, _Worker] = {}
        """By the number of the file that each is connected by."""
        self._poller = select.poll()
        self._poller.register(pool.fileno(), select.POLLIN)

    def run(self, parent: int) -> None:
        """Serve until the pool is closed or its process has ended."""
        try:
            while os.getppid() == parent:
                for file, _ in self._poller.poll(1000 * self._wait_s()):
                    if file == self._pool.fileno():
                        self._obey(*self._pool.recv())
                    elif file in self._workers:
                        self._receive(self._workers[file])
                now = time.monotonic()
                for worker in list(self._workers.values()):
                    if min(worker.given.values(), default=now) < now:
                        self._end(worker, "timeout")
                for waits in self._queues:
                    self._hand_out(waits)
        except EOFError:
            return
        finally:
            for worker in self._workers.values():
                kill_group(worker.pid)

    def _obey(self, order: str, *what: Any) -> None:
        if order == "grade":
            item = Item(*what)
            self._queues[self._waits[item.grader]].append(item)
            return
        number, name, settings = what
        try:
            self._graders[number] = load(name, settings)
            self._waits[number] = is_async(self._graders[number])
        except LoadError as error:
            self._pool.send(("loaded", number, str(error)))
            return
        # Forked workers share loaded memory until it is written to, as garbage collection would do.
        gc.collect()
        gc.freeze()
        for worker in list(self._workers.values()):
            self._send(worker, what)
        self._pool.send(("loaded", number, ""))

    def _hand_out(self, waits: bool) -> None:
        queue = self._queues[waits]
        most_workers, most_items = (1, self._limits.max_calls) if waits else (self._limits.num_workers, 1)
        # A call is cancelled by its own process, unless that hangs.
        limit_s = self._limits.timeout_s * (2 if waits else 1)
        while queue:
            workers = [worker for worker in self._workers.values() if worker.waits == waits]
            worker = next((worker for worker in workers if len(worker.given) < most_items), None)
            if worker is None:
                if len(workers) >= most_workers:
                    return
                worker = self._fork(waits=waits)
            item = queue.popleft()
            worker.given[item.number] = time.monotonic() + limit_s
            self._send(worker, item)

    def _send(self, worker: _Worker, message: object) -> None:
        try:
            worker.end.send(message)
        except OSError:  # It has died, or does not read.
            self._end(worker)

    def _fork(self, *, waits: bool) -> _Worker:
        ours, theirs = socket.socketpair()
        # A worker that is stopped must not stop the supervisor.
        ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("ll", int(self._limits.timeout_s) + 1, 0))
        pid = os.fork()
        if pid == 0:
            try:
                ours.close()
                for end in [self._pool, *(worker.end for worker in self._workers.values())]:
                    end.close()
                (_work_waiting if waits else _work)(Connection(theirs.detach()), self._graders, self._limits)
            finally:
                os._exit(1)
        theirs.close()
        worker = _Worker(pid=pid, end=Connection(ours.detach()), waits=waits)
        self._workers[worker.end.fileno()] = worker
        self._poller.register(worker.end.fileno(), select.POLLIN)
        return worker

    def _receive(self, worker: _Worker) -> None:
        try:
            is_last = self._pass_on(worker)
        except Exception:  # It has died, perhaps in the middle of a message.
            is_last = True
        if is_last:
            self._end(worker)

    def _pass_on(self, worker: _Worker) -> bool:
        """Report how an item ended; return whether the worker ends with it."""
        number, ended, is_last = worker.end.recv()
        del worker.given[number]
        self._pool.send(("ended", number, *ended))
        return is_last

    def _end(self, worker: _Worker, reason: Reason = "crash") -> None:
        """End a worker and report the reason for what it was grading."""
        del self._workers[worker.end.fileno()]
        status = kill_group(worker.pid)
        if os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGPROF:
            reason = "timeout"
        # Between the deadline and its end it may have reported.
        with suppress(Exception):
            while worker.given and worker.end.poll():
                self._pass_on(worker)
        self._poller.unregister(worker.end.fileno())
        worker.end.close()
        for number in worker.given:
            self._pool.send(("ended", number, *Ended(reason=reason)))

    def _wait_s(self) -> float:
        deadlines = [deadline for worker in self._workers.values() for deadline in worker.given.values()]
        return min(_CHECK_S, max(min(deadlines, default=float("inf")) - time.monotonic(), 0.0))


def kill_group(pid: int) -> int:
    """Kill a worker and its child processes, reap them, and return the worker's wait status."""
    for kill in (os.killpg, os.kill):
        with suppress(ProcessLookupError, PermissionError):
            kill(pid, signal.SIGKILL)
    status = os.waitpid(pid, 0)[1]
    with suppress(ChildProcessError):
        while True:
            os.waitpid(-pid, 0)
    return status


def serve(file: int, parent: int, limits: Limits) -> None:
    """Run the supervisor's process; orders come over the socket `file`, from the process `parent`."""
    pool = Connection(file)
    # So that child processes of a dead worker can be reaped here.
    set_option(ADOPT_ORPHANS, 1)
    try:
        _Supervisor(pool, limits).run(parent)
    except Exception as error:
        pool.send(("failed", f"{type(error).__name__}: {error}"))


def _work(end: Connection, graders: dict[int, Grade], limits: Limits) -> NoReturn:
    """Grade items until the supervisor closes the connection or half the memory is used; never return."""
    base_bytes = limit_process(limits.memory_limit_mb)
    most_bytes = None if base_bytes is None else base_bytes + limits.memory_limit_mb * 2**20 // 2
    with suppress(EOFError):
        while True:
            given = end.recv()
            if not isinstance(given, Item):
                graders[given[0]] = load(*given[1:])
                continue
            # No handler: the system ends the process, even within a computation that never returns to Python.
            signal.setitimer(signal.ITIMER_PROF, limits.cpu_limit_s)
            try:
                ended = _ended(graders[given.grader](given.text, given.answer))
            except BaseException as error:
                ended = _failed(error)
            finally:
                signal.setitimer(signal.ITIMER_PROF, 0)
            # What items leave behind must not count against a later one: a fresh worker is a few milliseconds away.
            is_last = ended.reason == "memory" or (most_bytes is not None and _data_bytes() > most_bytes)
            end.send((given.number, ended, is_last))
    os._exit(0)


def _work_waiting(end: Connection, graders: dict[int, Grade], limits: Limits) -> NoReturn:
    """Grade by coroutine functions until the supervisor closes the connection."""
    _lead_group()
    asyncio.run(_serve_calls(end, graders, limits))
    os._exit(0)


async def _serve_calls(end: Connection, graders: dict[int, Grade], limits: Limits) -> None:
    is_over, loop = asyncio.Event(), asyncio.get_running_loop()
    # The event loop itself keeps no reference to a task.
    tasks: set[asyncio.Task[None]] = set()

    async def grade(item: Item) -> None:
        limit = asyncio.timeout(limits.timeout_s)
        try:
            async with limit:
                returned = graders[item.grader](item.text, item.answer)
                ended = _ended(await returned if inspect.isawaitable(returned) else returned)
        except BaseException as error:
            ended = Ended(reason="timeout") if limit.expired() else _failed(error)
        end.send((item.number, ended, False))

    def receive() -> None:
        try:
            given = end.recv()
        except EOFError:
            is_over.set()
            return
        if isinstance(given, Item):
            tasks.add(task := loop.create_task(grade(given)))
            task.add_done_callback(tasks.discard)
        else:
            graders[given[0]] = load(*given[1:])

    loop.add_reader(end.fileno(), receive)
    await is_over.wait()


def _ended(returned: object) -> Ended:
    """Return what a grader returned for an item; TypeError if it is not a verdict."""
    score = read_score(returned)
    return Ended(score.value, "no_answer" if score.value is None else None, score.outcome)


def _failed(error: BaseException) -> Ended:
    if isinstance(error, MemoryError):
        return Ended(reason="memory")
    text = one_line(error)[:_LONGEST_ERROR]
    return Ended(reason="error", error=text.encode(errors="backslashreplace").decode())


def _lead_group() -> None:
    """Lead a process group, so that a grader's child processes can be ended with it, and die with the parent."""
    os.setpgid(0, 0)
    set_option(_DIE_WITH_PARENT, signal.SIGKILL)


def limit_process(memory_limit_mb: int) -> int | None:
    """Set the limits that the system enforces. Return the size so far on Linux, where memory is limited, else None."""
    _lead_group()
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if sys.platform != "linux":
        return None
    base_bytes = _data_bytes()
    # Not RLIMIT_AS, which also counts memory that threads and libraries reserve and never use.
    most = base_bytes + memory_limit_mb * 2**20
    _, ceiling = resource.getrlimit(resource.RLIMIT_DATA)
    most = most if ceiling == resource.RLIM_INFINITY else min(most, ceiling)
    resource.setrlimit(resource.RLIMIT_DATA, (most, most))
    return base_bytes


def set_option(option: int, value: int) -> None:
    """Set an option of this process by prctl(2) on Linux; do nothing on other systems."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(option, value)


def _data_bytes() -> int:
    pages = Path("/proc/self/statm").read_bytes().split()[5]
    return int(pages) * resource.getpagesize()
