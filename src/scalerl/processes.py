"""The one layer that starts child processes, limits them, notices how they end, and lets none outlive its parent.

    start, start_module, run      a process with a session of its own, streams and descriptors
    TimeLimit, limit_data         how long it may take, and how much memory
    end_process, how_it_ended     wait for its end a while, then kill it; the end in words
    die_with_parent, kill_...     nothing that it started is left

`python -m scalerl.processes PARENT_PID COMMAND...` runs a command that dies with its parent. A killed study cannot end
its runs, and a run that continued alone would write into a folder that a resumed study uses. Linux kills the child; on
other systems the study's lock, which the child also holds, keeps the resumed study out.
"""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO

# Options of Linux's prctl(2).
_DIE_WITH_PARENT = 1
_ADOPT_ORPHANS = 36

_MOMENT_S = 0.01
_MOST_GENERATIONS = 1000


def num_cores() -> int:
    """Return how many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


Stream = int | IO[bytes] | None


def start(
    command: Sequence[str],
    *,
    environment: Mapping[str, str] | None = None,
    descriptors: Sequence[int] = (),
    stdin: Stream = subprocess.DEVNULL,
    stdout: Stream = subprocess.DEVNULL,
    stderr: Stream = subprocess.DEVNULL,
    own_session: bool = True,
) -> subprocess.Popen[bytes]:
    """Start a child process that inherits these descriptors; `environment` is added to that of this process.

    In a session of its own it does not get Ctrl-C, which is for the parent, and what it starts can be ended with it.
    """
    return subprocess.Popen(
        command,
        stdin=stdin,
        stdout=stdout,
        stderr=stderr,
        env={**os.environ, **(environment or {})},
        pass_fds=descriptors,
        start_new_session=own_session,
    )


def start_module(module: str, *arguments: str, environment: Mapping[str, str] | None = None) -> subprocess.Popen[bytes]:
    """Start this interpreter on a module that it would import itself, with pipes to its input and output."""
    path = {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    return start(
        [sys.executable, "-P", "-m", module, *arguments],
        environment={**(environment or {}), **path},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )


def run(command: Sequence[str], *, most_s: float | None = None) -> tuple[int, bytes, bytes]:
    """Run a command to its end; return its exit code, and what it wrote to stdout and to stderr.

    It is in this process's session and gets Ctrl-C, too. TimeoutExpired after `most_s`.
    """
    process = start(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, own_session=False)
    with process:
        try:
            printed, complained = process.communicate(timeout=most_s)
        finally:
            end_process(process)
    return process.returncode, printed, complained


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


# Its end


def end_process(process: subprocess.Popen[bytes], *, patience_s: float = 0.0) -> None:
    """Wait for a process to end by itself, kill it if it does not, and reap it."""
    try:
        process.wait(patience_s)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def how_it_ended(code: int) -> str:
    """Return what an exit code of subprocess says, as the end of a sentence."""
    if code >= 0:
        return f"ended with exit code {code}"
    name = signal.Signals(-code).name
    hint = " (the system may have run out of memory)" if name == "SIGKILL" else ""
    return f"was ended by {name}{hint}"


def is_stopped(pid: int) -> bool | None:
    """Return whether a process is stopped (SIGSTOP); None if it is gone or the system does not say."""
    with suppress(OSError, IndexError):
        return _status(pid)[0] == "T"
    return None


def session_members(leader: int) -> list[int]:
    """Return the processes of a session, without zombies; none if the system does not list them."""
    members = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        pid = int(path.parent.name)
        with suppress(OSError, IndexError):
            state, _, _, session = _status(pid)[:4]
            if int(session) == leader and state not in "ZX":
                members.append(pid)
    return members


def kill_session(leader: int, chosen: Callable[[int], bool], *, most_s: float) -> bool:
    """Kill the chosen processes of a session, but this one, and those that they start; return whether none are left."""
    deadline = time.monotonic() + most_s
    while time.monotonic() < deadline:
        members = [pid for pid in session_members(leader) if pid != os.getpid() and chosen(pid)]
        if not members:
            return True
        for pid in members:
            _kill(pid)
        time.sleep(_MOMENT_S)
    return False


def lead_group() -> None:
    """Lead a process group, so that everything that this process starts can be killed with it, and die with the
    parent."""
    os.setpgid(0, 0)
    die_with_parent()


def kill_group(pid: int) -> int:
    """Kill a child that leads a process group and all in the group, reap them, and return the child's wait status."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)
    _kill(pid)
    _, status = os.waitpid(pid, 0)
    with suppress(ChildProcessError):
        while True:
            os.waitpid(-pid, 0)
    return status


def kill_children() -> None:
    """Kill and reap all children of this process; those of a killed one are the next, if it has adopted them."""
    for _ in range(_MOST_GENERATIONS):
        children = _children(os.getpid())
        if not children:
            return
        for pid in children:
            _kill(pid)
        for pid in children:
            with suppress(ChildProcessError):
                os.waitpid(pid, 0)


def _kill(pid: int) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.kill(pid, signal.SIGKILL)


def _status(pid: int) -> list[str]:
    """Return state, parent, group, session and so on of a process, as Linux lists them."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()


# Its time


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
        children = _children(waiting.pop())
        found += children
        waiting += children
    return found


def _children(pid: int) -> list[int]:
    """Return the children of a process; those that are known where it ends meanwhile."""
    children: list[int] = []
    # Each step may find that the process, or one of its threads, is gone.
    with suppress(OSError):
        for thread in os.listdir(f"/proc/{pid}/task"):
            with suppress(OSError):
                listed = Path(f"/proc/{pid}/task/{thread}/children").read_text()
                children += [int(child) for child in listed.split()]
    return children


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
