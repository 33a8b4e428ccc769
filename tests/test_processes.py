"""Children that come and go while they are listed, and time limits in which a wait for a core does not count."""

import subprocess
import sys
import time

import pytest

from scalerl import processes
from scalerl.processes import TimeLimit, descendants

FORKS = "import os, time\nwhile True:\n    if os.fork() == 0:\n        os._exit(0)\n    os.wait()\n"

needs_linux = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")


@needs_linux
def test_processes_that_end_while_they_are_listed_are_no_fault():
    parent = subprocess.Popen([sys.executable, "-c", FORKS])
    ends = time.monotonic() + 1.5
    seen = 0
    try:
        while time.monotonic() < ends:
            seen += len(descendants(parent.pid))
    finally:
        parent.kill()
        parent.wait()
    assert seen, "none was ever listed"
    assert descendants(parent.pid) == []


def test_a_wait_for_a_core_is_not_a_process_own_time(monkeypatch):
    waited = {7: 3.0}
    monkeypatch.setattr(processes, "descendants", lambda pid: [])
    monkeypatch.setattr(processes, "waited_for_core_s", lambda pid: waited[pid])
    limit = TimeLimit(0.05, 7)
    time.sleep(0.06)
    assert limit.left_s() <= 0
    # It had no core for a second of these 60 ms: so it may go on for about as long.
    waited[7] += 1.0
    assert 0.5 < limit.left_s() <= 1.0
