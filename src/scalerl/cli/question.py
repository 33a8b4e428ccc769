"""A log whose reward is not clear: the columns it may be, and on a terminal the choice among them."""

import shlex
import sys
from collections.abc import Sequence

import typer

from scalerl.errors import Candidate, UnclearLogError

_TITLES = ("", "column", "first", "last", "it may be", "to read it")
_GAP = "   "


def answer(error: UnclearLogError, *, may_ask: bool) -> dict[str, str]:
    """Show what the reward may be, and return the options that the user chooses; raise the error where none can be."""
    for line in table(error.candidates):
        typer.echo(line, err=True)
    if not (may_ask and sys.stdin.isatty() and sys.stderr.isatty()):
        raise error
    number = typer.prompt("Which one is the reward?", default=1, type=int, err=True)
    if not 1 <= number <= len(error.candidates):
        raise error
    chosen = error.candidates[number - 1]
    typer.echo(f"To read it so without being asked, add {_as_typed(chosen)}", err=True)
    return dict(chosen.options)


def table(candidates: Sequence[Candidate]) -> list[str]:
    """Return the candidates as the lines of a table; the first is the best guess."""
    rows: list[tuple[str, ...]] = [_TITLES]
    for number, each in enumerate(candidates, start=1):
        rows.append((str(number), each.name, f"{each.first:.4g}", f"{each.last:.4g}", each.may_be, _as_typed(each)))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines: list[str] = []
    for row in rows:
        cells = [cell.ljust(width) for cell, width in zip(row, widths, strict=True)]
        lines.append(_GAP.join(cells).rstrip())
    return lines


def _as_typed(candidate: Candidate) -> str:
    """Return the options that choose a candidate, as they are typed."""
    return " ".join(f"--{name.replace('_', '-')} {shlex.quote(value)}" for name, value in candidate.options)
