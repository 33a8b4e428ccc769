"""A running sandbox from outside: start it, run jobs in it, and end it.

A sandbox is a bare interpreter with its own namespaces and root folder, made by bubblewrap. The root is read-only and
contains the interpreter, the standard library, the shared libraries of both and four devices. Process 1 keeps the
capabilities to make mounts, to change its user and to end programs; programs have none. If the trainer is root,
programs run as the user `nobody`, who owns nothing. Otherwise, only the trainer's user can be mapped into the sandbox,
so that files of this user must be read-only in it.

A job is a fork of the sandbox's process 1 with its own descriptors. It may be a program with its tests, or code that
serves its descriptors for as long as they are open.
"""

import functools
import json
import os
import select
import shutil
import socket
import subprocess
import sys
import weakref
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from scalerl.errors import SandboxError
from scalerl.processes import TimeLimit, end_process, run, start
from scalerl.training.graders.sandbox.wire import BadMessage, Closed, receive, send

_NOBODY = 65534
_FOLDER = "/tmp"
_HARNESS = "/harness"
_ROOM = __name__.rpartition(".")[0].replace(".", "/")
_INSIDE = ("names", "values", "wire", "seccomp", "confine", "program_side", "test_side", "zygote")
_DEVICES = ("/dev/null", "/dev/zero", "/dev/random", "/dev/urandom")

# -P -s -S: only the standard library can be imported. -B: nothing is written. -I would ignore the hash seed.
_BOOT = (
    "import os, sys; sys.path.insert(0, os.environ['HARNESS'])\n"
    "from scalerl.training.graders.sandbox.zygote import main; main(*sys.argv[1:])"
)
_PYTHON = ("-P", "-s", "-S", "-B", "-X", "utf8", "-c", _BOOT)

# Modules of the standard library that load shared libraries.
_MODULES = ["zlib", "bz2", "lzma", "ctypes", "hashlib", "ssl", "sqlite3", "decimal", "uuid", "pyexpat", "_elementtree"]
_PROBE = f"""
import ctypes, importlib, json, os, sys, sysconfig
for name in {_MODULES!r}:
    try: importlib.import_module(name)
    except ImportError: pass
class Info(ctypes.Structure):
    _fields_ = [("address", ctypes.c_size_t), ("name", ctypes.c_char_p)]
libraries = []
@ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(Info), ctypes.c_size_t, ctypes.c_void_p)
def note(info, size, data):
    name = os.fsdecode(info.contents.name or b"")
    if name.startswith("/"): libraries.append(name)
    return 0
ctypes.CDLL(None).dl_iterate_phdr(note, None)
print(json.dumps([libraries, sorted({{sysconfig.get_path("stdlib"), sysconfig.get_path("platstdlib")}})]))
"""

_MOMENT_S = 1e-3
_PATIENCE_S = 1.0
_START_TIMEOUT_S = 60.0
_END_TIMEOUT_S = 20.0


class BoxDied(RuntimeError):
    """The sandbox itself has ended or does not answer."""


class NotBegun(BoxDied):
    """A job could not be started, so none of its code has run."""


class Box:
    """A sandbox with a warm interpreter. Runs one job at a time."""

    def __init__(self) -> None:
        """Start the sandbox; SandboxError if that fails."""
        self._process, self._control = launch()
        self._job: socket.socket | None = None
        self._stop = weakref.finalize(self, _stop, self._process, self._control, os.getpid())
        self._control.settimeout(_START_TIMEOUT_S)
        try:
            receive(self._control)
        except (OSError, Closed, BadMessage):
            with suppress(subprocess.TimeoutExpired):
                self._process.kill()
            _, complaint = self._process.communicate()
            self.close()
            lines = complaint.decode(errors="replace").strip().splitlines() or ["it gave no reason"]
            raise SandboxError(
                f"the sandbox cannot be started: {lines[-1]} (bubblewrap needs user namespaces: "
                f"kernel.unprivileged_userns_clone or an AppArmor profile; in a container, one that may make them)"
            ) from None
        assert self._process.stderr is not None
        self._process.stderr.close()

    @property
    def pid(self) -> int:
        return self._process.pid

    def close(self) -> None:
        """End the sandbox and everything that runs in it."""
        if self._job is not None:
            self._job.close()
        self._stop()

    def start(self, job: Mapping[str, Any], descriptors: Sequence[int]) -> None:
        """Start a job with its own descriptors; the previous job must have ended. Call `begun` next.

        Only the fork receives the job: process 1 would keep it in memory.
        """
        self._job, child_end = socket.socketpair()
        self._job.settimeout(_START_TIMEOUT_S)
        try:
            with child_end:
                socket.send_fds(self._control, [b"R"], [child_end.fileno(), *descriptors])
            send(self._job, job, most=sys.maxsize)
        except OSError as error:
            raise NotBegun(str(error)) from error

    def begun(self) -> None:
        """Wait until the fork has given up its rights and runs the job; NotBegun if it has ended before."""
        assert self._job is not None
        try:
            begun = self._job.recv(1)
        except OSError as error:
            raise NotBegun(str(error)) from error
        if not begun:
            raise NotBegun("its process ended")

    def result(self, limit: TimeLimit) -> Any:
        """Return the message that the job sends within its time, or None."""
        assert self._job is not None
        if not can_read(self._job.fileno(), limit):
            return None
        try:
            self._job.settimeout(max(limit.left_s(), _MOMENT_S))
            return receive(self._job)
        except (OSError, Closed, BadMessage):
            return None

    def order_end(self) -> None:
        """Order that the job and everything it started be killed, unless it has ended by itself. Call `ended` next."""
        try:
            self._control.send(b"E")
        except OSError as error:
            raise BoxDied(str(error)) from error

    def ended(self, timeout_s: float = _END_TIMEOUT_S) -> Mapping[str, Any] | None:
        """Return the job's wait status and resource use once nothing is left of it; None if it is still running."""
        if self._job is not None:
            self._job.close()
        self._control.settimeout(max(timeout_s, _MOMENT_S))
        try:
            return receive(self._control)
        except TimeoutError:
            return None
        except (OSError, Closed, BadMessage) as error:
            raise BoxDied(str(error)) from error


def can_read(descriptor: int, limit: TimeLimit) -> bool:
    """Wait until a descriptor can be read, which its end also makes it; return whether that was in time."""
    poller = select.poll()
    poller.register(descriptor, select.POLLIN)
    while (left_s := limit.left_s()) > 0:
        if poller.poll(1e3 * left_s):
            return True
    return False


def _stop(process: subprocess.Popen[bytes], control: socket.socket, owner: int) -> None:
    control.close()
    # A fork has a copy of this object, but does not own the processes.
    if os.getpid() != owner:
        return
    if process.stderr is not None:
        process.stderr.close()
    end_process(process, patience_s=_PATIENCE_S)


# Start ----------------------------------------------------------------------------------------------------------------


def launch() -> tuple[subprocess.Popen[bytes], socket.socket]:
    """Start process 1, and return it with the socket for its orders; SandboxError if that fails."""
    parent_end, child_end = socket.socketpair()
    inside = [os.path.realpath(sys.executable), *_PYTHON, str(child_end.fileno()), _FOLDER, str(_NOBODY), *_DEVICES]
    with child_end:
        try:
            return _bubblewrapped(inside, child_end.fileno()), parent_end
        except BaseException as error:
            parent_end.close()
            if isinstance(error, OSError):
                raise SandboxError(f"the sandbox cannot be started: {error}") from error
            raise


def _bubblewrapped(inside: list[str], control: int) -> subprocess.Popen[bytes]:
    line = _bubblewrap()
    if not _may_map_users():
        user = ["--uid", str(_NOBODY), "--gid", str(_NOBODY), "--"]
        return _started([*line, *user, *inside], [control])
    go_on, blocked = os.pipe()
    status_read, status_write = os.pipe()
    with os.fdopen(blocked, "wb") as gate, os.fdopen(status_read, "rb", buffering=0) as status_pipe:
        try:
            line += ["--userns-block-fd", str(go_on), "--info-fd", str(status_write)]
            for capability in ("CAP_SETUID", "CAP_SETGID", "CAP_KILL"):
                line += ["--cap-add", capability]
            process = _started([*line, "--", *inside], [control, go_on, status_write])
        finally:
            os.close(go_on)
            os.close(status_write)
        status = b""
        while b"}" not in status and (more := status_pipe.read(4096)):
            status += more
        if b"}" in status:
            folder = Path("/proc", str(json.loads(status)["child-pid"]))
            for name in ("uid_map", "gid_map"):
                (folder / name).write_text(f"0 0 1\n{_NOBODY} {_NOBODY} 1\n")
            gate.write(b"x")
    return process


def _started(command: list[str], descriptors: list[int]) -> subprocess.Popen[bytes]:
    # In the group of the grader's process, which is killed as a whole.
    return start(command, descriptors=descriptors, stderr=subprocess.PIPE, own_session=False)


def _bubblewrap() -> list[str]:
    """Return the command line of bubblewrap, without the user of programs."""
    program = shutil.which("bwrap")
    if program is None:
        raise SandboxError(
            "programs are run by bubblewrap, which needs Linux, but bwrap is not on the PATH: install it (Debian and "
            "Ubuntu: apt install bubblewrap; Fedora: dnf install bubblewrap)"
        )
    line = [program, "--unshare-user", "--unshare-ipc", "--unshare-pid", "--unshare-net", "--unshare-uts"]
    line += ["--unshare-cgroup-try", "--hostname", "sandbox", "--die-with-parent", "--new-session", "--as-pid-1"]
    line += ["--cap-drop", "ALL", "--cap-add", "CAP_SYS_ADMIN"]
    # PYTHONHASHSEED: verdicts must not depend on the order of sets.
    line += ["--clearenv", "--setenv", "PYTHONHASHSEED", "0", "--setenv", "HARNESS", _HARNESS]
    line += _interpreter()
    source = Path(__file__).parent
    for name in _INSIDE:
        line += ["--ro-bind", str(source / f"{name}.py"), f"{_HARNESS}/{_ROOM}/{name}.py"]
    for path in _DEVICES:
        line += ["--dev-bind", path, path]
    return [*line, "--dir", _FOLDER, "--remount-ro", "/", "--chdir", "/"]


@functools.cache
def _interpreter() -> tuple[str, ...]:
    """Return the mounts of this process's interpreter, without its virtual environment and packages."""
    executable = os.path.realpath(sys.executable)
    try:
        probe = [executable, "-I", "-S", "-c", _PROBE]
        _, printed, _ = run(probe, most_s=_START_TIMEOUT_S)
        libraries, folders = json.loads(printed)
    except (OSError, subprocess.SubprocessError, ValueError) as error:
        raise SandboxError(f"{executable} does not report the files that it needs: {error}") from error
    paths = [*folders, executable, *(path for path in libraries if not path.startswith(tuple(folders)))]
    mounts = []
    # Other users may not be able to enter folders that bubblewrap creates implicitly.
    parents: set[str] = set()
    for path in paths:
        parents |= {str(parent) for parent in Path(path).parents}
    for folder in sorted(parents):
        mounts += ["--dir", folder]
    for path in paths:
        mounts += ["--ro-bind", path, path]
    for folder in folders:
        for name in ("site-packages", "dist-packages"):
            packages = os.path.join(folder, name)
            if os.path.isdir(packages):
                mounts += ["--tmpfs", packages, "--remount-ro", packages]
    return tuple(mounts)


def _may_map_users() -> bool:
    """Return whether programs can run as `nobody`: this is root with the capabilities for it, and Python is public."""
    if os.geteuid() != 0 or not all(os.stat(path).st_mode & 4 for path in (sys.executable, os.__file__)):
        return False
    status = Path("/proc/self/status").read_text()
    capabilities = int(status.partition("CapEff:")[2].split()[0], 16)
    needed = 1 << 6 | 1 << 7 | 1 << 31  # CAP_SETGID, CAP_SETUID, CAP_SETFCAP
    if capabilities & needed != needed:
        return False
    for line in Path("/proc/self/uid_map").read_text().splitlines():
        first, _, num = (int(word) for word in line.split())
        if first <= _NOBODY < first + num:
            return True
    return False
