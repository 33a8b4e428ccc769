"""The warm interpreter inside a sandbox: forks a process for each program and clears up after it.

It takes orders over one socket: {"do": "run", "job": ...} with descriptors forks; {"do": "end"} kills and reaps all
that is left and answers with how the program ended. It never reads anything that a program wrote. When the socket
closes, it kills everything and exits.
"""

import gc
import importlib
import os
import shutil
import signal
import socket
import sys
from contextlib import suppress
from typing import Any, NoReturn

from scalerl.graders.sandbox.confine import Confinement, limit_resources, open_null
from scalerl.graders.sandbox.program_side import answer_calls, run_script
from scalerl.graders.sandbox.test_side import run_tests
from scalerl.graders.sandbox.wire import BadMessage, Closed, receive_with_descriptors, send

# What programs import most, so that a fork has it already.
_WARM = (
    "ast",
    "array",
    "base64",
    "bisect",
    "calendar",
    "cmath",
    "collections",
    "copy",
    "dataclasses",
    "datetime",
    "decimal",
    "enum",
    "fractions",
    "functools",
    "hashlib",
    "heapq",
    "io",
    "itertools",
    "json",
    "math",
    "numbers",
    "operator",
    "random",
    "re",
    "statistics",
    "string",
    "struct",
    "textwrap",
    "time",
    "types",
    "typing",
    "unicodedata",
    "collections.abc",
    "contextlib",
    "traceback",
    "threading",
    "atexit",
)

_JOBS = {"calls": answer_calls, "script": run_script, "tests": run_tests}

_MOST_DESCRIPTORS = 4


class Zygote:
    """One program at a time: `confined` where this process is the first of its own namespaces."""

    def __init__(self, control: socket.socket, *, confined: bool, folder: str, folder_mb: int, folder_files: int):
        self._control, self._confined = control, confined
        self._folder, self._folder_mb, self._folder_files = folder, folder_mb, folder_files
        self._confinement = Confinement()
        self._child: int | None = None

    def serve(self) -> NoReturn:
        """Take orders until the socket closes."""
        # Process 1 of a namespace gets no signal from inside that it has no handler for, not even SIGKILL.
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        assert not self._confined or os.getpid() == 1
        if self._confined:
            self._confinement.hide()
            self._renew_folder(is_first=True)
        os.chdir(self._folder)
        for name in _WARM:
            importlib.import_module(name)
        sys.path[:] = [path for path in sys.path if path != os.environ.get("HARNESS")]
        has_filter = self._confined and self._can_filter()
        gc.collect()
        gc.freeze()
        send(self._control, {"ready": True, "seccomp": has_filter})
        open_null()
        try:
            while True:
                order, descriptors = receive_with_descriptors(self._control, _MOST_DESCRIPTORS)
                if order["do"] == "run":
                    self._start(order["job"], descriptors)
                else:
                    send(self._control, self._end())
        except (Closed, BadMessage, OSError):
            self._end()
            os._exit(0)

    def _start(self, job: Any, descriptors: list[int]) -> None:
        self._child = os.fork()
        if self._child:
            for descriptor in descriptors:
                os.close(descriptor)
            return
        try:
            self._control.close()
            self._become_untrusted(job["limits"])
            _JOBS[job["kind"]](job, descriptors)
        finally:
            os._exit(1)

    def _become_untrusted(self, limits: Any) -> None:
        gc.unfreeze()
        # A group of its own, so that it can be ended together with what it starts.
        os.setsid()
        self._confinement.die_with_parent()
        if self._confined:
            self._confinement.drop_capabilities()
        limit_resources(limits, limit_processes=self._confined)
        if self._confined:
            self._confinement.filter_calls()

    def _end(self) -> dict[str, Any]:
        """Kill and reap the program and all that it started; return how it ended and what it took."""
        if self._child is None:
            return {"status": None}
        child, self._child = self._child, None
        if self._confined and os.getpid() == 1:
            with suppress(ProcessLookupError):
                os.kill(-1, signal.SIGKILL)
        else:
            for kill in (os.killpg, os.kill):
                with suppress(ProcessLookupError, PermissionError):
                    kill(child, signal.SIGKILL)
        _, status, usage = os.wait4(child, 0)
        if self._confined:
            # All orphans of the namespace are children of process 1: once there are none, nothing is left.
            with suppress(ChildProcessError):
                while True:
                    os.wait()
        self._clear_folder()
        return {"status": status, "cpu_s": usage.ru_utime + usage.ru_stime, "peak_kb": usage.ru_maxrss}

    def _clear_folder(self) -> None:
        if not self._confined:
            for entry in os.scandir(self._folder):
                if entry.is_dir(follow_symlinks=False):
                    shutil.rmtree(entry.path, ignore_errors=True)
                else:
                    with suppress(OSError):
                        os.unlink(entry.path)
        elif self._fingerprint() != self._untouched:
            self._renew_folder(is_first=False)

    def _renew_folder(self, *, is_first: bool) -> None:
        os.chdir("/")
        self._confinement.renew_folder(
            self._folder, size_mb=self._folder_mb, num_files=self._folder_files, is_first=is_first
        )
        os.chdir(self._folder)
        self._untouched = self._fingerprint()

    def _fingerprint(self) -> tuple[Any, ...]:
        """Return what differs once anything was made, changed or removed in the folder."""
        state = os.stat(self._folder)
        try:
            return (state.st_ino, state.st_dev, state.st_mode, state.st_ctime_ns, tuple(os.listdir(self._folder)))
        except PermissionError:
            return ()

    def _can_filter(self) -> bool:
        child = os.fork()
        if child == 0:
            os._exit(0 if self._confinement.filter_calls() else 1)
        return os.waitpid(child, 0)[1] == 0


def main(arguments: list[str]) -> NoReturn:
    """Serve on the socket whose number is the first argument; see box.py for the others."""
    descriptor, confined, folder, folder_mb, folder_files = arguments
    Zygote(
        socket.socket(fileno=int(descriptor)),
        confined=confined == "confined",
        folder=folder,
        folder_mb=int(folder_mb),
        folder_files=int(folder_files),
    ).serve()
