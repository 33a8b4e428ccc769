"""What runs in the process of the tests: the data set's test code, with proxies for what the program defines.

A proxy sends a name and arguments to the program's process and gets a value back, as data. Every comparison is made
here. Each assert counts on its own where that does not change what the tests do; the counts go to the grader process
over a socket that the program never had.
"""

import ast
import builtins
import os
import socket
import types
from collections import deque
from dataclasses import dataclass, field
from typing import Any, cast

from scalerl.graders.sandbox.names import free_names
from scalerl.graders.sandbox.values import Malformed, NotData, Pointer, decode, encode
from scalerl.graders.sandbox.wire import BadMessage, Closed, receive, send


class ProgramGone(BaseException):
    """The program's process ended, or sent what is not an answer. Not an Exception: tests must not catch it."""


class ProgramError(Exception):
    """The program raised an exception of a class that the tests cannot know."""


class TestsUnusable(BaseException):
    """The tests themselves are at fault: they pass on something that cannot be sent."""


class Program:
    """The program in the other process."""

    def __init__(self, channel: socket.socket) -> None:
        self._channel = channel

    def wait_until_ready(self) -> str | None:
        """Return None once the program has been run, or the name of the error with which that ended."""
        started = self._receive()
        return None if started.get("ready") is True else type(_exception(started.get("error"))).__name__

    def get(self, target: int | str, attribute: str) -> Any:
        return self._ask({"target": target, "attribute": attribute})

    def call(self, target: int | str, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
        try:
            # The order of keywords and of what they hold does not matter to a call: they are not checked for changes.
            sent = {"arguments": encode(arguments, _reference), "keywords": encode(keywords, _reference)}
        except NotData as error:
            raise TestsUnusable(str(error)) from None
        mutable = any(isinstance(argument, list | dict | set | bytearray | deque) for argument in arguments)
        return self._ask({"target": target, "mutable": mutable, **sent}, arguments)

    def _ask(self, question: dict[str, Any], arguments: tuple[Any, ...] = ()) -> Any:
        # Known with the question alone: a program cannot answer what it has not been asked yet.
        number = os.urandom(8).hex()
        try:
            send(self._channel, {"number": number, **question})
        # Arguments grow too long only where the program made them so, and that must not save it from a verdict.
        except (BadMessage, OSError) as error:
            raise ProgramGone(str(error)) from None
        reply = self._receive()
        if reply.get("number") != number:
            raise ProgramGone("an answer that was not asked for")
        if "error" in reply:
            raise _exception(reply["error"])
        try:
            value = decode(reply.get("value"), self._resolve)
            if "arguments" in reply:
                _put_back(arguments, decode(reply["arguments"], self._resolve))
        except Malformed as error:
            raise ProgramGone(str(error)) from None
        return value

    def _receive(self) -> dict[str, Any]:
        try:
            message = receive(self._channel)
        except (Closed, BadMessage, OSError) as error:
            raise ProgramGone(str(error)) from None
        if not isinstance(message, dict):
            raise ProgramGone("not an answer")
        return message

    def _resolve(self, number: int) -> "Proxy":
        if not isinstance(number, int):
            raise Malformed("not a reference")
        return Proxy(self, number)


class Proxy:
    """Something that only the program has: a function, a class or an object. Equal to itself alone.

    `target` is its name, or the number under which the program sent it.
    """

    def __init__(self, program: Program, target: int | str) -> None:
        self.__dict__["_program"], self.__dict__["_target"] = program, target

    def __call__(self, *arguments: Any, **keywords: Any) -> Any:
        return self._program.call(self._target, arguments, keywords)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return self._program.get(self._target, name)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Proxy) and other._target == self._target

    def __hash__(self) -> int:
        return hash(self._target)


def _reference(value: Any) -> Pointer:
    """Return what stands for something in a message to the program: an object of its own, or one of Python's.

    The latter may come of a wrong answer: if `node` is a list, `node.index` is a method.
    """
    if isinstance(value, Proxy):
        return value._target
    name = getattr(value, "__name__", None)
    if isinstance(name, str) and getattr(builtins, name, None) is value:
        return ["builtin", None, name]
    if isinstance(value, types.BuiltinMethodType | types.MethodWrapperType) and not isinstance(
        value.__self__, types.ModuleType
    ):
        return ["method", encode(value.__self__, _reference), value.__name__]
    raise NotData(f"a value of type {type(value).__name__} cannot be sent to the program")


def _exception(described: Any) -> BaseException:
    """Return what the program raised, as an exception of the same built-in class."""
    name, message = map(str, described) if isinstance(described, list) and len(described) == 2 else ("", "")
    kind = getattr(builtins, name, None)
    # As from a generator: raised out of a call, it would end a loop of the tests as if all were well.
    if kind in (StopIteration, StopAsyncIteration):
        return RuntimeError(f"the program raised {name}")
    if isinstance(kind, type) and issubclass(kind, Exception):
        try:
            return kind(message)
        except TypeError:
            pass
    return ProgramError(f"{name}: {message}")


def _put_back(arguments: tuple[Any, ...], after: Any) -> None:
    """Change the arguments of a call to what the program has made of them."""
    if not isinstance(after, tuple) or len(after) != len(arguments):
        raise Malformed("not the arguments of the call")
    for argument, new in zip(arguments, after, strict=True):
        if type(argument) is type(new) and isinstance(argument, list | dict | set | bytearray | deque):
            argument.clear()
            argument.extend(new) if isinstance(argument, list | bytearray | deque) else argument.update(new)


@dataclass(slots=True, kw_only=True)
class Checks:
    """The checks of one test: its assert statements, or the test as a whole if there are none to count."""

    num: int
    met: dict[int, bool] = field(default_factory=dict)
    """By number: whether a check that was made was met every time."""
    error: str | None = None
    """What ended the test."""
    raised: str = "AssertionError"
    """What the last check that raised did."""

    def record(self, number: int, met: Any, error: Exception | None = None) -> None:
        self.met[number] = bool(met) and self.met.get(number, True)
        self.raised = type(error).__name__ if error else self.raised

    def summary(self) -> tuple[int, int, str | None]:
        """Return how many checks were met, how many there are, and what went wrong, if anything."""
        error = self.error or (None if all(self.met.values()) else self.raised)
        if error is None:
            return self.num, self.num, None
        num_met = sum(self.met.values())
        # What was raised outside of an assert is a check that was not met.
        return num_met, max(self.num, num_met + 1), error


class _Recording(ast.NodeTransformer):
    """Makes asserts record whether they were met, and go on; `num` is their number."""

    num = 0
    catches = False
    """Whether the test catches exceptions, so that it may rely on an assert that raises."""

    def visit_Assert(self, node: ast.Assert) -> ast.stmt:
        if isinstance(node.test, ast.Constant):
            return node
        number, self.num = self.num, self.num + 1
        raised = f"except Exception as __raised__: __record__({number}, False, __raised__)"
        (made,) = ast.parse(f"try: __record__({number}, None)\n{raised}").body
        cast(Any, made).body[0].value.args[1] = node.test
        return ast.copy_location(made, node)

    def visit_Try(self, node: ast.AST) -> ast.AST:
        self.catches = True
        return node

    visit_With = visit_Try


def prepared(test: str) -> tuple[ast.Module, int]:
    """Return a test whose asserts record whether they were met and go on, and how many checks it has.

    A test that catches exceptions is left as it is and counts once.
    """
    recording = _Recording()
    tree = recording.visit(ast.parse(test))
    return (ast.parse(test), 1) if recording.catches else (tree, max(1, recording.num))


class _Names(dict[str, Any]):
    """The builtins of the tests, and the names that are the program's to define."""

    program: Program | None = None
    asked: frozenset[str] = frozenset()
    """Those names; empty where they are not known: then what tests do not define is the program's."""

    def __missing__(self, name: str) -> Proxy:
        if self.program is None:
            raise KeyError(name)
        self.check(name)
        return Proxy(self.program, name)

    def check(self, *used: str) -> None:
        """Raise TestsUnusable if the tests use a name that neither they nor the program are to define."""
        if self.asked and (unknown := sorted(set(used) - self.asked)):
            raise TestsUnusable(f"they use {unknown[0]} and do not define it")


def run_tests(job: Any, descriptors: list[int]) -> None:
    """Run the tests against the program at the first descriptor; send their checks to the second."""
    channel, results = (socket.socket(fileno=number) for number in descriptors)
    program = Program(channel)
    try:
        failure = program.wait_until_ready()
    except ProgramGone:
        failure = "ProgramGone"
    try:
        namespace, names = _namespace(job, program)
        # All are compiled first: tests that cannot be used make no verdict, whatever the program does.
        tests = [prepared(test) for test in job["asserts"]]
        names.check(*free_names(*job["asserts"]) - namespace.keys())
        compiled = [(compile(tree, "<tests>", "exec", dont_inherit=True), num) for tree, num in tests]
        report: Any = {"tests": [_run(code, num, namespace, failure).summary() for code, num in compiled]}
    except (TestsUnusable, Exception) as error:
        report = {"unusable": f"{type(error).__name__}: {error}"}
    send(results, report)
    os._exit(0)


def _namespace(job: Any, program: Program) -> tuple[dict[str, Any], _Names]:
    """Return the names that tests have: those of their setup, and Python's with the program's."""
    names = _Names(builtins.__dict__)
    namespace: dict[str, Any] = {"__name__": "tests", "__builtins__": names}
    exec(compile(job["setup"], "<setup>", "exec", dont_inherit=True), namespace)
    names.program, names.asked = program, frozenset({job["entry_point"], *job["names"]} - {""})
    if job["entry_point"]:
        namespace[job["entry_point"]] = namespace["candidate"] = Proxy(program, job["entry_point"])
    return namespace, names


def _run(code: types.CodeType, num: int, namespace: dict[str, Any], failure: str | None) -> Checks:
    checks = Checks(num=num, error=failure)
    try:
        if failure is None:
            namespace["__record__"] = checks.record
            exec(code, namespace)
    except TestsUnusable:
        raise
    except BaseException as error:
        checks.error = type(error).__name__
    return checks
