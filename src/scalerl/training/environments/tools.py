"""Tools: Python functions that the model calls. A turn without a call is the answer, which the task's graders judge.

    turn -> calls in the model's own format -> functions -> results or errors -> observation -> turn -> answer

A tool is a function with type hints, or a class whose instances are such functions. Each conversation then has its own
instance, which may remember earlier calls and have a method `close`. A CallFormat
defines how calls and results are written; `Plain` is for models without a chat template.
"""

import functools
import inspect
import re
import typing
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol, cast

from pydantic import ConfigDict, Field, PydanticUserError, TypeAdapter, ValidationError, with_config
from typing_extensions import TypedDict

from scalerl.errors import RecipeError
from scalerl.recipe.import_path import one_line
from scalerl.training.environments.protocol import Step
from scalerl.training.graders.expressions import evaluate
from scalerl.training.types import Problem

Tool = Callable[..., Any]

_MOST_SHOWN = 90_000
"""Number of characters shown of all results of a turn, below protocol.LONGEST_OBSERVATION."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolCall:
    """A call that the model wrote."""

    name: str
    arguments: Mapping[str, Any] = field(default_factory=dict)
    error: str = ""
    """Why the call cannot be read; empty if it can."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolResult:
    """What a call returned, or why it failed."""

    text: str
    failed: bool = False


class CallFormat(Protocol):
    """The format of calls and results."""

    def calls(self, text: str, tools: Mapping[str, Tool]) -> list[ToolCall]:
        """Return the calls in a turn; if the list is empty, the turn is the answer."""
        ...

    def observation(self, results: Sequence[ToolResult]) -> str:
        """Return the results as text for the model."""
        ...


@dataclass(frozen=True, slots=True)
class Plain:
    """The format of models without a chat template: "?47*83" calls the only tool, and the result is "3901;".

    With several tools, the name comes first: "?calculator 47*83". The result of a failed call is "!;", which even the
    smallest vocabulary can express.
    """

    def calls(self, text: str, tools: Mapping[str, Tool]) -> list[ToolCall]:
        if not text.startswith("?"):
            return []
        name, _, argument = text[1:].partition(" ")
        if len(tools) == 1:
            name = next(iter(tools))
            argument = text[1:]
        if name not in tools:
            return [ToolCall(name=name, error="no such tool")]
        first = next(iter(inspect.signature(tools[name]).parameters))
        return [ToolCall(name=name, arguments={first: argument})]

    def observation(self, results: Sequence[ToolResult]) -> str:
        texts = ["!" if result.failed else result.text for result in results]
        return "".join(f"{text};" for text in texts)


_ARGUMENT = re.compile(r"^\s*(\w+)(?:\s*\([^)]*\))?:\s*(.+)$")
# Models often write numbers as text, and text as numbers.
_LENIENT = ConfigDict(extra="forbid", coerce_numbers_to_str=True)


@functools.lru_cache(maxsize=64)
def arguments_of(name: str, tool: Callable[..., Any]) -> TypeAdapter[dict[str, Any]]:
    """Return a validator of the arguments of a tool's calls, made from its type hints and its docstring."""
    function = tool.__call__ if isinstance(tool, type) else tool
    hints = typing.get_type_hints(function)
    lines = (inspect.getdoc(tool) or "").partition("Args:")[2].splitlines()
    described = {match[1]: match[2].strip() for line in lines if (match := _ARGUMENT.match(line))}
    fields: dict[str, Any] = {}
    for each in inspect.signature(function).parameters.values():
        if each.name == "self":
            continue
        if each.name not in hints:
            raise RecipeError(f'the tool "{name}" has no type hint for {each.name}, which tells the model its type')
        hint = typing.Annotated[hints[each.name], Field(description=described.get(each.name))]
        fields[each.name] = hint if each.default is each.empty else typing.NotRequired[hint]
    try:
        return TypeAdapter(with_config(_LENIENT)(cast(Any, TypedDict)(name, fields)))
    except PydanticUserError:
        raise RecipeError(
            f'the tool "{name}" has an argument of an unsupported type: use text, numbers, lists and objects'
        ) from None


def schema_of(name: str, tool: Tool) -> dict[str, Any]:
    """Return a tool's JSON schema, made from its type hints and the "Args:" of its docstring."""
    parameters = {"required": [], **arguments_of(name, tool).json_schema()}
    for each in (parameters, *parameters["properties"].values()):
        each.pop("title", None)
    del parameters["additionalProperties"]
    summary = (inspect.getdoc(tool) or "").partition("Args:")[0]
    described = {"name": name, "description": " ".join(summary.split()), "parameters": parameters}
    return {"type": "function", "function": described}


class Tools:
    """An environment of tools."""

    def __init__(
        self, problem: Problem, seed: int, *, tools: Mapping[str, Tool], call_format: CallFormat, max_calls: int = 8
    ) -> None:
        """At most `max_calls` calls of a turn are executed."""
        self._kinds = tools
        self._tools = {name: tool() if isinstance(tool, type) else tool for name, tool in tools.items()}
        self._format = call_format
        self._max_calls = max_calls

    def step(self, text: str) -> Step:
        calls = self._format.calls(text, self._tools)
        if not calls:
            return Step(done=True, answer=text)
        results = [self._execute(call) for call in calls[: self._max_calls]]
        if num_others := len(calls[self._max_calls :]):
            # One result for all of them: a model may write thousands.
            others = f"only {self._max_calls} calls of a turn are carried out, so {num_others} were not"
            results.append(ToolResult(text=others, failed=True))
        # Too long an observation would be the environment's fault, but the model can ask for one.
        longest = _MOST_SHOWN // len(results)
        shown = [replace(each, text=each.text[:longest] + " ..." * (len(each.text) > longest)) for each in results]
        observation = self._format.observation(shown)
        num_done = sum(not result.failed for result in results)
        return Step(observation=observation, num_calls=len(calls), num_errors=len(calls) - num_done)

    def close(self) -> None:
        for tool in self._tools.values():
            if callable(close := getattr(tool, "close", None)):
                close()

    def _execute(self, call: ToolCall) -> ToolResult:
        if call.error:
            return ToolResult(text=call.error, failed=True)
        tool = self._tools[call.name]
        try:
            given = arguments_of(call.name, self._kinds[call.name]).validate_python(call.arguments)
            return ToolResult(text=str(tool(**given)))
        except ValidationError as error:
            faults = []
            for each in error.errors():
                place = ".".join(map(str, each["loc"]))
                faults.append(f"{place}: {each['msg']}")
            return ToolResult(text="; ".join(faults), failed=True)
        except Exception as error:
            return ToolResult(text=one_line(error), failed=True)


_LONGEST = 200
"""Largest number of characters in an expression, and of digits shown of a number."""


def calculator(expression: str) -> str:
    """Compute an expression of numbers, + - * / and parentheses.

    Args:
        expression: What to compute, such as "47*83-52".
    """
    if len(expression) > _LONGEST:
        raise ValueError(f"the expression has {len(expression)} characters: at most {_LONGEST} are computed")
    value = evaluate(expression)
    # Whole numbers are exact, others have up to ten significant digits.
    text = str(value.numerator) if value.denominator == 1 else f"{float(value):.10g}"
    if len(text) > _LONGEST:
        raise ValueError(f"the result has {len(text)} digits")
    return text
