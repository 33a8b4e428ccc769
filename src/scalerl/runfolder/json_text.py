"""Parse JSON that anybody may have written. Standard library only, because child processes use this, too."""

import json
from json import JSONDecodeError
from typing import Any

_DEEPEST = 100
"""Largest depth of nested lists and objects, far above that of any file and below what recursive functions can read."""


def parse_json(text: str | bytes) -> Any:
    """Return the value of a text or of UTF-8 bytes; JSONDecodeError, a ValueError, for anything that is not JSON.

    Numbers with thousands of digits and values that are nested more than a hundred times are refused in the same way.
    """
    try:
        text = text if isinstance(text, str) else text.decode("utf-8-sig")
        value = json.loads(text)
    except JSONDecodeError:
        raise
    except UnicodeDecodeError:
        raise JSONDecodeError("not UTF-8", "", 0) from None
    except ValueError:
        raise JSONDecodeError("a number has too many digits", "", 0) from None
    except RecursionError:
        raise JSONDecodeError("nested too deeply", "", 0) from None
    if text.count("[") + text.count("{") > _DEEPEST and _is_deep(value):
        raise JSONDecodeError("nested too deeply", "", 0)
    return value


def parse_or_none(text: Any) -> Any:
    """Return the value of a text or of UTF-8 bytes; None for anything that is not JSON, or no text."""
    try:
        return parse_json(text) if isinstance(text, str | bytes) else None
    except ValueError:
        return None


def _is_deep(value: Any) -> bool:
    level = [value]
    for _ in range(_DEEPEST):
        nested = [each.values() if isinstance(each, dict) else each for each in level if isinstance(each, dict | list)]
        level = [item for items in nested for item in items]
    return bool(level)
