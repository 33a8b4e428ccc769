"""Conversations in a model's own chat format: observations as turns of the template, and calls of tools.

    sampled turn, ended by its stop token | <|im_start|>tool ... <|im_end|> <|im_start|>assistant | next turn

The tokens of an observation are what the template writes after an answer, up to where the next one begins. They are
rendered behind a short made-up exchange and cut off there, so that what was sampled is never rendered again. That is
right only for templates that leave earlier turns as they are; others are refused. Thinking of earlier turns stays in
the context.
"""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from scalerl.answer_format import AnswerFormat
from scalerl.environments.protocol import Message, Step
from scalerl.environments.tools import Call, Result, Tool
from scalerl.errors import RecipeError
from scalerl.loop.requests import Text

_QUESTION, _THOUGHT, _ANSWER = "A question?", "A thought.", "An answer."
_CALL = re.compile(r"<tool_call>(.*?)(</tool_call>|$)", re.DOTALL)
_PYTHON_TAG = "<|python_tag|>"


def chat_observer(text: Text, *, role: str, answer: AnswerFormat, schemas: Sequence[Any] = ()) -> "ChatObserver":
    """Return what makes turns of observations; RecipeError if the template changes earlier turns."""
    name = getattr(text.tokenizer, "name_or_path", "") or "the model"
    observer = ChatObserver(text, role, _answer(answer), tuple(schemas))
    try:
        after = observer.rendered([(role, "An observation.")])
    except Exception as error:
        reason = " ".join(str(error).split())[:300]
        raise RecipeError(
            f'the chat template of "{name}" refuses a {role} turn after an answer: {reason}; give the folder of the '
            f"model a chat_template.jinja that accepts one"
        ) from None
    if after is None:
        raise RecipeError(
            f'the chat template of "{name}" is not append-only: it writes an earlier answer differently once a {role} '
            f"turn follows, so that a conversation would not be what was sampled; give the model's folder a "
            f"chat_template.jinja that leaves earlier turns as they are, or turn thinking off with "
            f'task.thinking_start = "" and task.thinking_end = ""'
        )
    first = text.encode(after)[:1]
    if not first or first[0] not in text.stop_tokens:
        raise RecipeError(
            f'the chat template of "{name}" does not end an answer with a token that stops sampling, so a turn would '
            f"not end; set eos_token in its tokenizer_config.json to the token that ends a turn"
        )
    return observer


def _answer(answer: AnswerFormat) -> str:
    """Return an answer as models write it: with thinking, where the task has some."""
    if not (answer.thinking_start and answer.thinking_end):
        return _ANSWER
    return f"{answer.thinking_start}\n{_THOUGHT}\n{answer.thinking_end}\n\n{_ANSWER}"


@dataclass(frozen=True, slots=True)
class ChatObserver:
    """Makes the tokens of what a step says after a turn of the model."""

    text: Text
    role: str
    answer: str
    schemas: tuple[Any, ...]

    def __call__(self, step: Step) -> list[int]:
        """Return the tokens of an observation, which is a turn of `role`, or of several turns."""
        turns = step.messages or ((self.role, step.observation),)
        rendered = self.rendered(plain_turns(self.text, turns, tags=True))
        if rendered is None:
            raise ValueError("the chat template writes earlier turns differently once these follow")
        # The turn's own stop token was sampled.
        return self.text.encode(rendered)[1:]

    def rendered(self, observed: Sequence[Message]) -> str | None:
        """Return what follows an answer; None if the template has changed what came before."""
        question = {"role": "user", "content": _QUESTION}
        before = self.text.chat([question], tools=self.schemas)
        # A template that opens thinking writes its tag before the answer.
        opened = next((tag for tag in (self.answer.partition("\n")[0],) if before.rstrip().endswith(tag)), "")
        answered = before.rstrip().removesuffix(opened) + self.answer if opened else before + self.answer
        turns = [question, {"role": "assistant", "content": self.answer}]
        turns += [{"role": role, "content": content} for role, content in observed]
        whole = self.text.chat(turns, tools=self.schemas)
        return whole[len(answered) :] if whole.startswith(answered) else None


def plain_turns(text: Text, turns: Sequence[Message], *, tags: bool = False) -> list[Message]:
    """Return turns of others for a chat template: neither their roles nor their texts can begin another turn."""
    plain = text.plain([part for turn in turns for part in turn], tags=tags)
    return list(zip(plain[::2], plain[1::2], strict=True))


@dataclass(frozen=True, slots=True)
class ChatCalls:
    """Calls as chat models write them: <tool_call>{"name": ..., "arguments": {...}}</tool_call> (Qwen, SmolLM), or a
    turn that is one JSON object with "name" and "parameters" (Llama)."""

    thinking_end: str = ""

    def calls(self, text: str, tools: Mapping[str, Tool] | None) -> list[Call]:
        """Return the calls of a turn; without `tools`, of whatever name."""
        said = text.rpartition(self.thinking_end)[2] if self.thinking_end else text
        if "<tool_call>" in said:
            return [call for match in _CALL.finditer(said) for call in _read(match[1], tools, closed=bool(match[2]))]
        said = said.strip().removeprefix(_PYTHON_TAG).strip()
        if said.startswith("{"):
            try:
                given = json.loads(said)
            except ValueError:
                return []
            return _read(said, tools) if {"name", "parameters"} <= given.keys() else []
        return []

    def observation(self, results: Sequence[Result]) -> str:
        return "\n".join(f"error: {result.text}" if result.failed else result.text for result in results)


def _read(written: str, tools: Mapping[str, Tool] | None, *, closed: bool = True) -> list[Call]:
    if not closed:
        return [Call(name="", error="<tool_call> was not closed by </tool_call>")]
    try:
        given = json.loads(written)
    except (ValueError, RecursionError) as error:
        return [Call(name="", error=f"the call is not JSON: {str(error)[:100]}")]
    return [_call(each, tools) for each in (given if isinstance(given, list) else [given])]


def _call(given: Any, tools: Mapping[str, Tool] | None) -> Call:
    if not isinstance(given, dict) or not isinstance(given.get("name"), str):
        return Call(name="", error='a call is a JSON object with "name" and "arguments"')
    name, arguments = given["name"], given.get("arguments", given.get("parameters", {}))
    if tools is not None and name not in tools:
        return Call(name=name, error=f'no tool is called "{name[:40]}"; there are {", ".join(tools)}')
    if not isinstance(arguments, dict):
        return Call(name=name, error="the arguments are not a JSON object")
    return Call(name=name, arguments=arguments)


def described(schemas: Sequence[Any]) -> str:
    """Return a system prompt that offers tools, for templates that do not mention them."""
    listed = "\n".join(json.dumps(schema) for schema in schemas)
    return (
        f"You may call functions:\n<tools>\n{listed}\n</tools>\nFor a call, write a JSON object with its name and "
        f'arguments: <tool_call>{{"name": ..., "arguments": ...}}</tool_call>'
    )


def offers_tools(text: Text, schemas: Sequence[Any]) -> bool:
    """Return whether the chat template writes the tools into a prompt."""
    question = [{"role": "user", "content": _QUESTION}]
    return text.chat(question, tools=schemas) != text.chat(question)
