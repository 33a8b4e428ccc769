"""The terminal: printing of results, and Ctrl-C and SIGTERM during training."""

import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, Literal, NoReturn, TextIO

import typer

from scalerl.errors import printable
from scalerl.training.run.observer import RunObserver

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table as RichTable

    from scalerl.forecast.report.document import Section

_PIPE_WIDTH = 100_000
_LINE_S = 10.0  # in a log file, shortest time between two lines of progress
_IMPATIENCE_S = 5.0  # further signals within this time after the one that stops at once are ignored


class PlainStream:
    """stdout or stderr without control characters: text may contain names from untrusted files."""

    def __init__(self, stream: TextIO) -> None:
        self.rich_proxied_file = stream
        """The stream for a rich Console, whose colours are escape sequences."""

    def write(self, text: str) -> int:
        return self.rich_proxied_file.write(printable(text, keep="\n\t"))

    def flush(self) -> None:
        self.rich_proxied_file.flush()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.rich_proxied_file, name)


def new_console(*, stderr: bool = False, width: int | None = None, raises_broken_pipe: bool = False) -> "Console":
    """Return a console that styles text and prints no other control characters."""
    from rich.console import Console, ConsoleOptions, RenderableType
    from rich.segment import Segment

    class PlainConsole(Console):
        def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterator[Segment]:
            for segment in super().render(renderable, options):
                yield segment if segment.control else Segment(printable(segment.text, keep="\n"), segment.style)

        def on_broken_pipe(self) -> None:
            if raises_broken_pipe:
                raise
            super().on_broken_pipe()

    return PlainConsole(stderr=stderr, width=width)


class RunTerminal(RunObserver):
    """Shows a run on the terminal, as lines above a bar, and handles the signals that ask it to stop.

    The first signal asks the run to stop, as does a closed output, which counts as SIGPIPE. The next signal raises
    KeyboardInterrupt. Signals soon after that are ignored, because they would interrupt the clean-up.
    """

    def __init__(self) -> None:
        self.console = new_console(raises_broken_pipe=True)
        self.stopped_by: int | None = None
        """The signal that asked the run to stop."""
        self._bar: Any = None
        self._text = ""
        self._printed_at = time.monotonic()
        self._handlers: dict[int, Any] = {}
        self._interrupted_at: float | None = None

    def stopping(self) -> "bool | Literal['now']":
        """Return whether the run is asked to stop; "now" if there is no time to finish the step.

        After SIGTERM, a scheduler or container host soon kills the process; SIGHUP means that the terminal is gone.
        """
        return "now" if self.stopped_by in (signal.SIGTERM, signal.SIGHUP) else self.stopped_by is not None

    def _handle(self, number: int, _: object) -> None:
        # A closed output does not count as a signal: the first one after it still leaves time for a checkpoint.
        if self.stopped_by in (None, signal.SIGPIPE):
            self.stopped_by = number
            when = "now" if self.stopping() == "now" else "after this step"
            # The signal may have arrived during a write to the same stream.
            with suppress(RuntimeError):
                self.print(f"Stopping {when}, with a checkpoint; Ctrl-C again stops at once.")
            return
        if number == signal.SIGHUP:
            # The shell and the system may both send this signal.
            return
        now = time.monotonic()
        if self._interrupted_at is None or now - self._interrupted_at > _IMPATIENCE_S:
            self._interrupted_at = now
            raise KeyboardInterrupt

    def print(self, text: str, style: str | None = None) -> None:
        """Print one line without wrapping it, so that it is also one line of a log file."""
        self._printed_at = time.monotonic()
        try:
            self.console.print(text, style=style, highlight=False, markup=False, soft_wrap=True)
        except OSError:
            self.console.quiet = True
            self.stopped_by = self.stopped_by or signal.SIGPIPE
            # The process flushes its buffer when it ends.
            with suppress(OSError, ValueError):
                os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())

    def show_bar(self, text: str, *, total: float, **fields: Any) -> None:
        """Show a bar with the remaining time. `text` comes first and may contain the fields, which `update` changes.

        If the output is not a screen, print a line from time to time instead.
        """
        from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

        self._bar = Progress(
            *(TextColumn(text), BarColumn(), TextColumn("{task.description}"), TimeElapsedColumn()),
            *(TimeRemainingColumn(), TextColumn("left")),
            console=self.console,
            transient=True,
            disable=not self.console.is_terminal,
        )
        self._bar.start()
        self._text = text
        self._bar.add_task("", total=total, **fields)

    def update(self, **fields: Any) -> None:
        (task,) = self._bar.tasks
        self._bar.update(task.id, **fields)
        if not self.console.is_terminal and time.monotonic() - self._printed_at > _LINE_S:
            self.print(f"  {self._text.format(task=task)}, {task.percentage:.0f}%  {task.description}".rstrip())

    def close(self) -> None:
        if self._bar is not None:
            # A terminal that is gone cannot be restored.
            with suppress(OSError):
                self._bar.stop()
        # Another thread (of a run that hangs) cannot restore handlers, and the process ends anyway.
        while self._handlers and _in_main_thread():
            signal.signal(*self._handlers.popitem())

    @contextmanager
    def running(self, at_once: Callable[[], str]) -> Iterator[None]:
        """Handle signals inside this context; a stop at once ends the command with the text of `at_once`."""
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP) if _in_main_thread() else ():
            # nohup ignores SIGHUP, so that a run outlives its terminal.
            if number != signal.SIGHUP or signal.getsignal(number) is not signal.SIG_IGN:
                self._handlers[number] = signal.signal(number, self._handle)
        try:
            yield
        except KeyboardInterrupt:
            self.leave(at_once())
        finally:
            self.close()

    def leave(self, text: str) -> NoReturn:
        """End a command that was stopped: print the text, and exit with the code of the signal."""
        self.close()
        gone = self.stopped_by == signal.SIGPIPE
        with suppress(OSError):
            typer.echo(f"the output was closed. {text}" if gone else text, err=gone)
        raise typer.Exit(128 + (self.stopped_by or signal.SIGINT))


def _in_main_thread() -> bool:
    """Return whether this thread can handle signals."""
    return threading.current_thread() is threading.main_thread()


@contextmanager
def ended_by_ctrl_c() -> Iterator[None]:
    """Let Ctrl-C end the process at once, without a traceback, while modules are imported.

    Compiled modules swallow a KeyboardInterrupt and fail later, with another error.
    """
    handled = _in_main_thread() and signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if handled:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    try:
        yield
    finally:
        if handled:
            signal.signal(signal.SIGINT, signal.default_int_handler)


def table(headers: Sequence[str], rows: Iterable[Sequence[str]]) -> "RichTable":
    from rich import box
    from rich.markup import escape
    from rich.table import Table

    made = Table(box=box.SIMPLE_HEAD)
    for place, header in enumerate(headers):
        # Do not wrap the first column: users copy it into --set.
        made.add_column(escape(header), no_wrap=place == 0, overflow="fold")
    for row in rows:
        made.add_row(*map(escape, row))
    return made


def say(*parts: Any) -> None:
    """Print lines, without wrapping them, and tables and other renderables of rich."""
    for part in parts:
        if isinstance(part, str):
            typer.echo(part)
            continue
        console = new_console()
        if not console.is_terminal:
            # Nothing is wrapped in a file or a pipe.
            console.width = max(console.width, _PIPE_WIDTH)
        console.print(part, highlight=False)


def print_json(command: str, **content: Any) -> None:
    """Print the result of a command as one JSON object (docs/schema.json)."""
    from scalerl import __version__
    from scalerl.runfolder.store import JSON_FORMAT

    whole = {"format": JSON_FORMAT, "scalerl": __version__, "command": command, **content}
    typer.echo(json.dumps(whole, indent=2, allow_nan=False, default=str))


def show(
    command: str,
    as_json: bool,
    content: Mapping[str, Any],
    text: Callable[[], Iterable[Any]],
) -> None:
    """Print the result of a command: its content as JSON, or the parts of its text."""
    if as_json:
        print_json(command, **content)
    else:
        say(*text())


def show_document(
    command: str,
    as_json: bool,
    content: Mapping[str, Any],
    sections: "Sequence[Section]",
) -> None:
    """Print a document: as JSON with its numbers, or as text."""
    from scalerl.forecast.report.json_values import to_json
    from scalerl.forecast.report.terminal import printable as as_printed

    if as_json:
        print_json(command, **content, sections=to_json(sections))
    else:
        say(as_printed(sections))
