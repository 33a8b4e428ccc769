import struct

import pytest

from scalerl.training.graders.sandbox.seccomp import deny_filter

ALLOW, KILL, EPERM, ENOSYS = 0x7FFF0000, 0x80000000, 0x00050001, 0x00050026
X86, ARM = 0xC000003E, 0xC00000B7


def verdict(code: bytes, architecture: int, number: int, argument: int = 0) -> int:
    """Run a filter on a system call, as the kernel does."""
    data = struct.pack("=IIQ6Q", number, architecture, 0, argument, *[0] * 5)
    at = accumulator = 0
    while True:
        kind, if_true, if_false, value = struct.unpack_from("=HBBI", code, 8 * at)
        at += 1
        if kind == 0x20:
            (accumulator,) = struct.unpack_from("=I", data, value)
        elif kind == 0x06:
            return value
        else:
            met = {0x15: accumulator == value, 0x35: accumulator >= value, 0x45: bool(accumulator & value)}[kind]
            at += if_true if met else if_false


@pytest.mark.parametrize(
    ("name", "x86_64", "aarch64", "argument", "result"),
    [
        ("read", 0, 63, 0, ALLOW),
        ("execve", 59, 221, 0, EPERM),
        ("ptrace", 101, 117, 0, EPERM),
        ("io_setup", 206, 0, 64, EPERM),
        ("io_uring_setup", 425, 425, 0, EPERM),
        ("inotify_init1", 294, 26, 0, EPERM),
        ("clone3", 435, 435, 0, ENOSYS),
        ("clone of a thread", 56, 220, 0x003D0F00, ALLOW),
        ("clone of a process", 56, 220, 0x01200011, EPERM),
        ("socket(AF_UNIX)", 41, 198, 1, ALLOW),
        ("socket(AF_INET)", 41, 198, 2, EPERM),
        ("socketpair(AF_UNIX)", 53, 199, 1, ALLOW),
        ("socketpair(AF_TIPC)", 53, 199, 30, EPERM),
        ("prlimit64 of itself", 302, 261, 0, ALLOW),
        ("prlimit64 of process 1", 302, 261, 1, EPERM),
        # A capability is needed: no rule of the filter.
        ("mount", 165, 40, 0, ALLOW),
    ],
)
def test_calls(name: str, x86_64: int, aarch64: int, argument: int, result: int):
    for architecture, token, number in (("x86_64", X86, x86_64), ("aarch64", ARM, aarch64)):
        assert verdict(deny_filter(architecture), token, number, argument) == result, (name, architecture)


def test_calls_by_another_numbering_are_denied():
    x86 = deny_filter("x86_64")
    assert verdict(x86, 0x40000003, 0) == KILL
    assert verdict(x86, X86, 0x40000000 + 521) == EPERM
    with pytest.raises(OSError, match="no filter of system calls for riscv64"):
        deny_filter("riscv64")
