"""One running sandbox, seen from outside: start it, have a program run in it, end the program."""

import os
import socket
import subprocess
import sys
import tempfile
import weakref
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from scalerl.errors import SandboxError
from scalerl.graders.sandbox import bubblewrap, unconfined
from scalerl.graders.sandbox.wire import BadMessage, Closed, receive, send

# -P -s -S: only the standard library can be imported. -B: nothing is written. Not -I: that ignores the hash seed.
_BOOT = (
    "import os, sys; sys.path.insert(0, os.environ['HARNESS'])\n"
    "from scalerl.graders.sandbox.zygote import main; main(sys.argv[1:])"
)
_OPTIONS = ("-P", "-s", "-S", "-B", "-X", "utf8", "-c", _BOOT)

_FOLDER_MB, _FOLDER_FILES = 16, 1024

_START_TIMEOUT_S = 60.0
_END_TIMEOUT_S = 20.0


class BoxDied(RuntimeError):
    """The sandbox itself ended, or does not answer."""


class Box:
    """A sandbox with a warm interpreter. Runs one program at a time."""

    def __init__(self, isolation: str) -> None:
        """Start it; `isolation` is "bubblewrap" or "none". SandboxError says why that cannot be done."""
        confined = isolation == "bubblewrap"
        start = (bubblewrap if confined else unconfined).command(_OPTIONS)
        ours, theirs = socket.socketpair()
        folder = None if confined else tempfile.TemporaryDirectory(prefix="scalerl-")
        place = bubblewrap.FOLDER if folder is None else folder.name
        number = theirs.fileno()
        arguments = (str(number), "confined" if confined else "free", place, str(_FOLDER_MB), str(_FOLDER_FILES))
        with theirs:
            try:
                self._process = subprocess.Popen(
                    [*start, *arguments],
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.PIPE,
                    pass_fds=[number],
                    env={"HARNESS": unconfined.HARNESS, "PYTHONHASHSEED": "0"},
                    start_new_session=not confined,
                )
            except OSError as error:
                ours.close()
                raise SandboxError(f"the sandbox cannot be started: {error}") from error
        self._control = ours
        self.close = weakref.finalize(self, _stop, self._process, ours, folder, os.getpid())
        """End the sandbox and all that runs in it."""
        self.has_filter = self._wait_until_ready(isolation)
        """Whether system calls are filtered."""

    @property
    def pid(self) -> int:
        return self._process.pid

    def run(self, job: Mapping[str, Any], descriptors: Sequence[int]) -> None:
        """Start a program; the one before must have been ended. The descriptors are its own."""
        try:
            send(self._control, {"do": "run", "job": job}, descriptors)
        except (OSError, BadMessage) as error:
            raise BoxDied(str(error)) from error

    def order_end(self) -> None:
        """Have the program killed, and all that it started; `ended` must follow."""
        try:
            send(self._control, {"do": "end"})
        except OSError as error:
            raise BoxDied(str(error)) from error

    def ended(self) -> Mapping[str, Any]:
        """Return the wait status of the program that was to be ended and what it used."""
        try:
            return receive(self._control)
        except (OSError, Closed, BadMessage) as error:
            raise BoxDied(str(error)) from error

    def _wait_until_ready(self, isolation: str) -> bool:
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
        self._control.settimeout(_END_TIMEOUT_S)
        return bool(ready["seccomp"])


def _why(isolation: str, complaint: str) -> str:
    sentence = f"the sandbox ({isolation}) cannot be started: {complaint}"
    if isolation == "bubblewrap" and complaint.startswith("bwrap:") and sys.platform == "linux":
        sentence += " (bubblewrap needs user namespaces: kernel.unprivileged_userns_clone or an AppArmor profile)"
    return sentence


def _stop(
    process: subprocess.Popen[bytes],
    control: socket.socket,
    folder: tempfile.TemporaryDirectory[str] | None,
    owner: int,
) -> None:
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
