"""The supervisor of a grader pool: a small process that forks workers, distributes items and enforces time limits.

It imports the graders once and warms them up, so that replacing a hung or dead worker takes a fork of a few
milliseconds. It has one thread and loads none of the trainer's packages, so that forking is safe. It runs while the
trainer computes, so that time limits do not depend on how often the pool is polled. Coroutine functions share one more
worker, where many wait at the same time.

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
from scalerl.graders.pool.worker import ADOPT_ORPHANS, Grade, LoadError, is_async, load, set_option, work, work_waiting

_WINDOW = 2
"""Items per worker: the current one and the next, so that it does not wait for the supervisor."""

_CHECK_S = 1.0
"""How often to check that the trainer is alive, in case another process keeps its end of the socket open."""

_MOST_FAILED_STARTS = 20
"""Workers in a row that may die before they start an item; then the supervisor gives up."""


@dataclass(slots=True, kw_only=True)
class _Worker:
    pid: int
    channel: Channel
    waits: bool
    """Whether it runs coroutine functions, many at once."""
    given: dict[int, Frame] = field(default_factory=dict)
    """Items not graded yet by number, oldest first; after STARTED the first is being graded."""
    started_at: float | None = None
    has_begun: bool = False


class _Supervisor:
    def __init__(self, channel: Channel, limits: Limits) -> None:
        self._channel = channel
        self._limits = limits
        self._graders: dict[int, Grade] = {}
        self._queue: deque[Frame] = deque()
        self._workers: list[_Worker] = []
        self._num_failed_starts = 0

    def run(self, parent: int) -> None:
        """Serve until the pool is closed or its process has ended."""
        try:
            while not self._channel.closed and os.getppid() == parent:
                channels = [self._channel, *(worker.channel for worker in self._workers)]
                ready = wait(channels, self._wait_s())
                for channel in ready:
                    channel.flush()
                if self._channel in ready:
                    self._receive_orders()
                for worker in [worker for worker in self._workers if worker.channel in ready]:
                    self._receive_results(worker)
                    if worker.channel.closed:
                        self._reap(worker)
                for worker in [worker for worker in self._workers if self._left_s(worker) <= 0]:
                    self._reap(worker, overdue=next(iter(worker.given)))
                self._hand_out()
        finally:
            for worker in self._workers:
                _end(worker.pid)

    def _receive_orders(self) -> None:
        for frame in self._channel.receive():
            if frame.kind is Kind.GRADE:
                self._queue.append(frame)
                continue
            reason = self._load(frame)
            self._channel.send(Frame(Kind.LOADED, body=reason.encode(errors="backslashreplace"), grader=frame.grader))
            if not reason:
                for worker in self._workers:
                    worker.channel.send(frame)

    def _load(self, frame: Frame) -> str:
        """Load a grader; return why it cannot be loaded, or an empty string."""
        try:
            self._graders[frame.grader] = load(*pickle.loads(frame.body))
        except LoadError as error:
            return str(error)
        # Forked workers share loaded memory until it is written to, as garbage collection would do.
        gc.collect()
        gc.freeze()
        return ""

    def _hand_out(self) -> None:
        while self._queue:
            waits = is_async(self._graders[self._queue[0].grader])
            workers = [worker for worker in self._workers if worker.waits == waits]
            worker = min(workers, key=lambda worker: len(worker.given), default=None)
            if worker is None or (not waits and worker.given and len(workers) < self._limits.num_workers):
                worker = self._fork(waits=waits)
            if not waits and len(worker.given) >= _WINDOW:
                return
            frame = self._queue.popleft()
            worker.given[frame.number] = frame
            worker.channel.send(frame)

    def _fork(self, *, waits: bool) -> _Worker:
        ours, theirs = socket.socketpair()
        pid = os.fork()
        if pid == 0:
            try:
                ours.close()
                for channel in [self._channel, *(worker.channel for worker in self._workers)]:
                    channel.close()
                (work_waiting if waits else work)(Channel(theirs), self._graders, self._limits)
            finally:
                os._exit(1)
        theirs.close()
        self._workers.append(_Worker(pid=pid, channel=Channel(ours), waits=waits))
        return self._workers[-1]

    def _receive_results(self, worker: _Worker) -> None:
        for frame in worker.channel.receive():
            if frame.kind is Kind.STARTED:
                worker.has_begun = True
                worker.started_at = time.monotonic()
            else:
                del worker.given[frame.number]
                worker.has_begun = True
                worker.started_at = None
                self._channel.send(frame)

    def _reap(self, worker: _Worker, overdue: int | None = None) -> None:
        """End a worker, report the reason for its current item, and requeue the items behind it."""
        status = _end(worker.pid)
        self._receive_results(worker)
        worker.channel.close()
        self._workers.remove(worker)
        self._num_failed_starts = 0 if worker.has_begun else self._num_failed_starts + 1
        if self._num_failed_starts > _MOST_FAILED_STARTS:
            raise RuntimeError(f"{self._num_failed_starts} workers in a row died before they graded anything")
        # Between the deadline and its end it may have started the next item, which did nothing wrong.
        moved_on = overdue is not None and next(iter(worker.given), overdue) != overdue
        out_of_cpu = os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGPROF
        reason = Kind.TIMEOUT if out_of_cpu or overdue is not None else Kind.CRASH
        begun = list(worker.given) if worker.waits else list(worker.given)[: worker.started_at is not None]
        for number in () if moved_on else begun:
            del worker.given[number]
            self._channel.send(Frame(reason, number))
        self._queue.extendleft(reversed(worker.given.values()))

    def _left_s(self, worker: _Worker) -> float:
        """Return the seconds until the current item is overdue."""
        if worker.started_at is None:
            return float("inf")
        return worker.started_at + self._limits.timeout_s - time.monotonic()

    def _wait_s(self) -> float:
        return min([_CHECK_S, *(self._left_s(worker) for worker in self._workers)])


def _end(pid: int) -> int:
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
    channel = Channel(socket.socket(fileno=file))
    # So that child processes of a dead worker can be reaped here.
    set_option(ADOPT_ORPHANS, 1)
    try:
        _Supervisor(channel, limits).run(parent)
    except Exception as error:
        channel.send_all(Frame(Kind.FAILED, body=f"{type(error).__name__}: {error}".encode()))
