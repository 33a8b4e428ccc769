"""What every room that starts child processes needs: how to start one, limit it and let none outlive its parent.

`python -m scalerl.processes PARENT_PID COMMAND...` runs a command that dies with its parent. A killed study cannot end
its runs, and a run that continued alone would write into a folder that a resumed study uses. Linux kills the child; on
other systems the study's lock, which the child also holds, keeps the resumed study out.
"""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

# Options of Linux's prctl(2).
_DIE_WITH_PARENT = 1
_ADOPT_ORPHANS = 36


def num_cores() -> int:
    """Return how many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def start_module(module: str, *arguments: str, environment: Mapping[str, str] | None = None) -> subprocess.Popen[bytes]:
    """Start this interpreter on a module that it would import itself, with pipes to its input and output.

    It has a session of its own: Ctrl-C is for the parent, who ends it.
    """
    path = {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    return subprocess.Popen(
        [sys.executable, "-P", "-m", module, *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env=os.environ | (environment or {}) | path,
        start_new_session=True,
    )


def dying_with_parent(command: list[str]) -> list[str]:
    """Return a command line that runs `command` and kills it when this process dies."""
    return [sys.executable, "-P", "-m", "scalerl.processes", str(os.getpid()), *command]


def die_with_parent() -> None:
    """Let Linux kill this process when its parent ends; do nothing on other systems."""
    if sys.platform == "linux":
        _set_option(_DIE_WITH_PARENT, signal.SIGKILL)


def adopt_orphans() -> None:
    """Become the parent of this process's descendants whose parents end; on Linux only."""
    if sys.platform == "linux":
        _set_option(_ADOPT_ORPHANS, 1)


def limit_data(num_bytes: int) -> None:
    """Limit the size of this process's data for good; on Linux only."""
    if sys.platform != "linux":
        return
    import resource  # Not every system has it.

    # RLIMIT_AS would also count memory that threads and libraries reserve but never use.
    _, ceiling = resource.getrlimit(resource.RLIMIT_DATA)
    most = num_bytes if ceiling == resource.RLIM_INFINITY else min(num_bytes, ceiling)
    resource.setrlimit(resource.RLIMIT_DATA, (most, most))


class TimeLimit:
    """A time limit for a process and all that it starts, in which a wait for a core of the machine does not count.

    On a busy machine a process that computes waits for a core most of the time; one that sleeps or hangs does not. So a
    slow answer is late only by its own fault. Where the system does not say who waits (not Linux), all time counts.
    """

    def __init__(self, limit_s: float, *pids: int) -> None:
        """The time begins now."""
        self._limit_s = limit_s
        self._pids = pids
        self._began = time.monotonic()
        self._waits_before = self._waits()
        self._ends = self._began + limit_s

    def left_s(self) -> float:
        """Return how many seconds are left, at least; 0 or less if the limit is exceeded."""
        left_s = self._ends - time.monotonic()
        if left_s <= 0:
            self._ends = self._began + self._limit_s + self._longest_wait()
            left_s = self._ends - time.monotonic()
        return left_s

    def _longest_wait(self) -> float:
        """Return how long one of the processes has waited for a core, the one that did so longest.

        A sum would grow faster than time: processes that only compete with each other could go on for ever.
        """
        waits = [seconds - self._waits_before.get(pid, 0.0) for pid, seconds in self._waits().items()]
        return max(waits, default=0.0)

    def _waits(self) -> dict[int, float]:
        """Return how long each process has waited for a core since it began."""
        waits = {}
        for pid in self._pids:
            for each in (pid, *descendants(pid)):
                waits[each] = waited_for_core_s(each)
        return waits


def waited_for_core_s(pid: int) -> float:
    """Return how long a process could have run so far but had no core; 0 if it is gone or the system does not say."""
    try:
        return int(Path(f"/proc/{pid}/schedstat").read_text().split()[1]) / 1e9
    except (OSError, ValueError, IndexError):
        return 0.0


def descendants(pid: int) -> list[int]:
    """Return the children of a process, their children and so on, if the system lists them."""
    found: list[int] = []
    waiting = [pid]
    while waiting:
        parent = waiting.pop()
        for listed in Path(f"/proc/{parent}/task").glob("*/children"):
            with suppress(OSError):
                children = [int(child) for child in listed.read_text().split()]
                found += children
                waiting += children
    return found


def _set_option(option: int, value: int) -> None:
    """Set an option of this process with prctl(2)."""
    import ctypes

    ctypes.CDLL(None).prctl(option, value)


def _main() -> None:
    parent, *command = sys.argv[1:]
    die_with_parent()
    # If the parent died before this call, there was no signal.
    if sys.platform == "linux" and os.getppid() != int(parent):
        sys.exit(1)
    os.execvp(command[0], command)


if __name__ == "__main__":
    _main()
