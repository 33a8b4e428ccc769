"""The process that runs graders which are coroutine functions, such as one that asks a judge over HTTP.

    pool --LOAD, GRADE--> this process: one event loop, at most `max_calls` calls under way  --ending--> pool

It speaks the protocol of a supervisor, so a GraderPool drives either. A call that takes `timeout_s` is cancelled and
has no verdict. Limits on CPU time and memory do not apply: calls that wait share one process.
"""

import asyncio
import inspect
import os
import pickle
import signal
import socket

from scalerl.graders.pool.wire import Channel, Frame, Kind, Limits
from scalerl.graders.pool.worker import DIE_WITH_PARENT, Grade, LoadError, ending, load, set_option
from scalerl.import_path import one_line

# How often to check that the trainer still lives, where another process holds its end of the socket open.
_CHECK_S = 1.0


class _Calls:
    def __init__(self, channel: Channel, limits: Limits) -> None:
        self._channel = channel
        self._limits = limits
        self._graders: dict[int, Grade] = {}
        self._free = asyncio.Semaphore(limits.max_calls)
        self._tasks: set[asyncio.Task[None]] = set()

    async def run(self, parent: int) -> None:
        """Serve until the pool is closed or its process gone."""
        loop = asyncio.get_running_loop()
        readable = asyncio.Event()
        loop.add_reader(self._channel.fileno(), readable.set)
        while not self._channel.closed and os.getppid() == parent:
            readable.clear()
            for frame in self._channel.receive():
                self._take(frame)
            self._channel.flush()
            try:
                # What could not be sent at once is tried again soon.
                await asyncio.wait_for(readable.wait(), 0.01 if self._channel.has_unsent else _CHECK_S)
            except TimeoutError:
                continue

    def _take(self, frame: Frame) -> None:
        if frame.kind is Kind.LOAD:
            reason = ""
            try:
                self._graders[frame.number] = load(*pickle.loads(frame.body))
            except LoadError as error:
                reason = str(error)
            self._channel.send(Frame(Kind.LOADED, frame.number, reason.encode(errors="backslashreplace")))
            return
        task = asyncio.get_running_loop().create_task(self._grade(frame))
        # The event loop itself keeps no reference to a task.
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _grade(self, frame: Frame) -> None:
        async with self._free:
            self._channel.send(await self._ending(frame))

    async def _ending(self, frame: Frame) -> Frame:
        grader, text, answer = pickle.loads(frame.body)
        limit = asyncio.timeout(self._limits.timeout_s)
        try:
            async with limit:
                returned = self._graders[grader](text, answer)
                return ending(frame.number, await returned if inspect.isawaitable(returned) else returned)
        except MemoryError:
            return Frame(Kind.MEMORY, frame.number)
        except BaseException as error:
            if limit.expired():
                return Frame(Kind.TIMEOUT, frame.number)
            return Frame(Kind.ERROR, frame.number, one_line(error).encode(errors="backslashreplace"))


def serve(file: int, parent: int, limits: Limits) -> None:
    """Run the process: orders come over the socket `file`, from the process `parent`."""
    channel = Channel(socket.socket(fileno=file))
    set_option(DIE_WITH_PARENT, signal.SIGKILL)

    async def main() -> None:
        await _Calls(channel, limits).run(parent)

    try:
        asyncio.run(main())
    except Exception as error:
        channel.send_all(Frame(Kind.FAILED, body=f"{type(error).__name__}: {error}".encode()))
