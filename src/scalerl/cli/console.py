"""The console that commands print tables on."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console

_PIPE_WIDTH = 160


def table_console() -> "Console":
    """Return a console as wide as the screen; for a file or a pipe, one wide enough that no table is folded."""
    from rich.console import Console

    console = Console()
    return console if console.is_terminal else Console(width=max(console.width, _PIPE_WIDTH))
