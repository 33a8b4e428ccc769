"""The Python tool: state over turns, errors, limits, and a sandbox that nothing leaves."""

import shutil

import pytest

from scalerl.environments.python import python_tool
from scalerl.environments.tools import Plain, Tools, schema_of
from scalerl.graders.sandbox.box import Box, NotBegun
from scalerl.types import Problem

SANDBOXES = ["none", pytest.param("bubblewrap", marks=pytest.mark.skipif(not shutil.which("bwrap"), reason="no bwrap"))]


def session(sandbox: str, **settings: float) -> Tools:
    problem = Problem(id="0", prompt="", answer="", task="own")
    tool = python_tool(sandbox=sandbox, **settings)  # type: ignore[arg-type]
    return Tools(problem, 0, tools={"python": tool}, call_format=Plain())


@pytest.mark.parametrize("sandbox", SANDBOXES)
def test_names_stay_defined_over_turns_and_a_conversation_has_its_own(sandbox: str):
    first, second = session(sandbox), session(sandbox)
    try:
        assert first.step("?x = 47 * 83").observation == "nothing was printed;"
        assert first.step("?def f(n):\n    return n - 52\nprint(f(x))").observation == "3849;"
        assert first.step("?x, f(x)").observation == "(3901, 3849);"
        step = second.step("?x")
        assert step.observation == "!;"
        assert (step.num_calls, step.num_errors) == (1, 1)
        done = first.step("3849")
        assert done.done
        assert done.answer == "3849"
    finally:
        first.close()
        second.close()


def test_a_start_that_fails_costs_one_call(monkeypatch: pytest.MonkeyPatch):
    def fail(box: Box) -> None:
        raise NotBegun("on purpose")

    tools = session("none")
    try:
        with monkeypatch.context() as patched:
            patched.setattr(Box, "begun", fail)
            assert tools.step("?1 + 1").num_errors == 1
        assert tools.step("?1 + 1").observation == "2;"
    finally:
        tools.close()


def test_errors_say_what_was_printed_before():
    tool = python_tool(sandbox="none")()
    try:
        with pytest.raises(Exception, match=r"before\s+ZeroDivisionError: "):
            tool("print('before'); 1 / 0")
        with pytest.raises(Exception, match="SyntaxError"):
            tool("1 +")
        assert tool("'x' * 10_000").endswith(" ...")
        assert len(tool("for _ in range(10_000): print('x' * 100)")) < 2100
    finally:
        tool.close()


def test_code_that_hangs_or_leaves_loses_its_names_and_no_more():
    tool = python_tool(sandbox="none", timeout_s=2.0)()
    try:
        assert tool("x = 1; x") == "1"
        for code in ("while True: pass", "import os; os._exit(0)", "import time; time.sleep(60)"):
            with pytest.raises(RuntimeError, match="names are lost"):
                tool(code)
            with pytest.raises(Exception, match="NameError"):
                tool("x")
    finally:
        tool.close()


@pytest.mark.skipif(not shutil.which("bwrap"), reason="no bwrap")
def test_sandbox_has_no_network_and_no_files_of_the_user():
    tool = python_tool()()
    try:
        with pytest.raises(Exception, match="Error"):
            tool("import socket; socket.create_connection(('127.0.0.1', 9), 1)")
        with pytest.raises(Exception, match="Error"):
            tool("open('/etc/passwd').read()")
    finally:
        tool.close()


def test_model_is_told_what_the_tool_does():
    schema = schema_of("python", python_tool(sandbox="none"))["function"]
    assert schema["description"].startswith("Run Python code.")
    assert schema["parameters"]["required"] == ["code"]
