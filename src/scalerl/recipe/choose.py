"""Return the function that a recipe names, with its settings bound.

loss = choose(LOSSES, recipe.loss)                                  # LOSSES["cispo"] with cap=5.0 bound,
                                                                    # or the function at an import path
build = entry(ENGINES, recipe.rollout.engine, "rollout.engine")     # ENGINES["torch"]
"""

import functools
import inspect
import json
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

from scalerl.errors import ImportPathError, RecipeError, RecipeProblem
from scalerl.recipe import import_path
from scalerl.recipe.parts import Settings
from scalerl.recipe.suggest import did_you_mean, quoted

Choice = TypeVar("Choice")


def choose(table: Mapping[str, Callable[..., Any]], part: Settings) -> Callable[..., Any]:
    """Return the function that a part of a recipe names, with the part's other settings as keyword arguments."""
    # Do not use model_dump: settings that are values (tables, lists) are passed to the function unchanged.
    settings = {name: value for name, value in part if name != "name"}
    name = getattr(part, "name", None)
    if name is None:
        table_name = type(part).__name__.removesuffix("Settings").lower()
        raise RecipeError(f"{table_name}.name is not set; choices: {quoted(table)}")
    if ":" in name:
        function = import_function(name)
    else:
        function = entry(table, name, "the function")
    # A part that passes unknown keys to its function has its own settings, which can also be misspelt.
    _check_settings(name, function, settings, own=type(part).model_fields)
    return functools.partial(function, **settings) if settings else function


def entry(table: Mapping[str, Choice], name: str, what: str) -> Choice:
    """Return table[name]; if it does not exist, RecipeError says that `what` is unknown and lists the choices."""
    if name not in table:
        statement = f'{what} "{name}" is unknown; choices: {quoted(table)}'
        raise RecipeError(RecipeProblem(statement=statement, suggestion=did_you_mean(name, table)))
    return table[name]


def import_function(path: str) -> Callable[..., Any]:
    """Return the function at "package.module:function"; RecipeError if it cannot be imported."""
    try:
        return import_path.import_function(path)
    except ImportPathError as error:
        suggestion = did_you_mean(error.name, error.choices)
        raise RecipeError(RecipeProblem(statement=str(error), suggestion=suggestion)) from error


def keyword_settings(function: Callable[..., Any]) -> dict[str, inspect.Parameter]:
    """Return the keyword-only arguments of a function: what a recipe may set."""
    parameters = inspect.signature(function).parameters
    return {name: parameter for name, parameter in parameters.items() if parameter.kind is parameter.KEYWORD_ONLY}


def _check_settings(name: str, function: Callable[..., Any], settings: Mapping[str, Any], own: Iterable[str]) -> None:
    try:
        parameters = inspect.signature(function).parameters.values()
    except (ValueError, TypeError):
        raise RecipeError(
            f'"{name}" has no known signature, so its settings cannot be checked: wrap it in a function'
        ) from None
    known = keyword_settings(function)
    takes_any = any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters)
    for setting in settings:
        if setting not in known and not takes_any:
            has = f"which has {', '.join(known)}" if known else "which has no settings"
            raise RecipeError(
                RecipeProblem(
                    statement=f'{setting} is not a setting of "{name}", {has}',
                    suggestion=did_you_mean(setting, [*known, *own]),
                )
            )
    for setting, value in settings.items():
        _check_type(name, setting, value, known[setting].annotation if setting in known else None)
    for setting, parameter in known.items():
        if parameter.default is parameter.empty and setting not in settings:
            raise RecipeError(f'{setting} is not set, but "{name}" needs it')


# Only plain types are checked here; functions check other types themselves.
_KINDS = {int: "a whole number", float: "a number", str: "text", bool: "true or false"}


def _check_type(name: str, setting: str, value: Any, declared: Any) -> None:
    kind = next((kind for kind in _KINDS if declared in (kind, kind.__name__)), None)
    fits = kind is None or type(value) is kind or (kind is float and type(value) is int)
    if not fits:
        raise RecipeError(f'{setting} is {json.dumps(value, default=str)} but must be {_KINDS[kind]} for "{name}"')
