"""Post JSON to a server, with retries if it is busy. Standard library only, because child processes use this, too."""

import io
import json
import socket
import time
from contextlib import suppress
from types import SimpleNamespace
from typing import Any

from scalerl.runfolder.json_text import parse_json

_TRY_AGAIN = (408, 409, 429, 500, 502, 503, 504)
_FIRST_WAIT_S = 0.5
_LONGEST_WAIT_S = 30.0


class TimedReader(io.RawIOBase):
    """The data that a peer sends until a deadline, so that slow bytes do not keep a connection open."""

    def __init__(self, connection: socket.socket, deadline: float = 0.0) -> None:
        # Such a file keeps the connection open until it is closed itself.
        self._connection = connection
        self._file = connection.makefile("rb", buffering=0)
        self.deadline = deadline

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any, /) -> int | None:
        left_s = self.deadline - time.monotonic()
        if left_s <= 0:
            raise TimeoutError("timed out")
        self._connection.settimeout(left_s)
        return self._file.readinto(buffer)

    def close(self) -> None:
        self._file.close()
        super().close()


def ask(url: str, body: dict[str, Any], *, server: str, error: type[Exception], **options: Any) -> Any:
    """Post and return the server's reply, which must be JSON; see post."""
    return read_reply(post(url, body, server=server, error=error, **options), server=server, error=error)


def read_reply(content: bytes, *, server: str, error: type[Exception]) -> Any:
    """Return the value of a reply; raise `error` about `server` unless it is JSON."""
    try:
        return parse_json(content)
    except ValueError:
        raise error(f"{server} did not answer with JSON") from None


def post(
    url: str,
    body: dict[str, Any],
    *,
    api_key: str = "",
    most_tries: int = 5,
    most_bytes: int = 4 * 2**20,
    timeout_s: float = 600.0,
    server: str,
    error: type[Exception],
) -> bytes:
    """Post and return the server's reply; raise `error` about `server` if that fails.

    If the server is busy or has not sent its whole reply within `timeout_s`, post again, with growing delays. Nothing
    that the server wrote becomes part of the error.
    """
    from http.client import HTTPConnection, HTTPException, HTTPResponse, responses
    from urllib.error import HTTPError
    from urllib.request import HTTPHandler, HTTPRedirectHandler, HTTPSHandler, Request, build_opener

    class Refuse(HTTPRedirectHandler):
        """Follow no redirects: the key, which may be part of the URL, is only for this server."""

        def http_error_302(self, req: Any, fp: Any, code: Any, msg: Any, headers: Any) -> None: ...

        http_error_301 = http_error_303 = http_error_307 = http_error_308 = http_error_302

    class Timed(HTTPHandler, HTTPSHandler):
        """Reads a reply until the deadline of the attempt."""

        def do_open(self, http_class: Any, req: Any, **how: Any) -> Any:
            def response(connection: socket.socket, **how: Any) -> HTTPResponse:
                source: Any = SimpleNamespace(makefile=lambda _: io.BufferedReader(TimedReader(connection, deadline)))
                return HTTPResponse(source, **how)

            def connect(*address: Any, **how: Any) -> HTTPConnection:
                connection = http_class(*address, **how)
                connection.response_class = response
                return connection

            return super().do_open(connect, req, **how)  # pyright: ignore[reportArgumentType]

    opener = build_opener(Refuse, Timed)
    wait_s = _FIRST_WAIT_S
    headers = {"Content-Type": "application/json"} | ({"Authorization": f"Bearer {api_key}"} if api_key else {})
    request = Request(url, json.dumps(body).encode(), headers)
    for attempt in range(1, most_tries + 1):
        deadline = time.monotonic() + timeout_s
        try:
            with opener.open(request, timeout=timeout_s) as reply:
                return reply.read(most_bytes)
        except HTTPError as fault:
            fault.close()
            if 300 <= fault.code < 400:
                # Leave out the path, which may be a secret.
                place = (fault.headers["Location"] or "").partition("://")[2].partition("/")[0].rpartition("@")[2]
                raise error(f"{server} redirects to {place!a}, and the key is not for others: give that URL") from None
            if fault.code not in _TRY_AGAIN or attempt == most_tries:
                raise error(f"{server} answered {fault.code} {responses.get(fault.code, '')}".rstrip()) from None
            with suppress(TypeError, ValueError):
                wait_s = max(wait_s, float(fault.headers["Retry-After"]))
        except OSError as fault:
            if attempt == most_tries:
                raise error(f"{server} does not answer: {fault}") from None
        except HTTPException as fault:
            raise error(f"{server} does not answer in HTTP: {type(fault).__name__}") from None
        time.sleep(min(wait_s, _LONGEST_WAIT_S))
        wait_s *= 2
    raise AssertionError
