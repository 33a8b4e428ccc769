"""What a process in a sandbox gives up before it runs someone else's code: resources, capabilities, system calls."""

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
_NO_NEW_PRIVILEGES = 38
_FILTER_MODE = 2

# mount(2)
_NO_SUID, _NO_DEVICES, _NO_EXECUTION = 2, 4, 8
_DETACH = 2

_CAPABILITY_VERSION_3 = 0x20080522
_SIGKILL = 9


class _Filter(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("instructions", ctypes.c_char_p))


class Confinement:
    """The calls into the C library that confine a process, prepared once so that a fork only has to make them."""

    def __init__(self) -> None:
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._instructions = deny_filter() if sys.platform == "linux" else None
        if self._instructions is not None:
            self._filter = _Filter(len(self._instructions) // 8, self._instructions)

    def hide(self) -> None:
        """Keep other processes of the same user from reading this one's memory or taking its descriptors."""
        self._control(_SET_DUMPABLE, 0)

    def die_with_parent(self) -> None:
        if sys.platform == "linux":
            self._control(_DIE_WITH_PARENT, _SIGKILL)

    def renew_folder(self, path: str, *, size_mb: int, num_files: int, is_first: bool) -> None:
        """Mount an empty, limited tmpfs at `path`, in place of the one that is there unless it is the first."""
        if not is_first and self._libc.umount2(path.encode(), _DETACH):
            raise OSError(ctypes.get_errno(), "the temporary folder cannot be taken away")
        options = f"size={size_mb}m,nr_inodes={num_files},mode=0700".encode()
        flags = _NO_SUID | _NO_DEVICES | _NO_EXECUTION
        if self._libc.mount(b"tmpfs", path.encode(), b"tmpfs", flags, options):
            raise OSError(ctypes.get_errno(), "the temporary folder cannot be made")

    def drop_capabilities(self) -> None:
        """Give up every capability for good."""
        head = (ctypes.c_uint32 * 2)(_CAPABILITY_VERSION_3, 0)
        none = (ctypes.c_uint32 * 6)()
        if self._libc.capset(head, none):
            raise OSError(ctypes.get_errno(), "capabilities cannot be dropped")

    def filter_calls(self) -> bool:
        """Load the filter of system calls; return whether that was possible."""
        if self._instructions is None:
            return False
        self._control(_NO_NEW_PRIVILEGES, 1)
        return not self._libc.prctl(_SET_SECCOMP, _FILTER_MODE, ctypes.byref(self._filter), 0, 0)

    def _control(self, option: int, value: int) -> None:
        if self._libc.prctl(option, value, 0, 0, 0):
            raise OSError(ctypes.get_errno(), f"prctl {option} failed")


def limit_resources(limits: Mapping[str, Any], *, limit_processes: bool) -> None:
    """Set the limits that the kernel enforces on each process, hard, so that they cannot be raised again."""
    cpu_s = max(1, math.ceil(limits["cpu_limit_s"]))
    wanted = [
        (resource.RLIMIT_CPU, cpu_s),
        (resource.RLIMIT_AS, limits["memory_limit_mb"] * 2**20),
        (resource.RLIMIT_FSIZE, limits["file_size_mb"] * 2**20),
        (resource.RLIMIT_NOFILE, limits["num_files"]),
        (resource.RLIMIT_CORE, 0),
    ]
    if limit_processes:
        # Counted over all processes of the user in this user namespace. Without one, that would be all of his.
        wanted.append((resource.RLIMIT_NPROC, limits["num_processes"]))
    for kind, most in wanted:
        ceiling = resource.getrlimit(kind)[1]
        value = most if ceiling == resource.RLIM_INFINITY else min(most, ceiling)
        resource.setrlimit(kind, (value, value))


def open_null() -> None:
    """Point stdin, stdout and stderr at /dev/null."""
    null = os.open(os.devnull, os.O_RDWR)
    for standard in (0, 1, 2):
        os.dup2(null, standard)
    if null > 2:
        os.close(null)
