"""What the commands share: the console for tables, and numbers given as options."""

import math
from typing import TYPE_CHECKING

from scalerl.errors import UsageError

if TYPE_CHECKING:
    from rich.console import Console

_PIPE_WIDTH = 160


def table_console() -> "Console":
    """Return a console as wide as the screen; for a file or a pipe, one wide enough that no table is folded."""
    from rich.console import Console

    console = Console()
    return console if console.is_terminal else Console(width=max(console.width, _PIPE_WIDTH))


def number(text: str, expected: str) -> float:
    """A finite number; `expected` says what the option takes."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise UsageError(f"{expected}, not {text.strip()!r}")
    return value


def numbers(text: str | None, option: str) -> list[float]:
    """'1,2.5' as numbers."""
    words = [word for word in (text or "").split(",") if word.strip()]
    return [number(word, f"{option} takes numbers with commas between them") for word in words]


def positive(values: list[float], option: str) -> list[float]:
    wrong = [value for value in values if not 0 < value < math.inf]
    if wrong:
        raise UsageError(f"{option} must be positive and finite, not {wrong[0]:g}")
    return values


def column_value(text: str, option: str) -> tuple[str, str]:
    column, equals, value = text.partition("=")
    if not equals or not column.strip():
        raise UsageError(f"{option} takes COLUMN=VALUE, not {text!r}")
    return column.strip(), value.strip()
