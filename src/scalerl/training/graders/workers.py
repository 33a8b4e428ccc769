"""The work of a grader pool's processes: load graders by name or import path, and grade texts."""

import asyncio
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from scalerl.errors import GraderError
from scalerl.recipe.import_path import import_function
from scalerl.training.graders.answer import TAGS, answer_part
from scalerl.training.graders.rules import GRADERS, PREPARE, WAIT, unknown_grader
from scalerl.training.graders.supervisor import Reply
from scalerl.training.graders.values import read_score


@dataclass(frozen=True, slots=True, kw_only=True)
class Grade:
    """A grader with its settings."""

    function: Callable[..., object]
    settings: Mapping[str, Any]
    tags: Mapping[str, str]
    """The tags around thinking, if the function receives only the answer. Thinking that never ends is wrong."""

    @property
    def is_async(self) -> bool:
        """Whether the function is a coroutine function, or an object with a __call__ that is one."""
        is_function = inspect.iscoroutinefunction(self.function)
        return is_function or inspect.iscoroutinefunction(type(self.function).__call__)

    def __call__(self, text: str, answer: str, /) -> object:
        given = answer_part(text, **self.tags) if self.tags else text
        return False if given is None else self.function(given, answer, **self.settings)


def load(name: str, given: Mapping[str, Any]) -> Grade:
    """Return the grader with a name or import path, warmed up; UserError if that fails.

    A function without arguments for the tags around thinking receives only the answer.
    """
    function = import_function(name) if ":" in name else GRADERS.get(name)
    if function is None:
        raise GraderError(unknown_grader(name))
    settings = {key: value for key, value in given.items() if key not in TAGS}
    tags = {key: value for key, value in given.items() if key in TAGS}
    try:
        signature = inspect.signature(function)
        takes_any = any(each.kind is each.VAR_KEYWORD for each in signature.parameters.values())
        taken = {key: value for key, value in tags.items() if takes_any or key in signature.parameters}
        if taken:
            settings |= taken
            tags.clear()
        signature.bind("", "", **settings)
    except TypeError as error:
        raise GraderError(f'"{name}" cannot be called as grader(text, answer, /, *, settings): {error}') from None
    except ValueError:
        raise GraderError(f'"{name}" has no known signature: wrap it in a function') from None
    try:
        if name in PREPARE:
            PREPARE[name](**settings)
    except ModuleNotFoundError as error:
        raise GraderError(
            f'"{name}" needs {error.name}, which is not installed: pip install "scalerl[{name}]"'
        ) from None
    return Grade(function=function, settings=settings, tags=tags)


class TextGrading:
    """Grades texts with one grader (supervisor.ForkWork)."""

    def __init__(self, name: str, settings: Mapping[str, Any]) -> None:
        self._grade = load(name, settings)
        # One event loop for all calls in a process: clients that a grader keeps are bound to their event loop.
        self._runner = asyncio.Runner() if self._grade.is_async else None
        self.waits = self._runner is not None or name in WAIT

    def __call__(self, message: tuple[str, str]) -> Reply:
        returned: Any = self._grade(*message)
        if self._runner is not None and inspect.isawaitable(returned):
            returned = self._runner.run(returned)  # pyright: ignore[reportArgumentType]
        score = read_score(returned)
        reason = {"reason": "no_answer"} if score.value is None else {}
        return {"value": score.value, "outcome": score.outcome} | reason

    def close(self) -> None:
        pass
