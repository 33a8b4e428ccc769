"""From the settings of a recipe to environments that conversations can be held with.

With chat = true calls and observations are written as the model's chat template writes them, otherwise as plain text.
"""

import dataclasses
import functools
import json
import os
from collections.abc import Callable, Sequence

from scalerl.config.parts import GradingSettings
from scalerl.environments.chat import ChatObserver, chat_observer, described, offers_tools
from scalerl.environments.protocol import Step
from scalerl.environments.start import EnvironmentSpec, find, find_tools, has_tools
from scalerl.environments.steps import Here, Steps
from scalerl.environments.tools import schema_of
from scalerl.environments.turns import Playing
from scalerl.loop.requests import Text
from scalerl.tasks.prompts import PromptFormat
from scalerl.tasks.task import Task
from scalerl.types import Request


def build_playing(task: Task, text: Text, limits: GradingSettings) -> Playing:
    """Return a task's environment, ready for conversations; RecipeError says why it cannot be used."""
    settings = task.environment
    return Playing(
        steps=build_steps(EnvironmentSpec.of(task), limits),
        observe=functools.partial(_observed, observer(task, text)),
        opened=functools.partial(_opened, task, text),
        max_turns=settings.max_turns,
        max_tokens=settings.max_tokens,
        rewards=settings.rewards,
        reward_range=settings.reward_range,
    )


def build_steps(spec: EnvironmentSpec, limits: GradingSettings) -> Steps:
    """Return where the environment runs: in this process, or in one per conversation if it may hang or crash."""
    begin = find(spec)
    if spec.may_hang and os.name == "posix":
        return Steps.forked(spec, limits)
    return Steps(spec.settings.name, Here(begin))


Observer = Callable[[str], Sequence[int]]


def observer(task: Task, text: Text) -> Observer:
    """Return what turns an observation into the tokens that follow a turn of the model."""
    if not task.prompt.chat:
        return text.encode
    role = "tool" if has_tools(task.environment) else "user"
    schemas = json.loads(task.prompt.tools or "[]")
    return chat_observer(text, role=role, answer=task.answer, schemas=schemas)


def offer_tools(task: Task, text: Text) -> Task:
    """Return the task with its tools in the prompts of a chat; a template that ignores them gets a system prompt."""
    if not (task.prompt.chat and has_tools(task.environment)):
        return task
    schemas = [schema_of(name, tool) for name, tool in find_tools(task.environment).items()]
    if offers_tools(text, schemas):
        prompt = dataclasses.replace(task.prompt, tools=json.dumps(schemas))
    else:
        system = "\n\n".join(part for part in (task.prompt.system, described(schemas)) if part)
        prompt = dataclasses.replace(task.prompt, system=system)
    return dataclasses.replace(task, prompt=prompt)


def _observed(observe: "Observer", step: Step) -> Sequence[int]:
    """Return the tokens of what a step says after a turn of the model."""
    if isinstance(observe, ChatObserver):
        return observe(step.messages or step.observation)
    return observe(step.observation + "".join(content for _, content in step.messages))


def _opened(task: Task, text: Text, request: Request, step: Step) -> tuple[int, ...]:
    """Return the prompt of a conversation, with what the environment opens it with."""
    opening = step.observation
    if not (opening or step.messages):
        return request.prompt_tokens
    if step.messages and task.prompt.chat:
        turns = [{"role": role, "content": content} for role, content in step.messages]
        tools = json.loads(step.tools or "[]")
        if tools and not offers_tools(text, tools):
            system = turns.pop(0)["content"] if turns[0]["role"] == "system" else ""
            turns.insert(0, {"role": "system", "content": f"{system}\n\n{described(tools)}".strip()})
        return tuple(text.encode(text.chat(turns, tools=tools)))
    if step.messages:
        return tuple(text.encode_prompt("".join(content for _, content in step.messages), PromptFormat()))
    if not task.prompt.chat:
        return (*request.prompt_tokens, *text.encode(opening))
    asked = request.problem.asked
    if isinstance(asked, str):
        return tuple(text.encode_prompt(f"{asked}\n\n{opening}", task.prompt))
    last = {**asked[-1], "content": f"{asked[-1]['content']}\n\n{opening}"}
    return tuple(text.encode_prompt([*asked[:-1], last], task.prompt))
