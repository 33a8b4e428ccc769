"""Process 1 of a sandbox: a warm interpreter that forks for each program and cleans up after it.

    order "R" with descriptors   fork; the first descriptor is a socket over which only the fork receives its job
    order "E"                    kill the running program
    answer                       how the fork ended, once for each "R", after everything that it started has ended

It never receives programs or their output, so that its memory contains nothing of them. When the socket of orders is
closed, it kills everything and exits.
"""

import gc
import importlib
import os
import select
import signal
import socket
import sys
from collections.abc import Callable
from functools import partial
from typing import Any

from scalerl.training.graders.sandbox.confine import Confined
from scalerl.training.graders.sandbox.program_side import answer_calls, run_script
from scalerl.training.graders.sandbox.test_side import run_tests
from scalerl.training.graders.sandbox.wire import receive, send

# Common imports of programs, so that forks already have them.
_WARM = """
ast array base64 bisect calendar cmath collections copy dataclasses datetime decimal enum fractions functools hashlib
heapq io itertools json math numbers operator random re statistics string struct textwrap time types typing unicodedata
collections.abc contextlib traceback threading atexit
"""

_JOBS: dict[str, Callable[[Any, list[int]], None]] = {
    "calls": answer_calls,
    "script": run_script,
    "tests": run_tests,
}

_MOST_DESCRIPTORS = 4


class Zygote:
    """Runs one program at a time, confined by `bounds`."""

    def __init__(self, control: socket.socket, bounds: Confined) -> None:
        self._control = control
        self._bounds = bounds
        self._child: int | None = None
        self._woken, self._wakes = socket.socketpair()

    def serve(self) -> Callable[[], None]:
        """Take orders until the socket is closed. In a fork, return the function to run."""
        # From inside a namespace, process 1 receives only signals that it handles, so no SIGKILL.
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        for name in _WARM.split():
            importlib.import_module(name)
        sys.path[:] = [path for path in sys.path if path != os.environ.get("HARNESS")]
        send(self._control, "ready")
        _open_null()
        gc.collect()
        gc.freeze()
        self._wakes.setblocking(False)
        self._woken.setblocking(False)
        signal.set_wakeup_fd(self._wakes.fileno(), warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda number, frame: None)
        poller = select.poll()
        for end in (self._control, self._woken):
            poller.register(end, select.POLLIN)
        while True:
            for descriptor, _ in poller.poll():
                if descriptor == self._woken.fileno():
                    self._woken.recv(4096)
                    continue
                order, descriptors, _, _ = socket.recv_fds(self._control, 1, _MOST_DESCRIPTORS)
                if order == b"R":
                    self._child = os.fork()
                    if self._child == 0:
                        return self._job(descriptors)
                    for number in descriptors:
                        os.close(number)
                elif self._child is not None:
                    self._bounds.kill()
                if not order:
                    os._exit(0)
            self._report_end()

    def _job(self, descriptors: list[int]) -> Callable[[], None]:
        """Receive the job of this fork, give up all rights, report that, and return the function to run."""
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        for end in (self._control, self._woken, self._wakes):
            end.close()
        # Lead a process group, so that the fork can be killed together with what it starts.
        os.setsid()
        first, *others = descriptors
        with socket.socket(fileno=first) as given:
            job = receive(given, most=sys.maxsize)
            self._bounds.enter(job["limits"])
            given.send(b"B")
            if job["kind"] == "tests":
                others.append(os.dup(first))
        return partial(_JOBS[job["kind"]], job, others)

    def _report_end(self) -> None:
        """If the program has ended, end and reap all that it started, and send its wait status and resource use."""
        if self._child is None:
            return
        pid, status, usage = os.wait4(self._child, os.WNOHANG)
        if not pid:
            return
        self._bounds.kill()
        self._bounds.clear()
        self._child = None
        send(self._control, {"status": status, "cpu_s": usage.ru_utime + usage.ru_stime})


def _open_null() -> None:
    """Point stdin, stdout and stderr at the sandbox's own /dev/null."""
    null = os.open(os.devnull, os.O_RDWR)
    for standard in (0, 1, 2):
        os.dup2(null, standard)
    os.close(null)


def main(descriptor: str, folder: str, user: str, *devices: str) -> None:
    """Serve orders from the socket with this number; programs run as `user` in `folder`; see box.py.

    A fork returns here, so that a script ends like any Python process: it waits for threads, runs exit handlers,
    flushes stdout, and an exception sets the exit status.
    """
    Zygote(socket.socket(fileno=int(descriptor)), Confined(folder, int(user), devices)).serve()()
