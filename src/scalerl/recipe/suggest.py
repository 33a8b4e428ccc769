"""Names and values in messages, and suggestions for misspelt names."""

import difflib
import json
from collections.abc import Iterable
from typing import Any


def closest(word: str, choices: Iterable[str], *, cutoff: float = 0.6) -> str | None:
    """Return the choice closest to a misspelt word; None if none is close."""
    close = difflib.get_close_matches(word.lower(), list(choices), n=1, cutoff=cutoff)
    return close[0] if close else None


def did_you_mean(word: str, choices: Iterable[str]) -> str:
    """Return a clause to append to an error message; empty if nothing is close."""
    close = closest(word, choices)
    return f'; did you mean "{close}"?' if close else ""


def quoted(words: Iterable[str]) -> str:
    """Return the words in quotes, separated by commas."""
    return ", ".join(f'"{word}"' for word in words)


def show(value: Any) -> str:
    """Return a value as JSON, shortened if it is long."""
    text = json.dumps(value, default=str)
    return text if len(text) <= 60 else f"{text[:57]}..."
