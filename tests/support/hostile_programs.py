"""Programs that try to get out of a sandbox, to cheat their tests or to hold up others.

Each defines attack(), which returns evidence where it succeeded, and None or an exception where it was stopped. `{...}`
are places that a test fills in: a folder, a file and a port outside, a name of an abstract socket.
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


def _ending(*kinds: str) -> frozenset[str]:
    return frozenset(kinds)


_CALL = "import ctypes, os\nlibc = ctypes.CDLL(None, use_errno=True)\n"

OUTSIDE: Mapping[str, Hostile] = {
    "read_a_system_file": Hostile(
        code="def attack():\n    return open('/etc/passwd').read()\n", stopped_by="empty root: only the interpreter"
    ),
    "read_a_users_file": Hostile(
        code="def attack():\n    return open({file!r}).read()\n", stopped_by="empty root: only the interpreter"
    ),
    "list_the_root": Hostile(
        code="import os\ndef attack():\n"
        "    return {{'etc', 'var', 'proc', 'sys', 'run', 'boot', 'bin'}} & set(os.listdir('/')) or None\n",
        stopped_by="empty root: only the interpreter",
    ),
    "write_a_file_outside": Hostile(
        code="def attack():\n    open({folder!r} + '/made', 'w').write('x')\n    return 'written'\n",
        stopped_by="empty root",
    ),
    "write_into_the_standard_library": Hostile(
        code="import os\ndef attack():\n    open(os.path.dirname(os.__file__) + '/made.py', 'w')\n    return 'written'\n",
        stopped_by="read-only mounts",
    ),
    "write_to_the_root": Hostile(
        code="def attack():\n    open('/made', 'w')\n    return 'written'\n", stopped_by="read-only root"
    ),
    "chmod_the_root": Hostile(
        code="import os\ndef attack():\n    os.chmod('/', 0o777)\n    return 'changed'\n", stopped_by="read-only root"
    ),
    "change_the_harness": Hostile(
        code="def attack():\n    open('/harness/scalerl/graders/sandbox/wire.py', 'a').write('#')\n    return 'written'\n",
        stopped_by="read-only mounts",
    ),
    "connect_to_loopback": Hostile(
        code="import socket\ndef attack():\n    socket.create_connection(('127.0.0.1', {port}), 1)\n    return 'reached'\n",
        stopped_by="network namespace, system call filter",
    ),
    "send_a_datagram": Hostile(
        code="import socket\ndef attack():\n"
        "    socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b'x', ('8.8.8.8', 53))\n    return 'sent'\n",
        stopped_by="network namespace, system call filter",
    ),
    "connect_to_an_abstract_socket": Hostile(
        code="import socket\ndef attack():\n    end = socket.socket(socket.AF_UNIX)\n    end.connect('\\0' + {name!r})\n"
        "    return 'reached'\n",
        stopped_by="network namespace",
    ),
    "look_at_the_process_table": Hostile(
        code="import os\ndef attack():\n    return os.listdir('/proc') or None\n", stopped_by="no /proc"
    ),
    "read_secrets_of_the_environment": Hostile(
        code="import os\ndef attack():\n    return os.environ.get('SCALERL_SECRET') or os.getenv('HOME')\n",
        stopped_by="cleared environment",
    ),
    "signal_the_parent": Hostile(
        code="import os, signal, time\ndef attack():\n    for number in (9, 15, 19, 2, 10):\n"
        "        os.kill(os.getppid(), number)\n    time.sleep(0.05)\n    return None if os.getppid() == 1 else 'killed'\n",
        stopped_by="process 1 of a pid namespace takes no signals from inside",
    ),
    "signal_processes_outside": Hostile(
        code="import os\ndef attack():\n    hit = []\n    for pid in range(2, 5000):\n        if pid != os.getpid():\n"
        "            try:\n                os.kill(pid, 0)\n                hit.append(pid)\n            except OSError:\n"
        "                pass\n    return hit or None\n",
        stopped_by="pid namespace",
    ),
    "trace_the_parent": Hostile(
        code=_CALL + "def attack():\n    return 'traced' if libc.ptrace(16, 1, 0, 0) == 0 else None\n",
        stopped_by="system call filter, no dumping of process 1",
    ),
    "write_into_the_parents_memory": Hostile(
        code=_CALL + "def attack():\n    part = (ctypes.c_size_t * 2)(id(libc), 8)\n"
        "    return 'read' if libc.process_vm_readv(1, part, 1, part, 1, 0) > 0 else None\n",
        stopped_by="system call filter, no dumping of process 1",
    ),
    "take_the_parents_descriptors": Hostile(
        code=_CALL + "def attack():\n    handle = libc.syscall(434, 1, 0)\n"
        "    return 'taken' if handle >= 0 and libc.syscall(438, handle, 3, 0) >= 0 else None\n",
        stopped_by="system call filter, no dumping of process 1",
    ),
    "limit_the_parent": Hostile(
        code="import resource\ndef attack():\n    resource.prlimit(1, resource.RLIMIT_NOFILE, (3, 3))\n    return 'limited'\n",
        stopped_by="system call filter",
    ),
    "slow_the_parent_down": Hostile(
        code="import os\ndef attack():\n    os.setpriority(os.PRIO_PROCESS, 1, 19)\n    return 'slowed'\n",
        stopped_by="system call filter",
    ),
    "run_a_shell": Hostile(
        code="import subprocess\ndef attack():\n    return subprocess.run(['/bin/sh', '-c', 'id'], capture_output=True)\n",
        stopped_by="empty root, system call filter",
    ),
    "run_another_interpreter": Hostile(
        code="import os, sys\ndef attack():\n    os.execv(sys.executable, [sys.executable, '-c', 'pass'])\n",
        stopped_by="system call filter",
    ),
    "mount_something": Hostile(
        code=_CALL + "def attack():\n    return 'mounted' if libc.mount(b'x', b'/tmp', b'tmpfs', 0, b'') == 0 else None\n",
        stopped_by="no capabilities, system call filter",
    ),
    "make_a_user_namespace": Hostile(
        code=_CALL + "def attack():\n    return 'made' if libc.unshare(0x10000000) == 0 else None\n",
        stopped_by="system call filter",
    ),
    "make_a_device": Hostile(
        code="import os, stat\ndef attack():\n    os.mknod('/tmp/disk', 0o600 | stat.S_IFBLK, os.makedev(8, 0))\n    return 'made'\n",
        stopped_by="no capabilities, nodev, system call filter",
    ),
    "become_root": Hostile(
        code="import os\ndef attack():\n    os.setuid(0)\n    return 'root'\n", stopped_by="user namespace without root"
    ),
    "raise_its_own_limits": Hostile(
        code="import resource\ndef attack():\n    unlimited = (resource.RLIM_INFINITY,) * 2\n"
        "    resource.setrlimit(resource.RLIMIT_AS, unlimited)\n    return 'raised'\n",
        stopped_by="hard limits",
    ),
    "load_kernel_code": Hostile(
        code=_CALL + "def attack():\n    tries = [libc.syscall(number, 0, 0, 0) for number in (280, 321)]\n"
        "    return tries if max(tries) >= 0 else None\n",
        stopped_by="no capabilities, system call filter",
    ),
    "follow_a_symlink": Hostile(
        code="import os\ndef attack():\n    os.symlink({file!r}, '/tmp/link')\n    return open('/tmp/link').read()\n",
        stopped_by="empty root: the link points to nothing",
    ),
}

EXHAUSTION: Mapping[str, Hostile] = {
    "fork_bomb": Hostile(
        code="import os\ndef attack():\n    while True:\n        os.fork()\n", stopped_by="system call filter, process limit"
    ),
    "leave_zombies": Hostile(
        code="import os\ndef attack():\n    for _ in range(100):\n        if os.fork() == 0:\n            os._exit(0)\n"
        "    return 'forked'\n",
        stopped_by="system call filter",
    ),
    "thread_bomb": Hostile(
        code="import threading, time\ndef attack():\n    for _ in range(10000):\n"
        "        threading.Thread(target=time.sleep, args=(60,), daemon=True).start()\n    return 'started'\n",
        stopped_by="address space",
    ),
    "memory_bomb": Hostile(
        code="def attack():\n    kept = []\n    while True:\n        kept.append(bytearray(16 * 2**20))\n",
        stopped_by="address space",
    ),
    "shared_memory_bomb": Hostile(
        code="import mmap\ndef attack():\n    kept = []\n    while True:\n        kept.append(mmap.mmap(-1, 64 * 2**20))\n",
        stopped_by="address space",
    ),
    "memory_outside_the_process": Hostile(
        code="import os\ndef attack():\n    os.memfd_create('x')\n    return 'made'\n", stopped_by="system call filter"
    ),
    "fill_the_temporary_folder": Hostile(
        code="def attack():\n    for number in range(64):\n        open(f'/tmp/{{number}}', 'wb').write(bytes(2**20))\n"
        "    return 'filled'\n",
        stopped_by="size of the temporary folder",
    ),
    "make_many_files": Hostile(
        code="def attack():\n    for number in range(100000):\n        open(f'/tmp/{{number}}', 'w').close()\n"
        "    return 'made'\n",
        stopped_by="number of files in the temporary folder",
    ),
    "make_a_huge_file": Hostile(
        code="def attack():\n    with open('/tmp/huge', 'wb') as opened:\n        opened.truncate(2**40)\n    return 'made'\n",
        stopped_by="file size limit",
    ),
    "open_many_files": Hostile(
        code="def attack():\n    kept = [open('/dev/null') for _ in range(1000)]\n    return 'opened'\n",
        stopped_by="open file limit",
    ),
    "sleep_past_the_limit": Hostile(
        code="import time\ndef attack():\n    time.sleep(1000)\n", ends=_ending("timeout"), stopped_by="wall time"
    ),
    "compute_past_the_limit": Hostile(
        code="def attack():\n    while True:\n        pass\n", ends=_ending("cpu", "timeout"), stopped_by="CPU time, wall time"
    ),
    "compute_without_returning_to_python": Hostile(
        code="def attack():\n    return (10**9) ** (10**7) and None\n",
        ends=_ending("cpu", "timeout", "passed"),
        stopped_by="CPU time, wall time",
    ),
    "never_finish_loading": Hostile(
        code="while True:\n    pass\n", ends=_ending("cpu", "timeout", "crash"), stopped_by="CPU time, wall time"
    ),
    "stop_itself": Hostile(
        code="import os, signal\ndef attack():\n    os.kill(os.getpid(), signal.SIGSTOP)\n",
        ends=_ending("timeout"),
        stopped_by="wall time",
    ),
    "ignore_signals": Hostile(
        code="import signal, time\ndef attack():\n    for number in range(1, 32):\n        try:\n"
        "            signal.signal(number, signal.SIG_IGN)\n        except (OSError, ValueError):\n            pass\n"
        "    while True:\n        time.sleep(1)\n",
        ends=_ending("timeout"),
        stopped_by="wall time, SIGKILL",
    ),
    "print_without_end": Hostile(
        code="import os\ndef attack():\n    while True:\n        os.write(1, b'x' * 65536)\n",
        ends=_ending("cpu", "timeout"),
        stopped_by="stdout is /dev/null, CPU time",
    ),
    "return_a_huge_value": Hostile(
        code="def attack():\n    return 'x' * 100_000_000\n", stopped_by="length of a message, address space"
    ),
    "return_without_end": Hostile(
        code="import itertools\ndef attack():\n    return next(iter([itertools.count()])) and None\n",
        stopped_by="iterators are sent up to a number of items",
    ),
    "return_a_deep_value": Hostile(
        code="def attack():\n    value = []\n    for _ in range(100000):\n        value = [value]\n    return value\n",
        stopped_by="nesting of values",
    ),
    "raise_without_end": Hostile(
        code="class Loud(Exception):\n    def __str__(self):\n        while True: pass\ndef attack():\n    raise Loud\n",
        ends=_ending("cpu", "timeout"),
        stopped_by="CPU time, wall time",
    ),
    "crash_the_interpreter": Hostile(
        code="import ctypes\ndef attack():\n    return ctypes.string_at(0)\n",
        ends=_ending("crash"),
        stopped_by="a process of its own",
    ),
    "overflow_the_stack": Hostile(
        code="import sys\nsys.setrecursionlimit(10**8)\ndef deeper(n):\n    return deeper(n + 1)\n"
        "def attack():\n    return deeper(0)\n",
        ends=_ending("crash", "passed", "memory", "timeout", "cpu"),
        stopped_by="a process of its own",
    ),
}

# These want to be taken for right: attack() ought to return 42, and they do not know that.
CHEATS: Mapping[str, Hostile] = {
    "exit_with_success": Hostile(
        code="import os\ndef attack():\n    os._exit(0)\n", ends=_ending("crash"), stopped_by="exit codes mean nothing"
    ),
    "leave_at_once": Hostile(
        code="import sys\nsys.exit(0)\n", ends=_ending("failed"), stopped_by="exit codes mean nothing"
    ),
    "print_that_it_passed": Hostile(
        code="def attack():\n    print('passed', 42, 'OK', flush=True)\n",
        ends=_ending("failed"),
        stopped_by="prints mean nothing",
    ),
    "equal_to_everything": Hostile(
        code="class Liar:\n    def __eq__(self, other): return True\n    def __ne__(self, other): return False\n"
        "    def __hash__(self): return hash(42)\ndef attack():\n    return Liar()\n",
        ends=_ending("failed"),
        stopped_by="values cross as data",
    ),
    "a_number_equal_to_everything": Hostile(
        code="class Liar(int):\n    def __eq__(self, other): return True\ndef attack():\n    return Liar(7)\n",
        ends=_ending("failed"),
        stopped_by="values cross as data",
    ),
    "patch_builtins": Hostile(
        code="import builtins\nbuiltins.AssertionError = Warning\nbuiltins.isinstance = lambda *_: True\n"
        "builtins.all = builtins.any = lambda *_: True\ndef attack():\n    return 7\n",
        ends=_ending("failed", "crash"),
        stopped_by="tests run in another process",
    ),
    "patch_the_harness": Hostile(
        code="import sys\nfor name, module in list(sys.modules.items()):\n    if 'test_side' in name:\n"
        "        module.Counts.record = lambda *_: None\n    if 'wire' in name:\n"
        "        real = module.send\n        module.send = lambda end, message, *rest: real(end, {{'tests': [[1, 1, 0, None]]}})\n"
        "    if 'program_side' in name and hasattr(module, 'send'):\n"
        "        actual = module.send\n        module.send = lambda end, message, *rest: actual(end, {{'tests': [[1, 1, 0, None]]}})\n"
        "def attack():\n    return 7\n",
        ends=_ending("crash", "failed"),
        stopped_by="no message from the program means that it passed",
    ),
    "write_to_every_descriptor": Hostile(
        code="import json, os, struct\nbody = json.dumps({{'tests': [[1, 1, 0, None]]}}).encode()\ndef attack():\n"
        "    for number in range(64):\n        try: os.write(number, struct.pack('!I', len(body)) + body)\n"
        "        except OSError: pass\n    return 7\n",
        ends=_ending("crash", "failed"),
        stopped_by="the verdict has a channel that the program never had",
    ),
    "answer_before_it_is_asked": Hostile(
        code="import json, os, struct\nfor number in range(3, 64):\n    for call in range(1, 9):\n"
        "        body = json.dumps({{'number': call, 'value': 7, 'passed': True}}).encode()\n"
        "        try: os.write(number, struct.pack('!I', len(body)) + body)\n        except OSError: pass\n"
        "def attack():\n    return 7\n",
        ends=_ending("crash", "failed"),
        stopped_by="an answer is only a value",
    ),
    "write_at_exit": Hostile(
        code="import atexit, os\natexit.register(os._exit, 0)\ndef attack():\n    raise SystemExit(0)\n",
        ends=_ending("failed", "crash"),
        stopped_by="exit codes mean nothing",
    ),
    "answer_from_a_thread": Hostile(
        code="import threading, os\ndef flood():\n    while True:\n        try: os.write(3, b'\\0\\0\\0\\x04true')\n"
        "        except OSError: return\nthreading.Thread(target=flood, daemon=True).start()\ndef attack():\n    return 7\n",
        ends=_ending("failed", "crash", "timeout", "cpu"),
        stopped_by="an answer is only a value",
    ),
    "look_for_the_tests": Hostile(
        code="import gc, sys\ndef attack():\n    texts = [text for value in gc.get_objects() if isinstance(value, dict)\n"
        "             for text in value.values() if isinstance(text, str) and 'attack() ' + '== 4' in text]\n"
        "    frame = sys._getframe()\n    while frame:\n        texts += [repr(v) for v in frame.f_locals.values() if 'attack() ' + '== 4' in repr(v)]\n"
        "        frame = frame.f_back\n    return 42 if texts else 7\n",
        ends=_ending("failed", "crash"),
        stopped_by="tests never enter the program's sandbox",
    ),
    "send_a_pickle_with_code": Hostile(
        code="import pickle, os\nclass Evil:\n    def __reduce__(self): return (os._exit, (0,))\ndef attack():\n"
        "    os.write(3, pickle.dumps(Evil()))\n    return pickle.dumps(Evil())\n",
        ends=_ending("failed", "crash"),
        stopped_by="JSON, no pickle",
    ),
    "a_name_that_looks_alike": Hostile(
        code="def \\u0430ttack():\n    return 42\n".encode().decode("unicode_escape"),
        ends=_ending("failed"),
        stopped_by="names are compared by code point",
    ),
    "raise_the_assertion_itself": Hostile(
        code="def attack():\n    raise AssertionError('passed')\n", ends=_ending("failed"), stopped_by="raising is failing"
    ),
    "close_every_descriptor": Hostile(
        code="import os\ndef attack():\n    os.closerange(0, 64)\n    return 42\n",
        ends=_ending("crash"),
        stopped_by="the program only harms itself",
    ),
}
