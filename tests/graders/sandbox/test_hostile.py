import dataclasses
import os
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from hostile_programs import CHEATS, EXHAUSTION, OUTSIDE, Hostile
from sandbox_support import needs_bubblewrap

from scalerl.graders.sandbox.job import Asserts, Outcome, Program, RunLimits
from scalerl.graders.sandbox.runner import LocalRunner

pytestmark = needs_bubblewrap

LIMITS = RunLimits(timeout_s=4.0, cpu_limit_s=1.0, memory_limit_mb=256)
SPARE_S = 8.0  # for clearing up on a busy machine

NOTHING_GAINED = Asserts(
    tests=("try:\n    gained = attack()\nexcept Exception:\n    gained = None\nassert gained is None",)
)
RIGHT = Asserts(tests=("assert attack() == 42",))


@pytest.fixture(scope="module")
def runner() -> Iterator[LocalRunner]:
    runner = LocalRunner("bubblewrap")
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


def attacked(runner: LocalRunner, hostile: Hostile, tests: Asserts, outside: dict[str, object]) -> Outcome:
    """Run an attack, then check that nothing is left of it and that the next program finds everything in order."""
    before = processes_below(runner.pids)
    started = time.monotonic()
    outcome = runner.run(Program(code=hostile.aimed_at(outside), entry_point="attack"), tests, LIMITS)
    assert time.monotonic() - started < LIMITS.timeout_s + SPARE_S
    assert processes_below(runner.pids) == before
    honest = Program(
        code="import os, math\ndef attack():\n    return 42 if os.listdir('.') == [] and math.floor(2.5) == 2 else 7\n"
    )
    assert runner.run(honest, RIGHT, RunLimits(timeout_s=60)).kind == "passed"
    return outcome


@pytest.mark.parametrize("name", OUTSIDE)
def test_nothing_outside_is_reached(name: str, runner: LocalRunner, outside: dict[str, object]):
    outcome = attacked(runner, OUTSIDE[name], NOTHING_GAINED, outside)
    assert outcome.kind in OUTSIDE[name].ends, outcome


@pytest.mark.parametrize("name", EXHAUSTION)
def test_no_resource_is_exhausted(name: str, runner: LocalRunner, outside: dict[str, object]):
    outcome = attacked(runner, EXHAUSTION[name], NOTHING_GAINED, outside)
    assert outcome.kind in EXHAUSTION[name].ends, outcome


@pytest.mark.parametrize("name", CHEATS)
def test_no_cheat_passes(name: str, runner: LocalRunner, outside: dict[str, object]):
    outcome = attacked(runner, CHEATS[name], RIGHT, outside)
    assert outcome.kind in CHEATS[name].ends, outcome
    assert outcome.share == 0


# Harmless where nothing stops them.
REACH = ("read_a_system_file", "read_a_users_file", "list_the_root", "look_at_the_process_table", "run_a_shell")
REACH += ("connect_to_an_abstract_socket", "follow_a_symlink", "memory_outside_the_process", "open_many_files")


@pytest.mark.parametrize("name", REACH)
def test_attacks_succeed_without_a_sandbox(name: str, outside: dict[str, object], tmp_path: Path):
    """So the tests above show what the sandbox does, not that the attacks are broken."""
    attack = {**OUTSIDE, **EXHAUSTION}[name]
    code = dataclasses.replace(attack, code=attack.code.replace("/tmp/", f"{tmp_path}/")).aimed_at(outside)
    runner = LocalRunner("none")
    limits = RunLimits(timeout_s=60, num_files=4096)
    assert runner.run(Program(code=code, entry_point="attack"), NOTHING_GAINED, limits).kind == "failed"
    runner.close()


def test_environment_of_the_trainer_is_not_passed_on(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("SCALERL_SECRET", "secret")
    runner = LocalRunner("bubblewrap")
    code = "import os\ndef attack():\n    return dict(os.environ)\n"
    tests = Asserts(tests=("environment = attack()\nassert not set(environment) - set(ALLOWED), environment",))
    tests = Asserts(tests=tests.tests, setup="ALLOWED = ['PYTHONHASHSEED', 'HARNESS', 'PWD', 'LC_CTYPE']")
    assert runner.run(Program(code=code), tests, RunLimits(timeout_s=60)).kind == "passed"
    runner.close()


def test_files_left_behind_do_not_shadow_modules(runner: LocalRunner):
    leave = (
        "import os\ndef attack():\n    open('random.py', 'w').write('raise SystemExit')\n"
        "    os.mkdir('heapq')\n    return 42\n"
    )
    assert runner.run(Program(code=leave), RIGHT, RunLimits(timeout_s=60)).kind == "passed"
    find = "import random, heapq, os\ndef attack():\n    return 42 if not os.listdir('/tmp') else 7\n"
    assert runner.run(Program(code=find), RIGHT, RunLimits(timeout_s=60)).kind == "passed"
    shadow = (
        "import sys\nopen('nntplib.py', 'w').write('x = 1')\n"
        "def attack():\n    import nntplib\n    return 7 if hasattr(nntplib, 'x') else 42\n"
    )
    assert runner.run(Program(code=shadow), RIGHT, RunLimits(timeout_s=60)).kind == "passed"


def test_sandboxes_end_with_their_owner():
    runner = LocalRunner("bubblewrap")
    runner.start()
    pids = runner.pids
    assert processes_below(pids) >= 4
    runner.close()
    assert not [pid for pid in pids if Path(f"/proc/{pid}").exists()]


def test_docs_list_every_hostile_program():
    text = (Path(__file__).parents[3] / "docs" / "sandbox.md").read_text()
    listed = {**OUTSIDE, **EXHAUSTION, **CHEATS}
    assert len(listed) >= 30
    for name, hostile in listed.items():
        assert f"| {name.replace('_', ' ')} | {hostile.stopped_by} |" in text
