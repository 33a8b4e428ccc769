"""Keep keys and tokens out of files and output. Standard library only.

    hidden(recipe as a dict)   replace settings named like secrets, and redact all texts
    redact(text)               replace values named like secrets in a message, values of environment variables named
                               like secrets, and texts that begin like keys of known services

A setting "env:NAME" names an environment variable instead of a secret; it is written unchanged.
"""

import os
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from scalerl.errors import RecipeError
from scalerl.recipe.import_path import announce
from scalerl.recipe.keys import Tree, leaves

HIDDEN = "(hidden)"
ENVIRONMENT = "env:"
"""Prefix of a setting that names an environment variable."""

_SHORTEST = 8  # a shorter text is not a key, and replacing it everywhere would garble messages
_SECRET = ("secret", "password", "passwd", "passphrase", "apikey", "credential", "credentials", "authorization")
_SECRET += ("bearer", "token")
"""Endings of words in names of secrets."""
_LAST = {"pass", "pwd", "pat", "jwt", "dsn", "cookie", "creds", "auth"}
"""Last words in names of secrets: DB_PASS, but not pass_rate."""
_DATA = {"answer", "problem", "prompt", "question", "sort", "group", "primary", "foreign", "cache", "row", "column"}
_DATA |= {"field", "data", "text", "label", "score", "reward", "metric", "public"}
"""Words before "key" in names that are not secrets: answer_key."""

# A pattern that begins with any number of characters may not be tried from each of them: texts are of strangers too.
_CREDENTIALS = re.compile(r"(?P<scheme>[a-z][a-z0-9+.-]{0,30}://)[^\s/@\"']+@", re.IGNORECASE)
_BEARER = re.compile(r"\b(Bearer|Basic) +[\w.~+/=-]{8,}", re.IGNORECASE)
_ASSIGNED = re.compile(r"(?<![\w.-])(?P<name>[\w.-]++)(?P<sign>[\"']?\s*+[=:]\s*[\"']?)(?P<value>[^\s\"',;&)]{8,})")
_KNOWN = re.compile(r"\b(sk-|hf_|gh[opsu]_|github_pat_|glpat-|xox[abprs]-|AKIA|AIza|eyJ)[\w.-]{16,}")
"""Keys of known services, recognised by their prefixes."""

_named: set[str] = set()
"""Environment variables named by settings "env:NAME"; their values are secrets, whatever their names."""


def is_secret_name(name: str) -> bool:
    """Return whether a setting or variable with this name holds a secret: api_key, HF_TOKEN, judge.password."""
    words = re.findall(r"[a-z]+", re.sub(r"([a-z])([A-Z])", r"\1_\2", name.rpartition(".")[2]).lower())
    # The variable PWD is the working folder.
    if not words or words == ["pwd"]:
        return False
    if words[-1] == "key":
        return len(words) == 1 or words[-2] not in _DATA
    return words[-1] in _LAST or any(word.endswith(_SECRET) for word in words)


def is_secret(name: str, value: Any) -> bool:
    """Return whether a setting holds a secret, and not a marker such as stop_token = "</s>" or a reference."""
    return (
        isinstance(value, str)
        and is_secret_name(name)
        and len(value) >= _SHORTEST
        and not value.startswith((ENVIRONMENT, "<"))
        and not re.search(r"\s", value)
    )


def hidden(value: Any, name: str = "") -> Any:
    """Return a setting with this name, or settings as nested mappings and lists, without secrets."""
    return _hidden(value, name, _environment_secrets())


def _hidden(value: Any, name: str, secrets: Iterable[str]) -> Any:
    if isinstance(value, Mapping):
        return {key: _hidden(inner, str(key), secrets) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_hidden(inner, name, secrets) for inner in value]
    if is_secret(name, value):
        return HIDDEN
    # A description may quote a --set option with a secret.
    return _redacted(value, secrets) if isinstance(value, str) else value


def secrets_in(settings: Tree) -> Iterator[tuple[str, str]]:
    """Yield the dotted name and value of each secret in nested settings."""
    for name, value in leaves(settings, numbered=True):
        for inner in value if isinstance(value, list | tuple) else [value]:
            if is_secret(name, inner) or (isinstance(inner, str) and _CREDENTIALS.search(inner)):
                yield name, inner


def from_environment(settings: Tree, owner: str) -> dict[str, Any]:
    """Return the settings of `owner` with "env:NAME" replaced by the variable's value; RecipeError if there is none.

    A line on stderr says which variables are read and for which server, because a stranger's recipe may name any.
    """
    named = {
        key: value.removeprefix(ENVIRONMENT)
        for key, value in settings.items()
        if isinstance(value, str) and value.startswith(ENVIRONMENT)
    }
    _named.update(named.values())
    if missing := [name for name in named.values() if name not in os.environ]:
        raise RecipeError(f"{owner} is set to read the environment variable {missing[0]}, which is not set")
    values = {key: os.environ[name] for key, name in named.items()}
    receiver = f" for {settings['url']}" if settings.get("url") else ""
    announce(*(f"{name}{receiver}" for name in named.values()), says="reads a variable that settings name")
    return {**settings, **values}


def redact(text: str, secrets: Iterable[str] = ()) -> str:
    """Redact a message: `secrets`, secrets of the environment, passwords in URLs and values named like secrets."""
    return _redacted(text, {*secrets, *_environment_secrets()})


def _redacted(text: str, secrets: Iterable[str]) -> str:
    for secret in sorted(secrets, key=len, reverse=True):
        text = text.replace(secret, HIDDEN)
    text = _BEARER.sub(rf"\1 {HIDDEN}", _CREDENTIALS.sub(rf"\g<scheme>{HIDDEN}@", text))
    return _ASSIGNED.sub(_hide_assigned, _KNOWN.sub(HIDDEN, text))


def _hide_assigned(match: re.Match[str]) -> str:
    name = match["name"]
    sign = match["sign"]
    value = match["value"]
    return f"{name}{sign}{HIDDEN}" if is_secret(name, value) else match[0]


def _environment_secrets() -> list[str]:
    return [
        value
        for name, value in os.environ.items()
        if is_secret(name, value) or (name in _named and len(value) >= _SHORTEST)
    ]
