"""Post news of a run or a study to a chat: Slack, Discord, Mattermost, or any server that accepts JSON.

News never delay or end a run: a thread posts them, with retries if the server is busy, and undelivered news are dropped
with one warning. The URL is a secret, because anybody who has it can post, so it is never written or printed.
"""

import queue
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any, Self
from urllib.parse import urlsplit

from scalerl.errors import RunFailure, UsageError, failure_text, printable
from scalerl.recipe.secrets import redact
from scalerl.web.client import post

LONGEST = 1900
"""Largest number of characters in a post; Discord's limit is 2,000."""
MOST_WAITING = 50
"""Largest number of news that wait for a server."""
REPLY_S = 10.0


class NotDelivered(RunFailure):
    """A server did not accept the news."""


def check_url(url: str, option: str) -> str:
    """Return the URL if it is a webhook's; otherwise raise UsageError without repeating it."""
    try:
        parts = urlsplit(url)
        usable = parts.scheme in ("http", "https") and bool(parts.hostname) and url.isprintable() and " " not in url
    except ValueError:
        usable = False
    if not usable:
        raise UsageError(f"{option} must be the URL of a webhook, such as https://hooks.slack.com/services/...")
    return url


def message(text: str) -> dict[str, Any]:
    """Return a post for Slack and Discord, in which texts cannot address a group of people."""
    text = text if len(text) <= LONGEST else f"{text[: LONGEST - 4]} ..."
    escaped = text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return {"text": escaped, "content": text, "allowed_mentions": {"parse": []}}


class Notifier:
    """Posts news under a name during a `with` block, and the exception that ends the block.

    Without a URL, it does nothing.
    """

    def __init__(
        self,
        url: str | None,
        name: str,
        *,
        warn: Callable[[str], object],
        secrets: Iterable[str] = (),
        end_s: float = 20.0,
    ) -> None:
        """`warn` is called with the reason if news are lost; `secrets` are removed from all news.

        `end_s` is the time limit for posting the last news at the end.
        """
        self._url = url
        self._name = name
        self._warn = warn
        self._secrets = tuple(secrets)
        self._end_s = end_s
        self._news: queue.Queue[str | None] = queue.Queue(MOST_WAITING)
        self._is_closed = False
        self._thread = threading.Thread(target=self._post_all, name="notify", daemon=True)

    def send(self, text: str) -> None:
        """Queue a text for posting; return at once."""
        if self._url is not None:
            # News are dropped only if fifty others already wait.
            with suppress(queue.Full):
                self._news.put_nowait(f"{self._name}: {text}")

    def close(self) -> None:
        """Wait until all news are posted, and drop those that cannot be posted in time."""
        if not self._thread.is_alive():
            return
        deadline = time.monotonic() + self._end_s
        with suppress(queue.Full):
            self._news.put(None, timeout=self._end_s)
        self._thread.join(max(deadline - time.monotonic(), 0.0))
        self._is_closed = True

    def __enter__(self) -> Self:
        if self._url is not None:
            self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: object) -> None:
        if isinstance(error, KeyboardInterrupt):
            self.send("stopped at once")
        elif isinstance(error, Exception):
            self.send(f"failed: {failure_text(error)}")
        self.close()

    def _post_all(self) -> None:
        assert self._url is not None
        address = urlsplit(self._url)
        secrets = [*self._secrets, self._url, *(part for part in (address.path, address.query) if len(part) >= 8)]
        options = {"timeout_s": REPLY_S, "server": f"{address.hostname}", "error": NotDelivered}
        warned = False
        while (text := self._news.get()) is not None and not self._is_closed:
            try:
                safe = printable(redact(text, secrets), keep="\n")
                post(self._url, message(safe), **options)
            except Exception as error:  # No error of a server may end a run.
                if not warned and not self._is_closed:
                    self._warn(f"Warning: news could not be posted: {redact(str(error), secrets)}.")
                warned = True
