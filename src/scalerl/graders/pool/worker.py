"""The worker processes of a grader pool. They may die at any time.

`work` grades one item at a time, within limits. `work_waiting` grades by coroutine functions, such as one that asks a
judge over HTTP, and many wait at the same time. A call that takes `timeout_s` is cancelled; there are no limits on CPU
time and memory, which calls share.
"""

import asyncio
import ctypes
import functools
import inspect
import os
import pickle
import resource
import signal
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn

from scalerl.errors import GraderError, ImportPathError
from scalerl.graders.answer import TAGS
from scalerl.graders.pool.wire import VALUE, Channel, Frame, Kind, Limits, wait
from scalerl.graders.rules import GRADERS, PREPARE, WARM_UP
from scalerl.graders.values import read_score
from scalerl.import_path import import_function, one_line

Grade = Callable[[str, str], object]

# Options of Linux's prctl(2).
DIE_WITH_PARENT = 1
ADOPT_ORPHANS = 36


class LoadError(ValueError):
    """A grader cannot be used; the message is one sentence."""


def load(name: str, settings: Mapping[str, Any]) -> Grade:
    """Return the grader of that name or import path, with its settings bound and warmed up."""
    try:
        function = import_function(name) if ":" in name else GRADERS.get(name)
    except ImportPathError as error:
        raise LoadError(str(error)) from None
    if function is None:
        raise LoadError(f'no grader is called "{name}"; choices: {", ".join(GRADERS)}, or "package.module:function"')
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


def work(channel: Channel, graders: dict[int, Grade], limits: Limits) -> NoReturn:
    """Grade items until the supervisor closes the channel or half the memory is used; never return."""
    base_bytes = _limit_process(limits)
    most_bytes = None if base_bytes is None else base_bytes + limits.memory_limit_mb * 2**20 // 2
    while not channel.closed:
        wait([channel], None)
        for frame in channel.receive():
            if frame.kind is Kind.LOAD:
                graders[frame.grader] = load(*pickle.loads(frame.body))
                continue
            channel.send_all(Frame(Kind.STARTED, frame.number))
            outcome = _grade(frame, graders, limits.cpu_limit_s)
            channel.send_all(outcome)
            # What items leave behind must not count against a later one: a fresh worker is a few milliseconds away.
            if outcome.kind is Kind.MEMORY or (most_bytes is not None and _data_bytes() > most_bytes):
                os._exit(0)
    os._exit(0)


def work_waiting(channel: Channel, graders: dict[int, Grade], limits: Limits) -> NoReturn:
    """Grade by coroutine functions, at most `max_calls` at once, until the supervisor closes the channel."""
    _lead_group()
    asyncio.run(_serve_calls(channel, graders, limits))
    os._exit(0)


async def _serve_calls(channel: Channel, graders: dict[int, Grade], limits: Limits) -> None:
    free, readable = asyncio.Semaphore(limits.max_calls), asyncio.Event()
    # The event loop itself keeps no reference to a task.
    tasks: set[asyncio.Task[None]] = set()

    async def grade(frame: Frame) -> None:
        async with free:
            limit = asyncio.timeout(limits.timeout_s)
            try:
                async with limit:
                    returned = graders[frame.grader](*pickle.loads(frame.body))
                    ended = _ending(frame.number, await returned if inspect.isawaitable(returned) else returned)
            except BaseException as error:
                ended = Frame(Kind.TIMEOUT, frame.number) if limit.expired() else _failure(frame.number, error)
            channel.send(ended)

    asyncio.get_running_loop().add_reader(channel.fileno(), readable.set)
    while not channel.closed:
        readable.clear()
        for frame in channel.receive():
            if frame.kind is Kind.LOAD:
                graders[frame.grader] = load(*pickle.loads(frame.body))
                continue
            tasks.add(task := asyncio.get_running_loop().create_task(grade(frame)))
            task.add_done_callback(tasks.discard)
        channel.flush()
        # What could not be sent at once is tried again soon.
        with suppress(TimeoutError):
            await asyncio.wait_for(readable.wait(), 0.01 if channel.has_unsent else None)


def _grade(frame: Frame, graders: Mapping[int, Grade], cpu_limit_s: float) -> Frame:
    # No handler: the system ends the process, even within a computation that never returns to Python.
    signal.setitimer(signal.ITIMER_PROF, cpu_limit_s)
    try:
        return _ending(frame.number, graders[frame.grader](*pickle.loads(frame.body)))
    except BaseException as error:
        return _failure(frame.number, error)
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)


def _ending(number: int, returned: object) -> Frame:
    """Return the frame that reports what a grader returned for an item; TypeError if it is not a verdict."""
    score = read_score(returned)
    outcome = score.outcome.encode()
    if score.value is None:
        return Frame(Kind.NO_ANSWER, number, outcome)
    return Frame(Kind.VALUE, number, VALUE.pack(score.value) + outcome)


def _failure(number: int, error: BaseException) -> Frame:
    if isinstance(error, MemoryError):
        return Frame(Kind.MEMORY, number)
    return Frame(Kind.ERROR, number, one_line(error).encode(errors="backslashreplace"))


def _lead_group() -> None:
    """Lead a process group, so that a grader's child processes can be ended with it, and die with the parent."""
    os.setpgid(0, 0)
    set_option(DIE_WITH_PARENT, signal.SIGKILL)


def _limit_process(limits: Limits) -> int | None:
    """Set the limits that the system enforces. Return the size so far on Linux, where memory is limited, else None."""
    _lead_group()
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if sys.platform != "linux":
        return None
    base_bytes = _data_bytes()
    # Not RLIMIT_AS, which also counts memory that threads and libraries reserve and never use.
    most = base_bytes + limits.memory_limit_mb * 2**20
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
