"""The web server of the board: GET routes that return its state. No route takes a path or changes anything.

All routes but the assets begin with a token, on this machine too, where other users can connect.

/TOKEN/                the overview                   /assets/NAME         its script and icon, from a fixed table
/TOKEN/KEY             the page of a run, a log or a study
"""

import hmac
import ipaddress
import os
import secrets
import signal
import socket
import stat
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from importlib.resources import files
from pathlib import Path
from typing import Any

from scalerl.errors import UsageError
from scalerl.forecast.report.board.news import News
from scalerl.forecast.report.board.state import LOOK_EVERY_S, Board
from scalerl.web.server import Handler, Server

DEFAULT_PORT = 8420
WRONG_TOKEN = b"open the whole link that scalerl watch printed: it holds a token\n"
TOKEN_FILE = Path("~/.local/state/scalerl/board-token")
_TYPES = {"js": "text/javascript", "svg": "image/svg+xml"}
HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'unsafe-inline'; connect-src 'self'; img-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cache-Control": "no-store",
}


def read_assets() -> dict[str, tuple[bytes, str]]:
    """Return the content and type of the files of the board, by path."""
    assets: dict[str, tuple[bytes, str]] = {}
    for file in (files("scalerl") / "assets" / "board").iterdir():
        kind = _TYPES.get(file.name.rpartition(".")[2])
        if kind is not None:
            assets[f"/assets/{file.name}"] = (file.read_bytes(), kind)
    return assets


class BoardServer(Server):
    """Serves a board to whoever has the token."""

    def __init__(self, board: Board, host: str, port: int, token: str) -> None:
        self.board = board
        self.token = token
        self.assets = read_assets()
        super().__init__(host, port, BoardHandler)


class BoardHandler(Handler):
    """The requests of one connection."""

    server: BoardServer  # pyright: ignore[reportIncompatibleVariableOverride]

    def do_GET(self) -> None:
        path = self.path.partition("?")[0]
        if path in self.server.assets:
            self._send(200, *self.server.assets[path])
            return
        _, token, *rest = path.split("/")
        if not hmac.compare_digest(token.encode(), self.server.token.encode()):
            self.close_connection = True
            self._send(403, WRONG_TOKEN, "text/plain")
            return
        self.recognise()
        match rest:
            case [key]:
                self._send_page(key)
            case _:
                self._send_missing()

    def _send_page(self, key: str) -> None:
        """Send a page with its version, or only the version if the browser has the page."""
        known = self.headers.get("If-None-Match", "")
        answer = self.server.board.page(key, known)
        if answer is None:
            self._send_missing()
            return
        version, page = answer
        headers = {**_headers("text/html"), "ETag": version}
        if page is None:
            self.send(304, headers, b"")
        else:
            self.send(200, headers, page.encode(errors="replace"))

    def _send_missing(self) -> None:
        self._send(404, b"there is no such page\n", "text/plain")

    do_HEAD = do_GET

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """Refuse without naming what serves here."""
        self.close_connection = True
        self._send(code, b"", "text/plain")

    def _refuse(self) -> None:
        self.send_error(405)

    do_POST = do_PUT = do_DELETE = do_PATCH = _refuse

    def _send(self, status: int, content: bytes, kind: str) -> None:
        self.send(status, _headers(kind), content)


def _headers(kind: str) -> dict[str, str]:
    text = "; charset=utf-8"
    if "image" in kind:
        text = ""
    return {"Content-Type": kind + text, **HEADERS}


# Starting it


def serve(
    paths: Sequence[Path],
    *,
    host: str = "127.0.0.1",
    port: int | None = None,
    end_compute: float | None = None,
    announce: Callable[[str], None],
    until: Callable[[], Any] | None = None,
    send: Callable[[str], None] | None = None,
) -> None:
    """Serve the board until Ctrl-C; `until` blocks, in a thread, for as long as it should run.

    `send` gets the news of what is watched.
    """
    if is_loopback(host):
        token = kept_token(TOKEN_FILE)
    else:
        token = secrets.token_urlsafe(24)
    board = Board(paths, end_compute=end_compute, **({} if send is None else {"on_snapshot": News(send)}))
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with _watching(board), listen(board, host, port, token) as server, suppress(KeyboardInterrupt):
        announce(link_to(host, server.server_address[1], token))
        if until is not None:
            threading.Thread(target=lambda: (until(), server.shutdown()), daemon=True).start()
        server.serve_forever()


def listen(board: Board, host: str, port: int | None, token: str) -> BoardServer:
    """Return a server on this port; without one, on the usual port or any other that is free."""
    try:
        return BoardServer(board, host, DEFAULT_PORT if port is None else port, token)
    except (OSError, OverflowError) as fault:
        if port is None:
            return listen(board, host, 0, token)
        reason = getattr(fault, "strerror", None) or fault
        raise UsageError(f"cannot listen on {host}, port {port} ({reason}): choose another --host or --port") from None


def kept_token(path: Path) -> str:
    """Return the token of this user's boards on this machine, from a file that nobody else can read.

    It is kept so that an open page finds a board that was started again. Where no such file can be made, the token is
    a new one each time.
    """
    token = secrets.token_urlsafe(24)
    if os.name != "posix":
        return token
    # RuntimeError: there is no home folder.
    with suppress(OSError, RuntimeError):
        path = path.expanduser()
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with suppress(FileExistsError), open(path, "x", opener=lambda name, flags: os.open(name, flags, 0o600)) as file:
            file.write(token)
        status = path.lstat()
        if status.st_uid == os.getuid() and status.st_mode == stat.S_IFREG | 0o600:
            return path.read_text() or token
    return token


def is_loopback(host: str) -> bool:
    if host.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def link_to(host: str, port: int, token: str) -> str:
    """Return the address to open."""
    name = host.strip("[]")
    if name in ("0.0.0.0", "::"):
        name = socket.gethostname()
    name = f"[{name}]" if ":" in name else name
    return f"http://{name}:{port}/{token}/"


@contextmanager
def _watching(board: Board) -> Iterator[None]:
    """Have a thread look at the files until the end of the block."""
    stopped = threading.Event()

    def watch() -> None:
        while not stopped.is_set():
            try:
                board.update()
            except Exception as error:  # A file with unforeseen content must not end the page.
                print(f"board: {type(error).__name__}: {error}", file=sys.stderr, flush=True)
                stopped.wait(1.0)
            stopped.wait(LOOK_EVERY_S)

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield
    finally:
        stopped.set()
        thread.join(timeout=5)
        board.close()
