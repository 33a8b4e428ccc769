"""Code that runs in the sandboxed process of a program: assemble it, run it, and serve calls to its functions.

The program can change everything in its process, so nothing here is trusted after it has started: this side only
returns values, and the tests compare them in another process.
"""

import ast
import builtins
import importlib
import os
import socket
import sys
import types
from typing import Any

from scalerl.training.graders.sandbox.values import Pointer, decode, encode
from scalerl.training.graders.sandbox.wire import BadMessage, Closed, receive, send

# Largest number of lines to drop from the end of a continuation until the rest is valid Python.
_MOST_CUTS = 400
_LONGEST_MESSAGE = 300


def assemble(prefix: str, code: str, entry_point: str) -> str:
    """Return the program to run: `code`, joined with the problem's prefix, if any.

    A prefix is a prompt that ends inside a function. Code that defines the entry point follows the prefix on a new
    line, or replaces it if the two do not parse together. Other code continues the function; lines are dropped from its
    end until everything parses.
    """
    if not prefix:
        return code
    if _defines(code, entry_point):
        joined = f"{prefix}\n{code}"
        return joined if parses(joined) else code
    lines = (prefix + code).split("\n")
    for num_cut in range(min(_MOST_CUTS, len(lines))):
        joined = "\n".join(lines[: len(lines) - num_cut])
        if parses(joined):
            return joined
    return prefix + code


def parses(code: str) -> bool:
    """Return whether a text is valid Python."""
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
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) and node.name == name:
            return True
        if isinstance(node, ast.Assign):
            for target in node.targets:
                if isinstance(target, ast.Name) and target.id == name:
                    return True
    return False


def _run(job: Any, name: str) -> dict[str, Any]:
    """Execute the assembled program as a module called `name`; return its globals."""
    source = assemble(job["prefix"], job["code"], job["entry_point"])
    module = types.ModuleType(name)
    module.__dict__["__builtins__"] = builtins
    sys.modules[name] = module
    sys.argv = [""]
    # Define them as the module `site` does, which was not imported.
    builtins.exit = builtins.quit = sys.exit
    exec(compile(source, "<program>", "exec", dont_inherit=True), module.__dict__)
    return module.__dict__


def run_script(job: Any, descriptors: list[int]) -> None:
    """Run the program as a script: stdin and stdout are the two descriptors."""
    for descriptor, standard in zip(descriptors, (0, 1), strict=True):
        os.dup2(descriptor, standard)
        os.close(descriptor)
    text: Any = {"encoding": "utf-8", "errors": "surrogateescape", "closefd": False}
    sys.stdin = sys.__stdin__ = open(0, **text)  # noqa: SIM115
    sys.stdout = sys.__stdout__ = open(1, "w", **text)  # noqa: SIM115
    _run(job, "__main__")


def answer_calls(job: Any, descriptors: list[int]) -> None:
    """Run the program, then answer calls to its functions, which arrive on the descriptor, until this is closed."""
    channel = socket.socket(fileno=descriptors[0])
    try:
        names = _run(job, "program")
    except BaseException as error:
        send(channel, {"ready": False, "error": _described(error)})
        os._exit(0)
    send(channel, {"ready": True})
    objects = _Objects(names)
    try:
        while True:
            _answer(channel, receive(channel), objects)
    except (Closed, OSError):
        os._exit(0)


class _Objects:
    """The program's objects to which tests refer: by name, or by the number with which they were sent."""

    def __init__(self, names: dict[str, Any]) -> None:
        self._names = names
        self._sent: list[Any] = []
        self._numbers: dict[int, int] = {}

    def refer(self, value: Any) -> int:
        """Return the number of an object, which is always the same for the same object."""
        number = self._numbers.setdefault(id(value), len(self._sent))
        if number == len(self._sent):
            self._sent.append(value)
        return number

    def resolve(self, reference: Pointer) -> Any:
        """Return an object. If a name is not global, it is looked up in the program's class `Solution`."""
        if isinstance(reference, int):
            return self._sent[reference]
        if isinstance(reference, list):
            kind, owner, name = reference
            found = importlib.import_module(owner) if kind == "global" else decode(owner, self.resolve)
            return getattr(found, name)
        if reference in self._names:
            return self._names[reference]
        if reference and hasattr(self._names.get("Solution"), reference):
            return getattr(self._names["Solution"](), reference)
        raise NameError(f"name '{reference}' is not defined")


def _answer(channel: socket.socket, call: Any, objects: _Objects) -> None:
    """Get an attribute of an object, or call it, and send the value or the error."""
    try:
        target = objects.resolve(call["target"])
        if "attribute" in call:
            reply = {"value": encode(getattr(target, call["attribute"]), objects.refer)}
        else:
            arguments = decode(call["arguments"], objects.resolve)
            value = target(*arguments, **decode(call["keywords"], objects.resolve))
            reply = {"value": encode(value, objects.refer)}
            # A function may change its arguments in place: send them back, too.
            after = ["tuple", [encode(argument, objects.refer) for argument in arguments]] if call["mutable"] else None
            if after is not None and after != call["arguments"]:
                reply["arguments"] = after
    except BaseException as error:
        reply = {"error": _described(error)}
    try:
        send(channel, {"number": call["number"], **reply})
    except (BadMessage, ValueError, RecursionError, MemoryError) as error:
        send(channel, {"number": call["number"], "error": _described(error)})


def _described(error: BaseException) -> list[str]:
    """Return the nearest built-in class of an exception, which tests may expect, and its message."""
    try:
        name = next(kind.__name__ for kind in type(error).__mro__ if kind.__module__ == "builtins")
        return [name, str(error)[:_LONGEST_MESSAGE]]
    except BaseException:
        return ["Exception", ""]
