"""Environments in processes of their own, one per conversation: a step that hangs, crashes or lies costs one verdict.

Limits are those of [grading]: seconds, seconds of CPU time, and memory. They apply to each step. graders/supervisor.py
has the processes.
"""

import contextlib
import dataclasses
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, get_args

from scalerl.config.parts import GradingSettings
from scalerl.environments.protocol import LONGEST_OBSERVATION, Session, Step, read_step
from scalerl.environments.start import EnvironmentSpec, find
from scalerl.environments.steps import Stepped, environment_seed
from scalerl.errors import GraderPoolError
from scalerl.graders.children import Children
from scalerl.graders.supervisor import Limits, Reply, failure
from scalerl.graders.workers import Reason
from scalerl.types import Request

_LONGEST_REPLY = 12 * LONGEST_OBSERVATION + 10_000
"""Bytes: a character outside the basic plane is 12 in JSON."""
_CLOSE_S = 5.0
"""For the environment's own `close`, after the conversation."""
_LOAD_S = 120.0
"""For importing the environment and its packages on a busy machine."""


class Conversing:
    """What runs in a conversation's process: a problem with a seed, then turns, then perhaps None, which closes it."""

    def __init__(self, spec: EnvironmentSpec) -> None:
        self._begin, self._session = find(spec), None

    def load(self, *what: Any) -> str:
        return ""

    def waits(self, message: Any) -> bool:
        return False

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
            reply: Reply = {"step": dataclasses.asdict(step)}
        except BaseException as error:
            reply = failure(error)
        return reply | {"closes": session is not None and session.closes}


@dataclass(slots=True)
class _Conversation:
    seat: int
    """Number of its process."""
    awaited: int | None
    """The number of its turn that is being taken."""
    submitted: float
    closes: bool = False
    """Whether the environment has a `close`."""


class ForkedSteps:
    """Takes the turns of conversations, each in a process of its own."""

    def __init__(self, spec: EnvironmentSpec, limits: GradingSettings) -> None:
        self._name, self._timeout_s = spec.settings.name, limits.timeout_s
        self.first_errors: dict[str, str] = {}
        self._is_new = True
        self._conversations: dict[str, _Conversation] = {}
        self._awaited: dict[int, str] = {}
        """The conversation of each turn that is being taken."""
        self._closing: dict[int, int] = {}
        """The seat of each environment that is being closed, by the number of that message."""
        given = limits.model_dump(include={"timeout_s", "cpu_limit_s", "memory_limit_mb"})
        self._children = Children(
            f'the process of the environment "{self._name}"',
            "scalerl.environments.forked:Conversing",
            spec,
            limits=Limits(**given, longest_reply=_LONGEST_REPLY),
        )

    @property
    def pid(self) -> int:
        """The process that conversations are forked from; also the session id of all of them."""
        return self._children.pid

    @property
    def num_pending(self) -> int:
        return len(self._awaited)

    def submit(self, key: str, request: Request, texts: Sequence[str]) -> None:
        if self._is_new:
            # Its imports do not count against the first step.
            self._is_new = False
            if self._children.load(timeout_s=_LOAD_S) is None:
                raise GraderPoolError(
                    f'the environment "{self._name}" cannot be loaded: that took over {_LOAD_S:.0f} s'
                )
        now = time.monotonic()
        if texts:
            held = self._conversations[key]
            held.awaited, held.submitted = self._children.give(texts[-1], self._timeout_s, held.seat), now
        else:
            opening = (request.problem, environment_seed(request))
            number = self._children.give(opening, self._timeout_s, begins=True)
            held = self._conversations[key] = _Conversation(number, number, now)
        assert held.awaited is not None
        self._awaited[held.awaited] = key

    def poll(self, wait_s: float = 0.0) -> list[Stepped]:
        stepped = []
        for number, reply in self._children.poll(wait_s if self._awaited or self._closing else 0.0):
            if number in self._closing:
                self._children.end(self._closing.pop(number))
            elif number in self._awaited:  # Otherwise its conversation has ended.
                stepped.append(self._stepped(self._awaited.pop(number), reply))
        return stepped

    def end(self, key: str) -> None:
        held = self._conversations.pop(key, None)
        if held is None:
            return
        if held.awaited is not None:
            del self._awaited[held.awaited]
        if held.closes and held.awaited is None:
            self._closing[self._children.give(None, _CLOSE_S, held.seat)] = held.seat
        else:
            self._children.end(held.seat)

    def close(self) -> None:
        """End every process."""
        # If the supervisor is gone, so are the processes.
        with contextlib.suppress(GraderPoolError):
            for key in list(self._conversations):
                self.end(key)
            while self._closing:
                self.poll(0.1)
        self._children.close()

    def _stepped(self, key: str, reply: Reply) -> Stepped:
        held, reason, error = self._conversations[key], reply.get("reason"), str(reply.get("error"))
        held.awaited, held.closes, step = None, bool(reply.get("closes")), Step(done=True)
        try:
            if reason not in (None, *get_args(Reason)):
                raise ValueError(f"its process ended a turn with {reason!r:.60}")
            step = step if reason else _read(reply["step"])
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as failed:
            reason, error, held.closes = "crash", str(failed), False
        if reason:
            self.first_errors.setdefault(self._name, error)
        return Stepped(key=key, step=step, reason=reason, seconds=time.monotonic() - held.submitted)


def _read(fields: dict[str, Any]) -> Step:
    """Return a step of another process; ValueError, TypeError or KeyError if it is not one."""
    messages = tuple((role, content) for role, content in fields.pop("messages"))
    return read_step(Step(**fields, messages=messages))
