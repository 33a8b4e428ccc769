"""Tools at a server, which may be in a container or on another machine, through three calls with JSON.

    POST /tools  {}                                       {"tools": [schemas as in OpenAI's API]}
    POST /call   {"session", "number", "name", "arguments"}   {"result": text}, or {"error": text} for the model to read
    POST /end    {"session"}                              {}

A conversation is a session, for which the server may keep a state until /end. The calls of a session are numbered, so
that the server can recognise a call that is sent again because the reply was lost. If a server does not answer, the
conversation has no verdict, so the model is not penalised. Standard library only.
"""

import contextlib
import functools
import itertools
import re
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from scalerl.errors import RecipeError
from scalerl.recipe.secrets import from_environment
from scalerl.web.client import ask

_NAME = re.compile(r"[\w.-]{1,64}", re.ASCII)


class ToolServerError(Exception):
    """A server did not answer, or its answer is invalid; this is not the model's fault."""


@dataclass(frozen=True, slots=True)
class ToolServer:
    """The URL of a tool server, with its key."""

    url: str
    api_key: str = ""

    def ask(self, path: str, body: Mapping[str, Any], *, most_tries: int = 3) -> dict[str, Any]:
        given = ask(
            f"{self.url.rstrip('/')}/{path}",
            dict(body),
            api_key=self.api_key,
            most_tries=most_tries,
            server="the tool server",
            error=ToolServerError,
        )
        if not isinstance(given, dict):
            raise ToolServerError(f"the tool server answered /{path} with {type(given).__name__}, not a JSON object")
        return given


@dataclass(frozen=True, slots=True)
class ServedTool:
    """One tool of a server, by its schema."""

    server: ToolServer
    schema: dict[str, Any]

    @property
    def name(self) -> str:
        return self.schema["function"]["name"]

    @property
    def first_parameter(self) -> str:
        return next(iter(self.schema["function"].get("parameters", {}).get("properties", {})), "input")


class ToolSession:
    """A conversation with a server."""

    def __init__(self, server: ToolServer) -> None:
        self._server, self._session, self._numbers = server, secrets.token_hex(8), itertools.count()

    def call(self, name: str, arguments: Mapping[str, Any]) -> str:
        """Return the result of a call; ValueError with the server's error message."""
        body = {"session": self._session, "number": next(self._numbers), "name": name, "arguments": dict(arguments)}
        reply = self._server.ask("call", body)
        if isinstance(error := reply.get("error"), str):
            raise ValueError(error)
        if not isinstance(result := reply.get("result"), str):
            raise ToolServerError('the tool server answered /call without a text "result" or "error"')
        return result

    def close(self) -> None:
        with contextlib.suppress(ToolServerError):
            self._server.ask("end", {"session": self._session}, most_tries=1)


@functools.lru_cache(maxsize=16)
def served_tools(url: str, api_key: str = "") -> dict[str, ServedTool]:
    """Return the tools of a server by name; RecipeError if it offers none."""
    if not url.startswith(("http://", "https://")):
        raise RecipeError(f'environment.servers has "{url}", which is not a URL: write http://HOST:PORT')
    server = ToolServer(**from_environment({"api_key": api_key, "url": url}, "environment.api_key"))
    try:
        tools = [ServedTool(server, schema) for schema in server.ask("tools", {})["tools"]]
        named = {tool.name: tool for tool in tools if tool.first_parameter}
    except ToolServerError as error:
        raise RecipeError(f"environment.servers: {error}") from None
    except (LookupError, TypeError, AttributeError):
        named = {}
    if not named or not all(isinstance(name, str) and _NAME.fullmatch(name) for name in named):
        raise RecipeError(
            f'the tool server at {url} must answer POST /tools with {{"tools": [{{"type": "function", "function": '
            f'{{"name": ..., "description": ..., "parameters": ...}}}}]}}; a name has at most 64 letters, digits, _, . '
            f"and -"
        )
    return named
