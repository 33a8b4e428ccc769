"""Code that runs in the sandboxed process of a program: assemble it, run it, and serve calls to its functions.

The program can change everything in its process, so nothing here is trusted once it has started: this side only returns
values, and the tests compare them in another process.
"""

import ast
import atexit
import builtins
import os
import socket
import sys
import threading
import types
from typing import Any

from scalerl.graders.sandbox.values import decode, encode
from scalerl.graders.sandbox.wire import BadMessage, Closed, receive, send

# Lines that are cut off the end of a continuation, at most, until the rest is Python.
_MOST_CUTS = 400
_LONGEST_MESSAGE = 300


def assemble(prefix: str, code: str, entry_point: str) -> str:
    """Return the program to run: `code`, joined with the prefix that the problem gives, if any.

    A prefix is a prompt that ends inside a function. Code that defines the entry point itself follows the prefix on a
    new line, or replaces it if the two do not parse together. Other code continues the function; lines at its end are
    dropped until the whole parses.
    """
    if not prefix:
        return code
    if _defines(code, entry_point):
        joined = f"{prefix}\n{code}"
        return joined if _parses(joined) else code
    lines = (prefix + code).split("\n")
    for num_cut in range(min(_MOST_CUTS, len(lines))):
        joined = "\n".join(lines[: len(lines) - num_cut])
        if _parses(joined):
            return joined
    return prefix + code


def _parses(code: str) -> bool:
    try:
        compile(code, "<program>", "exec", dont_inherit=True)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False
    return True


def _defines(code: str, name: str) -> bool:
    try:
        tree = ast.parse(code)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False
    names = {node.name for node in tree.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)}
    for node in tree.body:
        if isinstance(node, ast.Assign):
            names |= {target.id for target in node.targets if isinstance(target, ast.Name)}
    return name in names or (not name and bool(names))


def _run(job: Any, name: str) -> dict[str, Any]:
    """Execute the assembled program as a module called `name`; return its globals."""
    source = assemble(job["prefix"], job["code"], job["entry_point"])
    module = types.ModuleType(name)
    module.__dict__["__builtins__"] = builtins
    sys.modules[name] = module
    sys.argv = [""]
    exec(compile(source, "<program>", "exec", dont_inherit=True), module.__dict__)
    return module.__dict__


def run_script(job: Any, descriptors: list[int]) -> None:
    """Run the program as a script: stdin and stdout are the two descriptors."""
    for descriptor, standard in zip(descriptors, (0, 1), strict=True):
        os.dup2(descriptor, standard)
        os.close(descriptor)
    sys.stdin = open(0, encoding="utf-8", errors="surrogateescape", closefd=False)  # noqa: SIM115
    sys.stdout = open(1, "w", encoding="utf-8", errors="surrogateescape", closefd=False)  # noqa: SIM115
    status = 0
    try:
        _run(job, "__main__")
    except SystemExit as error:
        status = error.code if isinstance(error.code, int) else int(error.code is not None)
    except BaseException:
        status = 1
    try:
        threading._shutdown()  # type: ignore[attr-defined]
        atexit._run_exitfuncs()
        sys.stdout.flush()
    except BaseException:
        status = status or 1
    os._exit(status & 0xFF)


def answer_calls(job: Any, descriptors: list[int]) -> None:
    """Run the program, then serve calls to its functions, which arrive on the first descriptor, until it is closed."""
    with socket.socket(fileno=descriptors[0]) as channel:
        try:
            names = _run(job, "program")
        except BaseException as error:
            send(channel, {"ready": False, "error": _described(error)})
            return
        send(channel, {"ready": True})
        objects: list[Any] = []
        try:
            while True:
                _answer(channel, receive(channel), names, objects)
        except (Closed, OSError):
            return


def _answer(channel: socket.socket, call: Any, names: dict[str, Any], objects: list[Any]) -> None:
    """Get an object or call a function, and send its value, or the error.

    Objects that cannot be sent are kept in `objects`, and their number is sent instead.
    """

    def refer(value: Any) -> int:
        objects.append(value)
        return len(objects) - 1

    try:
        target = _target(call["target"], names, objects)
        if call["do"] == "get":
            reply = {"value": encode(target, refer)}
        else:
            arguments = decode(call["arguments"], objects.__getitem__)
            keywords = decode(call["keywords"], objects.__getitem__)
            value = target(*arguments, **keywords)
            reply = {"value": encode(value, refer)}
            # Functions that work in place: the caller's lists must change as well.
            after = ["tuple", [encode(argument, refer) for argument in arguments]] if call["mutable"] else None
            if after is not None and after != call["arguments"]:
                reply["arguments"] = after
    except BaseException as error:
        reply = {"error": _described(error)}
    try:
        send(channel, {"number": call["number"], **reply})
    except (BadMessage, ValueError, RecursionError, MemoryError) as error:
        send(channel, {"number": call["number"], "error": _described(error)})


def _target(path: list[Any], names: dict[str, Any], objects: list[Any]) -> Any:
    """Return the object at a path: an object returned earlier (by number) or a global name, then its attributes.

    A name that is not global is looked up as a method of the program's class `Solution`.
    """
    first, *attributes = path
    if isinstance(first, int):
        value = objects[first]
    elif first in names:
        value = names[first]
    elif first and hasattr(names.get("Solution"), first):
        value = getattr(names["Solution"](), first)
    else:
        raise NameError(f"name '{first}' is not defined")
    for attribute in attributes:
        value = getattr(value, attribute)
    return value


def _described(error: BaseException) -> list[str]:
    try:
        return [type(error).__name__, str(error)[:_LONGEST_MESSAGE]]
    except BaseException:
        return ["Exception", ""]
