"""Post JSON to a server, with retries if it is busy. Standard library only, because child processes use this, too."""

import json
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any, TypeVar

_TRY_AGAIN = (408, 409, 429, 500, 502, 503, 504)
_FIRST_WAIT_S = 0.5
_LONGEST_WAIT_S = 30.0

Reply = TypeVar("Reply")


def post(
    url: str,
    body: dict[str, Any],
    read: Callable[[bytes], Reply],
    *,
    api_key: str = "",
    most_tries: int = 5,
    most_bytes: int = 4 * 2**20,
    timeout_s: float = 600.0,
    server: str,
    error: type[Exception],
) -> Reply:
    """Post and return the server's reply, converted by `read`; raise `error` about `server` if that fails.

    If the server is busy or does not answer within `timeout_s`, post again, with growing delays.
    """
    from urllib.error import HTTPError
    from urllib.parse import urlsplit
    from urllib.request import HTTPRedirectHandler, Request, build_opener

    class Refuse(HTTPRedirectHandler):
        """Follow no redirects: the key, which may be part of the URL, is only for this server."""

        def redirect_request(self, req: Any, fp: Any, code: Any, msg: Any, headers: Any, newurl: Any) -> None: ...

    opener, wait_s = build_opener(Refuse), _FIRST_WAIT_S
    headers = {"Content-Type": "application/json"} | ({"Authorization": f"Bearer {api_key}"} if api_key else {})
    request = Request(url, json.dumps(body).encode(), headers)
    for attempt in range(1, most_tries + 1):
        try:
            with opener.open(request, timeout=timeout_s) as reply:
                return read(reply.read(most_bytes))
        except HTTPError as fault:
            if 300 <= fault.code < 400:
                # Leave out the path, which may be a secret.
                host = urlsplit(fault.headers["Location"] or "").netloc.rpartition("@")[2]
                raise error(f"{server} redirects to {host!a}, and the key is not for others: give that URL") from None
            if fault.code not in _TRY_AGAIN or attempt == most_tries:
                raise error(f"{server} answered {fault.code} {fault.reason}") from None
            with suppress(TypeError, ValueError):
                wait_s = max(wait_s, float(fault.headers["Retry-After"]))
        except OSError as fault:
            if attempt == most_tries:
                raise error(f"{server} does not answer: {fault}") from None
        time.sleep(min(wait_s, _LONGEST_WAIT_S))
        wait_s *= 2
    raise AssertionError
