"""The web server of the board: GET routes that return its state. No route takes a path or changes anything.

/                         the page                     /assets/NAME         its scripts and styles, from a fixed table
/api/events               server-sent events: which versions have changed
/api/runs                 the list                     /api/runs/KEY        one run
/api/runs/KEY/samples     a page of its samples        /api/runs/KEY/columns?names=...   columns over its steps
/api/studies/KEY          one study
"""

import asyncio
import hmac
import json
import re
from collections.abc import AsyncIterator, Awaitable, Callable, MutableMapping
from functools import partial
from importlib.resources import files
from typing import TYPE_CHECKING, Any

from scalerl.report.board.state import Board
from scalerl.report.samples import MAX_PAGE, PAGE, Query

if TYPE_CHECKING:
    from starlette.applications import Starlette
    from starlette.requests import Request
    from starlette.responses import Response

HEARTBEAT_S = 15.0
LOOPBACK_HOSTS = ("localhost", "127.0.0.1", "[::1]")
_MAX_QUERY = 500
_MAX_NAMES, _MOST_NAMES = 8000, 60

_TYPES = {"js": "text/javascript", "css": "text/css", "svg": "image/svg+xml"}
HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; connect-src 'self'; img-src 'self'; "
        "worker-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cache-Control": "no-store",
}


def read_assets() -> dict[str, tuple[bytes, str]]:
    """Return the content and type of everything that /assets serves, by name; the drawing code is the report's own."""
    folder = files("scalerl") / "assets"
    found = [file for place in ("report", "board") for file in (folder / place).iterdir()]
    kinds = {file: _TYPES.get(file.name.rsplit(".", 1)[-1]) for file in found}
    return {file.name: (file.read_bytes(), kind) for file, kind in kinds.items() if kind is not None}


def make_app(board: Board, *, token: str = "", hosts: tuple[str, ...] = LOOPBACK_HOSTS) -> "Starlette":
    """Return the application. With a token all routes but the assets require it; else only `hosts` are served."""
    from starlette.applications import Starlette
    from starlette.middleware import Middleware
    from starlette.responses import StreamingResponse
    from starlette.routing import Route

    assets = read_assets()
    folder = files("scalerl") / "assets"
    page = (folder / "board" / "board.html").read_bytes()
    for name in ("report", "words"):
        page = page.replace(f"<!-- {name} -->".encode(), (folder / "report" / f"{name}.html").read_bytes())

    async def index(_: "Request") -> "Response":
        return _response(page, "text/html")

    async def asset(request: "Request") -> "Response":
        content = assets.get(request.path_params["name"])
        return _missing() if content is None else _response(*content)

    async def events(request: "Request") -> "Response":
        return StreamingResponse(_stream(board, request), media_type="text/event-stream", headers=HEADERS)

    routes = [Route("/", index), Route("/assets/{name}", asset), Route("/api/events", events)]
    routes += [Route(path, partial(_answered, answer, board)) for path, answer in ANSWERS.items()]
    return Starlette(routes=routes, middleware=[Middleware(_Guard, token=token, hosts=hosts)])


def _samples(board: Board, asked: "Request") -> dict[str, Any] | None:
    given = asked.query_params
    query = Query(
        text=given.get("q", "")[:_MAX_QUERY],
        problem=given.get("problem"),
        verdict=given.get("verdict", ""),
        before=_integer(given.get("before")),
        num=min(max(_integer(given.get("num")) or PAGE, 1), MAX_PAGE),
    )
    return board.samples(asked.path_params["key"], query, _integer(given.get("number")))


def _columns(board: Board, asked: "Request") -> dict[str, Any] | None:
    names = asked.query_params.get("names", "")[:_MAX_NAMES].split("\n")[:_MOST_NAMES]
    return board.columns(asked.path_params["key"], names)


# Each returns JSON, as bytes or as a value, or None where there is no such thing.
ANSWERS: dict[str, Callable[[Board, Any], Any]] = {
    "/api/runs": lambda board, asked: board.listing(),
    "/api/runs/{key}": lambda board, asked: board.detail(asked.path_params["key"]),
    "/api/runs/{key}/samples": _samples,
    "/api/runs/{key}/columns": _columns,
    "/api/studies/{key}": lambda board, asked: board.detail(asked.path_params["key"]),
}


async def _answered(answer: Callable[[Board, Any], Any], board: Board, request: "Request") -> "Response":
    content = await asyncio.to_thread(answer, board, request)
    if content is None:
        return _missing()
    content = content if isinstance(content, bytes) else json.dumps(content, allow_nan=False, default=str).encode()
    return _response(content, "application/json")


def _response(content: bytes, kind: str, status: int = 200) -> "Response":
    from starlette.responses import Response

    return Response(content, status_code=status, media_type=kind, headers=HEADERS)


def _missing() -> "Response":
    return _response(b'{"error": "there is no such page"}', "application/json", 404)


def _integer(text: str | None) -> int | None:
    return int(text) if text is not None and text.isascii() and text.isdecimal() and len(text) < 10 else None


async def _stream(board: Board, request: "Request") -> AsyncIterator[bytes]:
    """Yield the versions of everything, then what has changed, and a comment now and then so that ends are noticed."""
    loop, changed = asyncio.get_running_loop(), asyncio.Event()

    def wake() -> None:
        loop.call_soon_threadsafe(changed.set)

    stop = board.listen(wake)
    try:
        known: dict[str, Any] = {}
        yield b"retry: 1000\n\n"
        while True:
            current = await asyncio.to_thread(board.versions)
            if current != known:
                yield f"event: versions\ndata: {json.dumps(current, separators=(',', ':'))}\n\n".encode()
                known = current
            try:
                await asyncio.wait_for(changed.wait(), HEARTBEAT_S)
            except TimeoutError:
                yield b": still here\n\n"
            changed.clear()
            if await request.is_disconnected():
                return
    finally:
        stop()


Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]


class _Guard:
    """Refuses requests without the token or, if no token is set, requests whose host is not in the allowed list.

    The second rule protects against web pages whose name resolves to this machine (DNS rebinding).
    """

    def __init__(self, app: Any, token: str, hosts: tuple[str, ...]) -> None:
        self._app, self._token, self._hosts = app, token, hosts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and not self._allows(scope):
            reason = b"open the whole link that scalerl watch printed: it ends with a token\n"
            await _response(reason, "text/plain", 403)(scope, receive, send)
            return
        await self._app(scope, receive, send)

    def _allows(self, scope: Scope) -> bool:
        from urllib.parse import parse_qs

        if scope["method"] not in ("GET", "HEAD"):
            return True  # every route answers these with 405
        if self._token:
            given = parse_qs(scope["query_string"].decode("latin-1")).get("token", [""])[0]
            return scope["path"].startswith("/assets/") or hmac.compare_digest(given.encode(), self._token.encode())
        host = next((value.decode("latin-1") for name, value in scope["headers"] if name == b"host"), "")
        name = re.fullmatch(r"(\[[^]]*\]|[^:]*)(:\d*)?", host)
        return name is not None and name[1].lower() in self._hosts
