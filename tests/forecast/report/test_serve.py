"""The server alone, on a board that has nothing to show: who is answered, and that nobody can hold it shut."""

import functools
import os
import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from boards import ServedBoard
from other_user import needs_another_user, run_as_another

from scalerl.cli.watch import private_page
from scalerl.errors import UsageError
from scalerl.forecast.report.board.serve import BoardServer, is_loopback, kept_token, link_to, listen

TOKEN = "the-token"
WHOLE = f"GET /{TOKEN}/ HTTP/1.1\r\nHost: x\r\n\r\n".encode()


class EmptyBoard:
    """A board with nothing on it."""

    def page(self, key: str, known: str = "") -> tuple[str, str | None] | None:
        return ("1", None if known == "1" else "nothing") if key in ("", "0123456789ab") else None


@pytest.fixture
def server() -> Iterator[BoardServer]:
    with listen(EmptyBoard(), "127.0.0.1", 0, TOKEN) as server:  # pyright: ignore[reportArgumentType]
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
        yield server
        server.shutdown()


def connected(server: BoardServer) -> socket.socket:
    return socket.create_connection(("127.0.0.1", server.server_address[1]), timeout=300)


def is_open(connection: socket.socket) -> bool:
    connection.settimeout(0.05)
    try:
        while connection.recv(65536):
            pass
    except TimeoutError:
        return True
    return False


def board_of(server: BoardServer) -> ServedBoard:
    board = ServedBoard()
    board.link = link_to("127.0.0.1", server.server_address[1], TOKEN)
    return board


def test_every_request_needs_the_token(server: BoardServer):
    board = board_of(server)
    for wrong in ("wrong", TOKEN[:-1], f"{TOKEN}x", "%20"):
        for path in ("/", "/0123456789ab", "/no/such/path"):
            status, headers, body = board.get(path, token=wrong)
            assert (status, b"token" in body, headers["Content-Security-Policy"][:11]) == (403, True, "default-src")
        # They are the same for everybody, and a page loads them by their names alone.
        assert board.get("/assets/refresh.js", token=wrong)[0] == 200
    assert [board.get(path)[0] for path in ("/", "/0123456789ab", "/no/such/path")] == [200, 200, 404]


def test_a_page_that_the_browser_has_is_not_sent_again(server: BoardServer):
    board = board_of(server)
    _, headers, body = board.get("/")
    assert (body, headers["ETag"]) == (b"nothing", "1")
    assert board.get("/", headers={"If-None-Match": "1"})[0] == 304
    assert board.get("/", headers={"If-None-Match": "0"})[0] == 200


@needs_another_user
def test_other_users_of_the_machine_are_refused(server: BoardServer):
    program = "print([urllib.request.urlopen(address).status for address in sys.argv[1:]])"
    ask = functools.partial(run_as_another, program, imports="urllib.request, encodings.idna")
    address = f"http://127.0.0.1:{server.server_address[1]}"
    assert "HTTP Error 403" in ask(f"{address}/").stderr
    assert ask(f"{address}/{TOKEN}/").stdout == "[200]\n"


def test_slow_connections_do_not_hold_it_shut(server: BoardServer):
    with ExitStack() as opened:
        page = opened.enter_context(connected(server))
        page.sendall(WHOLE)
        assert page.recv(15) == b"HTTP/1.1 200 OK"
        for number in range(400):
            connection = opened.enter_context(connected(server))
            connection.sendall([b"", b"GET / HT", b"GET /assets/refresh.js HTTP/1.1\r\n\r\n"][number % 3])
        with connected(server) as connection:
            connection.sendall(WHOLE)
            assert connection.recv(15) == b"HTTP/1.1 200 OK"
        assert is_open(page), "whoever has the token is not sent away for whoever has not"


def test_token_is_kept_in_a_private_file(tmp_path: Path):
    path = tmp_path / "state" / "token"
    first = kept_token(path)
    assert len(first) >= 32
    assert kept_token(path) == first
    assert (path.parent.stat().st_mode & 0o777, path.stat().st_mode & 0o777) == (0o700, 0o600)
    path.chmod(0o644)
    assert kept_token(path) not in (first, kept_token(path))
    path.chmod(0o600)
    (tmp_path / "linked").symlink_to(path)
    assert kept_token(tmp_path / "linked") != first
    assert kept_token(tmp_path / "state" / "token" / "below") != first


@needs_another_user
def test_token_in_a_file_of_another_user_is_not_used(tmp_path: Path):
    path = tmp_path / "token"
    path.write_text("known")
    os.chown(path, 65534, 65534)
    path.chmod(0o600)
    assert kept_token(path) != "known"


def test_browser_is_started_without_the_token():
    with private_page("http://127.0.0.1:1/secret/") as address:
        path = Path(address.removeprefix("file://"))
        assert "secret" not in address
        assert "secret" in path.read_text()
        assert path.parent.stat().st_mode & 0o777 == 0o700
    assert not path.parent.exists()


def test_addresses_and_links():
    hosts = {"127.0.0.1": True, "::1": True, "localhost": True, "0.0.0.0": False, "example.org": False}
    assert {host: is_loopback(host) for host in hosts} == hosts
    assert link_to("127.0.0.1", 8420, "t") == "http://127.0.0.1:8420/t/"
    assert link_to("::1", 1, "t") == "http://[::1]:1/t/"


def test_taken_port_is_reported(server: BoardServer):
    with pytest.raises(UsageError, match="choose another --host or --port"):
        listen(server.board, "127.0.0.1", server.server_address[1], TOKEN)
