"""scalerl watch: a live page on runs, studies and any trainer's logs; and the same beside a command."""

import os
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from scalerl.cli.options import NOTIFY, argument, flag, option
from scalerl.errors import InputError

if TYPE_CHECKING:
    import subprocess

_NICENESS = 10
"""A board beside a run, with its fits, gives way to the run."""


def watch(
    paths: list[Path] = argument(
        "PATH", "Run folders, study folders, folders of them, or logs in any format that scalerl fit reads."
    ),
    host: str = option(
        "ADDRESS", "Address to listen on. Every request needs the token in the printed link.", default="127.0.0.1"
    ),
    port: int | None = option("N", "Port. Unset: 8420 if free.", min=0, max=65535),
    budget: float | None = option("C", "Compute at the end of the run, for logs that do not contain it.", min=0),
    browser: bool = flag("--open/--no-open", "Open the page in a browser.", default=True),
    wait: bool = flag("--wait", "Wait for paths that do not exist yet."),
    notify: str | None = NOTIFY,
    beside: Annotated[bool, typer.Option(hidden=True, help="End with the process that started this one.")] = False,
) -> None:
    """Show runs, studies and logs in a browser while they are written: curve, forecast, alarms, samples.

    The page only reads its files: start and stop it as you like. Any trainer's log will do.

    [dim]scalerl watch runs/first
    scalerl watch outputs/grpo --budget 2000
    scalerl watch runs --host 0.0.0.0[/dim]
    """
    missing = [path for path in paths if not path.exists()]
    if missing and not wait:
        raise InputError(f"there is no file or folder {missing[0]}: check the path, or wait for it with --wait.")
    from scalerl.forecast.report.board.serve import serve
    from scalerl.web.notify import Notifier

    if beside and hasattr(os, "nice"):
        os.nice(_NICENESS)

    def announce(link: str) -> None:
        typer.echo(f"The board is at {link}" if beside else f"The board is at {link}\nCtrl-C ends it; runs go on.")
        sys.stdout.flush()
        if browser and not beside and sys.stdout.isatty() and _has_display():
            import webbrowser

            webbrowser.open(opened.enter_context(private_page(link)))

    with ExitStack() as opened:
        notifier = opened.enter_context(Notifier(notify, "watch", warn=partial(typer.echo, err=True)))
        serve(
            paths,
            host=host,
            port=port,
            end_compute=budget,
            announce=announce,
            # Its standard input is a pipe from the run: it ends when the run does, however that ends.
            until=sys.stdin.buffer.read if beside else None,
            send=notifier.send if notify else None,
        )


@contextmanager
def private_page(link: str) -> Iterator[str]:
    """Yield the address of a file that leads to a link: everybody can read what a browser is started with."""
    with tempfile.TemporaryDirectory(prefix="scalerl-watch-") as folder:
        path = Path(folder, "board.html")
        path.write_text(f'<meta http-equiv="refresh" content="0; url={link}">', encoding="utf-8")
        yield path.as_uri()


def _has_display() -> bool:
    return sys.platform in ("darwin", "win32") or bool(os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"))


def board_beside(out: Path, *, wanted: bool) -> AbstractContextManager[Any]:
    """Have a board beside the block, if it is wanted."""
    return running_board(out, partial(typer.echo, err=True)) if wanted else nullcontext()


@contextmanager
def running_board(path: Path, announce: Callable[[str], object]) -> Iterator["subprocess.Popen[bytes] | None"]:
    """Run a board in a process of its own during the block, which neither waits for it nor depends on it."""
    from scalerl.processes import end_process, start_module

    try:
        process = start_module("scalerl", "watch", str(path), "--wait", "--no-open", "--beside")
    except OSError as fault:
        announce(f"The board did not start: {fault.strerror or fault}")
        yield None
        return

    assert process.stdin is not None
    assert process.stdout is not None
    where = process.stdout

    def say_where() -> None:
        announce(where.readline().decode().strip() or "The board did not start: scalerl watch says why")

    reader = threading.Thread(target=say_where, daemon=True)
    reader.start()
    try:
        yield process
    finally:
        with suppress(OSError):
            process.stdin.close()  # it ends when its input does
        end_process(process, patience_s=5.0)
        reader.join(timeout=5)
        where.close()
