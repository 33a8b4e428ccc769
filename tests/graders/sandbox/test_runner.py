import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from sandbox_support import needs_bubblewrap

from scalerl.errors import SandboxError
from scalerl.graders.sandbox.box import Box
from scalerl.graders.sandbox.job import Asserts, BadTests, Calls, Outcome, Program, Reference, RunLimits, Streams
from scalerl.graders.sandbox.runner import LocalRunner, same_output

LIMITS = RunLimits(timeout_s=60)


@pytest.fixture(scope="module", params=[pytest.param("bubblewrap", marks=needs_bubblewrap), "none"])
def runner(request: pytest.FixtureRequest) -> Iterator[LocalRunner]:
    runner = LocalRunner(request.param)
    yield runner
    runner.close()


def asserted(runner: LocalRunner, code: str, *tests: str, setup: str = "") -> Outcome:
    return runner.run(Program(code=code), Asserts(tests=tests, setup=setup), LIMITS)


def test_each_assert_counts(runner: LocalRunner):
    code = "def f(x):\n    return x if x != 3 else 0\n"
    outcome = asserted(runner, code, "assert f(1) == 1", "assert f(2) == 2\nassert f(3) == 3\nassert f(4) == 4")
    assert (outcome.kind, outcome.num_passed, outcome.num_checks) == ("failed", 3, 4)
    looped = asserted(runner, code, "for x in range(10):\n    assert f(x) == x, 'wrong'")
    assert (looped.num_passed, looped.num_checks, looped.correct) == (9, 10, False)
    raised = asserted(runner, "def f(x):\n    return 1 // x\n", "assert f(1) == 1\nassert f(0) == 0\nassert f(1) == 1")
    assert (raised.num_passed, raised.num_checks) == (2, 3)


def test_constant_asserts_do_not_count(runner: LocalRunner):
    outcome = asserted(runner, "def f(): return 1", "assert True\nassert f() == 2\nassert True, 'good'")
    assert (outcome.num_passed, outcome.num_checks) == (0, 1)


def test_tests_may_expect_exceptions(runner: LocalRunner):
    tests = "try:\n    f(-1)\nexcept ValueError as error:\n    assert 'negative' in str(error)\nelse:\n    assert False"
    good = "def f(x):\n    if x < 0:\n        raise ValueError('negative')\n"
    assert asserted(runner, good, tests).kind == "passed"
    assert asserted(runner, "def f(x):\n    raise TypeError('negative')\n", tests).kind == "failed"
    assert asserted(runner, "def f(x):\n    return x\n", tests).kind == "failed"


def test_values_keep_their_types(runner: LocalRunner):
    code = "def f(x):\n    return x, type(x).__name__\n"
    values = "[(1, 2), {3}, b'x', None, 1.5, {'a': (1,)}, 10**30, frozenset([1])]"
    tests = (
        f"for value in {values}:\n    back, name = f(value)\n    assert back == value and name == type(value).__name__"
    )
    assert asserted(runner, code, tests).kind == "passed"


def test_functions_may_work_in_place(runner: LocalRunner):
    code = "def f(a, b):\n    a.sort()\n    b['new'] = [1]\n"
    tests = "a, b = [3, 1, 2], {}\nassert f(a, b) is None\nassert a == [1, 2, 3]\nassert b == {'new': [1]}"
    assert asserted(runner, code, tests).kind == "passed"


def test_objects_of_the_program_can_be_passed_back(runner: LocalRunner):
    code = "class Pair:\n    def __init__(self, a, b):\n        self.a, self.b = a, b\n"
    code += "    def sum(self):\n        return self.a + self.b\n"
    code += "def total(pairs):\n    return sum(pair.sum() for pair in pairs)\n"
    tests = "pairs = [Pair(1, 2), Pair(3, 4)]\nassert total(pairs) == 10\n"
    tests += "assert pairs[0].a == 1\nassert pairs[1].sum() == 7"
    assert asserted(runner, code, tests).kind == "passed"


def test_generators_arrive_as_iterators(runner: LocalRunner):
    code = "def f(n):\n    for i in range(n):\n        yield i\n"
    assert asserted(runner, code, "assert list(f(3)) == [0, 1, 2]", "assert next(f(3)) == 0").kind == "passed"


def test_setup_is_the_tests_own(runner: LocalRunner):
    outcome = asserted(
        runner,
        "def twice(x): return 2\ndef f(x): return 2\n",
        "assert twice(f(3)) == 6",
        setup="def twice(x): return 2 * x",
    )
    assert outcome.kind == "failed"


def test_unusable_tests_give_no_verdict(runner: LocalRunner):
    unusable = asserted(runner, "def f(g): return g(1)\n", "assert f(lambda x: x) == 1")
    assert (unusable.kind, unusable.correct) == ("bad_tests", None)
    assert "function" in unusable.detail
    assert asserted(runner, "def f(): return 1", "assert f( == 1").kind == "bad_tests"
    assert asserted(runner, "def f(): return 1", "assert f() == 1", setup="1/0").kind == "bad_tests"


def test_a_program_cannot_make_its_tests_unusable(runner: LocalRunner):
    outcome = asserted(runner, "def f(x):\n    return x * 10_000_000\n", "assert f(f(f('ab'))) == 'ab'")
    assert outcome.correct is False


def test_programs_that_do_not_load_fail_every_test(runner: LocalRunner):
    for code in (
        "def f(:",
        "import nothing_of_the_kind",
        "\0",
        "x = \ud800",
        "def g(): pass",
        "raise KeyboardInterrupt",
    ):
        outcome = asserted(runner, code, "assert f(1) == 1\nassert f(2) == 2", "assert f(3) == 3")
        assert (outcome.kind, outcome.num_passed, outcome.num_checks) == ("failed", 0, 3), code


def test_calls_compare_return_values(runner: LocalRunner):
    tests = Calls(function="f", cases=(([1, 2], [1, 2]), ([3, 4], [3, 4]), ([5, 6], None)))
    outcome = runner.run(Program(code="def f(a, b):\n    return (a, b)\n"), tests, LIMITS)
    assert (outcome.num_passed, outcome.num_checks) == (2, 3)
    method = Program(code="class Solution:\n    def f(self, a, b):\n        return [a, b] if a < 5 else None\n")
    assert runner.run(method, tests, LIMITS).kind == "passed"


def test_scripts_read_stdin_and_write_stdout(runner: LocalRunner):
    code = "import sys, atexit\natexit.register(print, 'end')\nn = int(input())\n"
    code += "print(sum(map(int, sys.stdin.read().split())) * n)"
    cases = (("2\n1 2\n3\n", "12\nend\n"), ("1\n5\n", "5\nend"), ("1\n5\n", "6\nend"))
    outcome = runner.run(Program(code=code), Streams(cases=cases), LIMITS)
    assert (outcome.kind, outcome.num_passed, outcome.num_checks) == ("failed", 2, 3)
    main = "if __name__ == '__main__':\n    print(input()[::-1])\n"
    assert runner.run(Program(code=main), Streams(cases=(("abc\n", "cba"),)), LIMITS).kind == "passed"


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        ("print('4')\nraise ValueError", "failed"),
        ("print('4')\nimport sys; sys.exit(3)", "failed"),
        ("print('4', flush=True)\nimport os; os.abort()", "crash"),
        ("import sys; sys.stdout.buffer.write(b'\\xff\\xfe4')", "failed"),
        ("while True: print('x' * 1000)", "output"),
        ("print('4')\nimport sys; sys.exit(0)", "passed"),
        ("import threading, time\nthreading.Thread(target=lambda: (time.sleep(0.1), print(4))).start()", "passed"),
    ],
)
def test_scripts_end_as_they_should(code: str, kind: str, runner: LocalRunner):
    assert runner.run(Program(code=code), Streams(cases=(("", "4"),)), LIMITS).kind == kind


def test_a_slow_case_leaves_no_time_for_the_next(runner: LocalRunner):
    code = "import time\nif input() == 'slow': time.sleep(60)\nprint(1)"
    cases = (("fast", "1"), ("slow", "1"), ("fast", "1"))
    outcome = runner.run(Program(code=code), Streams(cases=cases), RunLimits(timeout_s=3))
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


def test_missing_bubblewrap_is_one_sentence(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(shutil, "which", lambda name: None)
    with pytest.raises(SandboxError, match=r"no bwrap is on the PATH: install bubblewrap .*apt install bubblewrap"):
        Box("bubblewrap")


def test_a_bubblewrap_that_fails_is_one_sentence(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    broken = tmp_path / "bwrap"
    broken.write_text("#!/bin/sh\necho 'bwrap: No permissions to create new namespace' >&2\nexit 1\n")
    broken.chmod(0o755)
    monkeypatch.setattr(shutil, "which", lambda name: str(broken))
    with pytest.raises(SandboxError, match=r"cannot be started: bwrap: No permissions .* needs user namespaces"):
        Box("bubblewrap")


@needs_bubblewrap
def test_an_ordinary_user_can_use_the_sandbox():
    """The package is copied to a folder that every user may read, unlike pytest's own temporary folders."""
    if sys.platform != "linux" or shutil.which("setpriv") is None:
        pytest.skip("needs setpriv")
    python = shutil.which("python3", path="/usr/bin")
    if python is None:
        pytest.skip("needs a system interpreter")
    version = subprocess.run([python, "-c", "import sys; print(sys.version_info >= (3, 11))"], capture_output=True)
    if version.stdout.strip() != b"True":
        pytest.skip("needs a system interpreter of Python 3.11 or later")
    user = ["setpriv", "--reuid", "65534", "--regid", "65534", "--clear-groups"]
    source = Path(__file__).parents[3] / "src" / "scalerl"
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        shutil.copytree(source / "graders" / "sandbox", Path(folder, "scalerl", "graders", "sandbox"))
        shutil.copy(source / "errors.py", Path(folder, "scalerl"))
        subprocess.run(["chmod", "-R", "a+rX", folder], check=True)
        script = (
            f"import sys; sys.path.insert(0, {folder!r})\n"
            "from scalerl.graders.sandbox.runner import LocalRunner\n"
            "from scalerl.graders.sandbox.job import *\n"
            "runner = LocalRunner('bubblewrap')\n"
            'code = \'import os\\ndef f(): return os.getuid(), os.listdir("/tmp"), open("x", "w").write("y")\'\n'
            "tests = Asserts(tests=('assert f() == (65534, [], 1)',))\n"
            "for _ in range(3): print(runner.run(Program(code=code), tests, RunLimits(timeout_s=60)).kind)\n"
            "runner.close()"
        )
        ran = subprocess.run([*user, python, "-c", script], capture_output=True, text=True, cwd="/")
    assert ran.stdout.split() == ["passed"] * 3, ran.stderr


def test_references_survive_being_written():
    tests = Calls(function="f", cases=(([1, "x"], [None]),))
    reference = Reference(tests=tests, prefix="p", entry_point="f", solution="s")
    assert Reference.from_text(reference.to_text()) == reference


@pytest.mark.parametrize(
    "text", ["", "8", "[]", "{}", '{"kind": "asserts", "tests": []}', '{"kind": "x"}', "[" * 100000]
)
def test_other_texts_are_not_references(text: str):
    with pytest.raises(BadTests):
        Reference.from_text(text)
