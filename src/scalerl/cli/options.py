"""How commands declare options: each with its help and what its value must be; and those that several share."""

import math
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias

import typer
from typer.core import TyperArgument, TyperOption

from scalerl.errors import UsageError

if TYPE_CHECKING:
    Parsed: TypeAlias = Any
    ParsedList: TypeAlias = Any
else:
    Parsed = str | None
    ParsedList = list[str] | None
"""The types of an option with a `check`, given once or several times: a command gets what that returns."""


@dataclass(frozen=True, slots=True)
class Conversion:
    """How typer converts the value of an option: only if it does not have its type yet.

    For a conversion typer imports pydantic, which takes longer than a fit.
    """

    by_typer: Callable[[Any], Any]

    def coerce(self, value: Any, *, param: Any, ctx: Any) -> Any:
        kind = param.type_descriptor.annotation
        if value is None:
            return () if param.multiple or param.nargs == -1 else None
        if isinstance(kind, type) and isinstance(value, kind):
            return value
        if kind == list[str] and not isinstance(value, str):
            return list(value)
        return self.by_typer(param).coerce(value, param=param, ctx=ctx)


for _kind in (TyperArgument, TyperOption):
    # Typer prints Python's type, as in <list[str]>, beside an argument and --help. Names and help say what a value is.
    _kind.display_type = lambda *_, **__: ""  # type: ignore[method-assign]
    # Older ones have neither this nor pydantic.
    if hasattr(_kind, "get_runtime_param"):
        _kind.get_runtime_param = partial(Conversion, _kind.get_runtime_param)  # pyright: ignore[reportAttributeAccessIssue]

Check = Callable[[Any, str], Any]
"""check(value, name of the option) returns the value that a command gets; UsageError says what the option takes."""


def option(metavar: str, text: str, *names: str, default: Any = None, check: Check | None = None, **more: Any) -> Any:
    """Declare an option; one that is `hidden` is shown by --help-all only. A default that says something is shown."""
    more = {"metavar": metavar, "help": text, "show_default": default not in (None, False, "", ...), **more}
    if check is None:
        return typer.Option(default, *names, **more)

    def checked(param: typer.CallbackParam, value: Any) -> Any:
        return value if value == default else check(value, param.opts[-1])

    return typer.Option(default, *names, callback=checked, **more)


def rare(metavar: str, text: str, *names: str, **more: Any) -> Any:
    """Declare an option that --help-all shows."""
    return option(metavar, text, *names, hidden=True, **more)


def argument(metavar: str, text: str, default: Any = ...) -> Any:
    return typer.Argument(default, metavar=metavar, help=text, show_default=False)


def flag(name: str, text: str, **more: Any) -> Any:
    """Declare an option that takes no value: its help shows no type beside the name."""
    return option("", text, name, **{"default": False, **more})


def _help_all(context: typer.Context, wanted: bool) -> None:
    if wanted:
        for param in context.command.params:
            param.hidden = False  # type: ignore[attr-defined]
        typer.echo(context.get_help())
        raise typer.Exit


HELP_ALL: bool = typer.Option(
    False, "--help-all", help="Show every option.", metavar="", is_eager=True, callback=_help_all
)
JSON: bool = flag("--json", "Print JSON instead of tables.")
BOARD: bool = flag("--board", "Show the progress in a browser, as 'scalerl watch' does.")
RECIPE: str = argument("RECIPE", "A recipe's name (scalerl recipe list), TOML file or run folder.")
OVERRIDES: Any = option(
    "KEY=VALUE", "Change a setting (scalerl recipe show RECIPE lists all); may be repeated.", "--set"
)
NOTIFY_VARIABLE = "SCALERL_NOTIFY"
TRUST: bool = flag("--trust-remote-code", "Let code that comes with the model run.", hidden=True)


def _webhook(url: str, option: str) -> str:
    from scalerl.web.notify import check_url

    # Processes that this command starts neither post nor know it.
    os.environ.pop(NOTIFY_VARIABLE, None)
    return check_url(url, option)


NOTIFY: str | None = option(
    "URL",
    f"Post news to a webhook of Slack, Discord ...; the variable {NOTIFY_VARIABLE} does the same.",
    "--notify",
    check=_webhook,
    envvar=NOTIFY_VARIABLE,
    show_envvar=False,
)


# What values must be --------------------------------------------------------------------------------------------------


def columns(texts: Sequence[str], option: str) -> tuple[str, ...]:
    """Return the words of all texts, separated by commas."""
    words = [word.strip() for word in ",".join(texts).split(",")]
    return tuple(word for word in words if word)


def positive(value: float, option: str) -> float:
    if not 0 < value < math.inf:
        raise UsageError(f"{option} must be positive and finite, not {value:g}")
    return value


def typed(text: str, option: str) -> str:
    """Return a positive number as it was typed, with its unit: its size is known once the log is read."""
    from scalerl.forecast.logs.written import positive_typed

    return str(positive_typed(text, option.removeprefix("--")))


def several_typed(texts: Sequence[str], option: str) -> list[str]:
    """Return the numbers of all texts, separated by commas, as they were typed: '1,2.5B' or '0.5,65%'."""
    from scalerl.forecast.logs.written import number_and_unit

    words = list(columns(texts, option))
    for word in words:
        number_and_unit(word, option.removeprefix("--"))
    return words


def one_of(*choices: str) -> Check:
    def check(text: str, option: str) -> str:
        if text not in choices:
            raise UsageError(f"{option} must be {', '.join(choices[:-1])} or {choices[-1]}, not {text!r}")
        return text

    return check


def column_value(text: str, option: str) -> tuple[str, str]:
    column, equals, value = text.partition("=")
    if not equals or not column.strip():
        raise UsageError(f"{option} takes COLUMN=VALUE, not {text!r}")
    return column.strip(), value.strip()


def conditions(texts: Sequence[str], option: str) -> list[tuple[str, str, bool]]:
    """Parse conditions, 'arm=a' or 'arm!=a': return (column, value, whether rows must have it) of each."""
    pairs = [column_value(text, option) for text in texts]
    parsed = [(column.removesuffix("!").rstrip(), value, not column.endswith("!")) for column, value in pairs]
    if any(not name for name, _, _ in parsed):
        raise UsageError(f"{option} takes COLUMN=VALUE or COLUMN!=VALUE, not {', '.join(texts)!r}")
    return parsed
