"""An object in a child process: commands, deaths, silence, and what is left behind: nothing."""

import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from scalerl.errors import RecipeError
from scalerl.remote import peer as peer_module
from scalerl.remote.child import ChildLink, Frames
from scalerl.remote.peer import Lost, Peer, Silence, close_all
from scalerl.remote.session import session_members


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

    def wait(self, seconds: float) -> None:
        time.sleep(seconds)

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
        peers.append(Peer(ChildLink(make, **settings), silent_s=silent_s, news=threading.Event()))
        return peers[-1]

    yield started
    for each in peers:
        each.kill()
        assert isinstance(each.link, ChildLink)
        assert not session_members(each.link.pid)
    assert not list(temporary.iterdir())


def answer(peer: Peer, timeout_s: float = 60.0) -> tuple[str, Any]:
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
        (lambda peer: os.kill(peer.link.pid, signal.SIGKILL), "was ended by SIGKILL, as a system does that runs out"),
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


def test_time_of_a_call_comes_with_the_signs_of_life(start):
    peer = start()
    answer(peer)
    peer.send("wait", 1.5)
    deadline = time.monotonic() + 100
    while peer.busy_s < 0.3:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    assert answer(peer) == ("done", None)


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
from scalerl.remote.child import ChildLink
from scalerl.remote.peer import Peer
peer = Peer(ChildLink(Echo), silent_s=15.0, news=threading.Event())
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
    deadline = time.monotonic() + 100
    while session_members(pid):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    assert not list(temporary.iterdir())


def test_silence_is_not_counted_while_nobody_listens(monkeypatch):
    now = [100.0]
    monkeypatch.setattr(peer_module.time, "monotonic", lambda: now[0])
    silence = Silence()
    for elapsed, heard, seconds in ((0.5, False, 0.5), (0.4, False, 0.9), (3600.0, False, 1.9), (0.5, True, 0.0)):
        now[0] += elapsed
        silence.listen(heard)
        assert silence.seconds == pytest.approx(seconds)


def test_messages_arrive_whole_however_they_are_cut():
    ours, theirs = socket.socketpair()
    frames, sent = Frames(theirs), [b"", b"a", bytes(5000), b"end"]
    data = b"".join(len(each).to_bytes(8, "big") + each for each in sent)
    received: list[bytes] = []
    for start in range(0, len(data), 777):
        ours.sendall(data[start : start + 777])
        received += frames.receive() or []
    assert received == sent
    assert frames.receive(0.0) is None
    ours.close()
    with pytest.raises(EOFError):
        frames.receive()
