"""Code that runs in the process of the tests: the data set's test code, with proxies for the program's definitions.

A proxy sends a name and arguments to the program's process and gets a value back, as data. All comparisons are made
here. Each assert counts separately if that does not change the tests. The counts go to the grader process over a socket
that the program cannot access.
"""

import ast
import builtins
import os
import socket
import sys
import types
from collections import deque
from dataclasses import dataclass, field
from typing import Any, cast

from scalerl.training.graders.sandbox.names import free_names, module_names
from scalerl.training.graders.sandbox.values import Malformed, NotData, Pointer, decode, encode
from scalerl.training.graders.sandbox.wire import BadMessage, Closed, receive, send

_SEQUENCES = (list, bytearray, deque)
_MUTABLE = (*_SEQUENCES, dict, set)
"""Types of arguments that a function may change in place."""


class ProgramGone(BaseException):
    """The program's process ended or sent an invalid answer. Not an Exception, so that tests do not catch it."""


class ProgramError(Exception):
    """The program raised an exception of a class that tests cannot know."""


class TestsUnusable(BaseException):
    """The tests are at fault: they are invalid or pass a value that cannot be sent."""


class Program:
    """The program in the other process."""

    def __init__(self, channel: socket.socket) -> None:
        self._channel = channel
        self.is_gone = False
        """Whether its process has ended or sent an invalid answer. Tests may swallow the exception that says so."""

    def wait_until_ready(self) -> str | None:
        """Wait until the program has run; return None, or the name of its error."""
        started = self._receive()
        return None if started.get("ready") is True else type(_exception(started.get("error"))).__name__

    def get(self, target: int | str, attribute: str) -> Any:
        return self._ask({"target": target, "attribute": attribute})

    def call(self, target: int | str, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
        try:
            # Keyword arguments are not checked for changes.
            sent = {"arguments": encode(arguments, _reference), "keywords": encode(keywords, _reference)}
        except NotData as error:
            raise TestsUnusable(str(error)) from None
        mutable = any(isinstance(argument, _MUTABLE) for argument in arguments)
        return self._ask({"target": target, "mutable": mutable, **sent}, arguments)

    def _ask(self, question: dict[str, Any], arguments: tuple[Any, ...] = ()) -> Any:
        # The key is sent only with the question: a program cannot answer a question before it is asked.
        number = os.urandom(8).hex()
        try:
            send(self._channel, {"number": number, **question})
        # Arguments can become too long only if the program made them so; that must not prevent a verdict.
        except (BadMessage, OSError) as error:
            raise self._gone(str(error)) from None
        reply = self._receive()
        if reply.get("number") != number:
            raise self._gone("an answer that was not asked for")
        if "error" in reply:
            raise _exception(reply["error"])
        try:
            value = decode(reply.get("value"), self._resolve)
            if "arguments" in reply:
                _put_back(arguments, decode(reply["arguments"], self._resolve))
        except Malformed as error:
            raise self._gone(str(error)) from None
        return value

    def _receive(self) -> dict[str, Any]:
        try:
            message = receive(self._channel)
        except (Closed, BadMessage, OSError) as error:
            raise self._gone(str(error)) from None
        if not isinstance(message, dict):
            raise self._gone("not an answer")
        return message

    def _gone(self, reason: str) -> ProgramGone:
        self.is_gone = True
        return ProgramGone(reason)

    def _resolve(self, number: int) -> "Proxy":
        if not isinstance(number, int):
            raise Malformed("not a reference")
        return Proxy(self, number)


class Proxy:
    """A function, class or object of the program. It is equal only to itself.

    `target` is its name, or the number with which the program sent it.
    """

    def __init__(self, program: Program, target: int | str) -> None:
        self.__dict__["_program"] = program
        self.__dict__["_target"] = target

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
    """Return the reference to a value in a message to the program: one of its objects, or one that both know.

    A wrong answer can lead to the latter: if `node` is a list, `node.index` is a method, and `type(node)` a class.
    """
    if isinstance(value, Proxy):
        return value._target
    name = getattr(value, "__name__", None)
    module = str(getattr(value, "__module__", None))
    if isinstance(name, str) and getattr(sys.modules.get(module), name, None) is value:
        return ["global", module, name]
    if isinstance(value, types.BuiltinMethodType | types.MethodWrapperType | types.MethodType):
        return ["method", encode(value.__self__, _reference), value.__name__]
    raise NotData(f"a value of type {type(value).__name__} cannot be sent to the program")


def _exception(described: Any) -> BaseException:
    """Return the program's exception as one of the same built-in class."""
    name, message = "", ""
    if isinstance(described, list) and len(described) == 2:
        name, message = str(described[0]), str(described[1])
    kind = getattr(builtins, name, None)
    # As in generators: raised from a call, it would silently end a loop of the tests.
    if kind in (StopIteration, StopAsyncIteration):
        return RuntimeError(f"the program raised {name}")
    if isinstance(kind, type) and issubclass(kind, Exception):
        try:
            return kind(message)
        except TypeError:
            pass
    return ProgramError(f"{name}: {message}")


def _put_back(arguments: tuple[Any, ...], after: Any) -> None:
    """Apply the program's changes to the arguments of a call."""
    if not isinstance(after, tuple) or len(after) != len(arguments):
        raise Malformed("not the arguments of the call")
    for argument, new in zip(arguments, after, strict=True):
        if type(argument) is type(new) and isinstance(argument, _MUTABLE):
            argument.clear()
            argument.extend(new) if isinstance(argument, _SEQUENCES) else argument.update(new)


@dataclass(slots=True, kw_only=True)
class Checks:
    """The checks of one test: its assert statements, or the whole test if it has none to count."""

    num: int
    met: dict[int, bool] = field(default_factory=dict)
    """Whether each executed check succeeded every time, by number."""
    error: str | None = None
    """The error that ended the test."""
    raised: str = "AssertionError"
    """The exception of the last failed check."""

    def record(self, number: int, met: Any, error: Exception | None = None) -> None:
        self.met[number] = bool(met) and self.met.get(number, True)
        self.raised = type(error).__name__ if error else self.raised

    def summary(self) -> tuple[int, int, str | None]:
        """Return the number of successful checks, the number of checks, and the error, if any."""
        error = self.error or (None if all(self.met.values()) else self.raised)
        if error is None:
            return self.num, self.num, None
        num_met = sum(self.met.values())
        # An exception outside asserts counts as a failed check.
        return num_met, max(self.num, num_met + 1), error


class _Recording(ast.NodeTransformer):
    """Makes asserts record whether they succeeded, and continue; `num` is their number."""

    num = 0
    catches = False
    """Whether the test catches exceptions, so that it may need asserts to raise."""

    def visit_Assert(self, node: ast.Assert) -> ast.stmt:
        if isinstance(node.test, ast.Constant):
            return node
        number = self.num
        self.num += 1
        raised = f"except Exception as __raised__: __record__({number}, False, __raised__)"
        (made,) = ast.parse(f"try: __record__({number}, None)\n{raised}").body
        cast(Any, made).body[0].value.args[1] = node.test
        return ast.copy_location(made, node)

    def visit_Try(self, node: ast.AST) -> ast.AST:
        self.catches = True
        return node

    visit_With = visit_Try


def prepared(test: str) -> tuple[ast.Module, int]:
    """Return a test whose asserts record whether they succeeded and continue, and its number of checks.

    A test that catches exceptions is not changed and counts as one check.
    """
    recording = _Recording()
    tree = recording.visit(ast.parse(test))
    return (ast.parse(test), 1) if recording.catches else (tree, max(1, recording.num))


class _Names(dict[str, Any]):
    """The builtins of the tests, and the names that the program must define."""

    program: Program | None = None
    required: frozenset[str] = frozenset()
    """Names that the program must define; if empty, they are unknown: any undefined name is the program's, but for
    modules of Python that the tests forgot to import."""
    modules: frozenset[str] = frozenset()

    def __missing__(self, name: str) -> Proxy:
        if self.program is None:
            raise KeyError(name)
        self.check(name)
        return Proxy(self.program, name)

    def check(self, *used: str) -> None:
        """Raise TestsUnusable if the tests use a name that neither they nor the program must define."""
        unknown = set(used) - self.required if self.required else set(used) & self.modules
        if unknown:
            raise TestsUnusable(f"they use {min(unknown)} without defining it")


def run_tests(job: Any, descriptors: list[int]) -> None:
    """Run the tests against the program at the first descriptor; send the checks to the second."""
    channel, results = (socket.socket(fileno=number) for number in descriptors)
    program = Program(channel)
    try:
        failure = program.wait_until_ready()
    except ProgramGone:
        failure = "ProgramGone"
    try:
        namespace, names = _namespace(job, program)
        # Compile all tests first: if some are unusable, there is no verdict whatever the program does.
        tests = [prepared(test) for test in job["asserts"]]
        names.modules = frozenset(module_names(*job["asserts"]))
        names.check(*free_names(*job["asserts"]) - namespace.keys())
        compiled = [(compile(tree, "<tests>", "exec", dont_inherit=True), num) for tree, num in tests]
        report: Any = {"tests": [_run(code, num, namespace, program, failure).summary() for code, num in compiled]}
    except (TestsUnusable, Exception) as error:
        report = {"unusable": f"{type(error).__name__}: {error}"}
    send(results, report)
    os._exit(0)


def _namespace(job: Any, program: Program) -> tuple[dict[str, Any], _Names]:
    """Return the names available to tests: those of their setup, of Python and of the program."""
    names = _Names(builtins.__dict__)
    namespace: dict[str, Any] = {"__name__": "tests", "__builtins__": names}
    exec(compile(job["setup"], "<setup>", "exec", dont_inherit=True), namespace)
    names.program = program
    entry_point = job["entry_point"]
    names.required = frozenset({entry_point, *job["names"]} - {""})
    if entry_point:
        namespace[entry_point] = Proxy(program, entry_point)
        namespace["candidate"] = namespace[entry_point]
    return namespace, names


def _run(code: types.CodeType, num: int, namespace: dict[str, Any], program: Program, failure: str | None) -> Checks:
    checks = Checks(num=num, error=failure)
    try:
        if failure is None:
            namespace["__record__"] = checks.record
            exec(code, namespace)
    except TestsUnusable:
        raise
    except BaseException as error:
        checks.error = type(error).__name__
    checks.error = ProgramGone.__name__ if program.is_gone else checks.error
    return checks
