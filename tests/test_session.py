"""The calls of a GPU session (benchmarks/session.py): every step gets its share of the time, and the rest goes on."""

import importlib
import json
import sys
from pathlib import Path
from typing import Any

import pytest
from until import wait_until

session = importlib.import_module("session")

STARTS_ANOTHER = """
import subprocess, sys
child = subprocess.Popen(["sleep", "1000"])
open(sys.argv[1] + "/child", "w").write(str(child.pid))
child.wait()
"""
WRITES = "import sys; open(sys.argv[1] + '/written', 'w')"
# Writes once the step beside it was ended.
LATE = """
import pathlib, sys, time
folder = pathlib.Path(sys.argv[1])
while not (folder / "child").exists() or pathlib.Path("/proc", (folder / "child").read_text(), "cwd").exists():
    time.sleep(0.01)
(folder / "written").touch()
"""
WAITS = "import pathlib, sys, time\nwhile not pathlib.Path(sys.argv[1], 'written').exists(): time.sleep(0.01)"


def step(name: str, code: str, **settings: Any):
    words = (sys.executable, "-c", code, "OUT")
    return session.Step(name=name, words=words, check=words, **{"seconds": 60.0} | settings)


def has_ended(pid: int) -> bool:
    status = Path(f"/proc/{pid}/stat")
    return not status.exists() or status.read_text().rpartition(")")[2].split()[0] == "Z"


def test_step_that_takes_too_long_ends_with_all_that_it_started(tmp_path: Path):
    steps = [
        step("fails", "print('why'); raise SystemExit(3)"),
        step("hangs", STARTS_ANOTHER, seconds=2.0),
        step("waits", WAITS, is_beside=True),
        step("writes", WRITES),
    ]
    outcomes = session.run_call(steps, tmp_path)
    expected = [("fails", 3), ("hangs", session.HUNG), ("waits", 0), ("writes", 0)]
    assert [(outcome.name, outcome.status) for outcome in outcomes] == expected
    wait_until(lambda: has_ended(int((tmp_path / "child").read_text())), what="the end of what a step started")
    assert (tmp_path / "fails.log").read_text() == "why\n"
    rows = json.loads((tmp_path / "session.json").read_text())
    assert [(row["name"], row["status"]) for row in rows] == expected


def test_steps_beside_each_other_end_at_their_own_times(tmp_path: Path):
    steps = [
        step("waits", WAITS, seconds=300.0, is_beside=True),
        step("hangs", STARTS_ANOTHER, seconds=2.0, is_beside=True),
        step("writes late", LATE, seconds=300.0),
    ]
    outcomes = session.run_call(steps, tmp_path)
    assert [outcome.status for outcome in outcomes] == [0, session.HUNG, 0]


@pytest.mark.parametrize("call", session.CALLS)
def test_calls_fit_into_ten_minutes_and_their_scripts_exist(call: str):
    steps = session.CALLS[call]
    assert sum(each.seconds for each in steps if not each.is_beside) <= 590
    for each in steps:
        scripts = [word for word in (*each.words, *each.check) if word.endswith(".py")]
        assert all(Path(script).is_file() for script in scripts)
