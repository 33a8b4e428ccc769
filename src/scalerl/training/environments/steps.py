"""Run environments: each conversation in its own process, or all of them in this process.

In a separate process, a step that hangs, crashes or sends an invalid reply costs only one verdict. The environment's
settings limit the time, CPU time and memory of each step. training/graders/supervisor.py manages the processes.
"""

import contextlib
import copy
import inspect
import os
from collections.abc import Callable, Hashable, Mapping
from typing import Any

from scalerl.training.environments.protocol import Start, Step, checked, read_step
from scalerl.training.graders.children import Children
from scalerl.training.graders.supervisor import Reply, failure
from scalerl.training.types import Problem


class Session:
    """The environment of one conversation (supervisor.ForkWork). It takes a problem and a seed, then turns.

    A copy of a session that has not begun is a new conversation, for example in a fork of its process.
    """

    waits = False

    def __init__(self, start: Start, settings: Mapping[str, Any]) -> None:
        self._start = start
        self._settings = settings
        self._environment: Any = None

    def __call__(self, message: Any) -> Reply:
        try:
            returned = self._begin(*message) if self._environment is None else self._environment.step(message)
            return {"step": read_step(returned)}
        except Exception as error:
            return failure(error)

    def close(self) -> None:
        if callable(close := getattr(self._environment, "close", None)):
            close()

    def _begin(self, problem: Problem, seed: int) -> Any:
        """Return the environment's opening observation."""
        has_reset = inspect.isclass(self._start) and hasattr(self._start, "reset")
        given = () if has_reset else (problem, seed)
        self._environment = self._start(*given, **self._settings)
        if self._environment is None:
            raise TypeError("the environment is None: its function must return an object with step(text)")
        reset = getattr(self._environment, "reset", None)
        begin = getattr(self._environment, "begin", None)
        opening = "" if reset is None else _opening(reset, problem, seed)
        return opening if begin is None else begin()


def _opening(reset: Callable[..., Any], problem: Problem, seed: int) -> str:
    """Call `reset` with those of problem and seed that it accepts; return the opening observation."""
    parameters = inspect.signature(reset).parameters
    takes_any = any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values())
    # Seeds of gymnasium have 32 bits.
    given = {"seed": seed % 2**31, "options": {"prompt": problem.prompt, "answer": problem.answer}}
    returned = reset(**{name: value for name, value in given.items() if takes_any or name in parameters})
    # gymnasium returns a pair of the observation and a dict.
    is_pair = isinstance(returned, tuple) and len(returned) == 2 and isinstance(returned[1], Mapping)
    observation = returned[0] if is_pair else returned
    return "" if observation is None else str(observation)


class InProcess:
    """Runs conversations in this process, each step at once; it has the methods of Children that conversations use."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self.pid = os.getpid()
        self.conversations: dict[Hashable, Session] = {}
        self._replies: list[tuple[Hashable, Reply]] = []

    @property
    def num_pending(self) -> int:
        return len(self._replies)

    def tell(self, key: Hashable, message: Any) -> None:
        if key not in self.conversations:
            self.conversations[key] = copy.copy(self._session)
        self._replies.append((key, self.conversations[key](message)))

    def end(self, key: Hashable) -> None:
        self._replies = [(each, reply) for each, reply in self._replies if each != key]
        with contextlib.suppress(Exception):
            self.conversations.pop(key).close()

    def poll(self, timeout_s: float = 0.0) -> list[tuple[Hashable, Reply]]:
        replies = self._replies
        self._replies = []
        return replies

    def close(self) -> None:
        for key in list(self.conversations):
            self.end(key)


Steps = Children | InProcess
"""Takes the steps of conversations, by key. An error of an environment costs one verdict."""


def read_reply(reply: Reply) -> tuple[Step, str | None, str]:
    """Return the step in a reply; without one, return the reason and the error."""
    try:
        if (reason := reply.get("reason")) is not None:
            return Step(done=True), reason, str(reply.get("error"))
        return checked(reply["step"]), None, ""
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        return Step(done=True), "crash", str(error)
