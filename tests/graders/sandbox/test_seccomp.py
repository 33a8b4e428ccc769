import struct

from scalerl.graders.sandbox.seccomp import deny_filter

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


def test_each_architecture_has_its_numbers():
    x86, arm = deny_filter("x86_64"), deny_filter("aarch64")
    assert x86 is not None
    assert arm is not None
    for ptrace, read, execve, code, architecture in ((101, 0, 59, x86, X86), (117, 63, 221, arm, ARM)):
        assert verdict(code, architecture, ptrace) == EPERM
        assert verdict(code, architecture, execve) == EPERM
        assert verdict(code, architecture, read) == ALLOW
        assert verdict(code, architecture, 435) == ENOSYS
        assert verdict(code, architecture, 425) == EPERM
    assert deny_filter("riscv64") is None


def test_calls_by_another_numbering_are_denied():
    x86 = deny_filter("x86_64")
    assert x86 is not None
    assert verdict(x86, 0x40000003, 0) == KILL
    assert verdict(x86, X86, 0x40000000 + 521) == EPERM


def test_arguments_decide_for_some_calls():
    x86, arm = deny_filter("x86_64"), deny_filter("aarch64")
    assert x86 is not None
    assert arm is not None
    for clone, socket, prlimit, code, architecture in ((56, 41, 302, x86, X86), (220, 198, 261, arm, ARM)):
        assert verdict(code, architecture, clone, 0x003D0F00) == ALLOW
        assert verdict(code, architecture, clone, 0x01200011) == EPERM
        assert verdict(code, architecture, socket, 1) == ALLOW
        assert verdict(code, architecture, socket, 2) == EPERM
        assert verdict(code, architecture, prlimit, 0) == ALLOW
        assert verdict(code, architecture, prlimit, 1) == EPERM
