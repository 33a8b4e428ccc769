import dataclasses
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from hostile_programs import CHEATS, EXHAUSTION, OUTSIDE, Hostile
from needs import needs_bubblewrap

from scalerl.training.graders.sandbox.job import Outcome, Reference, RunLimits
from scalerl.training.graders.sandbox.runner import Runner

pytestmark = needs_bubblewrap

SPARE_S = 60.0  # for clearing up on a busy machine; what is not stopped goes on for ever


def limits_of(hostile: Hostile) -> RunLimits:
    """Return limits that only those meet that are to meet them, however busy the machine is."""
    return RunLimits(timeout_s=1.5 if "timeout" in hostile.ends else 60.0, cpu_limit_s=1.0, memory_limit_mb=256)


GAINED = "try:\n    gained = attack()\nexcept Exception:\n    gained = None\nassert gained is None"
NOTHING_GAINED = Reference(asserts=(GAINED,), entry_point="attack")
RIGHT = Reference(asserts=("assert attack() == 42",), entry_point="attack")


@pytest.fixture(scope="module")
def runner() -> Iterator[Runner]:
    runner = Runner()
    runner.start()
    yield runner
    runner.close()


@pytest.fixture(scope="module")
def outside(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, object]]:
    """Things outside that a program must not reach."""
    folder = tmp_path_factory.mktemp("outside")
    (folder / "secret").write_text("secret")
    name = f"scalerl-test-{os.getpid()}"
    with socket.create_server(("127.0.0.1", 0)) as server, socket.socket(socket.AF_UNIX) as abstract:
        abstract.bind("\0" + name)
        abstract.listen()
        yield {"folder": str(folder), "file": str(folder / "secret"), "port": server.getsockname()[1], "name": name}
        assert [path.name for path in folder.iterdir()] == ["secret"]
        server.setblocking(False)
        with pytest.raises(BlockingIOError):
            server.accept()


def processes_below(pids: tuple[int, ...]) -> int:
    """Return how many processes have one of these among their ancestors, these included."""
    parents = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            parents[int(path.parent.name)] = int(path.read_text().rpartition(")")[2].split()[1])
        except OSError:
            continue
    below = set(pids)
    while more := {pid for pid, parent in parents.items() if parent in below} - below:
        below |= more
    return len(below)


def devices() -> list[tuple[int, ...]]:
    states = [os.stat(path) for path in ("/dev/null", "/dev/zero", "/dev/random", "/dev/urandom")]
    return [(state.st_mode, state.st_uid, state.st_gid, state.st_rdev) for state in states]


def attacked(runner: Runner, hostile: Hostile, tests: Reference, outside: dict[str, object]) -> Outcome:
    """Run an attack, then check that nothing is left of it and that the next program finds everything in order."""
    before, devices_before = processes_below(runner.pids), devices()
    started, limits = time.monotonic(), limits_of(hostile)
    outcome = runner.run(hostile.aimed_at(outside), tests, limits)
    assert time.monotonic() - started < limits.timeout_s + SPARE_S
    assert processes_below(runner.pids) == before
    assert devices() == devices_before
    honest = (
        "import os, math\nSEEN = 'EARLIER-PROGRAM-RETURNS-42'\n"
        "def attack():\n    return 42 if os.listdir('.') == [] and math.floor(2.5) == 2 else 7\n"
    )
    assert runner.run(honest, RIGHT, RunLimits(timeout_s=60)).kind == "passed"
    return outcome


@pytest.mark.parametrize("name", [*OUTSIDE, *EXHAUSTION, *CHEATS])
def test_nothing_is_reached_exhausted_or_passed_by_cheating(name: str, runner: Runner, outside: dict[str, object]):
    hostile = {**OUTSIDE, **EXHAUSTION, **CHEATS}[name]
    outcome = attacked(runner, hostile, RIGHT if name in CHEATS else NOTHING_GAINED, outside)
    assert outcome.kind in hostile.ends, outcome
    assert name not in CHEATS or outcome.share == 0


# Harmless where nothing stops them.
REACH = ("read_a_system_file", "read_a_users_file", "list_the_root", "look_at_the_process_table", "run_a_shell")
REACH += ("connect_to_an_abstract_socket", "follow_a_symlink", "memory_outside_the_process")
REACH += ("read_secrets_of_the_environment",)


@pytest.mark.parametrize("name", REACH)
def test_attacks_succeed_without_a_sandbox(name: str, outside: dict[str, object], tmp_path: Path):
    """So the tests above show what the sandbox does, not that the attacks are broken."""
    attack = {**OUTSIDE, **EXHAUSTION}[name]
    code = dataclasses.replace(attack, code=attack.code.replace("/tmp/", f"{tmp_path}/")).aimed_at(outside)
    line = [sys.executable, "-I", "-c", f"{code}\nprint(attack() is not None)"]
    assert subprocess.run(line, capture_output=True, text=True, cwd=tmp_path).stdout == "True\n"


def test_files_left_behind_do_not_shadow_modules(runner: Runner):
    leave = (
        "import os\ndef attack():\n    open('random.py', 'w').write('raise SystemExit')\n"
        "    os.mkdir('heapq')\n    return 42\n"
    )
    assert runner.run(leave, RIGHT, RunLimits(timeout_s=60)).kind == "passed"
    find = "import random, heapq, os\ndef attack():\n    return 42 if not os.listdir('/tmp') else 7\n"
    assert runner.run(find, RIGHT, RunLimits(timeout_s=60)).kind == "passed"
    shadow = (
        "import sys\nopen('nntplib.py', 'w').write('x = 1')\n"
        "def attack():\n    import nntplib\n    return 7 if hasattr(nntplib, 'x') else 42\n"
    )
    assert runner.run(shadow, RIGHT, RunLimits(timeout_s=60)).kind == "passed"


def test_sandboxes_end_with_their_owner():
    runner = Runner()
    runner.start()
    pids = runner.pids
    assert processes_below(pids) >= 4
    runner.close()
    assert not [pid for pid in pids if Path(f"/proc/{pid}").exists()]


ORDINARY = """
import json, sys; sys.path.insert(0, {folder!r})
from scalerl.training.graders.sandbox.job import *
from scalerl.training.graders.sandbox.runner import Runner
runner = Runner()
right = Reference(asserts=({right!r},), entry_point="attack")
for name, code, tests, timeout_s in json.loads(sys.stdin.read()):
    limits = RunLimits(timeout_s=timeout_s, cpu_limit_s=1, memory_limit_mb=256)
    kind = runner.run(code, Reference(asserts=tests, entry_point="attack"), limits).kind
    honest = runner.run("def attack(): return 42", right, RunLimits(timeout_s=60))
    print(name, kind if honest.kind == "passed" else "harmed_the_next")
runner.close()
"""


@pytest.mark.parametrize("one_in", [5, pytest.param(1, marks=pytest.mark.slow)])
def test_ordinary_user_is_as_safe(one_in: int, outside: dict[str, object]):
    """The package is copied to a folder that every user may read, unlike pytest's own temporary folders."""
    python = shutil.which("python3", path="/usr/bin")
    if os.geteuid() != 0 or shutil.which("setpriv") is None or python is None:
        pytest.skip("needs root, setpriv and a system interpreter, to become another user")
    version = subprocess.run([python, "-c", "import sys; print(sys.version_info >= (3, 11))"], capture_output=True)
    if version.stdout.strip() != b"True":
        pytest.skip("needs a system interpreter of Python 3.11 or later")
    root = Path(__file__).parents[4]
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        shutil.copytree(root / "src/scalerl/training/graders/sandbox", Path(folder, "scalerl/training/graders/sandbox"))
        for module in ("errors.py", "processes.py"):
            shutil.copy(root / "src/scalerl" / module, Path(folder, "scalerl"))
        subprocess.run(["chmod", "-R", "a+rX", folder], check=True)
        programs = list({**OUTSIDE, **EXHAUSTION, **CHEATS}.items())[::one_in]
        jobs = [
            (
                name,
                one.aimed_at(outside),
                (RIGHT if name in CHEATS else NOTHING_GAINED).asserts,
                limits_of(one).timeout_s,
            )
            for name, one in programs
        ]
        script = ORDINARY.format(folder=folder, right=RIGHT.asserts[0])
        line = ["setpriv", "--reuid", "65534", "--regid", "65534", "--clear-groups", python, "-c", script]
        ran = subprocess.run(line, capture_output=True, text=True, cwd="/", input=json.dumps(jobs))
    kinds = dict(line.split() for line in ran.stdout.splitlines())
    assert list(kinds) == [name for name, _ in programs], ran.stderr
    assert {name: kinds[name] for name, one in programs if kinds[name] not in one.ends} == {}
