"""Where environments run: here, in this process, each step at once; forked.py has processes of their own."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from scalerl.environments.protocol import Begin, Session, Step
from scalerl.import_path import one_line
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


class Steps(Protocol):
    """Takes the turns of conversations."""

    @property
    def num_pending(self) -> int:
        """Steps whose results `poll` has not returned."""
        ...

    def submit(self, key: str, request: Request, texts: Sequence[str]) -> None:
        """Take a conversation's newest turn, the last of `texts`; without any, start it, which gives its opening."""
        ...

    def poll(self, wait_s: float = 0.0) -> list[Stepped]:
        """Return what has come since the last call; wait for at least one if something is pending."""
        ...

    def end(self, key: str) -> None:
        """Forget a conversation."""
        ...

    @property
    def first_errors(self) -> dict[str, str]:
        """The first exception of each environment that raised one, by its name."""
        ...

    def close(self) -> None: ...


def environment_seed(request: Request) -> int:
    """Return the seed of a conversation's environment: one for all completions of a group."""
    return derive_seed("environment", request.group)


@dataclass(slots=True)
class LocalSteps:
    """An environment in this process. What it raises costs one conversation its verdict."""

    name: str
    begin: Begin
    clock: Callable[[], float] = time.monotonic
    first_errors: dict[str, str] = field(default_factory=dict)
    _sessions: dict[str, Session] = field(default_factory=dict)
    _ready: list[Stepped] = field(default_factory=list)

    @property
    def num_pending(self) -> int:
        return len(self._ready)

    def submit(self, key: str, request: Request, texts: Sequence[str]) -> None:
        started, reason = self.clock(), None
        try:
            if texts:
                step = self._sessions[key].step(texts[-1])
            else:
                session = self._sessions[key] = self.begin(request.problem, environment_seed(request))
                step = session.opening
        except Exception as error:
            self.first_errors.setdefault(self.name, one_line(error))
            step, reason = Step(done=True), "error"
        self._ready.append(Stepped(key=key, step=step, reason=reason, seconds=self.clock() - started))

    def poll(self, wait_s: float = 0.0) -> list[Stepped]:
        ready, self._ready = self._ready, []
        return ready

    def end(self, key: str) -> None:
        session = self._sessions.pop(key, None)
        if session is not None:
            try:
                session.close()
            except Exception as error:
                self.first_errors.setdefault(self.name, one_line(error))

    def close(self) -> None:
        for key in list(self._sessions):
            self.end(key)
