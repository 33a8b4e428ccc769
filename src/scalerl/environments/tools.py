"""Tools: Python functions that the model calls; a turn without a call is the answer, which the task's graders read.

    turn -> calls in the model's own format -> functions -> results or errors -> observation -> turn -> answer

A tool is a function with type hints, or a class whose instances are such functions: then each conversation has an
instance of its own, which may remember its earlier calls. How calls and results are written is a CallFormat; `Plain` is
the one of models without a chat template.
"""

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from scalerl.environments.protocol import Step
from scalerl.import_path import one_line
from scalerl.types import Problem

Tool = Callable[..., Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """A call that the model wrote."""

    name: str
    arguments: Mapping[str, Any] = field(default_factory=dict)
    error: str = ""
    """Why it cannot be read; empty where it can."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """What a call returned, or why it failed."""

    name: str
    text: str
    failed: bool = False


class CallFormat(Protocol):
    """How calls are written."""

    def calls(self, text: str, tools: Mapping[str, Tool]) -> list[Call]:
        """Return the calls of a turn; an empty list makes it the answer."""
        ...

    def observation(self, results: Sequence[Result]) -> str:
        """Return what the model reads of the results."""
        ...


@dataclass(frozen=True, slots=True)
class Plain:
    """For models without a chat template: "?47*83" calls the only tool with one text, answered by "3901;".

    With several tools their name comes first: "?calculator 47*83". A call that fails is answered by "!;", which the
    smallest vocabulary can write.
    """

    def calls(self, text: str, tools: Mapping[str, Tool]) -> list[Call]:
        if not text.startswith("?"):
            return []
        name, argument = (next(iter(tools)), text[1:]) if len(tools) == 1 else text[1:].partition(" ")[::2]
        if name not in tools:
            return [Call(name=name, error="no such tool")]
        return [Call(name=name, arguments={first_parameter(tools[name]): argument})]

    def observation(self, results: Sequence[Result]) -> str:
        return "".join("!;" if result.failed else f"{result.text};" for result in results)


def first_parameter(tool: Tool) -> str:
    """Return the name of a tool's first argument."""
    return next(iter(inspect.signature(tool).parameters))


class Tools:
    """The environment."""

    def __init__(
        self, problem: Problem, seed: int, *, tools: Mapping[str, Tool], call_format: CallFormat, max_calls: int = 8
    ) -> None:
        """At most `max_calls` calls of one turn are carried out."""
        self._tools = {name: tool() if isinstance(tool, type) else tool for name, tool in tools.items()}
        self._format, self._max_calls = call_format, max_calls

    def step(self, text: str) -> Step:
        calls = self._format.calls(text, self._tools)
        if not calls:
            return Step(done=True, answer=text)
        results = [self._carried_out(call) for call in calls[: self._max_calls]]
        results += [
            Result(name=call.name, text=f"only {self._max_calls} calls of a turn are carried out", failed=True)
            for call in calls[self._max_calls :]
        ]
        num_errors = sum(result.failed for result in results)
        observation = self._format.observation(results)
        return Step(observation=observation, num_calls=len(results), num_errors=num_errors)

    def _carried_out(self, call: Call) -> Result:
        if call.error:
            return Result(name=call.name, text=call.error, failed=True)
        try:
            return Result(name=call.name, text=str(self._tools[call.name](**call.arguments)))
        except Exception as error:
            return Result(name=call.name, text=one_line(error), failed=True)
