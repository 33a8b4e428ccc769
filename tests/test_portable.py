"""The predictive half where POSIX is missing: no `fcntl`, no `os.fork`, no `signal.SIGKILL`; it loads no torch.

Each test runs Python source of this file in a process of its own. What only POSIX has is hidden from scalerl alone: the
standard library adapts itself.
"""

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from log_texts import rising, verl
from run_folders import write_study

SOURCE = Path(__file__).parents[1] / "src" / "scalerl"
ROOMS = ("runfolder", "recipe", "web", "forecast", "study", "cli")
HIDE_POSIX = """
import builtins, os, signal, sys, types

POSIX_MODULES = {"fcntl", "grp", "posix", "pty", "pwd", "resource", "syslog", "termios", "tty"}
POSIX_NAMES = {
    "os": '''fork forkpty getuid geteuid getgid getpgid killpg setsid setpgid sched_getaffinity wait4 waitid WNOHANG
        mkfifo fchmod fchown getloadavg O_CLOEXEC O_NONBLOCK register_at_fork pidfd_open uname'''.split(),
    "signal": '''SIGKILL SIGHUP SIGQUIT SIGSTOP SIGCONT SIGCHLD SIGUSR1 SIGUSR2 SIGALRM SIGXCPU alarm setitimer
        pthread_sigmask sigwait'''.split(),
}

class Restricted(types.ModuleType):
    def __init__(self, real, missing):
        super().__init__(real.__name__)
        self.__dict__.update({name: value for name, value in vars(real).items() if name not in missing})

restricted = {"os": Restricted(os, POSIX_NAMES["os"]), "signal": Restricted(signal, POSIX_NAMES["signal"])}
real_import = builtins.__import__

def guarded(name, globals=None, locals=None, fromlist=(), level=0):
    if str((globals or {}).get("__name__", "")).split(".")[0] == "scalerl":
        if name.split(".")[0] in POSIX_MODULES:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
        if name in restricted:
            return restricted[name]
    return real_import(name, globals, locals, fromlist, level)

builtins.__import__ = guarded
"""

IMPORTS = """
import importlib

failed = []
for module in sys.argv[1:]:
    try:
        importlib.import_module(module)
    except Exception as error:
        failed.append(f"{module}: {type(error).__name__}: {error}")
print("\\n".join(failed))
"""

# Nothing may fork, scalerl or not: processes are started anew.
COMMANDS = """
import json, multiprocessing

def refuse(*_):
    raise AssertionError("os.fork was called")

os.fork = os.forkpty = refuse
multiprocessing.set_start_method("spawn")

from scalerl.cli import main
for words in map(json.loads, sys.argv[1:]):
    sys.argv[1:] = words
    try:
        main()
    except SystemExit as leaving:
        assert not leaving.code, words
    print("-----")
    drawn = words[0] == "report"
    assert not {"torch", "transformers", "" if drawn else "matplotlib"} & set(sys.modules), words
"""


def run(source: str, *words: str, cwd: Path | None = None) -> str:
    """Return what the source prints where POSIX is missing."""
    command = [sys.executable, "-c", HIDE_POSIX + source, *words]
    done = subprocess.run(command, capture_output=True, text=True, cwd=cwd, timeout=600)
    assert done.returncode == 0, done.stderr
    return done.stdout


def run_commands(*lines: Sequence[object], cwd: Path) -> list[str]:
    """Run commands, one after another in one process, and return what each prints."""
    return run(COMMANDS, *(json.dumps([str(word) for word in line]) for line in lines), cwd=cwd).split("-----\n")[:-1]


def test_predictive_half_imports_without_posix():
    paths = [*SOURCE.glob("*.py"), *(path for room in ROOMS for path in (SOURCE / room).rglob("*.py"))]
    names = [".".join(path.relative_to(SOURCE.parent).with_suffix("").parts) for path in paths]
    modules = sorted(name.removesuffix(".__init__") for name in names if not name.endswith("__main__"))
    assert "scalerl.forecast.curves.fit" in modules
    assert run(IMPORTS, *modules) == "\n"


def test_the_check_sees_what_only_posix_has(tmp_path: Path):
    """A package of the same name with one offender of each kind."""
    (tmp_path / "scalerl").mkdir()
    (tmp_path / "scalerl" / "__init__.py").write_text("")
    offenders = {
        "module": "import fcntl",
        "name": "from signal import SIGKILL",
        "attribute": "import os\nfork = os.fork",
        "fine": "import os, signal\nwhere = os.getcwd()\ndef stop():\n    return signal.SIGKILL",
    }
    for name, text in offenders.items():
        (tmp_path / "scalerl" / f"{name}.py").write_text(text)
    found = run(IMPORTS, *(f"scalerl.{name}" for name in offenders), cwd=tmp_path).splitlines()
    assert [line.split(":")[0] for line in found] == ["scalerl.module", "scalerl.name", "scalerl.attribute"]


def study_of_windows(folder: Path) -> Path:
    """Write a study with backslashes in its paths and Windows line ends in its rows."""
    write_study(folder, num=10)
    plan = json.loads((folder / "study.json").read_text())
    for entry in plan["runs"]:
        evals = folder / entry["folder"] / "evals.jsonl"
        evals.write_bytes(evals.read_bytes().replace(b"\n", b"\r\n"))
        entry["folder"] = entry["folder"].replace("/", "\\")
        assert "\\" in entry["folder"]
    (folder / "study.json").write_text(json.dumps(plan))
    return folder


def test_commands_read_what_windows_wrote_without_posix(tmp_path: Path):
    """Two curves in a CSV with a byte order mark and Windows line ends, a console's text in UTF-16, and a study."""
    rows = [f"{step},{reward * factor:.4f},{arm}" for arm, factor in (("a", 1.0), ("b", 0.9)) for step, reward in
            enumerate(rising(24), start=1)]  # fmt: skip
    table = "\r\n".join(["step,pass_rate,arm", *rows, ""]).encode()
    (tmp_path / "Runs (2).csv").write_bytes(b"\xef\xbb\xbf" + table)
    (tmp_path / "train.log").write_bytes(verl(rising(20)).replace("\n", "\r\n").encode("utf-16"))
    study = study_of_windows(tmp_path / "study")
    printed = run_commands(
        *((name, "Runs (2).csv", "--by", "arm", "--json") for name in ("backtest", "compare")),
        ("fit", "train.log", "--json"),
        ("fit", study, "--json"),
        ("report", study, "--out", "out"),
        cwd=tmp_path,
    )
    *compared, logged, studied = [
        [(curve["name"], curve["num_points"]) for curve in json.loads(text)["curves"]] for text in printed[:-1]
    ]
    assert compared == [[("a", 24), ("b", 24)]] * 2
    assert [num for _, num in logged] == [20]
    assert len(studied) >= 2
    assert (tmp_path / "out" / "report.html").is_file()
