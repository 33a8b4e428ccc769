"""What runs in the process of the tests: the data set's test code, with proxies for what the program defines.

A proxy sends a name and arguments to the program's process and gets a value back, as data. Every comparison is made
here. Each assert counts on its own where that does not change what the tests do; the counts go to the grader process
over a socket that the program never had.
"""

import ast
import builtins
import os
import socket
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from scalerl.graders.sandbox.values import Malformed, NotData, decode, encode
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
        self._num_calls = 0

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
        self._num_calls += 1
        try:
            send(self._channel, {"number": self._num_calls, **question})
        # Arguments grow too long only where the program made them so, and that must not save it from a verdict.
        except (BadMessage, OSError) as error:
            raise ProgramGone(str(error)) from None
        reply = self._receive()
        if reply.get("number") != self._num_calls:
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


def _reference(value: Any) -> int | str:
    """Return what stands for an object of the program in a message to it."""
    if isinstance(value, Proxy):
        return value._target
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

    def record(self, number: int, met: Any) -> None:
        self.met[number] = bool(met) and self.met.get(number, True)

    def summary(self) -> tuple[int, int, str | None]:
        """Return how many checks were met, how many there are, and what went wrong, if anything."""
        error = self.error or (None if all(self.met.values()) else "AssertionError")
        if error is None:
            return self.num, self.num, None
        num_met = sum(self.met.values())
        # What was raised outside of an assert is a check that was not met.
        return num_met, max(self.num, num_met + 1), error


def prepared(test: str) -> tuple[ast.Module, int]:
    """Return a test whose asserts record whether they were met and go on, and how many checks it has.

    A test that catches exceptions may rely on an assert that raises, so it is left as it is and counts once.
    """
    tree = ast.parse(test)
    bodies = list(_bodies(tree))
    if any(isinstance(node, ast.Try | ast.With) for body in bodies for node in body):
        return tree, 1
    num = 0
    for body in bodies:
        for at, node in enumerate(body):
            if isinstance(node, ast.Assert) and not isinstance(node.test, ast.Constant):
                body[at] = _recording(node, num)
                num += 1
    return tree, max(1, num)


def _bodies(node: Any) -> Iterator[list[Any]]:
    """Yield every list of statements below a node."""
    for name in ("body", "orelse", "finalbody", "handlers", "cases"):
        inner = getattr(node, name, None)
        if isinstance(inner, list):
            yield inner
            for child in inner:
                yield from _bodies(child)


def _recording(node: ast.Assert, number: int) -> ast.Try:
    place: Any = {"lineno": node.lineno, "col_offset": 0, "end_lineno": node.lineno, "end_col_offset": 0}

    def record(met: ast.expr) -> ast.Expr:
        name = ast.Name("__record__", ast.Load(), **place)
        return ast.Expr(ast.Call(name, [ast.Constant(number, **place), met], [], **place), **place)

    failed = record(ast.Constant(False, **place))
    handler = ast.ExceptHandler(ast.Name("Exception", ast.Load(), **place), None, [failed], **place)
    return ast.Try([record(node.test)], [handler], [], [], **place)


class _Names(dict[str, Any]):
    """The builtins of the tests. What they do not define is the program's."""

    program: Program | None = None

    def __missing__(self, name: str) -> Proxy:
        if self.program is None:
            raise KeyError(name)
        return Proxy(self.program, name)


def run_tests(job: Any, descriptors: list[int]) -> None:
    """Run the tests against the program at the first descriptor; send their checks to the second."""
    channel, results = (socket.socket(fileno=number) for number in descriptors)
    program = Program(channel)
    try:
        failure = program.wait_until_ready()
    except ProgramGone:
        failure = "ProgramGone"
    try:
        tests = _calls(job, program) if "function" in job else _asserts(job, program)
        report = {"tests": [_run(checks, run, failure).summary() for checks, run in tests]}
    except (TestsUnusable, Exception) as error:
        report = {"unusable": f"{type(error).__name__}: {error}"}
    send(results, report)
    os._exit(0)


Test = tuple[Checks, Callable[[], None]]
"""What is checked, and what makes the checks."""


def _run(checks: Checks, run: Callable[[], None], failure: str | None) -> Checks:
    try:
        checks.error = failure
        if failure is None:
            run()
    except TestsUnusable:
        raise
    except BaseException as error:
        checks.error = type(error).__name__
    return checks


def _asserts(job: Any, program: Program) -> list[Test]:
    names = _Names(builtins.__dict__)
    namespace: dict[str, Any] = {"__name__": "tests", "__builtins__": names}
    exec(compile(job["setup"], "<setup>", "exec", dont_inherit=True), namespace)
    names.program = program
    if job["entry_point"]:
        namespace[job["entry_point"]] = namespace["candidate"] = Proxy(program, job["entry_point"])
    return [_assert_test(test, namespace) for test in job["tests"]]


def _assert_test(test: str, namespace: dict[str, Any]) -> Test:
    tree, num = prepared(test)
    checks = Checks(num=num)
    code = compile(tree, "<tests>", "exec", dont_inherit=True)

    def run() -> None:
        namespace["__record__"] = checks.record
        exec(code, namespace)

    return checks, run


def _calls(job: Any, program: Program) -> list[Test]:
    function = Proxy(program, job["function"])

    def test(arguments: list[Any], expected: Any) -> Test:
        checks = Checks(num=1)
        return checks, lambda: checks.record(0, _as_json(function(*arguments)) == expected)

    return [test(*case) for case in job["cases"]]


def _as_json(value: Any) -> Any:
    """Return a value with tuples as lists, since expectations written in JSON have no tuples."""
    if isinstance(value, list | tuple):
        return [_as_json(item) for item in value]
    return {key: _as_json(item) for key, item in value.items()} if isinstance(value, dict) else value
