"""A sandbox made by bubblewrap: new namespaces around a read-only root that holds an interpreter and nothing else.

Needs no privileges beyond user namespaces. The first process keeps one capability in its own namespace, to replace the
temporary folder between programs; programs have none.
"""

import shutil
from pathlib import Path

from scalerl.errors import SandboxError
from scalerl.graders.sandbox.interpreter import interpreter

_HARNESS = "/harness"
_MODULES = ("values", "wire", "seccomp", "confine", "program_side", "test_side", "zygote")
_DEVICES = ("/dev/null", "/dev/zero", "/dev/random", "/dev/urandom")

# Nobody, by custom. Outside, files and processes belong to the user who started the sandbox.
_USER = "65534"

FOLDER = "/tmp"
INSTALL = "install bubblewrap (Debian and Ubuntu: apt install bubblewrap; Fedora: dnf install bubblewrap)"


def command(python: tuple[str, ...]) -> list[str]:
    """Return the command line that starts a sandbox; `python` is what the interpreter in it is given."""
    program = shutil.which("bwrap")
    if program is None:
        raise SandboxError(f"programs are run by bubblewrap, and no bwrap is on the PATH: {INSTALL}")
    files = interpreter()
    line = [program, "--unshare-user", "--unshare-ipc", "--unshare-pid", "--unshare-net", "--unshare-uts"]
    line += ["--unshare-cgroup-try", "--uid", _USER, "--gid", _USER, "--hostname", "sandbox"]
    line += ["--die-with-parent", "--new-session", "--as-pid-1"]
    line += ["--cap-drop", "ALL", "--cap-add", "CAP_SYS_ADMIN"]
    # PYTHONHASHSEED: a verdict must not depend on the order of a set.
    line += ["--clearenv", "--setenv", "PYTHONHASHSEED", "0", "--setenv", "HARNESS", _HARNESS]
    for path in (*files.folders, files.executable, *files.libraries):
        line += ["--ro-bind", path, path]
    for path in files.packages:
        line += ["--tmpfs", path, "--remount-ro", path]
    source = Path(__file__).parent
    for name in _MODULES:
        line += ["--ro-bind", str(source / f"{name}.py"), f"{_HARNESS}/scalerl/graders/sandbox/{name}.py"]
    for path in _DEVICES:
        line += ["--dev-bind", path, path]
    line += ["--dir", FOLDER, "--remount-ro", "/", "--chdir", "/"]
    return [*line, "--", files.executable, *python]
