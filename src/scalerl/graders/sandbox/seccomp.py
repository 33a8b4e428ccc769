"""The system calls that a program may not make, as a filter for Linux's seccomp, written out byte by byte.

The filter is a deny list: Python's own needs differ between versions and C libraries, while what a program may not do
is known. It is the second wall behind the namespaces, and the first one against new processes and programs. Numbers
are from the kernel's tables for the two architectures (arch/x86/entry/syscalls/syscall_64.tbl and
include/uapi/asm-generic/unistd.h); see seccomp(2) for the layout.
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

# Name: (number on x86_64, number on aarch64); None where there is no such call.
_DENIED: Mapping[str, tuple[int | None, int | None]] = {
    # other processes
    "ptrace": (101, 117),
    "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271),
    "kcmp": (312, 272),
    "pidfd_open": (434, 434),
    "pidfd_getfd": (438, 438),
    "pidfd_send_signal": (424, 424),
    "process_madvise": (440, 440),
    "process_mrelease": (448, 448),
    "migrate_pages": (256, 238),
    "move_pages": (279, 239),
    "ioprio_set": (251, 30),
    "setpriority": (141, 140),
    # new processes and programs
    "fork": (57, None),
    "vfork": (58, None),
    "execve": (59, 221),
    "execveat": (322, 281),
    # mounts and namespaces
    "mount": (165, 40),
    "umount2": (166, 39),
    "pivot_root": (155, 41),
    "chroot": (161, 51),
    "unshare": (272, 97),
    "setns": (308, 268),
    "open_tree": (428, 428),
    "move_mount": (429, 429),
    "fsopen": (430, 430),
    "fsconfig": (431, 431),
    "fsmount": (432, 432),
    "fspick": (433, 433),
    "mount_setattr": (442, 442),
    "name_to_handle_at": (303, 264),
    "open_by_handle_at": (304, 265),
    "mknod": (133, None),
    "mknodat": (259, 33),
    # memory that no limit of the process counts
    "memfd_create": (319, 279),
    "memfd_secret": (447, 447),
    "shmget": (29, 194),
    "semget": (64, 190),
    "msgget": (68, 186),
    "mq_open": (240, 180),
    "add_key": (248, 217),
    "request_key": (249, 218),
    "keyctl": (250, 219),
    # the kernel
    "bpf": (321, 280),
    "perf_event_open": (298, 241),
    "userfaultfd": (323, 282),
    "io_uring_setup": (425, 425),
    "io_uring_enter": (426, 426),
    "io_uring_register": (427, 427),
    "kexec_load": (246, 104),
    "kexec_file_load": (320, 294),
    "init_module": (175, 105),
    "finit_module": (313, 273),
    "delete_module": (176, 106),
    "reboot": (169, 142),
    "swapon": (167, 224),
    "swapoff": (168, 225),
    "sethostname": (170, 161),
    "setdomainname": (171, 162),
    "settimeofday": (164, 170),
    "clock_settime": (227, 112),
    "clock_adjtime": (305, 266),
    "adjtimex": (159, 171),
    "acct": (163, 89),
    "quotactl": (179, 60),
    "quotactl_fd": (443, 443),
    "syslog": (103, 116),
    "vhangup": (153, 58),
    "fanotify_init": (300, 262),
    "personality": (135, 92),
    "ioperm": (173, None),
    "iopl": (172, None),
    "modify_ldt": (154, None),
    "mbind": (237, 235),
    "set_mempolicy": (238, 237),
}

# Their first argument is a process: allowed for the caller itself (0), denied for any other.
_OWN_ONLY: Mapping[str, tuple[int, int]] = {
    "prlimit64": (302, 261),
    "sched_setaffinity": (203, 122),
    "sched_setscheduler": (144, 119),
    "sched_setparam": (142, 118),
    "sched_setattr": (314, 274),
}

_CLONE = (56, 220)
_CLONE3 = (435, 435)
_SOCKET = (41, 198)


def machine() -> str:
    """Return the architecture as the tables above name it."""
    return {"arm64": "aarch64", "amd64": "x86_64"}.get(name := platform.machine().lower(), name)


def deny_filter(architecture: str | None = None) -> bytes | None:
    """Return the filter for an architecture, this machine's by default; None where there is none for it.

    Denied calls fail with EPERM, so that a program sees an ordinary error. clone3 fails with ENOSYS: its flags are in
    memory, where a filter cannot look, and C libraries then fall back to clone.
    """
    architecture = architecture or machine()
    if architecture not in _ARCHITECTURES:
        return None
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
        # A thread has the flag, a new process has not.
        *_test_argument(_CLONE[column], (_JUMP_ANY_BIT, 1, 0, _THREAD)),
        *_test_argument(_SOCKET[column], (_JUMP_EQUAL, 1, 0, _UNIX)),
    ]
    for numbers in _OWN_ONLY.values():
        code += _test_argument(numbers[column], (_JUMP_EQUAL, 1, 0, 0))
    for numbers in _DENIED.values():
        number = numbers[column]
        if number is not None:
            code += [(_JUMP_EQUAL, 0, 1, number), (_RETURN, 0, 0, denied)]
    code.append((_RETURN, 0, 0, _ALLOW))
    return b"".join(struct.pack("=HBBI", *instruction) for instruction in code)


def _test_argument(number: int, test: tuple[int, int, int, int]) -> list[tuple[int, int, int, int]]:
    """Return instructions that allow this call where the test of its first argument jumps, and deny it otherwise."""
    return [
        (_JUMP_EQUAL, 0, 4, number),
        (_LOAD, 0, 0, _ARGUMENT_AT),
        test,
        (_RETURN, 0, 0, _ERROR | errno.EPERM),
        (_RETURN, 0, 0, _ALLOW),
    ]
