"""From the settings of a recipe to environments that conversations can be held with.

An environment is a tool or several (TOOLS), or a class or function at an import path. With chat = true calls and
observations are written as the model's chat template writes them, otherwise as plain text.
"""

import dataclasses
import functools
import inspect
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from scalerl.choose import import_function
from scalerl.config.parts import EnvironmentSettings
from scalerl.config.suggest import did_you_mean, quoted
from scalerl.environments.calculator import calculator
from scalerl.environments.chat import ChatCalls, chat_observer, described, offers_tools
from scalerl.environments.protocol import Start
from scalerl.environments.search import search_tool
from scalerl.environments.steps import LocalSteps
from scalerl.environments.tools import Plain, Tool, Tools, schema_of
from scalerl.environments.turns import Playing
from scalerl.errors import RecipeError, RecipeProblem
from scalerl.loop.requests import Text
from scalerl.tasks.task import Task
from scalerl.types import Request

TOOLS: Mapping[str, Callable[..., Tool]] = {"calculator": lambda: calculator, "search": search_tool}
"""Functions that return a tool; their arguments are settings of the environment."""

_SEVERAL = "tools"
_OF_TOOLS = ("tools", "max_calls")


def build_playing(task: Task, text: Text) -> Playing:
    """Return a task's environment, ready for conversations; RecipeError says why it cannot be used."""
    settings = task.environment
    start, own = _start(task)
    return Playing(
        steps=LocalSteps(settings.name, start, own),
        observe=observer(task, text),
        opened=functools.partial(_opened, task, text),
        max_turns=settings.max_turns,
        max_tokens=settings.max_tokens,
        rewards=settings.rewards,
        reward_range=settings.reward_range,
    )


def observer(task: Task, text: Text) -> Callable[[str], Sequence[int]]:
    """Return what turns an observation into the tokens that follow a turn of the model."""
    if not task.prompt.chat:
        return text.encode
    role = "tool" if _has_tools(task.environment) else "user"
    schemas = json.loads(task.prompt.tools or "[]")
    return chat_observer(text, role=role, answer=task.answer, schemas=schemas)


def offer_tools(task: Task, text: Text) -> Task:
    """Return the task with its tools in the prompts of a chat; a template that ignores them gets a system prompt."""
    if not (task.prompt.chat and _has_tools(task.environment)):
        return task
    schemas = [schema_of(name, tool) for name, tool in _tools(task.environment).items()]
    if offers_tools(text, schemas):
        prompt = dataclasses.replace(task.prompt, tools=json.dumps(schemas))
    else:
        system = "\n\n".join(part for part in (task.prompt.system, described(schemas)) if part)
        prompt = dataclasses.replace(task.prompt, system=system)
    return dataclasses.replace(task, prompt=prompt)


def _opened(task: Task, text: Text, request: Request, opening: str) -> tuple[int, ...]:
    """Return the prompt of a conversation that the environment opens."""
    if not task.prompt.chat:
        return (*request.prompt_tokens, *text.encode(opening))
    asked = request.problem.asked
    if isinstance(asked, str):
        return tuple(text.encode_prompt(f"{asked}\n\n{opening}", task.prompt))
    last = {**asked[-1], "content": f"{asked[-1]['content']}\n\n{opening}"}
    return tuple(text.encode_prompt([*asked[:-1], last], task.prompt))


def _has_tools(settings: EnvironmentSettings) -> bool:
    return settings.name in (_SEVERAL, *TOOLS)


def _start(task: Task) -> tuple[Start, dict[str, Any]]:
    """Return the class or function of an environment and its settings, after checking that they fit."""
    settings, own = task.environment, task.environment.own
    if _has_tools(settings):
        call_format = ChatCalls(task.answer.thinking_end) if task.prompt.chat else Plain()
        max_calls = own.get("max_calls", 8)
        return Tools, {"tools": _tools(settings), "call_format": call_format, "max_calls": max_calls}
    name = settings.name
    if ":" not in name:
        statement = f'the environment "{name}" is unknown; choices: {quoted([_SEVERAL, *TOOLS])}, or an import path'
        raise RecipeError(RecipeProblem(statement=statement, suggestion=did_you_mean(name, [_SEVERAL, *TOOLS])))
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
    return start, own


def _tools(settings: EnvironmentSettings) -> dict[str, Tool]:
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
