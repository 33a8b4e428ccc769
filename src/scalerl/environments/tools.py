"""Tools: Python functions that the model calls; a turn without a call is the answer, which the task's graders read.

    turn -> calls in the model's own format -> functions -> results or errors -> observation -> turn -> answer

A tool is a function with type hints, or a class whose instances are such functions: then each conversation has an
instance of its own, which may remember its earlier calls and have a method `close`. How calls and results are written
is a CallFormat; `Plain` is the one of models without a chat template.
"""

import inspect
import re
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from scalerl.environments.protocol import Step
from scalerl.errors import RecipeError
from scalerl.graders.expressions import evaluate
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


_TYPES = {str: "string", int: "integer", float: "number", bool: "boolean", list: "array", dict: "object"}
_ARGUMENT = re.compile(r"^\s*(\w+)(?:\s*\([^)]*\))?:\s*(.+)$")


def schema_of(name: str, tool: Tool) -> dict[str, Any]:
    """Return a tool's JSON schema from its type hints and its docstring, where "Args:" describes the arguments."""
    function = tool.__call__ if isinstance(tool, type) else tool
    hints = typing.get_type_hints(function)
    parameters = [each for each in inspect.signature(function).parameters.values() if each.name != "self"]
    if untyped := [each.name for each in parameters if each.name not in hints]:
        raise RecipeError(f'the tool "{name}" has no type hint for {untyped[0]}: a model is told the type by it')
    summary, _, rest = (inspect.getdoc(tool) or "").partition("Args:")
    described = {match[1]: match[2].strip() for line in rest.splitlines() if (match := _ARGUMENT.match(line))}
    properties = {
        each.name: {**_type(hints[each.name], name), **_description(described.get(each.name, ""))}
        for each in parameters
    }
    required = [each.name for each in parameters if each.default is each.empty]
    function_schema = {
        "name": name,
        "description": " ".join(summary.split()),
        "parameters": {"type": "object", "properties": properties, "required": required},
    }
    return {"type": "function", "function": function_schema}


def _description(text: str) -> dict[str, str]:
    return {"description": text} if text else {}


def _type(hint: Any, tool: str) -> dict[str, Any]:
    """Return the JSON schema of one type hint."""
    options = [each for each in typing.get_args(hint) if each is not type(None)]
    origin = typing.get_origin(hint)
    if origin is typing.Literal:
        return {"type": _TYPES[type(options[0])], "enum": options}
    if origin in (typing.Union, types.UnionType) and len(options) == 1:
        return _type(options[0], tool)
    plain = origin or hint
    if plain not in _TYPES:
        choices = ", ".join(each.__name__ for each in _TYPES)
        raise RecipeError(f'the tool "{tool}" has an argument of type {hint}; a model can give {choices}, or a Literal')
    items = {"items": _type(options[0], tool)} if plain is list and options else {}
    return {"type": _TYPES[plain], **items}


def checked_arguments(tool: Tool, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of a call; TypeError if one is missing, unknown or of another type than its hint."""
    inspect.signature(tool).bind(**arguments)
    hints = typing.get_type_hints(tool if inspect.isfunction(tool) else type(tool).__call__)
    checked = {}
    for name, value in arguments.items():
        expected = _type(hints[name], name).get("type") if name in hints else None
        # Models often write numbers as text and the other way round.
        if expected in ("integer", "number") and isinstance(value, str):
            value = int(value) if expected == "integer" else float(value)
        elif expected == "number" and type(value) is int:
            value = float(value)
        elif expected == "string" and isinstance(value, int | float) and not isinstance(value, bool):
            value = str(value)
        if expected is not None and _TYPES.get(type(value)) != expected and value is not None:
            raise TypeError(f"{name} must be of type {expected}, not {type(value).__name__}")
        checked[name] = value
    return checked


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
            Result(text=f"only {self._max_calls} calls of a turn are carried out", failed=True)
            for call in calls[self._max_calls :]
        ]
        num_errors = sum(result.failed for result in results)
        observation = self._format.observation(results)
        return Step(observation=observation, num_calls=len(results), num_errors=num_errors)

    def close(self) -> None:
        for tool in self._tools.values():
            if callable(close := getattr(tool, "close", None)):
                close()

    def _carried_out(self, call: Call) -> Result:
        if call.error:
            return Result(text=call.error, failed=True)
        try:
            tool = self._tools[call.name]
            return Result(text=str(tool(**checked_arguments(tool, call.arguments))))
        except Exception as error:
            return Result(text=one_line(error), failed=True)


_LONGEST = 200
"""Characters of an expression, and digits of a number that is shown."""


def calculator(expression: str) -> str:
    """Compute an expression of numbers, + - * / and parentheses.

    Args:
        expression: What to compute, such as "47*83-52".
    """
    if len(expression) > _LONGEST:
        raise ValueError(f"the expression has {len(expression)} characters: at most {_LONGEST} are computed")
    value, _ = evaluate(expression)
    # A whole number exactly, another one with up to ten significant digits.
    text = str(value.numerator) if value.denominator == 1 else f"{float(value):.10g}"
    if len(text) > _LONGEST:
        raise ValueError(f"the result has {len(text)} digits")
    return text
