"""One running sandbox, seen from outside: have a job run in it, and end that.

A job is one fork of the sandbox's first process, with descriptors of its own, until it ends or is ended. A job may be a
program with its tests, or anything that goes on serving its descriptors for as long as they are open.
"""

import os
import socket
import subprocess
import sys
import weakref
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from scalerl.errors import SandboxError
from scalerl.graders.sandbox.launch import Launched, launch
from scalerl.graders.sandbox.wire import BadMessage, Closed, receive, send_job

_START_TIMEOUT_S = 60.0
_END_TIMEOUT_S = 20.0


class BoxDied(RuntimeError):
    """The sandbox itself ended, or does not answer."""


class NotBegun(BoxDied):
    """A job could not be started: no one else's code has run."""


class Box:
    """A sandbox with a warm interpreter. Runs one job at a time."""

    def __init__(self, isolation: str) -> None:
        """Start it; `isolation` is "bubblewrap" or "none". SandboxError says why that cannot be done."""
        launched = launch(isolation)
        self._process, self._control, _ = launched
        self._job: socket.socket | None = None
        self._stop = weakref.finalize(self, _stop, launched, os.getpid())
        self._control.settimeout(_START_TIMEOUT_S)
        try:
            ready = receive(self._control)
        except (OSError, Closed, BadMessage):
            with suppress(subprocess.TimeoutExpired):
                self._process.kill()
            _, complaint = self._process.communicate()
            self.close()
            lines = complaint.decode(errors="replace").strip().splitlines() or ["it gave no reason"]
            raise SandboxError(_why(isolation, lines[-1])) from None
        assert self._process.stderr is not None
        self._process.stderr.close()
        self.has_filter: bool = ready["seccomp"]
        """Whether system calls are filtered."""

    @property
    def pid(self) -> int:
        return self._process.pid

    def close(self) -> None:
        """End the sandbox and all that runs in it."""
        if self._job is not None:
            self._job.close()
        self._stop()

    def start(self, job: Mapping[str, Any], descriptors: Sequence[int]) -> None:
        """Start a job with descriptors of its own; the one before must have ended. `begun` must follow.

        The job goes to the fork alone: the process that it is forked from would keep it in its memory.
        """
        self._job, theirs = socket.socketpair()
        self._job.settimeout(_START_TIMEOUT_S)
        try:
            with theirs:
                socket.send_fds(self._control, [b"R"], [theirs.fileno(), *descriptors])
            send_job(self._job, job)
        except OSError as error:
            raise NotBegun(str(error)) from error

    def begun(self) -> None:
        """Wait until the fork has given up its rights and runs the job. NotBegun if it ended before."""
        assert self._job is not None
        try:
            begun = self._job.recv(1)
        except OSError as error:
            raise NotBegun(str(error)) from error
        if not begun:
            raise NotBegun("its process ended")

    def result(self, timeout_s: float) -> Any:
        """Return the message that the job sends within this time, or None."""
        assert self._job is not None
        try:
            self._job.settimeout(max(timeout_s, 1e-3))
            return receive(self._job)
        except (OSError, Closed, BadMessage):
            return None

    def order_end(self) -> None:
        """Have the job killed, and all that it started, unless it has ended by itself; `ended` must follow."""
        try:
            self._control.send(b"E")
        except OSError as error:
            raise BoxDied(str(error)) from error

    def ended(self, timeout_s: float = _END_TIMEOUT_S) -> Mapping[str, Any] | None:
        """Return the wait status of the job and what it used, once nothing is left of it; None if it goes on."""
        if self._job is not None:
            self._job.close()
        self._control.settimeout(max(timeout_s, 1e-3))
        try:
            return receive(self._control)
        except TimeoutError:
            return None
        except (OSError, Closed, BadMessage) as error:
            raise BoxDied(str(error)) from error


def _why(isolation: str, complaint: str) -> str:
    sentence = f"the sandbox ({isolation}) cannot be started: {complaint}"
    if isolation == "bubblewrap" and complaint.startswith("bwrap:") and sys.platform == "linux":
        sentence += " (bubblewrap needs user namespaces: kernel.unprivileged_userns_clone or an AppArmor profile)"
    return sentence


def _stop(launched: Launched, owner: int) -> None:
    process, control, folder = launched
    control.close()
    # A fork holds a copy of the box, but the processes are not its own.
    if os.getpid() != owner:
        return
    if process.stderr is not None:
        process.stderr.close()
    try:
        process.wait(1.0)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    if folder is not None:
        folder.cleanup()
