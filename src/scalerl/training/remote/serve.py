"""The loop in the other process: execute commands in order, answer each, and work between them."""

import functools
import pickle
import time
import traceback
from collections.abc import Callable
from typing import Any

from scalerl.errors import RunFailure, UserError


class RemoteFailure(RunFailure):
    """An object raised an unexpected error; the message is the error's type and first lines."""


Command = tuple[Any, tuple[Any, ...]]
"""The name of a method, or a function of a module, and its arguments."""


class DriverGone(Exception):
    """The driver has ended, so no answer is needed."""


class ObjectServer:
    """Creates an object and serves it. Another thread may read `busy_s`, for the signs of life."""

    def __init__(self, receive: Callable[[bool], Command | None], send: Callable[..., None]) -> None:
        """`receive(wait)` returns a command, or None if there is none; `send(kind, value)` sends a message."""
        self._receive = receive
        self._send = send
        self._since: float | None = None

    @property
    def busy_s(self) -> float:
        """Seconds of the object's current call so far; 0 while it waits for a command."""
        since = self._since
        return 0.0 if since is None else time.monotonic() - since

    def run(self, make: Callable[[], Any]) -> None:
        """Serve until the command "close". Errors are sent to the driver, then raised.

        A command is the name of a method, or a function of a module whose first argument is the object. The kinds of
        messages are "ready" (with the object's facts), "done" (with the result of a command), "closed", "report" and
        "error". An object with a method `advance` also works between commands: `advance(send)` is called while it
        returns true.
        """
        try:
            self._since = time.monotonic()
            served = make()
            advance = getattr(served, "advance", None)
            self._send("ready", served.facts())
            is_at_work = advance is not None
            while True:
                self._since = None
                received = self._receive(not is_at_work)
                self._since = time.monotonic()
                if received is None:
                    assert advance is not None, "nothing was received, so there is work"
                    is_at_work = advance(self._send)
                    continue
                command, arguments = received
                act = getattr(served, command) if isinstance(command, str) else functools.partial(command, served)
                result = act(*arguments)
                if command == "close":
                    self._send("closed", result)
                    return
                self._send("done", result)
                is_at_work = advance is not None
        except DriverGone:
            raise
        except BaseException as error:
            self._since = None
            self._send("error", _sendable(error))
            raise


def _sendable(error: BaseException) -> Exception:
    """Return the error if the driver can receive and expects it, or else a RemoteFailure with its text and
    traceback."""
    if isinstance(error, UserError | RunFailure):
        try:
            pickle.loads(pickle.dumps(error))
            return error
        except Exception:
            plain = UserError if isinstance(error, UserError) else RemoteFailure
            return plain(str(error))
    lines = [line for line in str(error).splitlines() if line.strip()]
    failure = RemoteFailure(f"{type(error).__name__}: {' '.join(lines[:3])}".removesuffix(": "))
    failure.add_note(traceback.format_exc())
    return failure
