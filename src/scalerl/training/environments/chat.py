"""Conversations in a model's own chat format: observations as turns of the template, and tool calls.

    sampled turn, ended by its stop token | <|im_start|>tool ... <|im_end|> <|im_start|>assistant | next turn

The tokens of an observation are the text that the template writes after an answer, up to the beginning of the next one.
To get them, the template renders a short made-up exchange with the observation, and the exchange is cut off, so that
sampled turns are never rendered again. This is correct only for templates that do not change earlier turns; others are
rejected. Thinking of earlier turns stays in the context.
"""

import itertools
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from scalerl.errors import RecipeError
from scalerl.runfolder.json_text import parse_json
from scalerl.training.answer_format import AnswerFormat
from scalerl.training.environments.protocol import Message, Step
from scalerl.training.environments.tools import Tool, ToolCall, ToolResult
from scalerl.training.loop.requests import Text

_QUESTION = "A question?"
_THOUGHT = "A thought."
_ANSWER = "An answer."
_CALL = re.compile(r"<tool_call>(.*?)(</tool_call>|$)", re.DOTALL)
_PYTHON_TAG = "<|python_tag|>"


def chat_observer(text: Text, *, role: str, answer: AnswerFormat, schemas: Sequence[Any] = ()) -> "ChatObserver":
    """Return a function that makes turns of observations; RecipeError if the template changes earlier turns."""
    name = getattr(text.tokenizer, "name_or_path", "") or "the model"
    observer = ChatObserver(text, role, _answer(answer), tuple(schemas))
    try:
        after = observer.rendered([(role, "An observation.")])
    except Exception as error:
        reason = " ".join(str(error).split())[:300]
        raise RecipeError(
            f'the chat template of "{name}" rejects a {role} turn after an answer: {reason}; put a chat_template.jinja '
            f"that accepts one into the model's folder"
        ) from None
    if after is None:
        raise RecipeError(
            f'the chat template of "{name}" is not append-only: it writes an earlier answer differently once a {role} '
            f"turn follows, so a conversation would differ from what was sampled; put a chat_template.jinja that does "
            f"not change earlier turns into the model's folder, or turn thinking off with "
            f'task.thinking_start = "" and task.thinking_end = ""'
        )
    first = text.encode(after)[:1]
    if not first or first[0] not in text.stop_tokens:
        raise RecipeError(
            f'the chat template of "{name}" does not end answers with a token that stops sampling, so turns would not '
            f"end; set eos_token in its tokenizer_config.json to the token that ends a turn"
        )
    return observer


def _answer(answer: AnswerFormat) -> str:
    """Return an example of an answer, with thinking if the task has any."""
    if not (answer.thinking_start and answer.thinking_end):
        return _ANSWER
    return f"{answer.thinking_start}\n{_THOUGHT}\n{answer.thinking_end}\n\n{_ANSWER}"


@dataclass(frozen=True, slots=True)
class ChatObserver:
    """Returns the tokens of a step's observation after a turn of the model."""

    text: Text
    role: str
    answer: str
    schemas: tuple[Any, ...]

    def __call__(self, step: Step) -> list[int]:
        """Return the tokens of an observation as a turn of `role`, or of several messages."""
        turns = step.messages or ((self.role, step.observation),)
        rendered = self.rendered(plain_turns(self.text, turns, tags=True))
        if rendered is None:
            raise ValueError("the chat template writes earlier turns differently once these follow")
        # The stop token of the turn was sampled.
        return self.text.encode(rendered)[1:]

    def rendered(self, observed: Sequence[Message]) -> str | None:
        """Return the text that follows an answer; None if the template changed the text before it."""
        question = {"role": "user", "content": _QUESTION}
        before = self.text.chat([question], tools=self.schemas)
        # Some templates write the tag that opens thinking before the answer.
        tag = self.answer.partition("\n")[0]
        answered = before + self.answer
        if tag and before.rstrip().endswith(tag):
            answered = before.rstrip().removesuffix(tag) + self.answer
        turns = [question, {"role": "assistant", "content": self.answer}]
        turns += [{"role": role, "content": content} for role, content in observed]
        whole = self.text.chat_untrusted(turns, before=2, tools=self.schemas)
        return whole[len(answered) :] if whole.startswith(answered) else None


def plain_turns(text: Text, turns: Sequence[Message], *, tags: bool = False) -> list[Message]:
    """Return turns from environments for a chat template; neither their roles nor their texts can begin a turn."""
    plain = text.plain(list(itertools.chain.from_iterable(turns)), tags=tags)
    return list(zip(plain[::2], plain[1::2], strict=True))


@dataclass(frozen=True, slots=True)
class ChatCalls:
    """The call formats of chat models: <tool_call>{"name": ..., "arguments": {...}}</tool_call> (Qwen, SmolLM), or a
    turn that is a JSON object with "name" and "parameters" (Llama)."""

    thinking_end: str = ""

    def calls(self, text: str, tools: Mapping[str, Tool] | None) -> list[ToolCall]:
        """Return the calls in a turn; without `tools`, any name is allowed."""
        written = text.rpartition(self.thinking_end)[2] if self.thinking_end else text
        if "<tool_call>" in written:
            calls: list[ToolCall] = []
            for match in _CALL.finditer(written):
                calls += _read(match[1], tools, closed=bool(match[2]))
            return calls
        written = written.strip().removeprefix(_PYTHON_TAG).strip()
        if written.startswith("{"):
            try:
                given = parse_json(written)
            except ValueError:
                return []
            return _read(written, tools) if {"name", "parameters"} <= given.keys() else []
        return []

    def observation(self, results: Sequence[ToolResult]) -> str:
        return "\n".join(f"error: {result.text}" if result.failed else result.text for result in results)


def _read(written: str, tools: Mapping[str, Tool] | None, *, closed: bool = True) -> list[ToolCall]:
    if not closed:
        return [ToolCall(name="", error="<tool_call> was not closed by </tool_call>")]
    try:
        given = parse_json(written)
    except ValueError as error:
        return [ToolCall(name="", error=f"the call is not JSON: {str(error)[:100]}")]
    listed = given if isinstance(given, list) else [given]
    return [_call(each, tools) for each in listed]


def _call(given: Any, tools: Mapping[str, Tool] | None) -> ToolCall:
    if not isinstance(given, dict) or not isinstance(given.get("name"), str):
        return ToolCall(name="", error='a call is a JSON object with "name" and "arguments"')
    name = given["name"]
    arguments = given.get("arguments", given.get("parameters", {}))
    if tools is not None and name not in tools:
        return ToolCall(name=name, error=f'there is no tool "{name[:40]}"; there are {", ".join(tools)}')
    if not isinstance(arguments, dict):
        return ToolCall(name=name, error="the arguments are not a JSON object")
    return ToolCall(name=name, arguments=arguments)


def described(schemas: Sequence[Any]) -> str:
    """Return a system prompt that offers tools, for templates that do not mention them."""
    listed = "\n".join(json.dumps(schema, ensure_ascii=False) for schema in schemas)
    return (
        f"You may call functions:\n<tools>\n{listed}\n</tools>\nFor a call, write a JSON object with its name and "
        f'arguments: <tool_call>{{"name": ..., "arguments": ...}}</tool_call>'
    )


def offers_tools(text: Text, schemas: Sequence[Any]) -> bool:
    """Return whether the chat template writes the tools into a prompt."""
    question = [{"role": "user", "content": _QUESTION}]
    return text.chat(question, tools=schemas) != text.chat(question)
