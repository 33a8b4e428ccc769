"""From the settings of a recipe to the class or function of an environment, after checking that they fit.

An environment is a tool or several (TOOLS), or a class or function at an import path.
"""

import functools
import inspect
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from scalerl.choose import import_function
from scalerl.config.parts import EnvironmentSettings
from scalerl.config.suggest import did_you_mean, quoted
from scalerl.environments.chat import ChatCalls
from scalerl.environments.harness import Harness
from scalerl.environments.protocol import Begin, Session
from scalerl.environments.python import python_tool
from scalerl.environments.search import search_tool
from scalerl.environments.tools import Plain, Tool, Tools, calculator, schema_of
from scalerl.errors import RecipeError, RecipeProblem
from scalerl.import_path import is_local
from scalerl.tasks.task import Task

TOOLS: Mapping[str, Callable[..., Tool]] = {
    "calculator": lambda: calculator,
    "search": search_tool,
    "python": python_tool,
}
"""Functions that return a tool; their arguments are settings of the environment."""

_SEVERAL, _HARNESS = "tools", "harness"
_OF_TOOLS = ("tools", "max_calls")


@dataclass(frozen=True, slots=True, kw_only=True)
class EnvironmentSpec:
    """An environment of a recipe as data, which another process can find it by."""

    settings: EnvironmentSettings
    chat: bool = False
    """Whether calls of tools are written as the model's chat template writes them."""
    thinking_end: str = ""

    @classmethod
    def of(cls, task: Task) -> "EnvironmentSpec":
        return cls(settings=task.environment, chat=task.prompt.chat, thinking_end=task.answer.thinking_end)

    @property
    def may_hang(self) -> bool:
        """Whether it runs in processes of its own: it has code of the user's, or waits for programs of the model's.

        Not if the recipe trusts it; and an object that only this process has cannot run in another.
        """
        paths = self.settings.own.get("tools", ()) if self.settings.name == _SEVERAL else (self.settings.name,)
        own = [path for path in paths if ":" in path or path in ("python", _HARNESS)]
        return bool(own) and not self.settings.in_process and not any(map(is_local, own))


def has_tools(settings: EnvironmentSettings) -> bool:
    return settings.name in (_SEVERAL, *TOOLS)


def find(spec: EnvironmentSpec) -> Begin:
    """Return what begins conversations, after checking that settings fit; RecipeError says why it cannot be used."""
    settings, own = spec.settings, spec.settings.own
    if has_tools(settings):
        call_format = ChatCalls(spec.thinking_end) if spec.chat else Plain()
        used = {"tools": find_tools(settings), "call_format": call_format, "max_calls": own.get("max_calls", 8)}
        return functools.partial(Session, Tools, used)
    name, choices = settings.name, [_SEVERAL, _HARNESS, *TOOLS]
    if name == _HARNESS:
        return _harness(spec)
    if ":" not in name:
        statement = f'the environment "{name}" is unknown; choices: {quoted(choices)}, or an import path'
        raise RecipeError(RecipeProblem(statement=statement, suggestion=did_you_mean(name, choices)))
    start = import_function(name)
    has_reset = inspect.isclass(start) and hasattr(start, "reset")
    positional: tuple[Any, ...] = () if has_reset else (None, 0)
    try:
        inspect.signature(start).bind(*positional, **own)
    except TypeError as error:
        how = "Class(**settings) with reset(seed=...)" if has_reset else "environment(problem, seed, *, settings)"
        raise RecipeError(f'the environment "{name}" cannot be made as {how}: {error}') from None
    except ValueError:
        raise RecipeError(f'the environment "{name}" does not say which arguments it takes') from None
    if inspect.isclass(start) and not callable(getattr(start, "step", None)):
        raise RecipeError(f'the environment "{name}" has no method step(text)')
    return functools.partial(Session, start, own)


def _harness(spec: EnvironmentSpec) -> Begin:
    """Return a program of the user's that speaks to an OpenAI-compatible endpoint, as an environment."""
    if os.name != "posix":
        raise RecipeError("a harness needs Linux or macOS: each conversation has a process")
    own = spec.settings.own
    path = own.pop("program", "")
    if not isinstance(path, str) or ":" not in path or spec.settings.in_process:
        raise RecipeError(
            'environment.program must be the import path of a function, such as "mine:play", that calls the model '
            "through the OpenAI SDK; it has a process per conversation, so in_process cannot be true"
        )
    program = import_function(path)
    try:
        inspect.signature(program).bind(None, **own)
    except TypeError as error:
        raise RecipeError(f'"{path}" cannot be called as program(problem, *, settings): {error}') from None
    call_format = ChatCalls(spec.thinking_end) if spec.chat else None
    return functools.partial(Session, Harness, {"program": program, "call_format": call_format, "settings": own})


def find_tools(settings: EnvironmentSettings) -> dict[str, Tool]:
    """Return the tools of an environment by name."""
    own = {key: value for key, value in settings.own.items() if key not in _OF_TOOLS}
    paths = settings.own.get("tools", ()) if settings.name == _SEVERAL else (settings.name,)
    if not paths or not all(isinstance(path, str) for path in paths):
        raise RecipeError(
            f'environment.tools must list names of tools or import paths, such as ["calculator", "mine:look_up"]; ours '
            f"are {quoted(TOOLS)}"
        )
    tools: dict[str, Tool] = {}
    used: set[str] = set()
    for path in paths:
        if ":" in path:
            tools[path.partition(":")[2]] = import_function(path)
        elif path in TOOLS:
            takes = inspect.signature(TOOLS[path]).parameters
            used |= takes.keys() & own.keys()
            missing = [each.name for each in takes.values() if each.default is each.empty and each.name not in own]
            if missing:
                raise RecipeError(f'environment.{missing[0]} is not set, and the tool "{path}" needs it')
            tools[path] = TOOLS[path](**{name: own[name] for name in takes if name in own})
        else:
            statement = f'the tool "{path}" is unknown; choices: {quoted(TOOLS)}, or an import path'
            raise RecipeError(RecipeProblem(statement=statement, suggestion=did_you_mean(path, TOOLS)))
    if unknown := own.keys() - used:
        raise RecipeError(f'{min(unknown)} is not a setting of the environment "{settings.name}"')
    for name, tool in tools.items():
        schema_of(name, tool)
    return tools
