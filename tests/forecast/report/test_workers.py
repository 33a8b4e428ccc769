"""Workers: the same values as here, no orphan, and a call that kills its worker is made here."""

import os
import re
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
from calls import ends_unless, fails, fitted, is_loaded, meet

from scalerl.errors import WorkerDied
from scalerl.forecast.report import workers as module
from scalerl.forecast.report.workers import Workers, worth


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def test_calls_are_answered_as_here_and_made_here_where_a_worker_dies():
    here = os.getpid()
    with Workers(2) as workers:
        there, own = workers.submit(fitted, 1).result(), fitted(1)
        assert there.params == own.params
        np.testing.assert_array_equal(there.curve_draws([1.0, 9.0]), own.curve_draws([1.0, 9.0]))
        assert not workers.submit(is_loaded, "torch").result()
        with pytest.raises(ValueError, match="the cat sat on it"):
            workers.submit(fails, "the cat sat on it").result()
        assert [workers.submit(ends_unless, here).result() for _ in range(3)] == [here] * 3
        assert workers.submit(abs, -3).result() == 3


def test_workers_end_with_the_block_even_if_it_is_interrupted(tmp_path: Path):
    began, pids = time.monotonic(), set()
    with suppress(KeyboardInterrupt), Workers(2) as workers:
        pids.update(call.result() for call in [workers.submit(meet, str(tmp_path), 2) for _ in range(4)])
        assert all(map(is_alive, pids))
        for _ in range(6):
            workers.submit(time.sleep, 600)
        raise KeyboardInterrupt
    assert time.monotonic() - began < 300
    assert len(pids - {os.getpid()}) == 2
    assert not any(map(is_alive, pids))


def test_worker_that_needs_too_much_memory_ends():
    with Workers(1, retry_here=False, most_bytes=1 << 28) as workers:
        with pytest.raises(WorkerDied):
            workers.submit(bytearray, 1 << 29).result()
        assert len(workers.submit(bytearray, 1 << 20).result()) == 1 << 20


def test_call_without_end_is_ended_and_the_next_is_made():
    with Workers(1, retry_here=False) as workers:
        assert workers.submit(abs, -3, most_s=600.0).result() == 3
        # No signal handler runs within a regular expression.
        with pytest.raises(WorkerDied, match=r"took more than 0\.3 s"):
            workers.submit(re.match, "(a*)*b", "a" * 40, most_s=0.3).result()
        assert workers.submit(abs, -3, most_s=600.0).result() == 3


@pytest.mark.parametrize("num", [0, 2])
def test_without_workers_a_call_is_made_as_it_is_submitted(monkeypatch: pytest.MonkeyPatch, num: int):
    """Also where no process can be started."""
    monkeypatch.setattr(sys, "executable", "/no/such/python")
    seen = []
    with Workers(num) as workers:
        workers.submit(seen.append, os.getpid())
        assert seen == [os.getpid()]
        with pytest.raises(ValueError, match="the cat sat on it"):
            workers.submit(fails, "the cat sat on it")


def test_one_core_or_few_calls_start_no_worker(monkeypatch: pytest.MonkeyPatch):
    for cores, num_calls, num in ((1, 1000, 0), (2, 1000, 2), (64, 1000, module.MOST), (64, 90, 3), (64, 59, 0)):
        monkeypatch.setattr(os, "sched_getaffinity", lambda pid, cores=cores: set(range(cores)), raising=False)
        assert worth(num_calls) == num


def test_a_script_needs_no_guard():
    script = "\n".join(
        [
            "from scalerl.forecast.report.workers import Workers",
            "with Workers(1) as them: print(them.submit(abs, -3).result())",
        ]
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=600)
    assert (done.stdout, done.stderr) == ("3\n", "")
