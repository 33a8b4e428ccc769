"""End what is left of a local Ray when its driver ends: processes, and the folder of the session.

A killed driver takes Ray's server and workers with it, but Ray's agents wait for that server for a minute. So a small
process beside the driver waits for its end: `python cleanup.py FOLDER`, with the folder of the Ray session. It imports
nothing beyond the standard library, and it is told by a byte when the driver has closed Ray itself.
"""

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

GRACE_S = 3.0
"""Time for Ray's own end."""
END_S = 10.0
"""How long processes may take to end when they are killed."""


class Cleanup:
    """The process that outlives a killed driver."""

    def __init__(self, session: str) -> None:
        command = [sys.executable, "-I", "-S", __file__, session]
        # A session of its own: Ctrl-C in the driver's terminal must not end it first.
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )

    def close(self) -> None:
        """End it, after Ray was closed: without killing anything."""
        self._process.communicate(b"x")


def using(session: str) -> Iterator[int]:
    """Yield the processes that hold a file of the session open: all of Ray's have their logs there."""
    for folder in Path("/proc").glob("[0-9]*/fd"):
        try:
            opened = [os.readlink(link) for link in folder.iterdir()]
        except OSError:  # It has ended, or is another user's.
            continue
        if any(path.startswith(session.rstrip("/") + "/") for path in opened):
            yield int(folder.parent.name)


def servers(session: str) -> dict[int, str]:
    """Return the servers of the session, without which Ray's own code aborts the driver, by process id."""
    found = {}
    for pid in using(session):
        try:
            name = os.path.basename((Path("/proc") / str(pid) / "cmdline").read_bytes().split(b"\0")[0]).decode()
        except OSError:
            continue
        if name in ("raylet", "gcs_server"):
            found[pid] = name
    return found


def main(session: str) -> None:
    if not sys.stdin.buffer.read(1):
        time.sleep(GRACE_S)
        deadline = time.monotonic() + END_S
        # Some start others while they end.
        while (left := list(using(session))) and time.monotonic() < deadline:
            for pid in left:
                try:
                    os.kill(pid, signal.SIGKILL)
                except OSError:
                    continue
            time.sleep(0.1)
    shutil.rmtree(session, ignore_errors=True)


if __name__ == "__main__":
    main(sys.argv[1])
