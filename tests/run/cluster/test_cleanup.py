"""A killed driver's Ray is ended by a process of its own, and nothing else is; the folder of its session goes."""

import subprocess
import sys
from pathlib import Path

import pytest

from scalerl.run.cluster.cleanup import Cleanup, using

HOLDER = "import sys, time; file = open(sys.argv[1], 'w'); print('open', flush=True); time.sleep(60)"


@pytest.fixture
def session(tmp_path: Path) -> Path:
    folder = tmp_path / "session"
    folder.mkdir()
    return folder


def holder(path: Path) -> "subprocess.Popen[bytes]":
    process = subprocess.Popen([sys.executable, "-I", "-S", "-c", HOLDER, str(path)], stdout=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stdout.readline() == b"open\n"
    return process


def end(process: "subprocess.Popen[bytes]") -> None:
    process.kill()
    process.communicate()


def test_a_dead_driver_ends_what_uses_its_session(session: Path, tmp_path: Path):
    ray, other = holder(session / "agent.log"), holder(tmp_path / "session-of-another.log")
    try:
        assert list(using(str(session))) == [ray.pid]
        # As when the driver dies: the pipe ends without a byte.
        Cleanup(str(session))._process.communicate(timeout=30)
        assert ray.wait(timeout=5) == -9
        assert other.poll() is None
        assert not session.exists()
    finally:
        end(ray)
        end(other)


def test_a_driver_that_closes_ray_ends_nothing(session: Path):
    ray = holder(session / "agent.log")
    try:
        Cleanup(str(session)).close()
        assert ray.poll() is None
        assert not session.exists()
    finally:
        end(ray)
