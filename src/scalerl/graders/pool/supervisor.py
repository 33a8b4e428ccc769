"""The supervisor of a grader pool: a small process that forks workers, hands out items and holds the clock.

It imports the graders once and warms them up, so that a worker which hung or died is replaced by a fork of a few
milliseconds. It has one thread and nothing of the trainer in it, so that forking is safe; it runs on while the trainer
computes, so that a clock does not depend on how often the pool is polled.

    pool --LOAD, GRADE--> supervisor --GRADE--> worker        worker --STARTED, ending--> supervisor --ending--> pool
"""

import gc
import os
import pickle
import signal
import socket
import time
from collections import deque
from contextlib import suppress
from dataclasses import dataclass, field

from scalerl.graders.pool.wire import Channel, Frame, Kind, Limits, wait
from scalerl.graders.pool.worker import ADOPT_ORPHANS, Grade, LoadError, is_async, load, set_option, work

# Items a worker holds: one in hand, one ahead, so that it need not wait for the supervisor.
_WINDOW = 2

# How often to look whether the trainer still lives, where another process holds its end of the socket open.
_LOOK_S = 1.0

# Workers in a row that died before they began an item: the next ones would too.
_MOST_STILLBORN = 20


@dataclass(slots=True, kw_only=True)
class _Worker:
    pid: int
    channel: Channel
    given: deque[Frame] = field(default_factory=deque)
    """Not yet graded, oldest first; the first is in hand once it has started."""
    started_at: float | None = None
    has_begun: bool = False


class _Supervisor:
    def __init__(self, channel: Channel, limits: Limits) -> None:
        self._channel = channel
        self._limits = limits
        self._graders: dict[int, Grade] = {}
        self._queue: deque[Frame] = deque()
        self._workers: list[_Worker] = []
        self._num_stillborn = 0

    def run(self, parent: int) -> None:
        """Serve until the pool is closed or its process gone."""
        try:
            while not self._channel.closed and os.getppid() == parent:
                channels = [self._channel, *(worker.channel for worker in self._workers)]
                ready = wait(channels, self._patience_s())
                for channel in ready:
                    channel.flush()
                if self._channel in ready:
                    self._take_orders()
                for worker in [worker for worker in self._workers if worker.channel in ready]:
                    self._hear(worker)
                    if worker.channel.closed:
                        self._reap(worker)
                for worker in [worker for worker in self._workers if self._left_s(worker) <= 0]:
                    self._reap(worker, overdue=worker.given[0].number)
                self._hand_out()
        finally:
            for worker in self._workers:
                _end(worker.pid)

    def _take_orders(self) -> None:
        for frame in self._channel.receive():
            if frame.kind is Kind.GRADE:
                self._queue.append(frame)
                continue
            reason = self._load(frame)
            if not reason and is_async(self._graders[frame.number]):
                self._channel.send(Frame(Kind.LOADED_ASYNC, frame.number))
                continue
            self._channel.send(Frame(Kind.LOADED, frame.number, reason.encode(errors="backslashreplace")))
            if not reason:
                for worker in self._workers:
                    worker.channel.send(frame)

    def _load(self, frame: Frame) -> str:
        """Why a grader cannot be loaded; empty if it is."""
        try:
            self._graders[frame.number] = load(*pickle.loads(frame.body))
        except LoadError as error:
            return str(error)
        # What is loaded is shared with the workers for as long as nobody writes to it, as a collection would.
        gc.collect()
        gc.freeze()
        return ""

    def _hand_out(self) -> None:
        while self._queue:
            worker = min(self._workers, key=lambda worker: len(worker.given), default=None)
            if (worker is None or worker.given) and len(self._workers) < self._limits.num_workers:
                worker = self._fork()
            assert worker is not None
            if len(worker.given) >= _WINDOW:
                return
            worker.given.append(self._queue.popleft())
            worker.channel.send(worker.given[-1])

    def _fork(self) -> _Worker:
        ours, theirs = socket.socketpair()
        pid = os.fork()
        if pid == 0:
            try:
                ours.close()
                for channel in [self._channel, *(worker.channel for worker in self._workers)]:
                    channel.close()
                work(Channel(theirs), self._graders, self._limits)
            finally:
                os._exit(1)
        theirs.close()
        self._workers.append(_Worker(pid=pid, channel=Channel(ours)))
        return self._workers[-1]

    def _hear(self, worker: _Worker) -> None:
        for frame in worker.channel.receive():
            if frame.kind is Kind.STARTED:
                worker.has_begun = True
                worker.started_at = time.monotonic()
            else:
                worker.given.popleft()
                worker.started_at = None
                self._channel.send(frame)

    def _reap(self, worker: _Worker, overdue: int | None = None) -> None:
        """End a worker, give the item in hand its reason and take back those behind it."""
        status = _end(worker.pid)
        self._hear(worker)
        worker.channel.close()
        self._workers.remove(worker)
        self._num_stillborn = 0 if worker.has_begun else self._num_stillborn + 1
        if self._num_stillborn > _MOST_STILLBORN:
            raise RuntimeError(f"{self._num_stillborn} workers in a row died before they graded anything")
        # Between deadline and end it may have gone on to the next item, which did nothing wrong.
        moved_on = overdue is not None and worker.given and worker.given[0].number != overdue
        if worker.started_at is not None and not moved_on:
            out_of_cpu = os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGPROF
            reason = Kind.TIMEOUT if out_of_cpu or overdue is not None else Kind.CRASH
            self._channel.send(Frame(reason, worker.given.popleft().number))
        self._queue.extendleft(reversed(worker.given))

    def _left_s(self, worker: _Worker) -> float:
        """Seconds until the item in hand is overdue."""
        if worker.started_at is None:
            return float("inf")
        return worker.started_at + self._limits.timeout_s - time.monotonic()

    def _patience_s(self) -> float:
        return min([_LOOK_S, *(self._left_s(worker) for worker in self._workers)])


def _end(pid: int) -> int:
    """Kill a worker and what it started, unless it is dead already, and reap it; its wait status."""
    for kill in (os.killpg, os.kill):
        with suppress(ProcessLookupError, PermissionError):
            kill(pid, signal.SIGKILL)
    status = os.waitpid(pid, 0)[1]
    with suppress(ChildProcessError):
        while True:
            os.waitpid(-pid, 0)
    return status


def serve(file: int, parent: int, limits: Limits) -> None:
    """What the supervisor's process runs: orders come over the socket `file`, from the process `parent`."""
    channel = Channel(socket.socket(fileno=file))
    # So that what a dead worker had started can be reaped here.
    set_option(ADOPT_ORPHANS, 1)
    try:
        _Supervisor(channel, limits).run(parent)
    except Exception as error:
        channel.send_all(Frame(Kind.FAILED, body=f"{type(error).__name__}: {error}".encode()))
