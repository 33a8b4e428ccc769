"""Import the function at "package.module:function". Standard library only: processes that grade import this too.

Before anything is imported, a line on stderr names it, once per run. That includes functions of this package: one that
was not made for what a recipe uses it for may do anything, such as call a server.

An object that cannot be imported, such as a lambda, can be given a path that is valid in this process.
"""

import importlib
import os
import re
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from scalerl.errors import ImportPathError

_LONGEST_REASON = 500
ANNOUNCED = "SCALERL_ANNOUNCED"
"""Variable with what has been announced, a line each; processes that a run starts inherit it."""

_OBJECTS: dict[str, Callable[..., Any]] = {}
"""Objects of this process, by the path they were given."""


def path_of(function: Callable[..., Any], kind: str) -> str:
    """Return a path at which import_function finds the object: its own, or one that is valid in this process only.

    `kind` names an object without a name. A second object of the same path replaces the first.
    """
    module = getattr(function, "__module__", None) or ""
    name = getattr(function, "__qualname__", "")
    path = f"{module}:{name}"
    if module != "__main__" and name.isidentifier() and getattr(sys.modules.get(module), name, None) is function:
        return _known(path)
    plain = name.rpartition(".")[2]
    # runpy and notebooks have modules whose names are not identifiers.
    safe_module = re.sub(r"[^\w.]", "_", module) or kind
    path = f"{safe_module}:{plain if plain.isidentifier() else kind}"
    _OBJECTS[path] = function
    return _known(path)


def is_local(path: str) -> bool:
    """Return whether a path is that of an object of this process, which no other process can import."""
    return path in _OBJECTS


def announce(*things: str, says: str = "runs code that settings name") -> None:
    """Say on stderr what this command is about to do because settings name these things, unless it has been said."""
    for thing in things:
        if (shown := _escaped(thing)) not in os.environ.get(ANNOUNCED, "").splitlines():
            print(f"this command {says}: {shown}", file=sys.stderr)
            _known(thing)


def _known(code: str) -> str:
    """Note that a user knows of this code, and return it: it was announced, or handed over by the user."""
    os.environ[ANNOUNCED] = f"{os.environ.get(ANNOUNCED, '')}\n{_escaped(code)}"
    return code


def _escaped(code: str) -> str:
    """Return text that can neither end its line nor move the cursor over it."""
    return code.encode("unicode_escape").decode()


def import_function(path: str) -> Callable[..., Any]:
    """Return the function at `path`; ImportPathError says why it cannot be imported.

    Modules in the current folder are found after all others. A console script has its own folder on sys.path and not
    the current one, where a user's module lies. The current folder goes to the end, so that a file in it cannot replace
    an installed package.
    """
    if path in _OBJECTS:
        return _OBJECTS[path]
    module_name, _, function_name = path.partition(":")
    announce(path)
    if not {"", str(Path.cwd())} & set(sys.path):
        sys.path.append(str(Path.cwd()))
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        # Either the module itself is missing or one that it imports: the user must know which.
        raise ImportPathError(path, f'no module is called "{error.name}"') from None
    # A script that was meant to be run by itself may call sys.exit.
    except (Exception, SystemExit) as error:
        raise ImportPathError(path, one_line(error)) from error
    function = getattr(module, function_name, None)
    if function is None:
        public = tuple(name for name in vars(module) if not name.startswith("_"))
        raise ImportPathError(path, f'{module_name} has no "{function_name}"', name=function_name, choices=public)
    if not callable(function):
        raise ImportPathError(path, f"it is not a function but {type(function).__name__}")
    return function


def one_line(error: BaseException) -> str:
    """Return an exception's type and message on one line, cut where it is very long."""
    return " ".join(f"{type(error).__name__}: {error}".split())[:_LONGEST_REASON]


def own_place(error: BaseException) -> str:
    """Return the innermost line of a user's own code that an exception passed through; "" if there is none."""
    here = str(Path(__file__).parent)
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        if not (frame.filename.startswith((here, "<")) or "site-packages" in frame.filename):
            return f"{Path(frame.filename).name}, line {frame.lineno}, in {frame.name}"
    return ""
