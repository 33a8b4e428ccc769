"""Calls in processes of their own: `with Workers(num) as workers: workers.submit(function, argument).result()`.

A worker is this interpreter running this module: it reads a pickled call, answers with the pickled value, and ends when
nothing is left to read, so that it never outlives its parent. Unlike `multiprocessing` it does not run the caller's own
script again: one that writes a report needs no guard around it. A call that a worker does not survive is made again in
this process, and what it raises is raised here.
"""

import math
import pickle
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from queue import LifoQueue
from typing import Any, Self

from scalerl.errors import WorkerDied
from scalerl.processes import limit_data, num_cores, start_module

MOST = 8
WORTH_ONE = 30  # calls that a worker must have before it: to start one takes as long as ten fits
ENVIRONMENT = {
    # There are as many workers as cores.
    "OPENBLAS_NUM_THREADS": "1",
    "OMP_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    # glibc hands the pages of a large array back at once, and numpy asks for new ones with the next.
    "MALLOC_MMAP_THRESHOLD_": str(1 << 26),
    "MALLOC_TRIM_THRESHOLD_": str(1 << 27),
}


def worth(num_calls: int) -> int:
    """Return how many workers to start for this number of calls; 0 means to run them in this process."""
    num = min(num_cores(), MOST, num_calls // WORTH_ONE)
    if num > 1 and sys.executable:
        return num
    return 0


class Workers:
    """A pool of worker processes. Without workers, each call runs in this process when it is submitted."""

    def __init__(self, num: int = 0, *, retry_here: bool = True, most_bytes: int = 0) -> None:
        """Start `num` workers, each with at most `most_bytes` of memory, if given: one that needs more ends.

        If a worker dies in a call, the call is made again in this process. With `retry_here=False` it raises WorkerDied
        instead and a new worker starts, for callers whose own process must stay responsive.
        """
        self._retry_here = retry_here
        self._most_bytes = most_bytes
        self._workers: list[subprocess.Popen[bytes]] = []
        # The one that was used last comes first: it may have kept what the next call needs.
        self._idle: LifoQueue[subprocess.Popen[bytes]] = LifoQueue()
        self._is_closed = False
        with suppress(OSError):  # as many as the system has room for
            for _ in range(num):
                self._workers.append(_start(most_bytes))
                self._idle.put(self._workers[-1])
        # One thread each: calls are made in order, where more threads would leave some waiting to the very end.
        self._threads = ThreadPoolExecutor(max_workers=len(self._workers)) if self._workers else None

    def submit(self, function: Callable[..., Any], *arguments: Any, most_s: float = math.inf) -> Future[Any]:
        """Have a worker make a call; one that takes longer than `most_s` for it is ended."""
        if self._threads is not None:
            return self._threads.submit(self._call, most_s, function, *arguments)
        done: Future[Any] = Future()
        done.set_result(function(*arguments))
        return done

    def map(self, function: Callable[[Any], Any], arguments: Iterable[Any]) -> list[Any]:
        """Call a function with each of these arguments; return what it returns, in their order."""
        jobs = [self.submit(function, argument) for argument in arguments]
        return [job.result() for job in jobs]

    def _call(self, most_s: float, function: Callable[..., Any], *arguments: Any) -> Any:
        worker = self._idle.get()
        until = time.monotonic() + most_s
        # From outside: within a regular expression no signal is handled.
        timer = threading.Timer(min(most_s, threading.TIMEOUT_MAX), worker.kill)
        timer.daemon = True
        if most_s < math.inf:
            timer.start()
        try:
            return _asked(worker, (function, arguments))
        except (OSError, EOFError, pickle.UnpicklingError) as error:
            if self._is_closed:
                raise
            if not self._retry_here:
                worker = self._replaced(worker)
                raise WorkerDied(f"took more than {most_s:g} s" if time.monotonic() >= until else "died") from error
        finally:
            timer.cancel()
            self._idle.put(worker)
        return function(*arguments)

    def _replaced(self, dead: subprocess.Popen[bytes]) -> subprocess.Popen[bytes]:
        dead.kill()
        dead.communicate()
        worker = _start(self._most_bytes)
        self._workers[self._workers.index(dead)] = worker
        if self._is_closed:
            worker.kill()
        return worker

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._is_closed = True
        if self._threads is None:
            return
        self._threads.shutdown(wait=False, cancel_futures=True)
        for worker in self._workers:
            worker.kill()
        self._threads.shutdown()
        for worker in self._workers:
            worker.communicate()


def _start(most_bytes: int) -> subprocess.Popen[bytes]:
    return start_module("scalerl.forecast.report.workers", str(most_bytes), environment=ENVIRONMENT)


def _asked(worker: subprocess.Popen[bytes], call: tuple[Callable[..., Any], tuple[Any, ...]]) -> Any:
    assert worker.stdin is not None
    assert worker.stdout is not None
    pickle.dump(call, worker.stdin, pickle.HIGHEST_PROTOCOL)
    worker.stdin.flush()
    return pickle.load(worker.stdout)


def _serve(most_bytes: int) -> None:
    if most_bytes:
        limit_data(most_bytes)
    calls = sys.stdin.buffer
    answers = sys.stdout.buffer
    sys.stdout = sys.stderr
    while True:
        try:
            function, arguments = pickle.load(calls)
        except EOFError:
            return
        pickle.dump(function(*arguments), answers, pickle.HIGHEST_PROTOCOL)
        answers.flush()


if __name__ == "__main__":
    _serve(int(sys.argv[1]))
