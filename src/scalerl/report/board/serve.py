"""Start the board: choose an address, print its link, and serve until it is stopped."""

import asyncio
import contextlib
import ipaddress
import secrets
import socket
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from scalerl.errors import UsageError

DEFAULT_PORT = 8420
REQUEST_S = 5.0
"""Seconds in which a connection must send a whole request."""
MOST_CONNECTIONS = 256
INSTALL = 'pip install "scalerl[board]"'


def check_installed() -> None:
    """Raise UsageError if the packages of the board are missing."""
    for name in ("starlette", "uvicorn"):
        if find_spec(name) is None:
            raise UsageError(f"the board needs the board extra ({name} is missing): {INSTALL}")


def is_loopback(host: str) -> bool:
    if host.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def listen(host: str, port: int | None) -> socket.socket:
    """Return a socket on this port; without one, on the usual port or any other that is free."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    for wanted in (DEFAULT_PORT, 0) if port is None else (port,):
        sock = socket.socket(family, socket.SOCK_STREAM)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            sock.bind((host.strip("[]"), wanted))
            # Before the link is printed: who opens it at once is kept waiting, not refused.
            sock.listen(256)
        except (OSError, OverflowError) as fault:
            sock.close()
            if wanted == DEFAULT_PORT and port is None:
                continue
            reason = getattr(fault, "strerror", None) or fault
            raise UsageError(
                f"cannot listen on {host}, port {wanted} ({reason}): choose another --host or --port"
            ) from None
        return sock
    raise AssertionError("a free port is always tried last")


def link_to(host: str, port: int, token: str) -> str:
    """Return the address to open."""
    name = host.strip("[]")
    if name in ("0.0.0.0", "::"):
        name = socket.gethostname()
    name = f"[{name}]" if ":" in name else name
    return f"http://{name}:{port}/" + (f"?token={token}" if token else "")


def serve(
    paths: Sequence[Path],
    *,
    host: str = "127.0.0.1",
    port: int | None = None,
    end_compute: float | None = None,
    announce: Callable[[str], None],
    until: Callable[[], Any] | None = None,
) -> None:
    """Serve the board until Ctrl-C; `until` blocks, in a thread, for as long as it should run."""
    check_installed()
    import uvicorn

    from scalerl.report.board.app import LOOPBACK_HOSTS, make_app
    from scalerl.report.board.state import Board

    sock = listen(host, port)
    token = "" if is_loopback(host) else secrets.token_urlsafe(24)
    board = Board(paths, end_compute=end_compute)
    app = make_app(board, token=token, hosts=(*LOOPBACK_HOSTS, host.lower()))
    config = uvicorn.Config(
        app, http=_protocol(), ws="none", log_level="critical", access_log=False, lifespan="off",
        timeout_graceful_shutdown=1, server_header=False, limit_concurrency=MOST_CONNECTIONS,
    )  # fmt: skip
    server = uvicorn.Server(config)
    with _watching(board), contextlib.closing(sock):
        announce(link_to(host, sock.getsockname()[1], token))
        if until is not None:
            threading.Thread(target=lambda: (until(), setattr(server, "should_exit", True)), daemon=True).start()
        with contextlib.suppress(KeyboardInterrupt):
            server.run(sockets=[sock])


def _protocol() -> type[asyncio.Protocol]:
    """Return uvicorn's protocol with a limit on the time in which a request must come; without it there is none."""
    from uvicorn.protocols.http.h11_impl import H11Protocol

    class Protocol(H11Protocol):
        def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
            super().connection_made(transport)
            self.loop.call_later(REQUEST_S, self._check, None)

        def _check(self, before: object) -> None:
            """Close a connection that has sent no request since the one of `before`, and is not being answered."""
            is_answering = self.cycle is not None and not self.cycle.response_complete
            if self.cycle is before and not is_answering:
                self.transport.close()
            elif not self.transport.is_closing():
                self.loop.call_later(REQUEST_S, self._check, self.cycle)

    return Protocol


@contextlib.contextmanager
def _watching(board: Any) -> Iterator[None]:
    """Have a thread look at the files until the end of the block."""
    from scalerl.report.board.state import LOOK_EVERY_S

    stopped = threading.Event()

    def watch() -> None:
        while not stopped.is_set():
            try:
                board.look()
            except Exception as error:  # A file with unforeseen content must not end the page.
                print(f"board: {type(error).__name__}: {error}", file=sys.stderr, flush=True)
                stopped.wait(1.0)
            board.woken.wait(LOOK_EVERY_S)
            board.woken.clear()

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield
    finally:
        stopped.set()
        board.woken.set()
        thread.join(timeout=5)
        board.close()
