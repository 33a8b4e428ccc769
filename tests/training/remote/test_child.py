"""An object in a child process: commands, deaths, silence, and what is left behind: nothing."""

import ctypes
import functools
import mmap
import os
import queue
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from until import wait_until

from scalerl.errors import RecipeError
from scalerl.processes import session_members
from scalerl.training.remote import peer as peer_module
from scalerl.training.remote.child import ChildLink
from scalerl.training.remote.peer import Limits, Lost, Peer, close_all


class Echo:
    """An object with a child of its own and files of its own."""

    def __init__(self) -> None:
        self.own = subprocess.Popen(["sleep", "600"])
        tempfile.mkdtemp()

    def facts(self) -> list[int]:
        return [os.getpid(), self.own.pid]

    def echo(self, value: Any) -> Any:
        return value

    def exit(self) -> None:
        print("the last words", flush=True)
        os._exit(3)

    def wait(self, seconds: float, until: Path | None = None) -> None:
        """Wait, but no longer than until a file appears."""
        end = time.monotonic() + seconds
        while time.monotonic() < end and not (until and until.exists()):
            time.sleep(0.01)

    def close(self) -> None: ...


@pytest.fixture
def temporary(tmp_path, monkeypatch):
    with tempfile.TemporaryDirectory() as path:
        monkeypatch.setattr(tempfile, "tempdir", path)
        yield Path(path)
        monkeypatch.undo()


@pytest.fixture
def start(temporary):
    """Start an object, and check after the test that neither a process nor a file of it is left."""
    peers: list[Peer] = []

    def started(make: Any = Echo, *, silent_s: float = 15.0, **settings: Any) -> Peer:
        limits = Limits(silent_s=silent_s)
        peers.append(Peer(ChildLink(make, **settings), limits=limits, news=threading.Event()))
        return peers[-1]

    yield started
    for each in peers:
        each.kill()
        assert isinstance(each.link, ChildLink)
        assert not session_members(each.link.pid)
    assert not list(temporary.iterdir())


def answer(peer: Peer, timeout_s: float = 300.0) -> tuple[str, Any]:
    deadline = time.monotonic() + timeout_s
    while (message := peer.receive()) is None:
        assert time.monotonic() < deadline, "no answer"
        time.sleep(0.005)
    return message


def test_commands_and_answers_of_any_size(start):
    peer = start()
    kind, (pid, own) = answer(peer)
    assert kind == "ready"
    assert pid == peer.link.pid
    assert {pid, own} <= set(session_members(pid))
    for value in (1, "two", bytes(10_000_000)):
        peer.send("echo", value)
    assert [answer(peer)[1] for _ in range(3)] == [1, "two", bytes(10_000_000)]
    close_all([peer])
    assert not session_members(pid)


@pytest.mark.parametrize(
    ("act", "reason"),
    [
        (lambda peer: os.kill(peer.link.pid, signal.SIGKILL), "was ended by SIGKILL .the system may have run out"),
        (lambda peer: peer.send("exit"), r"ended with exit code 3 \(its last line: the last words\)"),
    ],
    ids=["killed", "ended"],
)
def test_death_is_noticed_at_once(start, act, reason):
    peer = start(has_log=True)
    answer(peer)
    act(peer)
    with pytest.raises(Lost, match=reason) as caught:
        answer(peer)
    # Not "silent", which comes after seconds.
    assert caught.value.kind == "died"
    with pytest.raises(Lost, match=reason):
        peer.receive()


@pytest.mark.parametrize("moment", ["idle", "in a message", "at the start"])
def test_stopped_process_is_lost_wherever_it_is(start, moment):
    peer = start(silent_s=1.0)
    if moment != "at the start":
        answer(peer)
    if moment == "in a message":
        peer.send("echo", bytes(50_000_000))
        time.sleep(0.05)
    os.kill(peer.link.pid, signal.SIGSTOP)
    peer.send("echo", bytes(10_000_000))
    with pytest.raises(Lost, match=r"no sign of life for 1 s: it was stopped \(SIGSTOP\)"):
        _ = [answer(peer) for _ in range(2)]


def test_time_of_a_call_comes_with_the_signs_of_life(start, tmp_path):
    peer = start()
    answer(peer)
    peer.send("wait", 600, tmp_path / "seen")
    wait_until(lambda: peer.busy_s >= 0.3)
    (tmp_path / "seen").touch()
    assert answer(peer) == ("done", None)


def hold_lock(echo: Echo, seconds: int) -> None:
    """Sleep in a C function that does not release Python's lock."""
    ctypes.PyDLL(None).sleep(seconds)


def test_call_that_holds_the_lock_of_python_has_more_time(start, monkeypatch):
    peer = start(silent_s=0.5)
    answer(peer)
    peer.send(hold_lock, 2)
    assert answer(peer) == ("done", None)
    monkeypatch.setattr(peer_module, "MAX_SILENCE_RUNNING_S", 1.0)
    peer.send(hold_lock, 60)
    with pytest.raises(Lost, match="has given no sign of life for 1 s: it hangs"):
        answer(peer)


class Mapping(Echo):
    """An object that has mapped files of shared memory: one of the driver's, and one of its own."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.maps = [mmap.mmap(descriptor, 4096) for descriptor in map(shared_file, (name, f"{name}-own"))]


def shared_file(name: str) -> int:
    descriptor = os.open(name, os.O_RDWR | os.O_CREAT, 0o600)
    os.ftruncate(descriptor, 4096)
    return descriptor


@pytest.mark.skipif(not os.path.isdir("/dev/shm"), reason="needs /dev/shm")
@pytest.mark.parametrize("is_killed", [False, True])
def test_shared_memory_of_the_driver_stays_when_a_child_ends(start, is_killed):
    """CUDA's events of memory that is shared are in such a file."""
    name = f"/dev/shm/scalerl-test-{os.getpid()}"
    descriptor = shared_file(name)
    with mmap.mmap(descriptor, 4096):
        try:
            child = start(functools.partial(Mapping, name))
            _, (pid, _) = answer(child)
            if is_killed:
                os.kill(pid, signal.SIGKILL)
            child.kill()
            assert os.path.exists(name)
            assert not os.path.exists(f"{name}-own")
        finally:
            os.close(descriptor)
            os.unlink(name)


def test_function_that_cannot_be_sent_is_named(temporary):
    with pytest.raises(RecipeError, match="put it into a module"):
        ChildLink(lambda: None)
    assert not list(temporary.iterdir())


def test_interpreter_that_cannot_be_started(tmp_path, temporary):
    with pytest.raises(RecipeError, match="no-such-python cannot be started: No such file"):
        ChildLink(Echo, python=str(tmp_path / "no-such-python"))
    assert not list(temporary.iterdir())


DRIVER = """
import sys, threading, time
from test_child import Echo
from scalerl.training.remote.child import ChildLink
from scalerl.training.remote.peer import Limits, Peer
peer = Peer(ChildLink(Echo), limits=Limits(), news=threading.Event())
while (message := peer.receive()) is None:
    time.sleep(0.01)
print(*message[1], flush=True)
peer.send("wait", 600)
time.sleep(600)
"""


def test_child_of_a_killed_driver_ends_with_all_that_it_started(temporary):
    path = os.pathsep.join([str(Path(__file__).parent), *filter(None, sys.path)])
    variables = {**os.environ, "TMPDIR": str(temporary), "PYTHONPATH": path}
    with subprocess.Popen([sys.executable, "-c", DRIVER], env=variables, stdout=subprocess.PIPE, text=True) as driver:
        assert driver.stdout is not None
        pid, _ = map(int, driver.stdout.readline().split())
        assert len(session_members(pid)) >= 2
        assert list(temporary.iterdir())
        driver.kill()
    wait_until(lambda: not session_members(pid))
    assert not list(temporary.iterdir())


class Ready:
    """A link to an object that says that it is ready, and later gives a sign of life if it is asked to."""

    where, pid, is_placed = "", None, True

    def __init__(self) -> None:
        self.messages: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self.messages.put(("ready", None))

    def read(self) -> list[Any]:
        return [self.messages.get()]


def test_driver_that_was_stopped_itself_doubts_the_silence_first(monkeypatch):
    now = [100.0]
    monkeypatch.setattr(peer_module.time, "monotonic", lambda: now[0])
    link: Any = Ready()
    peer = Peer(link, limits=Limits(silent_s=15.0), news=threading.Event())
    assert answer(peer) == ("ready", None)
    now[0] += 3600.0
    assert peer.receive() is None, "it has not listened for an hour"
    link.messages.put(("beat", 1.0))
    while peer.busy_s != 1.0:
        time.sleep(0.001)
    for elapsed in (2.0, 12.0, 2.0):
        now[0] += elapsed
        assert peer.receive() is None
    now[0] += 2.0
    with pytest.raises(Lost, match="no sign of life for 15 s"):
        peer.receive()
