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
from scalerl.graders.children import Children
from scalerl.graders.supervisor import Reply, failure
from scalerl.types import Request, derive_seed


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
    """One conversation (supervisor.Work): takes a problem and a seed, then turns."""

    waits = False

    def __init__(self, begin: Begin) -> None:
        self._begin = begin
        self._session: Session | None = None

    def __call__(self, message: Any) -> Reply:
        try:
            if self._session is not None:
                return {"step": self._session.step(message)}
            self._session = self._begin(*message)
            return {"step": self._session.opening}
        except Exception as error:
            return failure(error)

    def close(self) -> None:
        if self._session is not None:
            self._session.close()


class Here:
    """Conversations in this process, each step at once: as much of Children as Steps uses."""

    def __init__(self, begin: Begin) -> None:
        self._begin, self._num_given, self.pid = begin, 0, os.getpid()
        self._seats: dict[int, Conversing] = {}
        self._replies: list[tuple[int, Reply]] = []

    def begin(self, message: Any, limit_s: float) -> int:
        self._seats[self._num_given] = Conversing(self._begin)
        return self.give(message, limit_s, self._num_given)

    def give(self, message: Any, limit_s: float, seat: int) -> int:
        number, self._num_given = self._num_given, self._num_given + 1
        self._replies.append((number, self._seats[seat](message)))
        return number

    def end(self, seat: int) -> None:
        with contextlib.suppress(Exception):
            self._seats.pop(seat).close()

    def poll(self, timeout_s: float = 0.0) -> list[tuple[int, Reply]]:
        replies, self._replies = self._replies, []
        return replies

    def close(self) -> None:
        for seat in list(self._seats):
            self.end(seat)


@dataclass(slots=True)
class _Conversation:
    seat: int
    """Number of its process."""
    awaited: int | None = None
    """The number of its turn that is being taken."""
    submitted: float = 0.0


class Steps:
    """Takes the turns of conversations. What an environment raises costs one conversation its verdict."""

    def __init__(self, name: str, children: Children | Here, *, timeout_s: float = 0.0) -> None:
        self._name, self._children, self._timeout_s = name, children, timeout_s
        self.first_errors: dict[str, str] = {}
        """The first exception of each environment that raised one, by its name."""
        self._conversations: dict[str, _Conversation] = {}
        self._awaited: dict[int, str] = {}
        """The conversation of each turn that is being taken."""
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
        if texts:
            held = self._conversations[key]
            number = self._children.give(texts[-1], self._timeout_s, held.seat)
        else:
            # One seed for all completions of a group.
            opening = (request.problem, derive_seed("environment", request.group))
            number = self._children.begin(opening, self._timeout_s)
            held = self._conversations[key] = _Conversation(number)
        held.awaited, held.submitted = number, time.monotonic()
        self._awaited[number] = key
        self._receive()

    def poll(self, wait_s: float = 0.0) -> list[Stepped]:
        """Return what has come since the last call; wait for at least one if something is pending."""
        self._receive(wait_s if self._awaited and not self._ready else 0.0)
        ready, self._ready = self._ready, []
        return ready

    def end(self, key: str) -> None:
        """Forget a conversation."""
        held = self._conversations.pop(key, None)
        if held is not None:
            self._ready = [stepped for stepped in self._ready if stepped.key != key]
            self._awaited.pop(-1 if held.awaited is None else held.awaited, None)
            self._children.end(held.seat)

    def close(self) -> None:
        """End every conversation and process."""
        self._children.close()

    def _receive(self, wait_s: float = 0.0) -> None:
        for number, reply in self._children.poll(wait_s):
            # Otherwise its conversation has ended.
            if (key := self._awaited.pop(number, None)) is not None:
                self._ready.append(self._stepped(key, reply))

    def _stepped(self, key: str, reply: Reply) -> Stepped:
        held, reason, error, step = self._conversations[key], reply.get("reason"), reply.get("error"), Step(done=True)
        held.awaited = None
        try:
            if reason is None:
                said = reply["step"]
                step = said if isinstance(said, Step) else read_step(Step(**said))
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as fault:
            reason, error = "crash", str(fault)
        if reason is not None:
            self.first_errors.setdefault(self._name, str(error))
        return Stepped(key=key, step=step, reason=reason, seconds=time.monotonic() - held.submitted)
