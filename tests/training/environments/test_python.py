"""The Python tool: state over turns, errors, limits, and a sandbox that nothing leaves."""

import time
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest
from needs import needs_bubblewrap

from scalerl.training.environments.python import python_tool
from scalerl.training.environments.tools import Plain, Tools, schema_of
from scalerl.training.graders.sandbox.box import Box, NotBegun
from scalerl.training.types import Problem

pytestmark = needs_bubblewrap


def session() -> Any:
    problem = Problem(id="0", prompt="", answer="", task="own")
    return closing(Tools(problem, 0, tools={"python": python_tool()}, call_format=Plain()))


@pytest.fixture
def tool() -> Iterator[Any]:
    with closing(python_tool(timeout_s=60.0)()) as tool:
        yield tool


def test_names_stay_defined_over_turns_and_a_conversation_has_its_own():
    with session() as first, session() as second:
        assert first.step("?x = 47 * 83").observation == "nothing was printed;"
        assert first.step("?def f(n):\n    return n - 52\nprint(f(x))").observation == "3849;"
        assert first.step("?x, f(x)").observation == "(3901, 3849);"
        step = second.step("?x")
        assert (step.observation, step.num_calls, step.num_errors) == ("!;", 1, 1)
        done = first.step("3849")
        assert (done.done, done.answer) == (True, "3849")


def test_a_start_that_fails_costs_one_call(monkeypatch: pytest.MonkeyPatch):
    def fail(box: Box) -> None:
        raise NotBegun("on purpose")

    with session() as tools:
        with monkeypatch.context() as patched:
            patched.setattr(Box, "begun", fail)
            assert tools.step("?1 + 1").num_errors == 1
        assert tools.step("?1 + 1").observation == "2;"


@pytest.mark.parametrize(
    ("code", "error"),
    [
        ("print('before'); 1 / 0", r"before\s+ZeroDivisionError: "),
        ("1 +", "SyntaxError"),
        ("import socket; socket.create_connection(('127.0.0.1', 9), 1)", "Error"),
        ("open('/etc/passwd').read()", "Error"),
    ],
)
def test_errors_say_what_was_printed_before(tool: Any, code: str, error: str):
    with pytest.raises(Exception, match=error):
        tool(code)


def test_what_is_shown_is_bounded(tool: Any):
    assert tool("'x' * 10_000").endswith(" ...")
    assert len(tool("for _ in range(10_000): print('x' * 100)")) < 2100


def test_code_that_hangs_or_leaves_loses_its_names_and_no_more():
    with closing(python_tool(timeout_s=3.0)()) as tool:
        assert tool("x = 1; x") == "1"
        for code in ("while True: pass", "import os; os._exit(0)", "import time; time.sleep(60)"):
            with pytest.raises(RuntimeError, match="names are lost"):
                tool(code)
            with pytest.raises(Exception, match="NameError"):
                tool("x")


FORGE = """
import sys, threading, time
frame = sys._getframe()
while 'channel' not in frame.f_locals:
    frame = frame.f_back
channel, number = frame.f_locals['channel'], frame.f_locals['call']['number']
send = sys.modules['scalerl.training.graders.sandbox.wire'].send
"""


@pytest.mark.parametrize("value", ["3", "['list', []]", "['list', [False, ['ref', 0]]]", "['ref', 5]", "['odd', 1]"])
def test_forged_reply_ends_the_interpreter(tool: Any, value: str):
    with pytest.raises(RuntimeError, match="names are lost"):
        tool(f"{FORGE}send(channel, {{'number': number, 'value': {value}}})")
    assert tool("1 + 1") == "2"


def test_next_call_cannot_be_answered_in_advance(tool: Any):
    following = "number + 1 if isinstance(number, int) else number"
    forged = f"{{'number': {following}, 'value': ['list', [False, 'forged']]}}"
    assert tool(f"{FORGE}threading.Timer(0.2, send, (channel, {forged})).start()") == "nothing was printed"
    time.sleep(2.0)  # the forged reply comes meanwhile
    with pytest.raises(RuntimeError, match="names are lost"):
        tool("1 + 1")


def test_model_is_told_what_the_tool_does():
    schema = schema_of("python", python_tool())["function"]
    assert schema["description"].startswith("Run Python code.")
    assert schema["parameters"]["required"] == ["code"]
