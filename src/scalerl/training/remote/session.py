"""End the processes of a child, which form a session, and remove the files that they leave. Needs /proc.

Python's resource tracker, one of these processes, removes named semaphores and blocks of shared memory when all
processes that could use them have ended. Therefore it is killed last, and only if it does not end by itself. Files that
vLLM maps without registering them are found in the memory maps of its processes. All other files are in the session's
temporary folder.
"""

import os
import shutil
import time
from collections.abc import Collection, Iterable
from contextlib import suppress
from pathlib import Path

from scalerl.processes import kill_session, session_members

SHARED = "/dev/shm/"
KILL_S = 5.0  # time limit for killed processes, and then for the resource tracker, to end
_TRACKER = "multiprocessing.resource_tracker"


def mapped_files(processes: Iterable[int]) -> set[str]:
    """Return the files of shared memory that processes have mapped, such as queues between vLLM's workers."""
    files = set()
    for number in processes:
        with suppress(OSError):
            for line in Path(f"/proc/{number}/maps").read_text().splitlines():
                name = line.partition(SHARED)[2]
                if name and not name.endswith("(deleted)"):
                    files.add(SHARED + name)
    return files


def end_session(leader: int, *, files: Collection[str], folder: str) -> None:
    """Kill the processes of a session except this one, and remove `files`, mapped files and `folder`."""
    files = {*files, *mapped_files(session_members(leader))}
    kill_session(leader, lambda pid: not _is_tracker(pid), most_s=KILL_S)
    # This process's own tracker works after this process has ended.
    if leader != os.getpid() and not _has_ended(leader):
        kill_session(leader, lambda pid: True, most_s=KILL_S)
    # Keep files that other processes have also mapped: CUDA stores events in them for sharing the driver's memory, and
    # without these no later child could map it.
    others = _all_processes() - ({os.getpid()} if leader == os.getpid() else set())
    for name in files - mapped_files(others) if files else ():
        with suppress(OSError):
            os.unlink(name)
    shutil.rmtree(folder, ignore_errors=True)


def _has_ended(leader: int) -> bool:
    """Wait until no processes of a session are left; return whether that was reached in time."""
    deadline = time.monotonic() + KILL_S
    while session_members(leader):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.01)
    return True


def _all_processes() -> set[int]:
    return {int(path.name) for path in Path("/proc").glob("[0-9]*")}


def _is_tracker(number: int) -> bool:
    with suppress(OSError):
        return _TRACKER in Path(f"/proc/{number}/cmdline").read_text()
    return False
