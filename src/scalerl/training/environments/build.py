"""Build an environment from the settings of a recipe, and check that the settings fit.

An environment is one or more tools (TOOLS), a program that calls an endpoint, or a class or function at an import path.
With chat = true, calls and observations are written in the format of the model's chat template, otherwise as plain
text.
"""

import dataclasses
import functools
import inspect
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from scalerl.errors import RecipeError
from scalerl.recipe.choose import entry, import_function
from scalerl.recipe.import_path import is_local
from scalerl.recipe.parts import EnvironmentSettings
from scalerl.recipe.suggest import quoted
from scalerl.training.environments.chat import ChatCalls, chat_observer, described, offers_tools, plain_turns
from scalerl.training.environments.harness import Harness
from scalerl.training.environments.protocol import LONGEST_OBSERVATION, Step
from scalerl.training.environments.python import python_tool
from scalerl.training.environments.steps import InProcess, Session, Steps
from scalerl.training.environments.tools import Plain, Tool, Tools, calculator, schema_of
from scalerl.training.environments.turns import Playing
from scalerl.training.graders.children import Children
from scalerl.training.graders.supervisor import ForkLimits
from scalerl.training.loop.requests import Text
from scalerl.training.tasks.prompts import PromptFormat
from scalerl.training.tasks.task import Task
from scalerl.training.types import Request

TOOLS: Mapping[str, Callable[..., Tool]] = {
    "calculator": lambda: calculator,
    "python": python_tool,
}
"""Functions that return a tool; their arguments are settings of the environment."""


_SEVERAL = "tools"
_HARNESS = "harness"
_OF_TOOLS = ("tools", "max_calls")
_LONGEST_REPLY = 12 * LONGEST_OBSERVATION + 10_000
"""Bytes: a character outside the basic plane takes 12 in JSON."""


def is_limited(settings: EnvironmentSettings) -> bool:
    """Return whether steps have limits in separate processes: for a user's code, and what waits for other programs.

    False if the recipe trusts it (in_process), or if it is an object that exists only in this process.
    """
    own = [path for path in _parts(settings) if ":" in path or path in ("python", _HARNESS)]
    return bool(own) and not settings.in_process and not any(map(is_local, own))


def _parts(settings: EnvironmentSettings) -> Sequence[str]:
    """Return the names or import paths of an environment's tools, or its own."""
    if settings.name == _SEVERAL:
        return settings.own.get("tools", ())
    return (settings.name,)


def has_tools(settings: EnvironmentSettings) -> bool:
    return settings.name in (_SEVERAL, *TOOLS)


def find(settings: EnvironmentSettings, call_format: ChatCalls | None = None) -> Session:
    """Check the settings and return a conversation that has not begun; RecipeError if the environment is unusable.

    Without a `call_format`, calls of tools are plain text.
    """
    own = settings.own
    name = settings.name
    if has_tools(settings):
        used = {"tools": find_tools(settings), "max_calls": own.get("max_calls", 8)}
        return Session(Tools, {**used, "call_format": call_format or Plain()})
    if name == _HARNESS:
        path = own.pop("program", "")
        if not isinstance(path, str) or ":" not in path or settings.in_process:
            raise RecipeError(
                'environment.program must be the import path of a function, such as "mine:play", that calls the model '
                "through the OpenAI SDK; each conversation runs in its own process, so in_process cannot be true"
            )
        program = import_function(path)
        _check_call(path, program, (None,), own, "program(problem, *, settings)")
        return Session(Harness, {"program": program, "call_format": call_format, "settings": own})
    if ":" not in name:
        entry(dict.fromkeys([_SEVERAL, _HARNESS, *TOOLS]), name, "the environment")
    start = import_function(name)
    if inspect.isclass(start) and hasattr(start, "reset"):
        _check_call(name, start, (), own, "Class(**settings) with reset(seed=...)")
    else:
        _check_call(name, start, (None, 0), own, "environment(problem, seed, *, settings)")
    if inspect.isclass(start) and not callable(getattr(start, "step", None)):
        raise RecipeError(f'the environment "{name}" has no method step(text)')
    return Session(start, own)


def _check_call(
    path: str, function: Callable[..., Any], given: Sequence[Any], own: Mapping[str, Any], how: str
) -> None:
    try:
        inspect.signature(function).bind(*given, **own)
    # ValueError means that the signature is unknown.
    except (TypeError, ValueError) as error:
        raise RecipeError(f'"{path}" cannot be called as {how}: {error}') from None


def find_tools(settings: EnvironmentSettings) -> dict[str, Tool]:
    """Return the tools of an environment by name."""
    own = {key: value for key, value in settings.own.items() if key not in _OF_TOOLS}
    paths = _parts(settings)
    if not paths or not all(isinstance(path, str) for path in paths):
        raise RecipeError(
            f'environment.tools must list tools or import paths, such as ["calculator", "mine:look_up"]; built-in '
            f"tools are {quoted(TOOLS)}"
        )
    tools: dict[str, Tool] = {}
    used: set[str] = set()
    for path in paths:
        if ":" in path:
            _add(tools, {path.partition(":")[2]: import_function(path)})
            continue
        make = entry(TOOLS, path, "the tool")
        takes = inspect.signature(make).parameters
        used |= takes.keys() & own.keys()
        missing = [each.name for each in takes.values() if each.default is each.empty and each.name not in own]
        if missing:
            raise RecipeError(f'environment.{missing[0]} is not set, but the tool "{path}" needs it')
        _add(tools, {path: make(**{name: own[name] for name in takes if name in own})})
    if unknown := own.keys() - used:
        raise RecipeError(f'{min(unknown)} is not a setting of the environment "{settings.name}"')
    for name, tool in tools.items():
        schema_of(name, tool)
    return tools


def _add(tools: dict[str, Tool], others: Mapping[str, Tool]) -> None:
    if known := sorted(tools.keys() & others.keys()):
        raise RecipeError(f'environment: two tools are called "{known[0]}", but each must have its own name')
    tools.update(others)


def build_playing(task: Task, text: Text, num_tokens: int) -> Playing:
    """Return a task's environment, ready for conversations; RecipeError if it is unusable.

    `num_tokens` is the size of the model's vocabulary.
    """
    call_format = ChatCalls(task.answer.thinking_end) if task.prompt.chat else None
    return Playing(
        settings=task.environment,
        steps=build_steps(task.environment, call_format),
        observe=observer(task, text),
        opened=functools.partial(_opened, task, text),
        num_tokens=num_tokens,
    )


def build_steps(settings: EnvironmentSettings, call_format: ChatCalls | None = None) -> Steps:
    """Return what runs the environment: this process, or one process per conversation if it may hang or crash."""
    session = find(settings, call_format)
    if not is_limited(settings):
        return InProcess(session)
    limits = ForkLimits(
        timeout_s=settings.step_s,
        cpu_limit_s=settings.step_cpu_s,
        memory_limit_mb=settings.step_memory_mb,
        longest_reply=_LONGEST_REPLY,
        settings=("task.environment.step_s", "task.environment.step_cpu_s"),
    )
    return Children(f'the process of the environment "{settings.name}"', find, settings, call_format, limits=limits)


def observer(task: Task, text: Text) -> Callable[[Step], Sequence[int]]:
    """Return a function from a step to the tokens that follow a turn of the model."""
    if not task.prompt.chat:
        return lambda step: _plain_tokens(text, step)
    role = "tool" if has_tools(task.environment) else "user"
    schemas = json.loads(task.prompt.tools or "[]")
    return chat_observer(text, role=role, answer=task.answer, schemas=schemas)


def _plain_tokens(text: Text, step: Step) -> list[int]:
    return text.encode(text.plain([step.observation + _joined(step)])[0])


def _joined(step: Step) -> str:
    return "".join(content for _, content in step.messages)


def offer_tools(task: Task, text: Text) -> Task:
    """Return the task with its tools offered in chat prompts: by the template, or else in a system prompt."""
    if not (task.prompt.chat and has_tools(task.environment)):
        return task
    tools = find_tools(task.environment)
    schemas = text.plain_values([schema_of(name, tool) for name, tool in tools.items()])
    if offers_tools(text, schemas):
        prompt = dataclasses.replace(task.prompt, tools=json.dumps(schemas))
    else:
        system = "\n\n".join(part for part in (task.prompt.system, described(schemas)) if part)
        prompt = dataclasses.replace(task.prompt, system=system)
    return dataclasses.replace(task, prompt=prompt)


def _opened(task: Task, text: Text, request: Request, step: Step) -> tuple[int, ...]:
    """Return the prompt of a conversation, including the opening observation."""
    if not (step.observation or step.messages):
        return request.prompt_tokens
    if step.messages and task.prompt.chat:
        turns = [{"role": role, "content": content} for role, content in plain_turns(text, step.messages)]
        tools = text.plain_values(json.loads(step.tools or "[]"))
        if tools and not offers_tools(text, tools):
            system = turns.pop(0)["content"] if turns[0]["role"] == "system" else ""
            turns.insert(0, {"role": "system", "content": f"{system}\n\n{described(tools)}".strip()})
        return tuple(text.encode(text.chat_untrusted(turns, tools=tools)))
    if step.messages:
        return tuple(text.encode_prompt(_joined(step), PromptFormat()))
    if not task.prompt.chat:
        return (*request.prompt_tokens, *_plain_tokens(text, step))
    asked = request.problem.asked
    turns = [{"role": "user", "content": asked}] if isinstance(asked, str) else asked
    turns = [*turns[:-1], {**turns[-1], "content": f"{turns[-1]['content']}\n\n{step.observation}"}]
    return tuple(text.encode_prompt(turns, task.prompt))
