import os
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from needs import needs_bubblewrap
from sessions import has_ended, running_children
from until import wait_until

from scalerl.errors import SandboxError
from scalerl.training.graders.sandbox import runner as runner_module
from scalerl.training.graders.sandbox.box import Box
from scalerl.training.graders.sandbox.job import BadTests, Reference, RunLimits
from scalerl.training.graders.sandbox.runner import Runner, same_output

LIMITS = RunLimits(timeout_s=60)


@pytest.fixture(scope="module")
def runner() -> Iterator[Runner]:
    if shutil.which("bwrap") is None:
        pytest.skip("needs bubblewrap")
    runner = Runner()
    yield runner
    runner.close()


COUNTED = "def f(x):\n    return x if x != 3 else 0\n"
RAISES = "try:\n    f(-1)\nexcept ValueError as error:\n    assert 'negative' in str(error)\nelse:\n    assert False"
OBJECTS = """
class Node:
    def __init__(self, value, rest=None):
        self.value, self.rest = value, rest
    def sum(self):
        return self.value + (self.rest.sum() if self.rest else 0)
class TooSmall(ValueError): pass
def chain(n):
    if n < 1: raise TooSmall('too small')
    return Node(n, chain(n - 1) if n > 1 else None)
def total(nodes):
    return sum(node.sum() for node in nodes)
def applied(function, value):
    return function(value)
"""
TYPED = "[(1, 2), {3}, b'x', None, 1.5, {'a': (1,)}, 10**30, frozenset([1])]"
SAME_TYPES = (
    f"for value in {TYPED}:\n    back, name = f(value)\n    assert back == value and name == type(value).__name__"
)
IN_PLACE = "a, b = [3, 1, 2], {}\nassert f(a, b) is None\nassert a == [1, 2, 3]\nassert b == {'new': [1]}"
THREE = ("assert f(1) == 1\nassert f(2) == 2", "assert f(3) == 3")
OF_CALLS = Reference.of_calls("f", [([1, 2], [1, 2]), ([3, 4], [3, 4]), ([5, 6], None)])


# Tests find the socket of their report, and send one of their own.
FORGED = """
import os, socket
from scalerl.training.graders.sandbox.wire import send
for number in range(3, 30):
    try:
        send(socket.socket(fileno=os.dup(number)), {report})
    except OSError:
        pass
os._exit(0)
"""
FORGED_REPORTS = (
    "{'tests': 5}",
    "{'tests': []}",
    "{'tests': [[1, 1, None]]}",
    "{'tests': [[1, 1, None], 7]}",
    "{'tests': [[1, 1, None], [1, '1', None]]}",
    "{'tests': [[1, 1, None], [2, 1, None]]}",
    "{'tests': [[1, 1, None], [1, 1, 'AssertionError']]}",
    "{'tests': [[1, 1, None], [0, 1, []]]}",
    "{'unusable': [1]}",
    "[]",
    "'tests'",
    "7",
)


def asserts(*tests: str, setup: str = "") -> Reference:
    return Reference(asserts=tests, setup=setup)


@pytest.mark.parametrize(
    ("code", "reference", "expected"),
    [
        # Each assert counts, one check per statement: a loop of true ones must not hide a false one.
        (
            COUNTED,
            asserts("assert f(1) == 1", "assert f(2) == 2\nassert f(3) == 3\nassert f(4) == 4"),
            ("failed", 3, 4),
        ),
        (COUNTED, asserts("for x in range(9999):\n    assert x >= 0\n    assert f(x) == x, 'no'"), ("failed", 1, 2)),
        (COUNTED, asserts("if f(1) == 2:\n    assert f(2) == 2\nassert f(1) == 1"), ("passed", 2, 2)),
        (COUNTED, asserts("assert f(1) == 1\nassert f(2) == 2\nf(1, 2)"), ("failed", 2, 3)),
        ("def f(x): return 1 // x", asserts("assert f(1) == 1\nassert f(0) == 0\nassert f(1) == 1"), ("failed", 2, 3)),
        ("def f(): return 1", asserts("assert True\nassert f() == 2\nassert True, 'good'"), ("failed", 0, 1)),
        # Exceptions may be expected.
        ("def f(x):\n    if x < 0:\n        raise ValueError('negative')\n", asserts(RAISES), ("passed", 1, 1)),
        ("def f(x):\n    raise TypeError('negative')\n", asserts(RAISES), ("failed", 0, 1)),
        ("def f(x):\n    return x\n", asserts(RAISES), ("failed", 0, 1)),
        # Values keep their types, functions may work in place, generators arrive as iterators.
        ("def f(x):\n    return x, type(x).__name__\n", asserts(SAME_TYPES), ("passed", 1, 1)),
        ("def f(a, b):\n    a.sort()\n    b['new'] = [1]\n", asserts(IN_PLACE), ("passed", 3, 3)),
        (
            "def f(n): yield from range(n)",
            asserts("assert list(f(3)) == [0, 1, 2]", "assert next(f(3)) == 0"),
            ("passed", 2, 2),
        ),
        # The end of an iteration does not end the tests.
        *(
            ("def f(x): raise StopIteration", asserts(test), ("failed", 0, 1))
            for test in ("assert all(map(f, [1, 2]))", "assert list(map(f, [1])) == []", "assert f(1)")
        ),
        # Objects of the program can be used and passed back.
        *(
            (OBJECTS, asserts(test), ("passed", 1, 1))
            for test in (
                "assert total([Node(1), Node(2)]) == 3",
                "node = Node(1, Node(2))\nassert (node.sum(), node.rest.value) == (3, 2)",
                "node = chain(3)\nassert total([node.rest, node.rest.rest]) == 4",
                "node = chain(3)\nassert node.rest == node.rest != node.rest.rest",
                "assert (applied(chain, 2).value, applied(Node, 5).value) == (2, 5)",
                "try:\n    chain(0)\nexcept ValueError as error:\n    assert str(error) == 'too small'",
            )
        ),
        # The setup is the tests' own.
        (
            "def twice(x): return 2\ndef f(x): return 2",
            asserts("assert twice(f(3)) == 6", setup="def twice(x): return 2 * x"),
            ("failed", 0, 1),
        ),
        # Methods of Python's own types can be passed on: a wrong answer is one, not a fault of the tests.
        *(
            (wrong, asserts("n = make()\nassert use(n.index) == 3"), ("failed", 0, 1))
            for wrong in (
                "def make(): return [3]\ndef use(x): return x",
                "def make(): return 'x'\ndef use(x): return x",
                "def make(): return (3,)\ndef use(x): return x(9)",
                "def make(): return 3\ndef use(x): return x",
                "def make(): return [len]\ndef use(x): return x",
            )
        ),
        ("def make(): return [3]\ndef use(x): return x(3)", asserts("assert use(make().index) == 0"), ("passed", 1, 1)),
        # So can their classes, and methods written in Python.
        *(
            (f"{imports}\ndef make(): return {value}\ndef use(x): return 1", asserts(test), ("failed", 0, 1))
            for imports, value in (
                ("from fractions import Fraction", "Fraction(1)"),
                ("from collections import deque", "deque()"),
                ("from decimal import Decimal", "Decimal(1)"),
            )
            for test in ("assert use(type(make())) == 3", "assert use(make().__eq__) == 3")
        ),
        # A program that has ended has not passed, however the tests treat its end.
        *(
            ("import os\ndef f(x): os._exit(0)", asserts(test), ("crash", 0, 1))
            for test in (
                "try:\n    f(1)\nexcept:\n    done = True\nassert done",
                "def check():\n    try:\n        assert f(1) == 2\n    finally:\n        return\ncheck()",
                "from contextlib import suppress\nwith suppress(BaseException):\n    assert f(1)",
            )
        ),
        ("def f(x, key): return max(x, key=key)", asserts("assert f(['a', 'bc'], len) == 'bc'"), ("passed", 1, 1)),
        ("def f(kind): return kind('3')", asserts("assert f(int) == 3"), ("passed", 1, 1)),
        # Names that are not the program's to define are the tests' fault, whatever the program does.
        *(
            (code, Reference(asserts=("assert near(f(1), 1)",), entry_point="f"), ("bad_tests", 0, 0))
            for code in ("def f(x): return x", "def f(x): return 9\ndef near(a, b): return True", "def f(", "1 / 0")
        ),
        *(
            (code, Reference(asserts=("assert g(f(2)) == 3",), entry_point="f", names=("g",)), expected)
            for code, expected in (
                ("def f(x): return x\ndef g(x): return x + 1", ("passed", 1, 1)),
                ("def f(x): return x", ("failed", 0, 1)),
            )
        ),
        (
            "def f(x): return x",
            Reference(asserts=("assert isclose(f(1), 1)",), setup="from math import *", entry_point="f"),
            ("passed", 1, 1),
        ),
        # Tests that cannot be used give no verdict, and a program cannot make them so.
        ("def f(g): return g(1)", asserts("assert f(lambda x: x) == 1"), ("bad_tests", 0, 0)),
        ("def f(): return 1", asserts("assert f( == 1"), ("bad_tests", 0, 0)),
        ("def f(): return 1", asserts("assert f() == 1", setup="1/0"), ("bad_tests", 0, 0)),
        ("def f(x): return x * 10_000_000", asserts("assert f(f(f('ab'))) == 'ab'"), ("failed", 0, 1)),
        *(
            ("def f(): return 1", asserts(FORGED.format(report=report), "assert f() == 2"), ("bad_tests", 0, 0))
            for report in FORGED_REPORTS
        ),
        # Programs that do not load fail every test.
        *(
            (code, asserts(*THREE), ("failed", 0, 3))
            for code in ("def f(:", "import nothing", "\0", "x = \ud800", "def g(): pass")
        ),
        ("raise KeyboardInterrupt", asserts(*THREE), ("failed", 0, 3)),
        # Arguments with return values, in which JSON has no tuples.
        ("def f(a, b): return (a, b)", OF_CALLS, ("failed", 2, 3)),
        ("class Solution:\n    def f(self, a, b): return [a, b] if a < 5 else None", OF_CALLS, ("passed", 3, 3)),
    ],
)
def test_programs_are_checked(runner: Runner, code: str, reference: Reference, expected: tuple[str, int, int]):
    outcome = runner.run(code, reference, LIMITS)
    assert (outcome.kind, outcome.num_passed, outcome.num_checks) == expected
    assert outcome.correct is {"passed": True, "bad_tests": None}.get(outcome.kind, False)


def test_scripts_read_stdin_and_write_stdout(runner: Runner):
    code = "import sys, atexit\natexit.register(print, 'end')\nn = int(input())\n"
    code += "print(sum(map(int, sys.stdin.read().split())) * n)"
    cases = (("2\n1 2\n3\n", "12\nend\n"), ("1\n5\n", "5\nend"), ("1\n5\n", "6\nend"))
    outcome = runner.run(code, Reference(streams=cases), LIMITS)
    assert (outcome.kind, outcome.num_passed, outcome.num_checks) == ("failed", 2, 3)
    main = "if __name__ == '__main__':\n    print(input()[::-1])\n"
    assert runner.run(main, Reference(streams=(("abc\n", "cba"),)), LIMITS).kind == "passed"


SCRIPTS = {
    "print(6); sys.stdout.close()": "passed",
    "with open(1, 'w') as file: print(6, file=file)": "passed",
    "print(6, flush=True); os.close(1)": "passed",
    "os.write(1, b'6')": "passed",
    "print(6); sys.stdout = None": "passed",
    "print(6); sys.stdout.flush(); sys.stdout = io.StringIO()": "passed",
    "print(6, file=sys.__stdout__)": "passed",
    "print(6); exit()": "passed",
    "print(6); quit(0)": "passed",
    "print(6); sys.exit(None)": "passed",
    "atexit.register(print, 6)": "passed",
    "class A:\n    def __del__(self): print(6)\na = A()": "passed",
    "threading.Thread(target=lambda: (time.sleep(0.1), print(6))).start()": "passed",
    "print(sum(map(int, os.read(0, os.fstat(0).st_size).split())))": "passed",
    "sys.stdin.read(); sys.stdin.seek(0); print(sum(map(int, open(0))))": "passed",
    "print(pickle.loads(pickle.dumps(Answer())).value)": "passed",
    "asyncio.run(answer())": "passed",
    "print(6); raise ValueError": "failed",
    "print(6); sys.exit(3)": "failed",
    "print(6); sys.exit('no')": "failed",
    "print(6); exit(1)": "failed",
    "print(6); os._exit(0)": "failed",
    "print(6); sys.stdout.close(); raise ValueError": "failed",
    "print(6); os.close(1)": "failed",
    "os.read(1, 100); print(6)": "failed",
    "os.write(0, b'6')": "failed",
    "os.posix_fallocate(0, 0, 2**30); print(6)": "failed",
    "sys.stdout.buffer.write(b'\\xff\\xfe6')": "failed",
    "print(6, flush=True); os.abort()": "crash",
    "print(6, flush=True); os.kill(os.getpid(), 15)": "crash",
    "while True: print('x' * 1000)": "output",
    "print(6); sys.stdout.close(); os.close(1)\nwhile True: pass": "cpu",
    "print(6, flush=True)\nwhile True: pass": "cpu",
}
NAMES = "import asyncio, atexit, io, os, pickle, sys, threading, time\nclass Answer: value = 6\n"
NAMES += "async def answer(): print(6)\n"


@pytest.mark.parametrize(("code", "kind"), SCRIPTS.items())
def test_scripts_end_as_they_should(code: str, kind: str, runner: Runner):
    limits = RunLimits(timeout_s=60, cpu_limit_s=1)
    assert runner.run(NAMES + code, Reference(streams=(("1\n2\n3\n", "6"),)), limits).kind == kind


def test_end_of_a_script_that_closed_its_output_is_waited_for(runner: Runner):
    code = "with open(1, 'w') as file:\n    print(6, file=file)\nsum(range(20000))"
    outcome = runner.run(code, Reference(streams=(("", "6"),) * 20), LIMITS)
    assert (outcome.kind, outcome.num_passed) == ("passed", 20)


@needs_bubblewrap
def test_sandbox_that_dies_before_its_program_began_is_no_verdict(monkeypatch: pytest.MonkeyPatch):
    runner, tests = Runner(), Reference(asserts=("assert f() == 1",))
    right = "def f(): return 1"
    runner.start()
    inside = running_children(runner.pids)
    for pid in runner.pids:
        os.kill(pid, signal.SIGKILL)
    # A process inside ends a moment after its sandbox, and until then it could begin the program.
    wait_until(lambda: all(map(has_ended, inside)))
    with pytest.warns(UserWarning, match="ended before its program began"):
        assert runner.run(right, tests, LIMITS).kind == "passed"

    def fail(*_: object, **__: object) -> None:
        raise BrokenPipeError

    monkeypatch.setattr("scalerl.training.graders.sandbox.box.send", fail)
    began = pytest.warns(UserWarning, match="ended before its program began")
    with began, pytest.raises(SandboxError, match="a program could not be started in 3 sandboxes"):
        runner.run(right, tests, LIMITS)


def test_a_slow_case_leaves_no_time_for_the_next(runner: Runner):
    code = "import time\nif input() == 'slow': time.sleep(60)\nprint(1)"
    cases = (("fast", "1"), ("slow", "1"), ("fast", "1"))
    outcome = runner.run(code, Reference(streams=cases), RunLimits(timeout_s=3))
    assert (outcome.kind, outcome.num_passed, outcome.num_checks) == ("timeout", 1, 3)


@pytest.mark.parametrize(
    ("output", "wanted", "same"),
    [
        (b"1 2\n3\n\n", "1 2\n3", True),
        (b"1  2 \n3", "1 2\n3", True),
        (b"0.50", "0.5", True),
        (b"1e3", "1000", True),
        (b"1 2 3", "1 2\n3", False),
        (b"yes", "YES", False),
        (b"", "0", False),
        (b"\xff", "\ufffd", False),
        (b"nan", "nan", True),
        (b"1" * 200 + b".0", "1" * 200, False),
    ],
)
def test_output_is_compared_by_lines_and_numbers(output: bytes, wanted: str, same: bool):
    assert same_output(output, wanted) is same


def test_a_bubblewrap_that_fails_is_one_sentence(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    broken = tmp_path / "bwrap"
    broken.write_text("#!/bin/sh\necho 'bwrap: No permissions to create new namespace' >&2\nexit 1\n")
    broken.chmod(0o755)
    monkeypatch.setattr(shutil, "which", lambda name: str(broken))
    with pytest.raises(SandboxError, match=r"cannot be started: bwrap: No permissions .* needs user namespaces"):
        Box()


def test_references_survive_being_written():
    reference = Reference(asserts=("a",), streams=(("b", "c"),), prefix="p", entry_point="f", solution="s")
    assert Reference.from_text(reference.to_text()) == reference


@pytest.mark.parametrize(
    "text", ["", "8", "[]", "{}", Reference().to_text(), '{"asserts": ["x"], "streams": [], "kind": "x"}', "[" * 100000]
)
def test_other_texts_are_not_references(text: str):
    with pytest.raises(BadTests):
        Reference.from_text(text)


COMPUTES = "import time\ndef f(x):\n    while time.process_time() < 0.7:\n        pass\n    return x"


@pytest.mark.slow  # it keeps a core busy; tests/training/graders/test_pool.py has the same for answers
@pytest.mark.parametrize("tests", [Reference(asserts=("assert f(1) == 1",)), Reference(streams=(("1", "1"),))])
def test_a_busy_machine_makes_no_program_late_but_one_that_sleeps(
    runner: Runner, one_busy_core: None, tests: Reference
):
    limits = RunLimits(timeout_s=1.5)
    runner.close()  # so that the sandboxes have only this core, too
    computes = COMPUTES + ("\nprint(f(1))" if tests.streams else "")
    assert runner.run(computes, tests, limits).kind == "passed"
    assert runner.run("import time\ntime.sleep(600)", tests, limits).kind == "timeout"
    runner.close()


@needs_bubblewrap
def test_a_surprise_in_the_middle_of_a_program_grades_no_other(monkeypatch):
    """What the sandboxes still say of the first program must not be taken for the second."""
    limit_of = runner_module.TimeLimit
    runner = Runner()

    def surprise(*given: object) -> None:
        monkeypatch.setattr(runner_module, "TimeLimit", limit_of)
        raise OSError("a process is gone")

    for reference, bad in ((Reference(asserts=("assert f(1) == 1",), entry_point="f"), "def f(x): return 0"),
                           (Reference(streams=(("", "6"),)), "print(5)")):  # fmt: skip
        monkeypatch.setattr(runner_module, "TimeLimit", surprise)
        with pytest.raises(OSError, match="gone"):
            runner.run("print(6)\ndef f(x): return x", reference, LIMITS)
        assert runner.run(bad, reference, LIMITS).kind == "failed"
    runner.close()
