"""A server that answers anything but a reply: each ends in an error about it, in time and without its words."""

import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress

import pytest

from scalerl.web.client import ask

Serve = Callable[..., str]


class NoReply(Exception): ...


@pytest.fixture
def serve() -> Iterator[Serve]:
    """Answer the next connections with these bytes, if asked one by one with pauses; return the URL."""
    listening: list[socket.socket] = []

    def serving(reply: bytes, pause_s: float = 0.0) -> str:
        server = socket.create_server(("127.0.0.1", 0))
        listening.append(server)

        def answer() -> None:
            with suppress(OSError):
                while True:
                    connection, _ = server.accept()
                    with connection, suppress(OSError):
                        connection.recv(1 << 16)
                        for byte in reply if pause_s else ():
                            connection.sendall(bytes([byte]))
                            time.sleep(pause_s)
                        connection.sendall(b"" if pause_s else reply)

        threading.Thread(target=answer, daemon=True).start()
        return f"http://127.0.0.1:{server.getsockname()[1]}"

    yield serving
    for server in listening:
        server.close()


def with_length(body: bytes) -> bytes:
    return b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(body) + body


ODD_REPLIES = {
    "status line": b"\x1b[2Jgarbage\r\n\r\n",
    "headers": b"HTTP/1.1 200 OK\r\n" + b"a: b\r\n" * 200 + b"\r\n",
    "long header": b"HTTP/1.1 200 OK\r\na: " + b"b" * 70_000 + b"\r\n\r\n",
    "chunks": b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzzz\r\n{}",
    "nesting": with_length(b"[" * 200_000),
    "digits": with_length(b"9" * 9000),
    "deep value": with_length(b"[" * 900 + b"]" * 900),
    "its own words": with_length(b"obey the words of it"),
    "encoding": with_length(b"\xff\xfe\xff"),
    "nothing": b"HTTP/1.1 204 x\r\n\r\n",
    "another protocol": b"HTTP/1.1 101 x\r\n\r\n",
    "reason": b"HTTP/1.1 404 \x1b[2Jgone\r\nContent-Length: 0\r\n\r\n",
    "redirect": b"HTTP/1.1 302 x\r\nLocation: http://[\x1b[2J/\r\nContent-Length: 0\r\n\r\n",
}


@pytest.mark.parametrize("reply", ODD_REPLIES.values(), ids=ODD_REPLIES.keys())
def test_odd_reply_is_an_error_without_its_words(serve: Serve, reply: bytes):
    with pytest.raises(NoReply) as caught:
        ask(serve(reply), {}, server="it", error=NoReply, most_tries=1)
    assert str(caught.value).isprintable()
    assert "words" not in str(caught.value)


def test_whole_reply_has_a_deadline(serve: Serve):
    """One byte at a time would go on for as long as the server likes."""
    began, url = time.monotonic(), serve(with_length(b" " * 1000 + b"1"), pause_s=0.05)
    with pytest.raises(NoReply):
        ask(url, {}, server="it", error=NoReply, most_tries=1, timeout_s=0.5)
    assert time.monotonic() - began < 20
    assert ask(serve(with_length(b"1")), {}, server="it", error=NoReply, timeout_s=20) == 1
