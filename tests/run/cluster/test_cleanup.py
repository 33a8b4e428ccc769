"""A killed driver's Ray is ended by a process of its own, and nothing else is; the folder of its session goes."""

import subprocess
import sys
from pathlib import Path

import pytest
from ray_processes import wait_until

from scalerl.errors import ClusterError
from scalerl.run.cluster.cleanup import Cleanup, using
from scalerl.run.cluster.connect import connect

HOLDER = "import sys, time; file = open(sys.argv[1], 'w'); print('open', flush=True); time.sleep(60)"


def holder(path: Path) -> "subprocess.Popen[bytes]":
    process = subprocess.Popen([sys.executable, "-I", "-S", "-c", HOLDER, str(path)], stdout=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stdout.readline() == b"open\n"
    return process


def end(process: "subprocess.Popen[bytes]") -> None:
    process.kill()
    process.communicate()


@pytest.mark.parametrize("is_alive", [False, True])
def test_a_dead_driver_and_one_that_could_not_start_ray_leave_nothing(tmp_path: Path, is_alive: bool):
    cleanup = Cleanup()
    session = Path(cleanup.folder, "session")
    session.mkdir()
    ray, other = holder(session / "agent.log"), holder(Path(cleanup.folder + "-of-another.log"))
    try:
        assert list(using(cleanup.folder)) == [ray.pid]
        if is_alive:
            with (session / "driver.log").open("w"):
                cleanup.close(kills=True)
        else:
            # As when the driver dies: the pipe ends without a byte. Another one was killed before.
            cleanup._process.kill()
            killed = cleanup._process
            wait_until(lambda: cleanup._process is not killed, 60, "another one")
            cleanup._is_over = True
            cleanup._process.communicate(timeout=60)
        assert ray.wait(timeout=5) == -9
        assert other.poll() is None
        assert not Path(cleanup.folder).exists()
    finally:
        end(ray)
        end(other)
        Path(cleanup.folder + "-of-another.log").unlink()


def test_a_driver_that_closes_ray_ends_nothing():
    cleanup = Cleanup()
    ray = holder(Path(cleanup.folder, "agent.log"))
    try:
        cleanup.close()
        assert ray.poll() is None
        assert not Path(cleanup.folder).exists()
    finally:
        end(ray)


def test_a_ray_that_cannot_start_leaves_no_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    pytest.importorskip("ray")
    # Longer than the name of a socket may be.
    folder = tmp_path / ("long" * 20)
    folder.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(folder))
    with pytest.raises(ClusterError, match="Ray at local cannot be used: "):
        connect("local")
    assert list(folder.iterdir()) == []
