"""Process 1 of a sandbox: a warm interpreter that forks for each program and clears up after it.

    order "R" with descriptors   fork; the first descriptor is a socket over which the fork alone receives its job
    order "E"                    kill what runs
    answer                       how the fork ended, once for each "R", after all that it started is gone

It never receives a program nor anything that a program wrote, so there is nothing to be found in its memory. When the
socket of orders closes, it kills everything and exits.
"""

import gc
import importlib
import os
import select
import shutil
import signal
import socket
import sys
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any

from scalerl.graders.sandbox.confine import Confinement, limit_resources
from scalerl.graders.sandbox.program_side import answer_calls, run_script
from scalerl.graders.sandbox.test_side import run_tests
from scalerl.graders.sandbox.wire import receive_job, send

# What programs import most, so that a fork has it already.
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
    """One program at a time. `user` is whom programs run as, -1 where nothing is confined."""

    def __init__(self, control: socket.socket, *, folder: str, user: int, devices: list[str]):
        self._control, self._folder, self._user = control, folder, user
        self._confined = user >= 0
        self._confinement = Confinement()
        self._child: int | None = None
        self._woken, self._wakes = socket.socketpair()
        if self._confined:
            assert os.getpid() == 1
            self._confinement.hide()
            for device in devices:
                self._confinement.make_read_only(device)
            self._confinement.renew_folder(folder, user, is_first=True)

    def serve(self) -> Callable[[], None]:
        """Take orders until the socket closes. In a fork, return what it is to run."""
        # Process 1 of a namespace gets no signal from inside that it has no handler for, not even SIGKILL.
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        for name in _WARM.split():
            importlib.import_module(name)
        sys.path[:] = [path for path in sys.path if path != os.environ.get("HARNESS")]
        self._has_filter = self._confined and self._can_filter()
        send(self._control, {"seccomp": self._has_filter})
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
                else:
                    self._kill()
                if not order:
                    os._exit(0)
            self._report_end()

    def _job(self, descriptors: list[int]) -> Callable[[], None]:
        """Receive the job of this fork, give up all rights, say so, and return what is to be run."""
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        for end in (self._control, self._woken, self._wakes):
            end.close()
        # A group of its own, so that it can be ended together with what it starts.
        os.setsid()
        if not self._confined:
            self._confinement.die_with_parent()
        first, *others = descriptors
        with socket.socket(fileno=first) as given:
            job = receive_job(given)
            if self._confined:
                self._confinement.drop_rights(self._user)
            os.chdir(self._folder)
            limit_resources(job["limits"], limit_processes=self._confined)
            if self._has_filter and not self._confinement.filter_calls():
                raise OSError("system calls cannot be filtered")
            given.send(b"B")
            if job["kind"] == "tests":
                others.append(os.dup(first))
        return partial(_JOBS[job["kind"]], job, others)

    def _kill(self) -> None:
        """Kill the program and all that it started."""
        if self._child is None:
            return
        if self._confined:
            with suppress(ProcessLookupError):
                os.kill(-1, signal.SIGKILL)
            return
        for kill in (os.killpg, os.kill):
            with suppress(ProcessLookupError, PermissionError):
                kill(self._child, signal.SIGKILL)

    def _report_end(self) -> None:
        """If the program has ended, end and reap all that it started, and send how it ended and what it took."""
        if self._child is None:
            return
        pid, status, usage = os.wait4(self._child, os.WNOHANG)
        if not pid:
            return
        self._kill()
        self._child = None
        # All orphans of the namespace are children of process 1: once there are none, nothing is left.
        with suppress(ChildProcessError):
            while self._confined:
                os.wait()
        self._clear_folder()
        send(self._control, {"status": status, "cpu_s": usage.ru_utime + usage.ru_stime})

    def _clear_folder(self) -> None:
        if self._confined:
            self._confinement.renew_folder(self._folder, self._user, is_first=False)
            return
        for entry in os.scandir(self._folder):
            if entry.is_dir(follow_symlinks=False):
                shutil.rmtree(entry.path, ignore_errors=True)
            else:
                with suppress(OSError):
                    os.unlink(entry.path)

    def _can_filter(self) -> bool:
        child = os.fork()
        if child == 0:
            os._exit(0 if self._confinement.filter_calls() else 1)
        return os.waitpid(child, 0)[1] == 0


def _open_null() -> None:
    """Point stdin, stdout and stderr at the sandbox's own /dev/null."""
    null = os.open(os.devnull, os.O_RDWR)
    for standard in (0, 1, 2):
        os.dup2(null, standard)
    os.close(null)


def main(descriptor: str, folder: str, user: str, *devices: str) -> None:
    """Serve on the socket with this number; see box.py for the arguments.

    A fork returns to here, so that a script ends as every interpreter ends: threads are waited for, exit handlers run,
    stdout is flushed, and what it raised sets the exit status.
    """
    control = socket.socket(fileno=int(descriptor))
    Zygote(control, folder=folder, user=int(user), devices=list(devices)).serve()()
