"""Confine a process in a sandbox before it runs a program, and clean up afterwards.

The process gives up its user, capabilities, resources and system calls, and gets an empty temporary folder, which
process 1 of the sandbox has mounted.
"""

import ctypes
import math
import os
import resource
import signal
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from scalerl.training.graders.sandbox.seccomp import deny_filter

# prctl(2)
_SET_DUMPABLE = 4
_SET_SECCOMP = 22
_FILTER_MODE = 2

# mount(2)
_READ_ONLY, _NO_SUID, _NO_DEVICES, _NO_EXECUTION, _REMOUNT, _BIND = 1, 2, 4, 8, 32, 4096
_LOCKED_FLAGS = _NO_SUID | _NO_EXECUTION | 1024 | 2048  # flags of a mount that a user namespace may not remove
_DETACH = 2

_CAPABILITY_VERSION_3 = 0x20080522

_FOLDER_MB, _FOLDER_FILES = 16, 1024

# Limits of one process. Processes and threads matter only if no filter of system calls forbids new processes.
_FILE_MB, _OPEN_FILES, _PROCESSES = 16, 64, 64


_LIBC = ctypes.CDLL(None, use_errno=True)


class _Filter(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("instructions", ctypes.c_char_p))


class Confined:
    """Programs inside bubblewrap; this process is process 1."""

    def __init__(self, folder: str, user: int, devices: Sequence[str]) -> None:
        """Programs run as `user` in `folder`. They can write to devices, but not change the mode of these."""
        assert os.getpid() == 1
        self._folder = folder
        self._user = user
        instructions = deny_filter()
        self._filter = _Filter(len(instructions) // 8, instructions)
        # Other processes of the same user must not read this process's memory or take its descriptors.
        _call("prctl", _SET_DUMPABLE, 0, 0, 0, 0)
        for path in devices:
            flags = _REMOUNT | _BIND | _READ_ONLY | os.statvfs(path).f_flag & _LOCKED_FLAGS
            _call("mount", None, path.encode(), None, flags, None)
        self._mount_folder()

    def enter(self, limits: Mapping[str, Any]) -> None:
        """Give up all rights permanently."""
        if os.getuid() != self._user:
            os.setgroups([])
            os.setresgid(self._user, self._user, self._user)
            os.setresuid(self._user, self._user, self._user)
        head = (ctypes.c_uint32 * 2)(_CAPABILITY_VERSION_3, 0)
        none = (ctypes.c_uint32 * 6)()
        _call("capset", head, none)
        os.chdir(self._folder)
        _limit_resources(limits)
        # This requires that bubblewrap has disabled new privileges.
        _call("prctl", _SET_SECCOMP, _FILTER_MODE, ctypes.byref(self._filter), 0, 0)

    def kill(self) -> None:
        """Kill the program and everything that it started."""
        with suppress(ProcessLookupError):
            os.kill(-1, signal.SIGKILL)

    def clear(self) -> None:
        """Reap all killed processes, and replace the temporary folder by an empty one."""
        # All orphans in the namespace are children of process 1: if it has no children, nothing is left.
        with suppress(ChildProcessError):
            while True:
                os.wait()
        _call("umount2", self._folder.encode(), _DETACH)
        self._mount_folder()

    def _mount_folder(self) -> None:
        options = f"size={_FOLDER_MB}m,nr_inodes={_FOLDER_FILES},mode=0700,uid={self._user},gid={self._user}"
        flags = _NO_SUID | _NO_DEVICES | _NO_EXECUTION
        _call("mount", b"tmpfs", self._folder.encode(), b"tmpfs", flags, options.encode())


def _call(name: str, *arguments: Any) -> None:
    """Call a function of the C library; OSError if it fails."""
    if getattr(_LIBC, name)(*arguments):
        raise OSError(ctypes.get_errno(), f"{name}{arguments} failed")


def _limit_resources(limits: Mapping[str, Any]) -> None:
    """Set hard limits for each process, which it cannot raise again."""
    cpu_s = max(1, math.ceil(limits["cpu_limit_s"]))
    wanted = {
        "AS": limits["memory_limit_mb"] * 2**20,
        "FSIZE": _FILE_MB * 2**20,
        "NOFILE": _OPEN_FILES,
        "CORE": 0,
        # Memory of the kernel: pending signals and timers, message queues, locked pages.
        "SIGPENDING": 256,
        "MSGQUEUE": 0,
        "MEMLOCK": 0,
        # This counts all processes of the user in this user namespace.
        "NPROC": _PROCESSES,
    }
    # At the soft limit the program gets SIGXCPU, which tells why it ended; if it ignores that, SIGKILL at the hard one.
    _limit("CPU", cpu_s, cpu_s + 1)
    for name, most in wanted.items():
        _limit(name, most, most)


def _limit(name: str, soft: int, hard: int) -> None:
    kind = getattr(resource, f"RLIMIT_{name}")
    ceiling = resource.getrlimit(kind)[1]
    hard = hard if ceiling == resource.RLIM_INFINITY else min(hard, ceiling)
    resource.setrlimit(kind, (min(soft, hard), hard))
