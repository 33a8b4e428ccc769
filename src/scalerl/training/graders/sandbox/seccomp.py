"""The filter of system calls for programs, as bytes for Linux's seccomp.

The filter is a deny list, because the needs of Python differ between versions and C libraries, whereas the forbidden
calls are known. It lists only calls that a process without capabilities could still make: mounts, devices, clocks and
so on need a capability, and programs have none. Numbers are from the kernel's tables for the two architectures
(arch/x86/entry/syscalls/syscall_64.tbl and include/uapi/asm-generic/unistd.h); see seccomp(2) for the layout.
"""

import errno
import platform
import struct
from collections.abc import Mapping

# Classic BPF: load a word of the call's data, compare, return.
_LOAD = 0x20
_JUMP_EQUAL = 0x15
_JUMP_GREATER_EQUAL = 0x35
_JUMP_ANY_BIT = 0x45
_RETURN = 0x06

_NUMBER_AT, _ARCHITECTURE_AT, _ARGUMENT_AT = 0, 4, 16

_ALLOW = 0x7FFF0000
_KILL = 0x80000000
_ERROR = 0x00050000

_THREAD = 0x00010000  # CLONE_THREAD
_UNIX = 1  # AF_UNIX
_X32 = 0x40000000  # x86_64 calls by another numbering

_ARCHITECTURES = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}

# Name: (number on x86_64, number on aarch64); None if the call does not exist.
_DENIED: Mapping[str, tuple[int | None, int | None]] = {
    # new processes and programs, and namespaces in which they would have capabilities; see also _CLONE
    "fork": (57, None),
    "vfork": (58, None),
    "execve": (59, 221),
    "execveat": (322, 281),
    "unshare": (272, 97),
    # process 1: its memory, descriptors and priority
    "ptrace": (101, 117),
    "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271),
    "pidfd_getfd": (438, 438),
    "setpriority": (141, 140),
    "ioprio_set": (251, 30),
    # memory that the limits of a process do not count, or for which all processes of a user share a limit
    "memfd_create": (319, 279),
    "memfd_secret": (447, 447),
    "shmget": (29, 194),
    "semget": (64, 190),
    "msgget": (68, 186),
    "add_key": (248, 217),
    "request_key": (249, 218),
    "keyctl": (250, 219),
    "io_setup": (206, 0),
    "setsockopt": (54, 208),  # buffers of sockets
    "inotify_init": (253, None),
    "inotify_init1": (294, 26),
    "fanotify_init": (300, 262),
    # parts of the kernel that Python does not need and that have had vulnerabilities
    "bpf": (321, 280),
    "perf_event_open": (298, 241),
    "userfaultfd": (323, 282),
    "io_uring_setup": (425, 425),
    "modify_ldt": (154, None),
    "personality": (135, 92),
    # the log of the host's kernel
    "syslog": (103, 116),
}

# The first argument is a process: 0, the caller itself, is allowed, any other is denied.
_OWN_ONLY: Mapping[str, tuple[int, int]] = {
    "prlimit64": (302, 261),
    "sched_setaffinity": (203, 122),
    "sched_setscheduler": (144, 119),
    "sched_setparam": (142, 118),
    "sched_setattr": (314, 274),
}

_SOCKETS = ((41, 198), (53, 199))  # socket, socketpair
_CLONE = (56, 220)
_CLONE3 = (435, 435)


def machine() -> str:
    """Return the name of this machine's architecture in the tables above."""
    return {"arm64": "aarch64", "amd64": "x86_64"}.get(name := platform.machine().lower(), name)


def deny_filter(architecture: str | None = None) -> bytes:
    """Return the filter for an architecture, by default this machine's; OSError if there is none.

    Denied calls fail with EPERM, an ordinary error for programs. clone3 fails with ENOSYS: its flags are in memory,
    which a filter cannot read, and C libraries then fall back to clone.
    """
    architecture = architecture or machine()
    if architecture not in _ARCHITECTURES:
        raise OSError(f"there is no filter of system calls for {architecture}")
    column = list(_ARCHITECTURES).index(architecture)
    denied = _ERROR | errno.EPERM
    code = [
        (_LOAD, 0, 0, _ARCHITECTURE_AT),
        (_JUMP_EQUAL, 1, 0, _ARCHITECTURES[architecture]),
        (_RETURN, 0, 0, _KILL),
        (_LOAD, 0, 0, _NUMBER_AT),
        (_JUMP_GREATER_EQUAL, 0, 1, _X32),
        (_RETURN, 0, 0, denied),
        (_JUMP_EQUAL, 0, 1, _CLONE3[column]),
        (_RETURN, 0, 0, _ERROR | errno.ENOSYS),
    ]
    tests = [(_CLONE, (_JUMP_ANY_BIT, 1, 0, _THREAD))]  # a thread has the flag, a new process has not
    tests += [(numbers, (_JUMP_EQUAL, 1, 0, _UNIX)) for numbers in _SOCKETS]
    tests += [(numbers, (_JUMP_EQUAL, 1, 0, 0)) for numbers in _OWN_ONLY.values()]
    for numbers, test in tests:
        # Allow the call where the test of its first argument jumps, and deny it otherwise.
        code += [(_JUMP_EQUAL, 0, 4, numbers[column]), (_LOAD, 0, 0, _ARGUMENT_AT), test]
        code += [(_RETURN, 0, 0, denied), (_RETURN, 0, 0, _ALLOW)]
    for number in (numbers[column] for numbers in _DENIED.values()):
        if number is not None:
            code += [(_JUMP_EQUAL, 0, 1, number), (_RETURN, 0, 0, denied)]
    code.append((_RETURN, 0, 0, _ALLOW))
    return b"".join(struct.pack("=HBBI", *instruction) for instruction in code)
