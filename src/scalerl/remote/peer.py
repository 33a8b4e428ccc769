"""The driver's side of an object in another process: commands to it, messages from it, and when it counts as lost.

An object may take any time for a command. So its answers say nothing about whether it still runs; another thread of its
process does, which gives a sign of life every moment, whatever the object is doing. A thread beside the driver listens.
"""

import threading
import time
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol

RUNNING_S = 60.0
"""Longest silence of a process that is, according to the system, not stopped: a call may hold Python's lock."""
STARTING_S = 600.0
"""Longest silence until an object is ready, unless it is stopped: imports may hold Python's lock for long."""
CLOSE_S = 5.0
"""How long an object may take to end when it is asked to."""
_LISTEN_S = 0.5
_MOST_S = 1.0

Kind = Literal["died", "silent", "stuck", "start"]


class Lost(Exception):
    """An object is lost with its process; the text says what the process did, as the end of a sentence."""

    def __init__(self, kind: Kind, reason: str) -> None:
        super().__init__(reason)
        self.kind: Kind = kind
        self.where = ""
        """Where the object was, as a clause after its name."""


@dataclass(slots=True, eq=False)
class Command:
    """A method's name, or a function of a module that gets the object first, and the other arguments."""

    name: Any
    arguments: tuple[Any, ...]
    packed: Any = None
    """As a link sends it: the same for every peer that gets this command."""


class Link(Protocol):
    """How commands get to a process and messages back."""

    @property
    def where(self) -> str:
        """Where the process is, as a clause after the object's name; empty for this machine."""
        ...

    def write(self, command: Command) -> None:
        """Send a command, after all earlier ones, without waiting for the process."""
        ...

    def read(self, wait_s: float) -> list[tuple[str, Any]]:
        """Return the messages that have come, after `wait_s` none; raise Lost if the process has died."""
        ...

    def is_stopped(self) -> bool | None:
        """Return whether the process is stopped (SIGSTOP), None if the system cannot say."""
        ...

    def ready(self) -> None:
        """Note what a process whose object is made would leave behind if it were killed."""
        ...

    def kill(self) -> None:
        """End the process by force, also if it is stopped, with all that it started."""
        ...


class Silence:
    """Seconds since the last sign of life, counted only while somebody listens."""

    def __init__(self) -> None:
        self.seconds, self._listened_at = 0.0, time.monotonic()

    def listen(self, heard: bool) -> None:
        """Count the time since the last call, unless a sign of life was heard.

        At most a second of it: a driver that did something else, or was stopped itself, has not listened.
        """
        now = time.monotonic()
        self.seconds = 0.0 if heard else self.seconds + min(now - self._listened_at, _MOST_S)
        self._listened_at = now


class Peer:
    """An object in another process. `send` never waits, and `receive` returns what has come."""

    def __init__(self, link: Link, *, silent_s: float, news: threading.Event) -> None:
        """Count the object as lost after `silent_s` without a sign of life; set `news` when it has said something."""
        self.link, self.is_ready, self.busy_s = link, False, 0.0
        """`busy_s`: seconds that the object's current call had taken at its last sign of life."""
        self._silent_s, self._news = silent_s, news
        self._messages: deque[tuple[str, Any]] = deque()
        self._loss: Lost | None = None
        self._is_over = False
        threading.Thread(target=self._listen, name="peer", daemon=True).start()

    def send(self, name: Any, *arguments: Any) -> None:
        self.link.write(Command(name, arguments))

    def receive(self) -> tuple[str, Any] | None:
        """Return the next message, None if there is none yet; raise what the object raised, or Lost."""
        loss = self._loss
        if not self._messages:
            if loss is not None:
                raise loss
            return None
        kind, value = self._messages.popleft()
        if kind == "error":
            raise value
        return kind, value

    def check(self) -> None:
        """Raise what the object raised last, or Lost; leave other messages for `receive`."""
        if self._messages and self._messages[-1][0] == "error":
            raise self._messages[-1][1]
        if self._loss is not None and not self._messages:
            raise self._loss

    def kill(self) -> None:
        """End the process; a second call does nothing."""
        self._is_over = True
        self.link.kill()

    def _listen(self) -> None:
        silence = Silence()
        try:
            while not self._is_over:
                messages = self.link.read(_LISTEN_S)
                silence.listen(bool(messages))
                for kind, value in messages:
                    if kind == "beat":
                        self.busy_s = value
                        continue
                    if kind == "ready":
                        self.link.ready()
                        self.is_ready = True
                    self.busy_s = 0.0
                    self._messages.append((kind, value))
                    self._news.set()
                if silence.seconds > self._silent_s:
                    self._check_silence(silence.seconds)
        except Lost as loss:
            self._loss = loss
        except Exception as error:  # A message of another version of this package, for example.
            self._loss = Lost("died", f"sent what cannot be read: {type(error).__name__}: {error}")
        if self._loss is not None and not self._is_over:
            self._loss.where = self.link.where
            self.link.kill()
        self._news.set()

    def _check_silence(self, seconds: float) -> None:
        stopped = self.link.is_stopped()
        limit_s, state = self._silent_s, ""
        if stopped:
            state = ": it was stopped (SIGSTOP)"
        elif not self.is_ready:
            limit_s, state = max(self._silent_s, STARTING_S), ", and is not ready yet"
        elif stopped is not None:
            limit_s, state = max(self._silent_s, RUNNING_S), ": it hangs"
        if seconds > limit_s:
            kind = "silent" if self.is_ready else "start"
            raise Lost(kind, f"has given no sign of life for {limit_s:g} s{state}")


def send_all(peers: Sequence[Peer], name: Any, *arguments: Any) -> None:
    """Send the same command to all, packed once."""
    command = Command(name, arguments)
    for peer in peers:
        peer.link.write(command)


def close_all(peers: Sequence[Peer]) -> None:
    """Ask all to end, wait a moment for those that do, and end the others by force."""
    send_all(peers, "close")
    waiting, deadline = list(peers), time.monotonic() + CLOSE_S
    while waiting and time.monotonic() < deadline:
        waiting = [peer for peer in waiting if not _has_closed(peer)]
        time.sleep(0.01 if waiting else 0.0)
    for peer in peers:
        peer.kill()


def _has_closed(peer: Peer) -> bool:
    try:
        while (message := peer.receive()) is not None:
            if message[0] == "closed":
                return True
    except Exception:
        return True
    return False


def is_stopped(pid: int) -> bool | None:
    """Return whether a process of this machine is stopped (SIGSTOP); None where the system has no /proc."""
    with suppress(OSError, IndexError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"
    return None
