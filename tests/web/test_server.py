"""A web server that nobody can hold shut."""

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack

import pytest
from until import wait_until

from scalerl.web.server import Connections, Handler, Server

SHORT_S = 1.0
"""A deadline that is meant to be missed; whoever keeps it must send at once, also on a busy machine."""
MOST = 20
WHOLE = b"GET /known HTTP/1.1\r\nHost: x\r\n\r\n"


class Answering(Handler):
    """Recognises whoever asks for what it knows."""

    request_s = SHORT_S
    answer_s = SHORT_S
    content = b"{}"

    def do_GET(self) -> None:
        if self.path == "/known":
            self.recognise()
        self.send(200, {}, self.content)


@pytest.fixture
def server() -> Iterator[Server]:
    with Server("127.0.0.1", 0, Answering, most_per_client=MOST) as server:
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
        yield server
        server.shutdown()


def connected(server: Server) -> socket.socket:
    return socket.create_connection(("127.0.0.1", server.server_address[1]), timeout=300)


def is_answered(connection: socket.socket) -> bool:
    connection.sendall(WHOLE)
    answer = b""
    while (part := connection.recv(65536)) and not (answer := answer + part).endswith(Answering.content):
        pass
    return answer.startswith(b"HTTP/1.1 200 OK")


def num_taken(connection: socket.socket) -> int:
    """Send requests byte by byte; return how many bytes were sent before the connection was closed."""
    for num, byte in enumerate(WHOLE * 3):
        try:
            connection.sendall(bytes([byte]))
        except OSError:
            return num
        time.sleep(SHORT_S / 5)
    return len(WHOLE * 3)


def test_whole_request_has_a_deadline(server: Server):
    """One says nothing, one sends a byte now and then, one stops in its second request."""
    with ExitStack() as opened:
        silent, slow, second = (opened.enter_context(connected(server)) for _ in range(3))
        second.sendall(WHOLE + WHOLE[:20])
        assert num_taken(slow) < len(WHOLE)
        assert silent.recv(1) == b""
        received = b""
        while part := second.recv(65536):
            received += part
        assert received.count(b"HTTP/1.1") == 1


def test_answer_must_be_taken_in_time(server: Server, monkeypatch: pytest.MonkeyPatch):
    """A client that takes a little now and then does not keep a thread."""
    monkeypatch.setattr(Answering, "content", bytes(50_000_000))
    before = threading.active_count()
    with connected(server) as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.sendall(WHOLE)
        assert connection.recv(15) == b"HTTP/1.1 200 OK"
        wait_until(lambda: (connection.recv(100), threading.active_count() <= before)[1], what="the end of the thread")


def test_slow_connections_do_not_hold_it_shut(server: Server, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(Answering, "request_s", 60.0)
    before = threading.active_count()
    with ExitStack() as opened:
        kept = opened.enter_context(connected(server))
        assert is_answered(kept)
        for number in range(150):
            connection = opened.enter_context(connected(server))
            connection.sendall([b"", b"GET / HT", b"GET / HTTP/1.1\r\n\r\n"][number % 3])
        assert is_answered(opened.enter_context(connected(server)))
        wait_until(lambda: threading.active_count() - before <= MOST, what="the end of threads")
        assert is_answered(kept), "whoever is recognised is not sent away for others"


def test_recognised_clients_have_a_bound_too(server: Server, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(Answering, "request_s", 60.0)
    with ExitStack() as opened:
        kept = [opened.enter_context(connected(server)) for _ in range(MOST)]
        for connection in kept:
            assert is_answered(connection)
        assert is_refused(opened.enter_context(connected(server)))


def is_refused(connection: socket.socket) -> bool:
    try:
        return not connection.recv(1)
    except ConnectionError:
        return True


def pair(opened: ExitStack) -> tuple[socket.socket, socket.socket]:
    ends = socket.socketpair()
    for end in ends:
        opened.enter_context(end)
    return ends


def test_client_has_no_more_than_its_share():
    with ExitStack() as opened:
        connections = Connections(most=6, most_per_client=3)
        many = [pair(opened) for _ in range(5)]
        for number, (ours, _) in enumerate(many):
            assert connections.admit(ours, f"2001:db8::{number}")
        # The oldest two made room for others of the same network.
        assert [theirs.recv(1) for _, theirs in many[:2]] == [b"", b""]
        others = [pair(opened)[0] for _ in range(4)]
        for number, other in enumerate(others):
            assert connections.admit(other, f"10.0.0.{number}")
        assert many[2][1].recv(1) == b"", "the oldest of all made room, once all had no room left"
        connections.remove(others[0])
        assert connections.admit(pair(opened)[0], "10.0.0.9")
        many[3][1].settimeout(0.01)
        with pytest.raises(TimeoutError):
            many[3][1].recv(1)


def test_recognised_connections_are_kept():
    with ExitStack() as opened:
        connections = Connections(most=6, most_per_client=2)
        first, second, third = (pair(opened)[0] for _ in range(3))
        for each in (first, second):
            assert connections.admit(each, "127.0.0.1")
            connections.recognise(each)
        assert not connections.admit(third, "127.0.0.1")
        assert connections.admit(third, "10.0.0.1")
