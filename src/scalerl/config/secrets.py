"""Keep keys and tokens out of what is written and printed. Standard library only.

    hidden(recipe as a dict)   settings named like secrets are replaced, and all texts are redacted
    redact(text)               the same in a message, and the values of environment variables named like secrets

A setting "env:NAME" names an environment variable instead of a secret; it is written as it is.
"""

import os
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

HIDDEN = "(hidden)"
ENVIRONMENT = "env:"
"""What a setting begins with that names an environment variable."""

_SHORTEST = 8  # a shorter text is not a key, and replacing it everywhere would garble messages
_WORDS = {"secret", "password", "passwd", "apikey", "credential", "credentials", "authorization", "bearer", "token"}
_KEYS = {"api", "access", "secret", "private", "auth", "judge", "service", "account", "subscription", "signing"}
"""What precedes "key" in the name of a secret."""

_CREDENTIALS = re.compile(r"(?P<scheme>[a-z][a-z0-9+.-]*://)[^\s/@\"']+@", re.IGNORECASE)
_BEARER = re.compile(r"\b(Bearer|Basic) +[\w.~+/=-]{8,}", re.IGNORECASE)
_ASSIGNED = re.compile(r"(?P<name>[\w.-]+)(?P<sign>[\"']?\s*[=:]\s*[\"']?)(?P<value>[^\s\"',;&)]{8,})")


def is_secret_name(name: str) -> bool:
    """Return whether a setting or variable of this name holds a secret: api_key, HF_TOKEN, judge.password."""
    words = re.findall(r"[a-z]+", re.sub(r"([a-z])([A-Z])", r"\1_\2", name.rpartition(".")[2]).lower())
    if not words:
        return False
    return bool(_WORDS & set(words)) or (words[-1] == "key" and (len(words) == 1 or words[-2] in _KEYS))


def is_secret(name: str, value: Any) -> bool:
    """Return whether a setting holds a secret, and not a marker such as stop_token = "</s>" or a reference to one."""
    return (
        isinstance(value, str)
        and is_secret_name(name)
        and len(value) >= _SHORTEST
        and not value.startswith((ENVIRONMENT, "<"))
        and not re.search(r"\s", value)
    )


def hidden(value: Any, name: str = "") -> Any:
    """Return settings, as nested mappings and lists, without their secrets."""
    if isinstance(value, Mapping):
        return {key: hidden(inner, str(key)) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [hidden(inner, name) for inner in value]
    if is_secret(name, value):
        return HIDDEN
    # A description may quote the --set that holds one.
    return redact(value) if isinstance(value, str) else value


def secrets_in(value: Any, name: str = "") -> Iterator[tuple[str, str]]:
    """Yield the dotted name and value of each secret of nested settings."""
    if isinstance(value, Mapping):
        for key, inner in value.items():
            yield from secrets_in(inner, f"{name}.{key}" if name else str(key))
    elif isinstance(value, list | tuple):
        for inner in value:
            yield from secrets_in(inner, name)
    elif is_secret(name, value) or (isinstance(value, str) and _CREDENTIALS.search(value)):
        yield name, value


def from_environment(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings with the values of the variables that "env:NAME" stands for; KeyError names a missing one."""
    named = {key: value for key, value in settings.items() if isinstance(value, str) and value.startswith(ENVIRONMENT)}
    return {**settings, **{key: os.environ[value.removeprefix(ENVIRONMENT)] for key, value in named.items()}}


def redact(text: str, secrets: Iterable[str] = ()) -> str:
    """Return a message without `secrets`, those of the environment, passwords in URLs and values named like secrets."""
    for secret in sorted({*secrets, *_environment_secrets()}, key=len, reverse=True):
        text = text.replace(secret, HIDDEN)
    text = _BEARER.sub(rf"\1 {HIDDEN}", _without_credentials(text))
    return _ASSIGNED.sub(_hide_assigned, text)


def _hide_assigned(match: re.Match[str]) -> str:
    name, sign, value = match["name"], match["sign"], match["value"]
    return f"{name}{sign}{HIDDEN}" if is_secret(name, value) else match[0]


def _without_credentials(text: str) -> str:
    return _CREDENTIALS.sub(rf"\g<scheme>{HIDDEN}@", text)


def _environment_secrets() -> list[str]:
    return [value for name, value in os.environ.items() if is_secret(name, value)]
