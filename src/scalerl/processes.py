"""What every room that starts child processes needs: how to start one, limit it and let none outlive its parent.

`python -m scalerl.processes PARENT_PID COMMAND...` runs a command that dies with its parent. A killed study cannot end
its runs, and a run that continued alone would write into a folder that a resumed study uses. Linux kills the child; on
other systems the study's lock, which the child also holds, keeps the resumed study out.
"""

import os
import signal
import subprocess
import sys
from collections.abc import Mapping

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
