"""A chat's webhook on this machine, which keeps what is posted to it."""

import json
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


class Webhook(ThreadingHTTPServer):
    """Answers each post with the next of its statuses, and then always with the last."""

    daemon_threads = True

    def __init__(self, statuses: Sequence[int]) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.statuses = list(statuses)
        self.posts: list[dict[str, Any]] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}/services/T0/B0/very-secret-part"

    @property
    def texts(self) -> list[str]:
        return [post["content"] for post in self.posts]


class _Handler(BaseHTTPRequestHandler):
    server: Webhook  # pyright: ignore[reportIncompatibleVariableOverride]

    def do_POST(self) -> None:
        assert self.headers["Content-Type"] == "application/json"
        self.server.posts.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
        statuses = self.server.statuses
        self.send_response(statuses.pop(0) if len(statuses) > 1 else statuses[0])
        self.send_header("Location", "http://127.0.0.1:9/elsewhere/other-secret")
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, format: str, *args: Any) -> None: ...  # noqa: A002


@contextmanager
def webhook(*statuses: int) -> Iterator[Webhook]:
    """Serve a webhook; without statuses it takes everything, as Discord does with 204."""
    server = Webhook(statuses or (204,))
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
