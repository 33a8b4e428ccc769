"""Processes and files of one Ray session, found by the driver's process id, so that other sessions are left alone."""

import os
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path


def _parents() -> dict[int, int]:
    parents = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            # The name is in parentheses and may hold anything.
            parents[int(path.parent.name)] = int(path.read_text().rpartition(")")[2].split()[1])
        except (OSError, IndexError, ValueError):
            continue
    return parents


def descendants(root: int) -> set[int]:
    """Return the process ids below a process."""
    parents, below = _parents(), {root}
    while more := {pid for pid, parent in parents.items() if parent in below} - below:
        below |= more
    return below - {root}


def parent_of(pid: int) -> int:
    return _parents()[pid]


def command_line(pid: int) -> str:
    try:
        return (Path("/proc") / str(pid) / "cmdline").read_text().replace("\0", " ")
    except OSError:
        return ""


def generators_of(root: int) -> list[int]:
    """Return the generators of the run whose driver is `root`."""
    return sorted(pid for pid in descendants(root) if command_line(pid).startswith("ray::Generator"))


def ranks_of(root: int) -> list[int]:
    """Return the ranks of the learner below a process: a driver with a local Ray, or whoever started the nodes."""
    return sorted(pid for pid in descendants(root) if command_line(pid).startswith("ray::LearnerRank"))


def alive(pids: set[int]) -> dict[int, str]:
    """Return those of the processes that still run, with their command lines; zombies do not count."""
    living = {}
    for pid in pids:
        try:
            state = (Path("/proc") / str(pid) / "stat").read_text().rpartition(")")[2].split()[0]
        except OSError:
            continue
        if state != "Z":
            living[pid] = command_line(pid)
    return living


def listening(pids: set[int]) -> set[str]:
    """Return the addresses, without ports, at which these processes accept connections, as /proc/net writes them."""
    sockets = set()
    for pid in pids:
        for link in Path(f"/proc/{pid}/fd").glob("*"):
            try:
                sockets.add(os.readlink(link))
            except OSError:
                continue
    rows = [line.split() for name in ("tcp", "tcp6") for line in Path(f"/proc/net/{name}").read_text().splitlines()]
    return {row[1].partition(":")[0] for row in rows if row[3] == "0A" and f"socket:[{row[9]}]" in sockets}


LOOPBACK = {"0100007F", "0000000000000000FFFF00000100007F"}
"""127.0.0.1, and the same as an address of IPv6, in hexadecimal words of this machine's byte order."""


def shared_memory() -> set[str]:
    return set(os.listdir("/dev/shm"))


def shared_memory_of(pids: Iterable[int]) -> set[str]:
    """Return the blocks that these processes have mapped or open."""
    numbers = set()
    for pid in pids:
        with suppress(OSError):
            lines = Path(f"/proc/{pid}/maps").read_text().splitlines()
            numbers |= {int(line.split()[4]) for line in lines if "/dev/shm/" in line}
        links: list[Path] = []
        with suppress(OSError):  # the process may end at any moment
            links = list(Path(f"/proc/{pid}/fd").iterdir())
        for link in links:
            with suppress(OSError):
                if os.readlink(link).startswith("/dev/shm/"):
                    numbers.add(os.stat(link).st_ino)
    # By number: a semaphore is mapped under the name that it had first.
    blocks = set()
    for name in shared_memory():
        with suppress(OSError):
            if os.stat(f"/dev/shm/{name}").st_ino in numbers:
                blocks.add(name)
    return blocks


def processes_with(variable: str) -> set[int]:
    """Return the living processes that were started with this variable, as NAME=value, in their environment."""
    found = set()
    for path in Path("/proc").glob("[0-9]*/environ"):
        with suppress(OSError):
            if variable.encode() in path.read_bytes().split(b"\0"):
                found.add(int(path.parent.name))
    return set(alive(found))
