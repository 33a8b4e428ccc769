"""What a process in a sandbox gives up before it runs someone else's code: its user, capabilities, resources and system
calls. Process 1 of a sandbox also makes mounts: an empty temporary folder for each program, and devices read-only."""

import ctypes
import math
import os
import resource
import sys
from collections.abc import Mapping
from typing import Any

from scalerl.graders.sandbox.seccomp import deny_filter

# prctl(2)
_DIE_WITH_PARENT = 1
_SET_DUMPABLE = 4
_SET_SECCOMP = 22
_FILTER_MODE = 2

# mount(2)
_READ_ONLY, _NO_SUID, _NO_DEVICES, _NO_EXECUTION, _REMOUNT, _BIND = 1, 2, 4, 8, 32, 4096
_KEPT = _NO_SUID | _NO_EXECUTION | 1024 | 2048  # flags of a mount that a user namespace may not take off again
_DETACH = 2

_CAPABILITY_VERSION_3 = 0x20080522
_SIGKILL = 9

_FOLDER_MB, _FOLDER_FILES = 16, 1024


class _Filter(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("instructions", ctypes.c_char_p))


class Confinement:
    """The calls into the C library that confine a process, prepared once so that a fork only has to make them."""

    def __init__(self) -> None:
        self._libc = ctypes.CDLL(None, use_errno=True)
        instructions = deny_filter() if sys.platform == "linux" else None
        self._filter = _Filter(len(instructions) // 8, instructions) if instructions else None

    def hide(self) -> None:
        """Keep other processes of the same user from reading this one's memory or taking its descriptors."""
        self._check(self._libc.prctl(_SET_DUMPABLE, 0, 0, 0, 0), "hiding a process")

    def die_with_parent(self) -> None:
        if sys.platform == "linux":
            self._check(self._libc.prctl(_DIE_WITH_PARENT, _SIGKILL, 0, 0, 0), "dying with the parent")

    def make_read_only(self, path: str) -> None:
        """Make a mounted device read-only: it can still be written to, but not have its mode or owner changed."""
        flags = _REMOUNT | _BIND | _READ_ONLY | os.statvfs(path).f_flag & _KEPT
        self._check(self._libc.mount(None, path.encode(), None, flags, None), f"making {path} read-only")

    def renew_folder(self, path: str, user: int, *, is_first: bool) -> None:
        """Mount an empty, limited tmpfs at `path`, in place of the one that is there unless it is the first."""
        if not is_first:
            self._check(self._libc.umount2(path.encode(), _DETACH), "taking the temporary folder away")
        options = f"size={_FOLDER_MB}m,nr_inodes={_FOLDER_FILES},mode=0700,uid={user},gid={user}".encode()
        flags = _NO_SUID | _NO_DEVICES | _NO_EXECUTION
        self._check(self._libc.mount(b"tmpfs", path.encode(), b"tmpfs", flags, options), "making the temporary folder")

    def drop_rights(self, user: int) -> None:
        """Become `user`, and give up every capability for good."""
        if os.getuid() != user:
            os.setgroups([])
            os.setresgid(user, user, user)
            os.setresuid(user, user, user)
        head, none = (ctypes.c_uint32 * 2)(_CAPABILITY_VERSION_3, 0), (ctypes.c_uint32 * 6)()
        self._check(self._libc.capset(head, none), "dropping capabilities")

    def filter_calls(self) -> bool:
        """Load the filter of system calls; return whether that was possible."""
        if self._filter is None:
            return False
        # Bubblewrap has given up new privileges, which is a condition.
        return not self._libc.prctl(_SET_SECCOMP, _FILTER_MODE, ctypes.byref(self._filter), 0, 0)

    def _check(self, returned: int, action: str) -> None:
        if returned:
            raise OSError(ctypes.get_errno(), f"{action} failed")


def limit_resources(limits: Mapping[str, Any], *, limit_processes: bool) -> None:
    """Set the limits that the kernel enforces on each process, hard, so that they cannot be raised again."""
    cpu_s = max(1, math.ceil(limits["cpu_limit_s"]))
    wanted = {
        "AS": limits["memory_limit_mb"] * 2**20,
        "FSIZE": limits["file_size_mb"] * 2**20,
        "NOFILE": limits["num_files"],
        "CORE": 0,
        # Memory of the kernel: signals and timers under way, queues of messages, locked pages.
        "SIGPENDING": 256,
        "MSGQUEUE": 0,
        "MEMLOCK": 0,
    }
    if limit_processes:
        # Counted over all processes of the user in this user namespace. Without one, that would be all of his.
        wanted["NPROC"] = limits["num_processes"]
    # At the soft limit the program gets SIGXCPU, which says why it ended; at the hard one, if it ignores that, SIGKILL.
    _limit("CPU", cpu_s, cpu_s + 1)
    for name, most in wanted.items():
        if hasattr(resource, f"RLIMIT_{name}"):
            _limit(name, most, most)


def _limit(name: str, soft: int, hard: int) -> None:
    kind = getattr(resource, f"RLIMIT_{name}")
    ceiling = resource.getrlimit(kind)[1]
    hard = hard if ceiling == resource.RLIM_INFINITY else min(hard, ceiling)
    resource.setrlimit(kind, (min(soft, hard), hard))
