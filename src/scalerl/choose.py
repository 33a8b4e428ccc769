"""From a name in a recipe to a function with its settings bound.

loss = choose(LOSSES, recipe.loss)      # LOSSES["cispo"] with cap=5.0, or the function at an import path
"""

import functools
import importlib
import inspect
import json
import sys
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from scalerl.config import Settings
from scalerl.config.suggest import did_you_mean, quoted
from scalerl.errors import RecipeError


def choose(table: Mapping[str, Callable[..., Any]], part: Settings) -> Callable[..., Any]:
    """The function this part of a recipe names, with the part's other settings bound as keyword arguments."""
    # Not model_dump: a setting that is itself a value (a table, a list) goes to the function as it is.
    settings = {name: value for name, value in part if name != "name"}
    name = getattr(part, "name", None)
    if name is None:
        table_name = type(part).__name__.removesuffix("Settings").lower()
        raise RecipeError(f"{table_name}.name is not set; choices: {quoted(table)}")
    if ":" in name:
        function = import_function(name)
    elif name in table:
        function = table[name]
    else:
        raise RecipeError(f'no function is called "{name}"; choices: {quoted(table)}{did_you_mean(name, table)}')
    # A part that takes any setting for its function's may have some of its own, which can be misspelt too.
    _check_settings(name, function, settings, own=type(part).model_fields)
    return functools.partial(function, **settings) if settings else function


def import_function(path: str) -> Callable[..., Any]:
    """The function at "package.module:function"; modules of the current folder are found after all others.

    A console script has its own folder on sys.path and not the current one, where a user's module lies. It goes to the
    end, so that a file there cannot take the place of an installed package.
    """
    module_name, _, function_name = path.partition(":")
    if not {"", str(Path.cwd())} & set(sys.path):
        sys.path.append(str(Path.cwd()))
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        # The module itself is missing, or one that it needs: the user must know which.
        raise RecipeError(f'"{path}" cannot be imported: no module is called "{error.name}"') from None
    # A script that was meant to be run by itself may well leave.
    except (Exception, SystemExit) as error:
        reason = " ".join(f"{type(error).__name__}: {error}".split())
        raise RecipeError(f'"{path}" cannot be imported: {reason}') from error
    function = getattr(module, function_name, None)
    if function is None:
        public = [name for name in vars(module) if not name.startswith("_")]
        raise RecipeError(
            f'"{path}" cannot be imported: {module_name} has no "{function_name}"{did_you_mean(function_name, public)}'
        )
    if not callable(function):
        raise RecipeError(f'"{path}" is no function but {type(function).__name__}')
    return function


def keyword_settings(function: Callable[..., Any]) -> dict[str, inspect.Parameter]:
    """The keyword-only arguments of a function: what a recipe may set."""
    parameters = inspect.signature(function).parameters
    return {name: parameter for name, parameter in parameters.items() if parameter.kind is parameter.KEYWORD_ONLY}


def _check_settings(name: str, function: Callable[..., Any], settings: Mapping[str, Any], own: Iterable[str]) -> None:
    try:
        parameters = inspect.signature(function).parameters.values()
    except (ValueError, TypeError):
        raise RecipeError(
            f'"{name}" does not say which arguments it takes, so its settings cannot be checked: wrap it in a function'
        ) from None
    known = keyword_settings(function)
    takes_any = any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters)
    for setting in settings:
        if setting not in known and not takes_any:
            has = f"which has {', '.join(known)}" if known else "which has no settings"
            raise RecipeError(f'{setting} is no setting of "{name}", {has}{did_you_mean(setting, [*known, *own])}')
    for setting, value in settings.items():
        _check_type(name, setting, value, known[setting].annotation if setting in known else None)
    for setting, parameter in known.items():
        if parameter.default is parameter.empty and setting not in settings:
            raise RecipeError(f'{setting} is not set, and "{name}" needs it')


# Only plain ones: what else a function declares is its own to check.
_KINDS = {int: "a whole number", float: "a number", str: "text", bool: "true or false"}


def _check_type(name: str, setting: str, value: Any, declared: Any) -> None:
    kind = next((kind for kind in _KINDS if declared in (kind, kind.__name__)), None)
    fits = kind is None or type(value) is kind or (kind is float and type(value) is int)
    if not fits:
        raise RecipeError(f'{setting} is {json.dumps(value, default=str)} but must be {_KINDS[kind]} for "{name}"')
