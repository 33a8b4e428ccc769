"""Processes of a session, for tests that ask what is left of it. Needs /proc."""

import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path


def processes_of(session: int) -> list[int]:
    """Return the processes of a session, dead ones that nobody has reaped among them."""
    pids = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        # A process may end while the folder is read.
        with suppress(OSError):
            if int(path.read_text().rpartition(")")[2].split()[3]) == session:
                pids.append(int(path.parent.name))
    return pids


def is_gone(session: int, patience_s: float = 100.0) -> bool:
    """Return whether a session has no process any more, now or after some time."""
    deadline = time.monotonic() + patience_s
    while processes_of(session) and time.monotonic() < deadline:
        time.sleep(0.05)
    return not processes_of(session)


def running_children(parents: Iterable[int]) -> list[int]:
    """Return the processes that run and whose parent is one of these."""
    pids = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            state, parent = path.read_text().rpartition(")")[2].split()[:2]
            if state != "Z" and int(parent) in parents:
                pids.append(int(path.parent.name))
    return pids


def has_ended(pid: int) -> bool:
    """Return whether a process runs no more, reaped or not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True
