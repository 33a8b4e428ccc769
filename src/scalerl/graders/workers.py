"""The work of a grader pool's processes: load graders by name or import path, and grade texts."""

import asyncio
import functools
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from scalerl.errors import GraderError
from scalerl.graders.answer import TAGS, answer_part
from scalerl.graders.rules import GRADERS, PREPARE, WAIT, unknown_grader
from scalerl.graders.supervisor import Reply
from scalerl.graders.values import read_score
from scalerl.import_path import import_function

Grade = Callable[[str, str], object]


def load(name: str, given: Mapping[str, Any]) -> Grade:
    """Return the grader with a name or import path, warmed up and with its settings bound; UserError if that fails.

    A grader that does not accept the tags around thinking receives only the answer.
    """
    function = import_function(name) if ":" in name else GRADERS.get(name)
    if function is None:
        raise GraderError(unknown_grader(name))
    try:
        settings = _accepted(function, given)
        inspect.signature(function).bind("", "", **settings)
    except TypeError as error:
        raise GraderError(f'"{name}" cannot be called as grader(text, answer, /, *, settings): {error}') from None
    except ValueError:
        raise GraderError(f'"{name}" has no known signature: wrap it in a function') from None
    try:
        if name in PREPARE:
            PREPARE[name](**settings)
    except ModuleNotFoundError as error:
        raise GraderError(f'"{name}" needs {error.name}, which is not installed: pip install "scalerl[math]"') from None
    bound = functools.partial(function, **settings)
    tags = {tag: given[tag] for tag in TAGS if tag in given}
    return _AnswersOnly(bound, tags) if tags and not tags.keys() & settings.keys() else bound


@dataclass(frozen=True)
class _AnswersOnly:
    """A grader without arguments for tags; it receives the answer after thinking. Thinking that never ends is wrong."""

    func: Callable[[str, str], object]
    tags: Mapping[str, str]

    def __call__(self, text: str, answer: str, /) -> object:
        given = answer_part(text, **self.tags)
        return False if given is None else self.func(given, answer)


def is_async(grade: Grade) -> bool:
    """Return whether a loaded grader is a coroutine function."""
    function: Any = grade
    while isinstance(function, functools.partial | _AnswersOnly):
        function = function.func
    # An instance may also have a __call__ that is a coroutine function.
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(type(function).__call__)


def _accepted(function: Callable[..., object], settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings without tags that the function does not accept."""
    parameters = inspect.signature(function).parameters
    takes_any = any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values())
    return {name: value for name, value in settings.items() if takes_any or name in parameters or name not in TAGS}


class TextGrading:
    """Grades texts with one grader (supervisor.ForkWork)."""

    def __init__(self, name: str, settings: Mapping[str, Any]) -> None:
        self._grade = load(name, settings)
        # One event loop for all calls in a process: clients that a grader keeps are bound to their event loop.
        self._runner = asyncio.Runner() if is_async(self._grade) else None
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
