"""A web server with a thread per connection that clients cannot block. Standard library only.

There are time limits for receiving a whole request and for sending an answer, and limits on the number of connections,
in total and per client. Connections of clients that were not recognised, by a token or a key, give way to new ones.
"""

import io
import ipaddress
import socket
import sys
import threading
import time
from contextlib import suppress
from http.server import BaseHTTPRequestHandler
from socketserver import TCPServer, ThreadingMixIn
from typing import Any

from scalerl.web.client import TimedReader


class Connections:
    """The open connections, oldest first."""

    def __init__(self, most: int, most_per_client: int) -> None:
        self._most = most
        self._most_per_client = most_per_client
        self._clients: dict[socket.socket, str] = {}
        self._recognised: set[socket.socket] = set()
        self._lock = threading.Lock()

    def admit(self, connection: socket.socket, address: str) -> bool:
        """Return whether there is room for a connection; if necessary, close the oldest unrecognised one.

        A user's request comes with its connection, so a client that waits for long is slow on purpose.
        """
        client = _network_of(address)
        with self._lock:
            crowd = [each for each, other in self._clients.items() if other == client]
            if len(crowd) < self._most_per_client:
                crowd = list(self._clients) if len(self._clients) >= self._most else []
            if crowd:
                oldest = next((each for each in crowd if each not in self._recognised), None)
                if oldest is None:
                    return False
                del self._clients[oldest]
                # Its thread notices this and ends.
                with suppress(OSError):
                    oldest.shutdown(socket.SHUT_RDWR)
            self._clients[connection] = client
        return True

    def recognise(self, connection: socket.socket) -> None:
        """Mark a connection as recognised: it is kept until it ends by itself."""
        with self._lock:
            self._recognised.add(connection)

    def remove(self, connection: socket.socket) -> None:
        with self._lock:
            self._clients.pop(connection, None)
            self._recognised.discard(connection)


def _network_of(address: str) -> str:
    """Return the network of a client: an IPv4 address, or the first half of an IPv6 address."""
    known = ipaddress.ip_address(address.partition("%")[0])
    return str(known if known.version == 4 else ipaddress.ip_network((known, 64), strict=False))


class Server(ThreadingMixIn, TCPServer):
    """A server with a thread per connection and a limit on connections."""

    daemon_threads = True
    block_on_close = False
    allow_reuse_address = True
    request_queue_size = 256

    def __init__(
        self, host: str, port: int, handler: type["Handler"], *, most: int = 256, most_per_client: int = 64
    ) -> None:
        self.connections = Connections(most, most_per_client)
        self.address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        super().__init__((host.strip("[]"), port), handler)

    def process_request(self, request: Any, client_address: Any) -> None:
        if self.connections.admit(request, client_address[0]):
            super().process_request(request, client_address)
        else:
            self.shutdown_request(request)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self.connections.remove(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        if not isinstance(sys.exception(), OSError):
            super().handle_error(request, client_address)


class Handler(BaseHTTPRequestHandler):
    """Handles the requests of one connection, with deadlines."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server: Server  # pyright: ignore[reportIncompatibleVariableOverride]
    request_s = 5.0
    """Time limit for receiving a whole request, from the beginning of the wait."""
    answer_s = 60.0
    """Time limit for each write of an answer."""

    def setup(self) -> None:
        super().setup()
        self._incoming = TimedReader(self.connection)
        self.rfile = io.BufferedReader(self._incoming)

    def handle_one_request(self) -> None:
        self._incoming.deadline = time.monotonic() + self.request_s
        super().handle_one_request()

    def recognise(self) -> None:
        """Keep this connection, because its client is authorised."""
        self.server.connections.recognise(self.connection)

    def send(self, status: int, headers: dict[str, str], content: bytes) -> None:
        """Send an answer, or only its head for a HEAD request."""
        self.send_head(status, {**headers, "Content-Length": str(len(content))})
        if self.command != "HEAD":
            self.wfile.write(content)

    def send_head(self, status: int, headers: dict[str, str]) -> None:
        # The limit applies to a whole write, not to each part of it.
        self.connection.settimeout(self.answer_s)
        self.send_response_only(status)
        # The unread rest of a rejected request must not be taken for another request.
        for name, value in (headers | ({"Connection": "close"} if self.close_connection else {})).items():
            self.send_header(name, value)
        self.end_headers()

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
        """Write nothing to the terminal."""
