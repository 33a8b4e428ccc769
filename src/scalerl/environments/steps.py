"""Where environments run: each conversation in a process of its own, or all of them in this process.

In a process of its own, a step that hangs, crashes or lies costs one verdict. Limits are those of [grading]: seconds,
seconds of CPU time, and memory. They apply to each step. graders/supervisor.py has the processes.
"""

import contextlib
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from scalerl.environments.protocol import Begin, Session, Step, read_step
from scalerl.errors import GraderPoolError
from scalerl.graders.children import Children
from scalerl.graders.supervisor import Reply, failure
from scalerl.types import Request, derive_seed

_CLOSE_S = 5.0
"""For the environment's own `close`, after the conversation."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stepped:
    """What came of a turn, or of the start of a conversation."""

    key: str
    step: Step
    reason: str | None = None
    """Why the environment failed; the conversation then has no verdict."""
    seconds: float = 0.0
    """How long it took."""


class Conversing:
    """One conversation (supervisor.Work): takes a problem and a seed, then turns, then perhaps None to close it."""

    waits = False

    def __init__(self, begin: Begin) -> None:
        self._begin, self._session = begin, None

    def __call__(self, message: Any) -> Reply:
        session: Session | None = self._session
        try:
            if session is None:
                session = self._session = self._begin(*message)
                step = session.opening
            elif message is None:
                session.close()
                step = Step(done=True)
            else:
                step = session.step(message)
            reply: Reply = {"step": step}
        except Exception as error:
            reply = failure(error)
        return reply | {"closes": session is not None and session.closes}


class Here:
    """Conversations in this process, each step at once: as much of Children as Steps uses."""

    def __init__(self, begin: Begin) -> None:
        self._begin, self._num_given, self.pid = begin, 0, os.getpid()
        self._seats: dict[int, Conversing] = {}
        self._replies: list[tuple[int, Reply]] = []

    def wait_until_ready(self) -> None:
        pass

    def give(self, message: Any, limit_s: float, seat: int | None = None, *, begins: bool = False) -> int:
        number, self._num_given = self._num_given, self._num_given + 1
        if begins:
            seat, self._seats[number] = number, Conversing(self._begin)
        assert seat is not None
        self._replies.append((number, self._seats[seat](message)))
        return number

    def end(self, seat: int) -> None:
        del self._seats[seat]

    def poll(self, timeout_s: float = 0.0) -> list[tuple[int, Reply]]:
        replies, self._replies = self._replies, []
        return replies

    def close(self) -> None:
        pass


@dataclass(slots=True)
class _Conversation:
    seat: int
    """Number of its process."""
    awaited: int | None
    """The number of its turn that is being taken."""
    submitted: float
    closes: bool = False
    """Whether the environment has a `close`."""


class Steps:
    """Takes the turns of conversations. What an environment raises costs one conversation its verdict."""

    def __init__(self, name: str, children: Children | Here, *, timeout_s: float = 0.0) -> None:
        self._name, self._children, self._timeout_s = name, children, timeout_s
        self.first_errors: dict[str, str] = {}
        """The first exception of each environment that raised one, by its name."""
        self._conversations: dict[str, _Conversation] = {}
        self._awaited: dict[int, str] = {}
        """The conversation of each turn that is being taken."""
        self._closing: dict[int, int] = {}
        """The seat of each environment that is being closed, by the number of that message."""
        self._ready: list[Stepped] = []

    @property
    def pid(self) -> int:
        """This process, or the one that conversations are forked from, which is also the session id of all of them."""
        return self._children.pid

    @property
    def num_pending(self) -> int:
        """Steps whose results `poll` has not returned."""
        return len(self._awaited) + len(self._ready)

    def submit(self, key: str, request: Request, texts: Sequence[str]) -> None:
        """Take a conversation's newest turn, the last of `texts`; without any, start it, which gives its opening."""
        # Its imports do not count against the first step.
        self._children.wait_until_ready()
        now = time.monotonic()
        if texts:
            held = self._conversations[key]
            held.awaited, held.submitted = self._children.give(texts[-1], self._timeout_s, held.seat), now
        else:
            # One seed for all completions of a group.
            opening = (request.problem, derive_seed("environment", request.group))
            number = self._children.give(opening, self._timeout_s, begins=True)
            held = self._conversations[key] = _Conversation(number, number, now)
        assert held.awaited is not None
        self._awaited[held.awaited] = key
        self._receive()

    def poll(self, wait_s: float = 0.0) -> list[Stepped]:
        """Return what has come since the last call; wait for at least one if something is pending."""
        self._receive(wait_s if self._awaited and not self._ready else 0.0)
        ready, self._ready = self._ready, []
        return ready

    def end(self, key: str) -> None:
        """Forget a conversation."""
        held = self._conversations.pop(key, None)
        if held is None:
            return
        self._ready = [stepped for stepped in self._ready if stepped.key != key]
        if held.awaited is not None:
            del self._awaited[held.awaited]
        if held.closes and held.awaited is None:
            self._closing[self._children.give(None, _CLOSE_S, held.seat)] = held.seat
            self._receive()
        else:
            self._children.end(held.seat)

    def close(self) -> None:
        """End every conversation and process."""
        # If the supervisor is gone, so are the processes.
        with contextlib.suppress(GraderPoolError):
            for key in list(self._conversations):
                self.end(key)
            while self._closing:
                self._receive(0.1)
        self._children.close()

    def _receive(self, wait_s: float = 0.0) -> None:
        for number, reply in self._children.poll(wait_s):
            if reply.get("reason"):
                self.first_errors.setdefault(self._name, str(reply.get("error")))
            if number in self._closing:
                self._children.end(self._closing.pop(number))
            elif number in self._awaited:  # Otherwise its conversation has ended.
                self._ready.append(self._stepped(self._awaited.pop(number), reply))

    def _stepped(self, key: str, reply: Reply) -> Stepped:
        held, reason = self._conversations[key], reply.get("reason")
        held.awaited, held.closes, step = None, bool(reply.get("closes")), Step(done=True)
        try:
            if reason is None:
                said = reply["step"]
                step = said if isinstance(said, Step) else read_step(Step(**said))
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
            reason, held.closes = "crash", False
            self.first_errors.setdefault(self._name, str(error))
        return Stepped(key=key, step=step, reason=reason, seconds=time.monotonic() - held.submitted)
