"""The driver's side of an object in another process: send commands, receive messages, and notice its loss.

A command may take any time, so answers do not show whether an object still runs. Instead, another thread of its process
gives regular signs of life, whatever the object is doing. A thread of the driver's process listens.
"""

import threading
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from scalerl.processes import is_stopped

MAX_SILENCE_RUNNING_S = 60.0
"""Longest silence of a process that the system says runs: a call that holds Python's lock delays its signs of life."""
MAX_SILENCE_STARTING_S = 600.0
"""Longest silence until an object is ready, unless it is stopped: imports may hold Python's lock for a long time."""
CLOSE_S = 5.0
"""Time limit for an object to end after it is asked to."""
_DOUBT_S = 1.0
"""Time for which silence must last after it is noticed: if the driver itself was stopped, it first has to listen."""

Kind = Literal["died", "silent", "stuck", "start"]


Message = tuple[str, Any]
"""The kind and the value of what an object sends."""


class Lost(Exception):
    """An object is lost with its process; the message is the end of a sentence about the process.

    For example, Lost("died", "exited with code 1", " on node 3").
    """

    def __init__(self, kind: Kind, reason: str, where: str = "") -> None:
        """`where` is the place of the object, as a clause after its name."""
        super().__init__(reason)
        self.kind: Kind = kind
        self.where = where


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Time limits after which an object counts as lost."""

    silent_s: float = 15.0
    """Longest time without a sign of life."""
    start_s: float = 3600.0
    """Longest time until it is ready; it may have to download a large model."""
    stuck_s: float = 300.0
    """Longest time in one call; after this, its device is assumed to hang."""


class Link(Protocol):
    """Sends commands to a process and receives messages."""

    @property
    def where(self) -> str:
        """The place of the process, as a clause after the object's name; empty for this machine."""
        ...

    @property
    def pid(self) -> int | None:
        """Id of the process, if it is on this machine."""
        ...

    @property
    def is_placed(self) -> bool:
        """Whether the process exists; a cluster may have no room for it yet."""
        ...

    def has_left(self) -> bool:
        """Return whether the machine of the process has left the cluster."""
        ...

    def packed(self, name: Any, arguments: tuple[Any, ...]) -> Any:
        """Return a command in a form that can be sent over any link of this kind.

        It consists of a method's name, or a function of a module whose first argument is the object, and arguments.
        """
        ...

    def write(self, command: Any) -> None:
        """Send a packed command after all earlier ones, without waiting for the process."""
        ...

    def read(self) -> Sequence[Message]:
        """Wait a moment for messages and return them; raise Lost if the process has died."""
        ...

    def kill(self) -> None:
        """Kill the process, even if it is stopped, and everything that it started."""
        ...


class Peer:
    """An object in another process. `send` and `receive` never wait."""

    def __init__(self, link: Link, *, limits: Limits, news: threading.Event) -> None:
        """`news` is set when a message arrives."""
        self.link = link
        self.is_ready = False
        self.busy_s = 0.0
        """The time that the object's current call had taken at its last sign of life."""
        self._limits = limits
        self._news = news
        self._messages: deque[Message] = deque()
        self._is_over = False
        self._started_at = time.monotonic()
        self._heard_at = self._started_at
        self._doubted_at: float | None = None
        threading.Thread(target=self._listen, name="peer", daemon=True).start()

    def send(self, name: Any, *arguments: Any) -> None:
        send_all([self], name, *arguments)

    def receive(self) -> Message | None:
        """Return the next message or None; if the object raised an error or is lost, raise it at every call."""
        if not self._messages:
            self._check_life()
            return None
        kind, value = self._messages[0]
        if kind == "error":
            raise value
        return self._messages.popleft()

    def check(self) -> None:
        """Raise the object's error, or Lost; leave other messages for `receive`."""
        if not self._messages:
            self._check_life()
        elif self._messages[-1][0] == "error":  # nothing comes after an error
            raise self._messages[-1][1]

    def kill(self) -> None:
        """End the process; a second call does nothing."""
        self._is_over = True
        self.link.kill()

    def _listen(self) -> None:
        """Collect messages until the process is lost or killed; runs in a thread of its own."""
        try:
            while not self._is_over:
                for kind, value in self.link.read():
                    self._heard_at = time.monotonic()
                    if kind == "beat":
                        self.busy_s = value
                        continue
                    self.is_ready |= kind == "ready"
                    self.busy_s = 0.0
                    self._messages.append((kind, value))
                    self._news.set()
        except Exception as error:  # Besides Lost: a message of another version of this package, for example.
            loss = error if isinstance(error, Lost) else Lost("died", f"sent an unreadable message: {error!r}")
            loss.where = self.link.where
            self._messages.append(("error", loss))
            if not self._is_over:  # `kill` has not been called
                self.link.kill()
        self._news.set()

    def _check_life(self) -> None:
        """Raise Lost if a limit is exceeded."""
        now = time.monotonic()
        limits = self._limits
        if not self.link.is_placed:
            # Limits count from the start of the process.
            self._started_at = now
            self._heard_at = now
            return
        if not self.is_ready and now - self._started_at > limits.start_s:
            raise Lost("start", f"is not ready after {limits.start_s:g} s", self.link.where)
        if self.is_ready and self.busy_s > limits.stuck_s:
            raise Lost("stuck", f"has taken more than {limits.stuck_s:g} s for one call", self.link.where)
        if now - self._heard_at <= limits.silent_s:
            self._doubted_at = None
            return
        self._doubted_at = self._doubted_at or now
        limit_s, state = self._longest_silence()
        if now - self._heard_at > limit_s and now - self._doubted_at > _DOUBT_S:
            kind = "silent" if self.is_ready else "start"
            raise Lost(kind, f"has given no sign of life for {limit_s:g} s{state}", self.link.where)

    def _longest_silence(self) -> tuple[float, str]:
        """Return how long the process may be silent now, and the end of a sentence that says so.

        That is short if it is stopped or the system says nothing, longer while it starts or if the system says it runs.
        """
        limit_s = self._limits.silent_s
        stopped = None if self.link.pid is None else is_stopped(self.link.pid)
        if stopped:
            return limit_s, ": it was stopped (SIGSTOP)"
        if not self.is_ready:
            return max(limit_s, MAX_SILENCE_STARTING_S), ", and is not ready yet"
        if stopped is None:
            return limit_s, ""
        return max(limit_s, MAX_SILENCE_RUNNING_S), ": it hangs"


def send_all(peers: Sequence[Peer], name: Any, *arguments: Any) -> None:
    """Send the same command to all peers; it is packed only once."""
    command = peers[0].link.packed(name, arguments) if peers else None
    for peer in peers:
        peer.link.write(command)


def close_all(peers: Sequence[Peer]) -> None:
    """Ask all peers to end, wait a moment, and kill those that have not ended."""
    send_all(peers, "close")
    waiting = list(peers)
    deadline = time.monotonic() + CLOSE_S
    while waiting and time.monotonic() < deadline:
        waiting = [peer for peer in waiting if not _has_closed(peer)]
        time.sleep(0.01 if waiting else 0.0)
    for peer in peers:
        peer.kill()


def _has_closed(peer: Peer) -> bool:
    """Return whether a peer has ended, or never will."""
    try:
        while (message := peer.receive()) is not None:
            if message[0] == "closed":
                return True
    except Exception:  # its own error, or Lost: it does not answer
        return True
    return False
