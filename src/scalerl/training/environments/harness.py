"""Use any agent program as an environment: it calls an OpenAI-compatible endpoint, and each call is a turn.

    program --POST /v1/chat/completions---> endpoint --messages--> conversation --tokens--> engine
    program --POST /inference/v1/generate-> endpoint --tokens----> conversation --tokens--> engine
    program <-------- the answer ---------- endpoint <-- the model's turn ----------------- engine

The program and its endpoint run in the process of their conversation; the endpoint is open only to this machine and
needs a new key. A call contains messages, or tokens that the program made of them itself. A call that begins with the
previous call and its answer, word for word, continues the conversation: only its new part is encoded. Any other call
begins a branch: all of it is the prompt of a new start, and every branch is trained on. So sampled tokens are never
encoded again.
"""

import asyncio
import contextlib
import dataclasses
import inspect
import json
import os
import queue
import secrets
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

from scalerl.runfolder.json_text import parse_json
from scalerl.training.environments.chat import ChatCalls
from scalerl.training.environments.protocol import Message, Step, Turn, read_step
from scalerl.training.environments.tools import ToolCall
from scalerl.training.types import Problem
from scalerl.web.server import Handler, Server

_MODEL = "policy"
_MOST_BYTES = 20_000_000
MOST_CALLS = 128
"""Largest number of open connections of a program; each has a thread."""
_CALL_S = 60.0
"""Time limit for receiving a whole call."""


@dataclass(slots=True)
class EndpointCall:
    """A call that waits for its answer."""

    content: tuple[Message, ...] | tuple[int, ...]
    """Messages, or tokens."""
    tools: str = ""
    answered: "queue.Queue[dict[str, Any]]" = field(default_factory=queue.Queue)

    @property
    def has_tokens(self) -> bool:
        return isinstance(self.content[0], int)


_Events = queue.Queue["EndpointCall | Future[Any]"]
"""Calls of the program, and finally its result."""


class Harness:
    """One run of a program, as an environment."""

    def __init__(
        self,
        problem: Problem,
        seed: int,
        *,
        program: Callable[..., Any],
        call_format: ChatCalls | None = None,
        settings: Mapping[str, Any] | None = None,
    ) -> None:
        """`program(problem, **settings)` returns a value from 0 to 1, an answer for the task's graders, or None.

        With a `call_format`, tool calls in the model's turns become tool calls of the API if the call offers tools.
        OPENAI_BASE_URL and OPENAI_API_KEY, which the SDK reads, are set for the program.
        """
        self._format = call_format
        self._events: _Events = queue.Queue()
        self._call: EndpointCall | None = None
        self._history: tuple[Any, ...] = ()
        """All messages or tokens so far, including the model's answers."""
        self._written: dict[Message, str] = {}
        """The text of each turn of the model, by the message in which the program received it."""
        self._num_calls = 0
        self._server = _Endpoint(secrets.token_urlsafe(24), self._events)
        os.environ["OPENAI_BASE_URL"] = f"http://127.0.0.1:{self._server.server_address[1]}/v1"
        os.environ["OPENAI_API_KEY"] = self._server.key
        direct = os.environ.get("no_proxy") or os.environ.get("NO_PROXY") or ""
        os.environ["NO_PROXY"] = os.environ["no_proxy"] = direct if direct == "*" else f"{direct},127.0.0.1".strip(",")
        threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
        arguments = (program, problem, dict(settings or {}))
        threading.Thread(target=self._run, args=arguments, daemon=True).start()

    def begin(self) -> Step:
        """Return the messages of the first call."""
        return self._next()

    def step(self, text: str) -> Step:
        """Answer the waiting call; return what the next call adds, or the end of the program."""
        call = self._call
        self._call = None
        assert call is not None
        if call.has_tokens:
            assert isinstance(text, Turn)
            self._history = (*call.content, *text.tokens)
            call.answered.put(_generated(text))
            return self._next()
        calls = self._format.calls(text, None) if call.tools and self._format else []
        answer = _answer(text, calls, self._num_calls)
        self._num_calls += len(calls)
        self._history = (*call.content, _plain(answer))
        self._written[_plain(answer)] = text
        call.answered.put(_completion(answer))
        num_errors = sum(bool(each.error) for each in calls)
        return dataclasses.replace(self._next(), num_calls=len(calls), num_errors=num_errors)

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()

    def _run(self, program: Callable[..., Any], problem: Problem, settings: Mapping[str, Any]) -> None:
        end: Future[Any] = Future()
        try:
            returned = program(problem, **settings)
            if inspect.iscoroutine(returned):
                returned = asyncio.run(returned)
            end.set_result(returned)
        except BaseException as error:
            end.set_exception(error)
        self._events.put(end)

    def _next(self) -> Step:
        event = self._events.get()
        if isinstance(event, Future):
            returned = event.result()
            if isinstance(returned, str):
                return Step(done=True, answer=returned)
            return dataclasses.replace(read_step(returned), done=True)
        self._call = event
        known = len(self._history)
        continues = 0 < known < len(event.content) and event.content[:known] == self._history
        new: tuple[Any, ...] = event.content[known:] if continues else event.content
        restart = known > 0 and not continues
        if event.has_tokens:
            return Step(tokens=new, restart=restart)
        if continues:
            return Step(messages=new)
        messages = [(role, self._written.get((role, content)) or content) for role, content in new]
        return Step(messages=tuple(messages), tools=event.tools, restart=restart)


class _Endpoint(Server):
    """The endpoint of one conversation."""

    def __init__(self, key: str, events: _Events) -> None:
        self.key = key
        self.events = events
        super().__init__("127.0.0.1", 0, EndpointHandler, most=MOST_CALLS, most_per_client=MOST_CALLS)


class EndpointHandler(Handler):
    """The calls of one connection."""

    server: _Endpoint  # pyright: ignore[reportIncompatibleVariableOverride]
    request_s = _CALL_S

    def do_POST(self) -> None:
        if not self._has_key():
            return None
        read = next((read for path, read in _READERS.items() if self.path.endswith(path)), None)
        if read is None:
            return self._refuse(404, f"only {' and '.join(_READERS)} are available")
        try:
            length = int(self.headers["content-length"])
            if not 0 <= length <= _MOST_BYTES:
                raise ValueError("it is too long")

            call = read(parse_json(self.rfile.read(length)))
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            return self._refuse(400, f"the call cannot be read: {error}")
        self.server.events.put(call)
        return self._send(200, call.answered.get())

    def do_GET(self) -> None:
        if self._has_key():
            self._send(200, {"object": "list", "data": [{"id": _MODEL, "object": "model"}]})

    def _has_key(self) -> bool:
        """Return whether the call has the key of this conversation; otherwise reject it."""
        given = self.headers.get("authorization", "").encode(errors="replace")
        if secrets.compare_digest(given, f"Bearer {self.server.key}".encode()):
            self.recognise()
            return True
        self._refuse(401, "the key does not belong to this conversation")
        return False

    def _send(self, status: int, body: Mapping[str, Any]) -> None:
        # Ignore errors: a program that has ended needs no answer.
        with contextlib.suppress(OSError):
            self.send(status, {"Content-Type": "application/json"}, json.dumps(body).encode())

    def _refuse(self, status: int, reason: str) -> None:
        self.close_connection = True
        self._send(status, {"error": {"message": reason, "type": "invalid_request_error"}})


def _chat(body: Mapping[str, Any]) -> EndpointCall:
    """Read a call with messages from a body; an exception says why it is rejected."""
    # Sampling parameters are ignored: the recipe sets them.
    if body.get("stream") or body.get("n") not in (None, 1) or not body["messages"]:
        raise ValueError("it must have messages and ask for one answer without streaming")
    tools = json.dumps(body["tools"]) if body.get("tools") else ""
    return EndpointCall(tuple(map(_plain, body["messages"])), tools)


def _tokens(body: Mapping[str, Any]) -> EndpointCall:
    """Read a call with tokens from a body, in the format of vLLM and of verifiers' TrainClient."""
    tokens = tuple(body["token_ids"])
    if not tokens or not all(type(token) is int and token >= 0 for token in tokens):
        raise ValueError("token_ids must be whole numbers from 0")
    if body.get("features") or (body.get("sampling_params") or {}).get("n") not in (None, 1):
        raise ValueError("it must ask for one answer, to text only")
    return EndpointCall(tokens)


_READERS = {"/v1/chat/completions": _chat, "/inference/v1/generate": _tokens}


def _plain(message: Mapping[str, Any]) -> Message:
    """Return role and text of a message, without the fields that SDKs add to answers that they send back.

    The ids of tool calls identify the text that the model wrote.
    """
    content = message.get("content") or ""
    if not isinstance(content, str):
        content = "".join(part.get("text", "") for part in content)
    ids = " ".join(call["id"] for call in message.get("tool_calls") or ())
    return str(message["role"]), ids or content


def _answer(text: str, calls: Sequence[ToolCall], num_before: int) -> dict[str, Any]:
    """Return the model's turn as a message of the API."""
    if not calls:
        return {"role": "assistant", "content": text}
    written = [
        {
            "id": f"call_{num_before + number}",
            "type": "function",
            "function": {"name": call.name or "unknown", "arguments": json.dumps(dict(call.arguments))},
        }
        for number, call in enumerate(calls)
    ]
    return {"role": "assistant", "content": None, "tool_calls": written}


def _completion(message: Mapping[str, Any]) -> dict[str, Any]:
    reason = "tool_calls" if message.get("tool_calls") else "stop"
    return {
        "id": "chatcmpl-" + secrets.token_hex(8),
        "object": "chat.completion",
        "created": 0,
        "model": _MODEL,
        "choices": [{"index": 0, "message": message, "finish_reason": reason, "logprobs": None}],
        # Tokens are counted elsewhere, when they are sampled.
        "usage": {"prompt_tokens": 0, "completion_tokens": 0, "total_tokens": 0},
    }


def _generated(turn: Turn) -> dict[str, Any]:
    """Return a turn in the format of vLLM's answers with tokens."""
    pairs = zip(turn.tokens, turn.log_probs, strict=True)
    content = [{"token": f"token_id:{token}", "logprob": log_prob} for token, log_prob in pairs]
    choice = {"index": 0, "token_ids": list(turn.tokens), "finish_reason": "stop", "logprobs": {"content": content}}
    return {"request_id": secrets.token_hex(8), "choices": [choice]}
