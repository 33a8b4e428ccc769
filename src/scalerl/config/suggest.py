"""What a user sees when a recipe is wrong."""

import difflib
from collections.abc import Iterable


def closest(word: str, choices: Iterable[str], *, cutoff: float = 0.6) -> str | None:
    """The choice that a misspelt word stands for, if one is near."""
    close = difflib.get_close_matches(word.lower(), list(choices), n=1, cutoff=cutoff)
    return close[0] if close else None


def did_you_mean(word: str, choices: Iterable[str]) -> str:
    """A clause to append to an error, empty when nothing is close."""
    close = closest(word, choices)
    return f'; did you mean "{close}"?' if close else ""


def quoted(words: Iterable[str]) -> str:
    return ", ".join(f'"{word}"' for word in words)
