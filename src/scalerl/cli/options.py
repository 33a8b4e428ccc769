"""Options that several commands share, and the values of options: numbers and columns, checked."""

import math
from typing import Annotated, Any

import typer

from scalerl.errors import UsageError


def option(text: str, *names: str, rare: bool = False, **more: Any) -> Any:
    """Declare an option; a rare one is shown by --help-all only."""
    return typer.Option(*names, help=text, hidden=rare, **{"show_default": False, **more})


def argument(metavar: str, text: str, **more: Any) -> Any:
    return typer.Argument(metavar=metavar, help=text, **{"show_default": False, **more})


def flag(name: str, text: str, *, rare: bool = False, show_default: bool = False) -> Any:
    """Declare an option that takes no value: its help shows no type beside the name."""
    return typer.Option(name, help=text, metavar="", hidden=rare, show_default=show_default)


def _help_all(context: typer.Context, wanted: bool) -> None:
    if wanted:
        for param in context.command.params:
            param.hidden = False  # type: ignore[attr-defined]
        typer.echo(context.get_help())
        raise typer.Exit


HelpAll = Annotated[
    bool, typer.Option("--help-all", help="Show every option.", metavar="", is_eager=True, callback=_help_all)
]
Json = Annotated[bool, flag("--json", "Print one JSON object instead of tables.")]
Board = Annotated[bool, flag("--board", "Show it in a browser while it runs, as 'scalerl watch' does.")]
RecipeName = Annotated[str, argument("RECIPE", "A recipe's name (scalerl recipe list) or a TOML file.")]
Overrides = Annotated[
    list[str] | None,
    option(
        "Change one setting; may be repeated. 'scalerl recipe show RECIPE' lists all of them. A value is TOML, or else "
        "text as it stands: for escapes with a backslash, write the quotes too, 'KEY=\"a\\nb\"'.",
        "--set",
        metavar="KEY=VALUE",
    ),
]
Trust = Annotated[bool, flag("--trust-remote-code", "Run Python code that comes with the model; nothing else does.")]


def number(text: str, expected: str) -> float:
    """Parse a finite number; `expected` says in the error what the option takes."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise UsageError(f"{expected}, not {text.strip()!r}")
    return value


def numbers(text: str | None, option: str) -> list[float]:
    """Parse numbers separated by commas, such as '1,2.5'."""
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


def condition(text: str) -> tuple[str, str, bool]:
    """Parse a condition of --where, 'arm=a' or 'arm!=a': return (column, value, whether rows must have it)."""
    column, value = column_value(text, "--where")
    name = column.removesuffix("!").rstrip()
    if not name:
        raise UsageError(f"--where takes COLUMN=VALUE or COLUMN!=VALUE, not {text!r}")
    return name, value, name == column


def start_value(text: str | None) -> Any:
    return text if text in (None, "first", "fit") else number(text, "--start takes a number, 'first' or 'fit'")


def skip_before_value(text: str | None) -> float | str | None:
    """Return a compute as a number; a share unchanged."""
    if text is None:
        return None
    value = number(text.removesuffix("%"), "--skip-before takes a compute or a share such as '10%'")
    if value < 0:
        raise UsageError(f"--skip-before must not be negative, but is {text}")
    return text if text.endswith("%") else value
