"""Where environments run: each conversation in a process of its own, or all of them in this process.

In a process of its own, a step that hangs, crashes or lies costs one verdict. An environment's settings limit each
step: seconds, seconds of CPU time, and memory. graders/supervisor.py has the processes.
"""

import contextlib
import copy
import inspect
import os
from collections.abc import Callable, Hashable, Mapping
from typing import Any

from scalerl.environments.protocol import Start, Step, read_step
from scalerl.graders.children import Children
from scalerl.graders.supervisor import Reply, failure
from scalerl.types import Problem


class Session:
    """One environment while its conversation goes on (supervisor.Work): takes a problem and a seed, then turns.

    A copy of one that has not begun is another conversation, as in a fork of its process.
    """

    waits = False

    def __init__(self, start: Start, settings: Mapping[str, Any]) -> None:
        self._start, self._settings = start, settings
        self._environment: Any = None

    def __call__(self, message: Any) -> Reply:
        try:
            begins = self._environment is None
            return {"step": read_step(self._begin(*message) if begins else self._environment.step(message))}
        except Exception as error:
            return failure(error)

    def close(self) -> None:
        if callable(close := getattr(self._environment, "close", None)):
            close()

    def _begin(self, problem: Problem, seed: int) -> Any:
        """Return what the environment says before the model's first turn."""
        has_reset = inspect.isclass(self._start) and hasattr(self._start, "reset")
        self._environment = self._start(*(() if has_reset else (problem, seed)), **self._settings)
        if self._environment is None:
            raise TypeError("the environment is None: the function that starts it returns no object with step(text)")
        reset, begin = (getattr(self._environment, name, None) for name in ("reset", "begin"))
        opening = "" if reset is None else _opening(reset, problem, seed)
        return opening if begin is None else begin()


def _opening(reset: Callable[..., Any], problem: Problem, seed: int) -> str:
    """Call `reset` with as much of a problem and a seed as it takes; return the observation that it begins with."""
    parameters = inspect.signature(reset).parameters
    takes_any = any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values())
    # gymnasium's seeds have 32 bits.
    given = {"seed": seed % 2**31, "options": {"prompt": problem.prompt, "answer": problem.answer}}
    returned = reset(**{name: value for name, value in given.items() if takes_any or name in parameters})
    # gymnasium's has a dict of information beside it.
    is_pair = isinstance(returned, tuple) and len(returned) == 2 and isinstance(returned[1], Mapping)
    observation = returned[0] if is_pair else returned
    return "" if observation is None else str(observation)


class Here:
    """Conversations in this process, each step at once: as much of Children as conversations use."""

    def __init__(self, session: Session) -> None:
        self._session, self.pid = session, os.getpid()
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
        replies, self._replies = self._replies, []
        return replies

    def close(self) -> None:
        for key in list(self.conversations):
            self.end(key)


Steps = Children | Here
"""Where turns are taken, by the key of their conversation. What an environment raises costs one verdict."""


def read_reply(reply: Reply) -> tuple[Step, str | None, str]:
    """Return the step in a reply, or the reason why there is none with its error."""
    try:
        if (reason := reply.get("reason")) is not None:
            return Step(done=True), reason, str(reply.get("error"))
        step = reply["step"]
        return step if isinstance(step, Step) else read_step(Step(**step)), None, ""
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        return Step(done=True), "crash", str(error)
