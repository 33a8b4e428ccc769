"""End what is left of a local Ray when its driver ends: processes, and the folder that all of them write to.

A killed driver takes Ray's server and workers with it, but Ray's agents wait for that server for a minute. So a small
process beside the driver waits for its end: `python cleanup.py FOLDER`. It imports nothing beyond the standard library.
The folder is its own and is made before Ray starts: a Ray that was killed or failed while it started leaves nothing
either. A byte says that the driver has closed Ray itself.
"""

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

GRACE_S = 3.0
"""Time for Ray's own end."""
END_S = 10.0
"""How long processes may take to end when they are killed."""


class Cleanup:
    """A new folder for Ray, and the process that outlives a killed driver."""

    def __init__(self) -> None:
        self.folder, self._is_over = tempfile.mkdtemp(prefix="ray-"), False
        self._process = self._started()
        threading.Thread(target=self._keep, name="ray-cleanup", daemon=True).start()

    def close(self, *, kills: bool = False) -> None:
        """End it, after Ray was closed, or with `kills` after Ray could not be started."""
        self._is_over = True
        self._process.communicate(b"" if kills else b"x")

    def _started(self) -> "subprocess.Popen[bytes]":
        # A session of its own: Ctrl-C in the driver's terminal must not end it first.
        return subprocess.Popen(
            [sys.executable, "-I", "-S", __file__, self.folder],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )

    def _keep(self) -> None:
        """Start another if it is killed."""
        while self._process.wait() is not None and not self._is_over:
            with suppress(OSError):
                self._process.communicate()
            self._process = self._started()


def using(folder: str) -> Iterator[int]:
    """Yield the processes that hold a file in the folder open: all of Ray's have their logs there."""
    for files in Path("/proc").glob("[0-9]*/fd"):
        try:
            opened = [os.readlink(link) for link in files.iterdir()]
        except OSError:  # It has ended, or is another user's.
            continue
        if any(path.startswith(folder + "/") for path in opened):
            yield int(files.parent.name)


def servers(folder: str) -> dict[int, str]:
    """Return the servers of a local Ray, without which Ray's own code aborts the driver, by process id."""
    found = {}
    for pid in using(folder):
        try:
            name = os.path.basename((Path("/proc") / str(pid) / "cmdline").read_bytes().split(b"\0")[0]).decode()
        except OSError:
            continue
        if name in ("raylet", "gcs_server"):
            found[pid] = name
    return found


def main(folder: str) -> None:
    driver = os.getppid()
    is_closed = bool(sys.stdin.buffer.read(1))
    # A driver that could not start Ray lives on, and has its own log there.
    spared = {driver} if os.getppid() == driver else set()
    if not is_closed:
        time.sleep(GRACE_S)
    deadline = time.monotonic() + (GRACE_S if is_closed else END_S)
    # Some start others while they end.
    while (left := set(using(folder)) - spared) and time.monotonic() < deadline:
        for pid in () if is_closed else left:
            with suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.1)
    shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main(sys.argv[1])
