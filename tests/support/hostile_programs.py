"""Programs that try to get out of a sandbox, to cheat their tests or to hold up others.

Each defines attack(), which returns evidence where it succeeded, and None or an exception where it was stopped. FOLDER,
FILE, PORT and NAME stand for things outside that a test fills in.
"""

from collections.abc import Mapping
from dataclasses import dataclass

STOPPED = frozenset({"passed"})
"""attack() came back without evidence, which is what its test asserts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Hostile:
    """An attack and how it may end."""

    code: str
    ends: frozenset[str] = STOPPED
    stopped_by: str

    def aimed_at(self, outside: Mapping[str, object]) -> str:
        """Return the program with real targets."""
        code = self.code
        for name, target in outside.items():
            code = code.replace(name.upper(), repr(target))
        return code


def _ends(*kinds: str) -> frozenset[str]:
    return frozenset(kinds)


OUTSIDE: Mapping[str, Hostile] = {
    "read_a_system_file": Hostile(
        code=r"""
def attack():
    return open('/etc/passwd').read()
""",
        stopped_by="empty root: only the interpreter",
    ),
    "read_a_users_file": Hostile(
        code=r"""
def attack():
    return open(FILE).read()
""",
        stopped_by="empty root: only the interpreter",
    ),
    "list_the_root": Hostile(
        code=r"""
import os
def attack():
    return {'etc', 'var', 'proc', 'sys', 'run', 'boot', 'bin'} & set(os.listdir('/')) or None
""",
        stopped_by="empty root: only the interpreter",
    ),
    "write_a_file_outside": Hostile(
        code=r"""
def attack():
    open(FOLDER + '/made', 'w').write('x')
    return 'written'
""",
        stopped_by="empty root",
    ),
    "write_into_the_standard_library": Hostile(
        code=r"""
import os
def attack():
    open(os.path.dirname(os.__file__) + '/made.py', 'w')
    return 'written'
""",
        stopped_by="read-only mounts",
    ),
    "write_to_the_root": Hostile(
        code=r"""
def attack():
    open('/made', 'w')
    return 'written'
""",
        stopped_by="read-only root",
    ),
    "chmod_the_root": Hostile(
        code=r"""
import os
def attack():
    os.chmod('/', 0o777)
    return 'changed'
""",
        stopped_by="read-only root",
    ),
    "change_the_harness": Hostile(
        code=r"""
def attack():
    open('/harness/scalerl/graders/sandbox/wire.py', 'a').write('#')
    return 'written'
""",
        stopped_by="read-only mounts",
    ),
    "connect_to_loopback": Hostile(
        code=r"""
import socket
def attack():
    socket.create_connection(('127.0.0.1', PORT), 1)
    return 'reached'
""",
        stopped_by="network namespace, system call filter",
    ),
    "send_a_datagram": Hostile(
        code=r"""
import socket
def attack():
    socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b'x', ('8.8.8.8', 53))
    return 'sent'
""",
        stopped_by="network namespace, system call filter",
    ),
    "connect_to_an_abstract_socket": Hostile(
        code=r"""
import socket
def attack():
    end = socket.socket(socket.AF_UNIX)
    end.connect('\0' + NAME)
    return 'reached'
""",
        stopped_by="network namespace",
    ),
    "look_at_the_process_table": Hostile(
        code=r"""
import os
def attack():
    return os.listdir('/proc') or None
""",
        stopped_by="no /proc",
    ),
    "read_secrets_of_the_environment": Hostile(
        code=r"""
import os
def attack():
    return os.environ.get('SCALERL_SECRET') or os.getenv('HOME')
""",
        stopped_by="cleared environment",
    ),
    "signal_the_parent": Hostile(
        code=r"""
import os, signal, time
def attack():
    for number in (9, 15, 19, 2, 10):
        os.kill(os.getppid(), number)
    time.sleep(0.05)
    return None if os.getppid() == 1 else 'killed'
""",
        stopped_by="process 1 of a pid namespace takes no signals from inside",
    ),
    "signal_processes_outside": Hostile(
        code=r"""
import os
def attack():
    hit = []
    for pid in range(2, 5000):
        if pid != os.getpid():
            try:
                os.kill(pid, 0)
                hit.append(pid)
            except OSError:
                pass
    return hit or None
""",
        stopped_by="pid namespace",
    ),
    "trace_the_parent": Hostile(
        code=r"""
import ctypes, os
libc = ctypes.CDLL(None, use_errno=True)
def attack():
    return 'traced' if libc.ptrace(16, 1, 0, 0) == 0 else None
""",
        stopped_by="system call filter, no dumping of process 1",
    ),
    "write_into_the_parents_memory": Hostile(
        code=r"""
import ctypes, os
libc = ctypes.CDLL(None, use_errno=True)
def attack():
    part = (ctypes.c_size_t * 2)(id(libc), 8)
    return 'read' if libc.process_vm_readv(1, part, 1, part, 1, 0) > 0 else None
""",
        stopped_by="system call filter, no dumping of process 1",
    ),
    "take_the_parents_descriptors": Hostile(
        code=r"""
import ctypes, os
libc = ctypes.CDLL(None, use_errno=True)
def attack():
    handle = libc.syscall(434, 1, 0)
    return 'taken' if handle >= 0 and libc.syscall(438, handle, 3, 0) >= 0 else None
""",
        stopped_by="system call filter, no dumping of process 1",
    ),
    "limit_the_parent": Hostile(
        code=r"""
import resource
def attack():
    resource.prlimit(1, resource.RLIMIT_NOFILE, (3, 3))
    return 'limited'
""",
        stopped_by="system call filter",
    ),
    "slow_the_parent_down": Hostile(
        code=r"""
import os
def attack():
    os.setpriority(os.PRIO_PROCESS, 1, 19)
    return 'slowed'
""",
        stopped_by="system call filter",
    ),
    "run_a_shell": Hostile(
        code=r"""
import subprocess
def attack():
    return subprocess.run(['/bin/sh', '-c', 'id'], capture_output=True)
""",
        stopped_by="empty root, system call filter",
    ),
    "run_another_interpreter": Hostile(
        code=r"""
import os, sys
def attack():
    os.execv(sys.executable, [sys.executable, '-c', 'pass'])
""",
        stopped_by="system call filter",
    ),
    "mount_something": Hostile(
        code=r"""
import ctypes, os
libc = ctypes.CDLL(None, use_errno=True)
def attack():
    return 'mounted' if libc.mount(b'x', b'/tmp', b'tmpfs', 0, b'') == 0 else None
""",
        stopped_by="no capabilities, system call filter",
    ),
    "make_a_user_namespace": Hostile(
        code=r"""
import ctypes, os
libc = ctypes.CDLL(None, use_errno=True)
def attack():
    return 'made' if libc.unshare(0x10000000) == 0 else None
""",
        stopped_by="system call filter",
    ),
    "make_a_device": Hostile(
        code=r"""
import os, stat
def attack():
    os.mknod('/tmp/disk', 0o600 | stat.S_IFBLK, os.makedev(8, 0))
    return 'made'
""",
        stopped_by="no capabilities, nodev, system call filter",
    ),
    "become_root": Hostile(
        code=r"""
import os
def attack():
    os.setuid(0)
    return 'root'
""",
        stopped_by="user namespace without root",
    ),
    "raise_its_own_limits": Hostile(
        code=r"""
import resource
def attack():
    unlimited = (resource.RLIM_INFINITY,) * 2
    resource.setrlimit(resource.RLIMIT_AS, unlimited)
    return 'raised'
""",
        stopped_by="hard limits",
    ),
    "load_kernel_code": Hostile(
        code=r"""
import ctypes, os
libc = ctypes.CDLL(None, use_errno=True)
def attack():
    tries = [libc.syscall(number, 0, 0, 0) for number in (280, 321)]
    return tries if max(tries) >= 0 else None
""",
        stopped_by="no capabilities, system call filter",
    ),
    "follow_a_symlink": Hostile(
        code=r"""
import os
def attack():
    os.symlink(FILE, '/tmp/link')
    return open('/tmp/link').read()
""",
        stopped_by="empty root: the link points to nothing",
    ),
}

EXHAUSTION: Mapping[str, Hostile] = {
    "fork_bomb": Hostile(
        code=r"""
import os
def attack():
    while True:
        os.fork()
""",
        stopped_by="system call filter, process limit",
    ),
    "leave_zombies": Hostile(
        code=r"""
import os
def attack():
    for _ in range(100):
        if os.fork() == 0:
            os._exit(0)
    return 'forked'
""",
        stopped_by="system call filter",
    ),
    "thread_bomb": Hostile(
        code=r"""
import threading, time
def attack():
    for _ in range(10000):
        threading.Thread(target=time.sleep, args=(60,), daemon=True).start()
    return 'started'
""",
        stopped_by="address space",
    ),
    "memory_bomb": Hostile(
        code=r"""
def attack():
    kept = []
    while True:
        kept.append(bytearray(16 * 2**20))
""",
        stopped_by="address space",
    ),
    "shared_memory_bomb": Hostile(
        code=r"""
import mmap
def attack():
    kept = []
    while True:
        kept.append(mmap.mmap(-1, 64 * 2**20))
""",
        stopped_by="address space",
    ),
    "memory_outside_the_process": Hostile(
        code=r"""
import os
def attack():
    os.memfd_create('x')
    return 'made'
""",
        stopped_by="system call filter",
    ),
    "fill_the_temporary_folder": Hostile(
        code=r"""
def attack():
    for number in range(64):
        open(f'/tmp/{number}', 'wb').write(bytes(2**20))
    return 'filled'
""",
        stopped_by="size of the temporary folder",
    ),
    "make_many_files": Hostile(
        code=r"""
def attack():
    for number in range(100000):
        open(f'/tmp/{number}', 'w').close()
    return 'made'
""",
        stopped_by="number of files in the temporary folder",
    ),
    "make_a_huge_file": Hostile(
        code=r"""
def attack():
    with open('/tmp/huge', 'wb') as opened:
        opened.truncate(2**40)
    return 'made'
""",
        stopped_by="file size limit",
    ),
    "open_many_files": Hostile(
        code=r"""
def attack():
    kept = [open('/dev/null') for _ in range(1000)]
    return 'opened'
""",
        stopped_by="open file limit",
    ),
    "sleep_past_the_limit": Hostile(
        code=r"""
import time
def attack():
    time.sleep(1000)
""",
        ends=_ends("timeout"),
        stopped_by="wall time",
    ),
    "compute_past_the_limit": Hostile(
        code=r"""
def attack():
    while True:
        pass
""",
        ends=_ends("cpu", "timeout"),
        stopped_by="CPU time, wall time",
    ),
    "compute_without_returning_to_python": Hostile(
        code=r"""
def attack():
    return (10**9) ** (10**7) and None
""",
        ends=_ends("cpu", "passed", "timeout"),
        stopped_by="CPU time, wall time",
    ),
    "never_finish_loading": Hostile(
        code=r"""
while True:
    pass
""",
        ends=_ends("cpu", "crash", "timeout"),
        stopped_by="CPU time, wall time",
    ),
    "stop_itself": Hostile(
        code=r"""
import os, signal
def attack():
    os.kill(os.getpid(), signal.SIGSTOP)
""",
        ends=_ends("timeout"),
        stopped_by="wall time",
    ),
    "ignore_signals": Hostile(
        code=r"""
import signal, time
def attack():
    for number in range(1, 32):
        try:
            signal.signal(number, signal.SIG_IGN)
        except (OSError, ValueError):
            pass
    while True:
        time.sleep(1)
""",
        ends=_ends("timeout"),
        stopped_by="wall time, SIGKILL",
    ),
    "print_without_end": Hostile(
        code=r"""
import os
def attack():
    while True:
        os.write(1, b'x' * 65536)
""",
        ends=_ends("cpu", "timeout"),
        stopped_by="stdout is /dev/null, CPU time",
    ),
    "return_a_huge_value": Hostile(
        code=r"""
def attack():
    return 'x' * 100_000_000
""",
        stopped_by="length of a message, address space",
    ),
    "return_without_end": Hostile(
        code=r"""
import itertools
def attack():
    return next(iter([itertools.count()])) and None
""",
        stopped_by="iterators are sent up to a number of items",
    ),
    "return_a_deep_value": Hostile(
        code=r"""
def attack():
    value = []
    for _ in range(100000):
        value = [value]
    return value
""",
        stopped_by="nesting of values",
    ),
    "raise_without_end": Hostile(
        code=r"""
class Loud(Exception):
    def __str__(self):
        while True: pass
def attack():
    raise Loud
""",
        ends=_ends("cpu", "timeout"),
        stopped_by="CPU time, wall time",
    ),
    "crash_the_interpreter": Hostile(
        code=r"""
import ctypes
def attack():
    return ctypes.string_at(0)
""",
        ends=_ends("crash"),
        stopped_by="a process of its own",
    ),
    "overflow_the_stack": Hostile(
        code=r"""
import sys
sys.setrecursionlimit(10**8)
def deeper(n):
    return deeper(n + 1)
def attack():
    return deeper(0)
""",
        ends=_ends("cpu", "crash", "memory", "passed", "timeout"),
        stopped_by="a process of its own",
    ),
}

# These want to be taken for right: attack() ought to return 42, and they do not know that.
CHEATS: Mapping[str, Hostile] = {
    "exit_with_success": Hostile(
        code=r"""
import os
def attack():
    os._exit(0)
""",
        ends=_ends("crash"),
        stopped_by="exit codes mean nothing",
    ),
    "leave_at_once": Hostile(
        code=r"""
import sys
sys.exit(0)
""",
        ends=_ends("failed"),
        stopped_by="exit codes mean nothing",
    ),
    "print_that_it_passed": Hostile(
        code=r"""
def attack():
    print('passed', 42, 'OK', flush=True)
""",
        ends=_ends("failed"),
        stopped_by="prints mean nothing",
    ),
    "equal_to_everything": Hostile(
        code=r"""
class Liar:
    def __eq__(self, other): return True
    def __ne__(self, other): return False
    def __hash__(self): return hash(42)
def attack():
    return Liar()
""",
        ends=_ends("failed"),
        stopped_by="values cross as data",
    ),
    "a_number_equal_to_everything": Hostile(
        code=r"""
class Liar(int):
    def __eq__(self, other): return True
def attack():
    return Liar(7)
""",
        ends=_ends("failed"),
        stopped_by="values cross as data",
    ),
    "patch_builtins": Hostile(
        code=r"""
import builtins
builtins.AssertionError = Warning
builtins.isinstance = lambda *_: True
builtins.all = builtins.any = lambda *_: True
def attack():
    return 7
""",
        ends=_ends("crash", "failed"),
        stopped_by="tests run in another process",
    ),
    "patch_the_harness": Hostile(
        code=r"""
import sys
for name, module in list(sys.modules.items()):
    if 'test_side' in name:
        module.Counts.record = lambda *_: None
    if 'wire' in name:
        real = module.send
        module.send = lambda end, *rest: real(end, {'tests': [[1, 1, 0, None]]})
    if 'program_side' in name and hasattr(module, 'send'):
        actual = module.send
        module.send = lambda end, *rest: actual(end, {'tests': [[1, 1, 0, None]]})
def attack():
    return 7
""",
        ends=_ends("crash", "failed"),
        stopped_by="no message from the program means that it passed",
    ),
    "write_to_every_descriptor": Hostile(
        code=r"""
import json, os, struct
body = json.dumps({'tests': [[1, 1, 0, None]]}).encode()
def attack():
    for number in range(64):
        try: os.write(number, struct.pack('!I', len(body)) + body)
        except OSError: pass
    return 7
""",
        ends=_ends("crash", "failed"),
        stopped_by="the verdict has a channel that the program never had",
    ),
    "answer_before_it_is_asked": Hostile(
        code=r"""
import json, os, struct
for number in range(3, 64):
    for call in range(1, 9):
        body = json.dumps({'number': call, 'value': 7, 'passed': True}).encode()
        try: os.write(number, struct.pack('!I', len(body)) + body)
        except OSError: pass
def attack():
    return 7
""",
        ends=_ends("crash", "failed"),
        stopped_by="an answer is only a value",
    ),
    "write_at_exit": Hostile(
        code=r"""
import atexit, os
atexit.register(os._exit, 0)
def attack():
    raise SystemExit(0)
""",
        ends=_ends("crash", "failed"),
        stopped_by="exit codes mean nothing",
    ),
    "answer_from_a_thread": Hostile(
        code=r"""
import threading, os
def flood():
    while True:
        try: os.write(3, b'\0\0\0\x04true')
        except OSError: return
threading.Thread(target=flood, daemon=True).start()
def attack():
    return 7
""",
        ends=_ends("cpu", "crash", "failed", "timeout"),
        stopped_by="an answer is only a value",
    ),
    "look_for_the_tests": Hostile(
        code=r"""
import gc, sys
def attack():
    texts = [text for value in gc.get_objects() if isinstance(value, dict)
             for text in value.values() if isinstance(text, str) and 'attack() ' + '== 4' in text]
    frame = sys._getframe()
    while frame:
        texts += [repr(v) for v in frame.f_locals.values()
                  if 'attack() ' + '== 4' in repr(v)]
        frame = frame.f_back
    return 42 if texts else 7
""",
        ends=_ends("crash", "failed"),
        stopped_by="tests never enter the program's sandbox",
    ),
    "send_a_pickle_with_code": Hostile(
        code=r"""
import pickle, os
class Evil:
    def __reduce__(self): return (os._exit, (0,))
def attack():
    os.write(3, pickle.dumps(Evil()))
    return pickle.dumps(Evil())
""",
        ends=_ends("crash", "failed"),
        stopped_by="JSON, no pickle",
    ),
    "a_name_that_looks_alike": Hostile(
        code=b"def \\u0430ttack():\n    return 42\n".decode("unicode_escape"),
        ends=_ends("failed"),
        stopped_by="names are compared by code point",
    ),
    "raise_the_assertion_itself": Hostile(
        code=r"""
def attack():
    raise AssertionError('passed')
""",
        ends=_ends("failed"),
        stopped_by="raising is failing",
    ),
    "close_every_descriptor": Hostile(
        code=r"""
import os
def attack():
    os.closerange(0, 64)
    return 42
""",
        ends=_ends("crash"),
        stopped_by="the program only harms itself",
    ),
}
