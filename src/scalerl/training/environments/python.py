"""A Python interpreter as a tool: code runs in the sandbox of code rewards, and names stay defined between turns.

Each conversation that calls it has its own sandbox. The interpreter inside is a program with one function that runs
code.
"""

import functools
import socket
from collections.abc import Callable
from typing import Any

from scalerl.training.graders.code import prepare
from scalerl.training.graders.sandbox.box import Box
from scalerl.training.graders.sandbox.job import Reference, RunLimits
from scalerl.training.graders.sandbox.runner import program_job
from scalerl.training.graders.sandbox.test_side import Program as Served
from scalerl.training.graders.sandbox.test_side import ProgramGone

_LONGEST = 2000
"""Number of characters shown of what code printed."""

_INTERPRETER = f"""
import ast, contextlib, io

NAMES = {{"__name__": "__main__"}}


class Output(io.StringIO):
    def write(self, text):
        # Enough to see that there was more.
        return super().write(text[: max(0, {_LONGEST} + 1 - self.tell())])


def run(code):
    output = Output()
    with contextlib.redirect_stdout(output), contextlib.redirect_stderr(output):
        try:
            tree = ast.parse(code)
            last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
            exec(compile(tree, "<code>", "exec"), NAMES)
            if last is not None:
                value = eval(compile(ast.Expression(last.value), "<code>", "eval"), NAMES)
                if value is not None:
                    print(repr(value))
            failed = False
        except BaseException as error:
            print(f"{{type(error).__name__}}: {{error}}")
            failed = True
    return [failed, output.getvalue()]
"""


def python_tool(timeout_s: float = 5.0, memory_limit_mb: int = 512) -> Callable[..., Any]:
    """Return a tool that runs Python; `timeout_s` bounds each call, and the CPU time of all calls of a conversation."""
    _check_once()
    limits = RunLimits(timeout_s=timeout_s, cpu_limit_s=timeout_s, memory_limit_mb=memory_limit_mb)

    class Python:
        """Run Python code. Returns what it prints, and the value of a last expression. Names stay defined.

        Args:
            code: The code to run, such as "x = 47 * 83; print(x - 52)".
        """

        def __init__(self) -> None:
            self._box: Box | None = None

        def __call__(self, code: str) -> str:
            served = self._served()
            try:
                replied = served.call("run", (code,), {})
            except ProgramGone:
                replied = None
            # Code can access the socket of its process and write anything to it.
            match replied:
                case [bool() as failed, str() as printed]:
                    shown = printed[:_LONGEST]
                    if len(printed) > _LONGEST:
                        shown += " ..."
                case _:
                    self.close()
                    reason = f"the code took more than {limits.timeout_s:g} s, too much memory, or ended its process"
                    raise RuntimeError(f"{reason}; names are lost")
            if failed:
                raise CodeFailed(shown)
            return shown.strip() or "nothing was printed"

        def close(self) -> None:
            if self._box is not None:
                self._box.close()
                self._channel.close()
            self._box = None

        def _served(self) -> Served:
            """Return the interpreter of this conversation; start it with the first call."""
            if self._box is None:
                box = Box()
                self._channel, theirs = socket.socketpair()
                self._channel.settimeout(limits.timeout_s)
                self._box = box
                try:
                    with theirs:
                        box.start(program_job("calls", _INTERPRETER, Reference(), limits), [theirs.fileno()])
                    box.begun()
                    self._program = Served(self._channel)
                    self._program.wait_until_ready()
                except BaseException:
                    # The next call starts a new interpreter.
                    self.close()
                    raise
            return self._program

    return Python


class CodeFailed(Exception):
    """The model's code raised an exception; the message is what it printed before, and the exception."""


_check_once = functools.cache(prepare)
