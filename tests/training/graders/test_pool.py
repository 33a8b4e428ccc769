"""The grader pool: what hangs, dies, raises or eats memory costs its own item and no other."""

import gc
import os
import random
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from graded import grade_all
from sessions import is_gone, processes_of
from until import wait_until

from scalerl.errors import GraderError, GraderPoolError
from scalerl.recipe.import_path import ANNOUNCED
from scalerl.training.graders.children import Children
from scalerl.training.graders.pool import Graded, GraderPool, GraderSpec
from scalerl.training.graders.supervisor import ForkLimits

OBEY = GraderSpec(name="hostile_graders:obey")
SAME = GraderSpec(name="hostile_graders:same")
ENDINGS = {
    "right": "right",
    "wrong": "wrong",
    "nothing": "no_answer",
    "number": "error",
    "raise 1": "error",
    "leave": "error",
    "sleep": "timeout",
    "spin": "timeout",
    "exit": "crash",
    "segfault": "crash",
    "hoard": "memory",
}
needs_linux = pytest.mark.skipif(
    sys.platform != "linux", reason="only Linux limits memory and lists processes in /proc"
)


@pytest.fixture(scope="module")
def pool() -> Iterator[GraderPool]:
    with GraderPool(num_workers=4, timeout_s=5.0, cpu_limit_s=0.3, memory_limit_mb=64) as pool:
        yield pool


def endings(pool: GraderPool, texts: list[str]) -> list[str]:
    graded = grade_all(pool, OBEY, [(text, "") for text in texts])
    assert all((result.value is None) == (result.reason is not None) for result in graded)
    return [result.reason or ("right" if result.value else "wrong") for result in graded]


@needs_linux
def test_bad_items_affect_only_themselves_and_are_counted(pool: GraderPool):
    texts = [*ENDINGS, *["right", "wrong"] * 30, "sleep", "exit", "hoard"]
    random.Random(0).shuffle(texts)
    assert endings(pool, texts) == [ENDINGS[text] for text in texts]
    assert pool.num_pending == 0


FORGED = (
    "7",
    "[" * 700 + "]" * 700,
    '{"value": ' + "[" * 700 + "]" * 700 + "}",
    '{"value": NaN}',
    '{"value": 1e9}',
    '{"value": 1, "outcome": [1]}',
    '{"value": 1, "reason": "error"}',
    '{"reason": ["x"]}',
    '{"reason": "fame"}',
    "{}",
)


@needs_linux
def test_forged_replies_cost_their_own_verdicts():
    with GraderPool(num_workers=len(FORGED), timeout_s=100.0) as pool:
        graded = grade_all(pool, OBEY, [(f"forge {reply}", str(number)) for number, reply in enumerate(FORGED)])
    assert [(each.value, each.reason) for each in graded] == [(None, "crash")] * len(FORGED)


def test_coroutine_functions_wait_together_and_keep_their_event_loop(tmp_path: Path):
    settings = {"folder": str(tmp_path), "num": 64}
    with GraderPool(timeout_s=100) as pool:
        graded = grade_all(pool, GraderSpec(name="hostile_graders:wait_for_others", settings=settings), [("", "")] * 80)
    assert {result.value for result in graded} == {1.0}


def test_the_clock_runs_while_nobody_polls_but_not_in_the_queue(tmp_path: Path):
    with GraderPool(num_workers=1, timeout_s=3.0) as pool:
        pool.submit("a", OBEY, "sleep", "")
        pool.submit("b", OBEY, "touch", str(tmp_path / "begun"))
        # The only worker begins with b when the time of a is over.
        wait_until((tmp_path / "begun").exists)
        results = pool.poll(timeout=100)
        while pool.num_pending:
            results += pool.poll(timeout=100)
    assert [(result.key, result.reason) for result in results] == [("a", "timeout"), ("b", None)]


def test_polling_waits_for_one_result_but_not_longer_than_asked(pool: GraderPool, tmp_path: Path):
    assert pool.poll() == []
    pool.submit("key", OBEY, "wait", str(tmp_path / "go"))
    assert pool.num_pending == 1
    assert pool.poll() == pool.poll(timeout=0.01) == []
    (tmp_path / "go").touch()
    assert [result.key for result in pool.poll(timeout=100)] == ["key"]
    assert pool.num_pending == 0
    assert pool.poll(timeout=100) == []


@needs_linux
def test_a_busy_machine_makes_nobody_late_but_those_who_sleep(one_busy_core: None):
    with GraderPool(num_workers=2, timeout_s=1.5) as pool:
        assert endings(pool, ["compute 0.7", "sleep", "compute 0.7"]) == ["right", "timeout", "right"]


@needs_linux
def test_memory_kept_by_items_is_not_charged_to_later_ones(pool: GraderPool):
    assert endings(pool, ["keep 20"] * 20) == ["right"] * 20
    assert endings(pool, ["keep 200", "right"]) == ["memory", "right"]


def test_grader_gets_thinking_and_its_tags_only_if_it_takes_them(pool: GraderPool):
    tags = {"thinking_start": "<t>", "thinking_end": "</t>"}
    texts = [("<t>1+1</t>2", "2"), ("2", "2"), ("<t>1+1", "<t>1+1"), ("<t>1+1", "")]
    # Thinking that never ends is not an answer.
    expected = {"same": [1, 1, 0, 0], "same_after": [1, 0, 0, 1], "same_tagged": [1, 0, 0, 1]}
    for name, values in expected.items():
        spec = GraderSpec(name=f"hostile_graders:{name}", settings=tags)
        graded = {each.key: each.value for each in grade_all(pool, spec, texts)}
        assert [graded[place] for place in range(4)] == values, name


@pytest.mark.parametrize(
    "text",
    ["\0", "a\0b\0", "\ud800 lone", "", "\n\r\n", "x" * 1_000_000, "\U0001f600" * 300_000, "\x80\uffff"],
    # Short ones: pytest puts them into the environment, and a variable of 128 KiB starts no process on most machines.
    ids=lambda text: f"{text[:8]!a}x{len(text)}",
)
def test_odd_texts_arrive_as_they_are(pool: GraderPool, text: str):
    graded = grade_all(pool, SAME, [(text, text)] * 4)
    assert [result.value for result in graded] == [True] * 4


@needs_linux
def test_failed_process_start_is_reported_and_cleaned_up(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("LONG", "x" * 5_000_000)
    before = len(os.listdir("/proc/self/fd"))
    with pytest.raises(GraderError, match=r"a child process cannot be started: .*Argument list too long"):
        GraderPool().check(OBEY)
    assert len(os.listdir("/proc/self/fd")) == before


@pytest.mark.parametrize(
    ("name", "settings", "sentence"),
    [
        ("maths", {}, 'there is no grader "maths"; choices: exact, numeric, choice, math, '),
        ("no_such_module:f", {}, 'no module is called "no_such_module"'),
        ("hostile_graders:absent", {}, 'hostile_graders has no "absent"'),
        ("hostile_graders:no_function", {}, "it is not a function but int"),
        ("broken_grader:f", {}, "cannot be imported: ValueError: first line second line"),
        ("deadly_grader:f", {}, "died, with exit status 7"),
        ("hostile_graders:obey", {"x": 1}, "unexpected keyword argument 'x'"),
        ("exact", {"f": lambda: 0}, "cannot be sent to another process"),
    ],
)
def test_unusable_grader_is_one_sentence(
    pool: GraderPool, tmp_path: Path, monkeypatch, name: str, settings: dict[str, Any], sentence: str
):
    (tmp_path / "broken_grader.py").write_text("raise ValueError('first line\\nsecond line')")
    (tmp_path / "deadly_grader.py").write_text("import os; os._exit(7)")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(GraderError, match=sentence) as caught:
        pool.check(GraderSpec(name=name, settings=settings))
    assert "\n" not in str(caught.value)
    assert endings(pool, ["right"]) == ["right"]


def test_the_children_load_none_of_the_trainers_packages(pool: GraderPool):
    spec = GraderSpec(name="hostile_graders:module_is_loaded")
    names = ["torch", "numpy", "pydantic", "scalerl.training.graders.rules"]
    graded = grade_all(pool, spec, [(name, "") for name in names])
    assert [result.value for result in graded] == [False, False, False, True]


@needs_linux
def test_closing_leaves_no_process_behind():
    with GraderPool(num_workers=3) as pool:
        for text in ("sleep", "exit", "right", "sleep"):
            pool.submit(text, OBEY, text, "")
        assert pool.poll(timeout=100)
        wait_until(lambda: len(processes_of(pool.pids[0])) >= 3, what="a supervisor with two workers that sleep")
    assert processes_of(pool.pids[0]) == []
    with pytest.raises(GraderPoolError, match="closed"):
        pool.poll()


@needs_linux
def test_garbage_collected_pool_ends_its_processes():
    pool = GraderPool(num_workers=1)
    pool.submit("a", OBEY, "sleep", "")
    session = pool.pids[0]
    del pool
    gc.collect()
    assert is_gone(session)


@needs_linux
def test_child_processes_of_a_grader_end_with_its_worker():
    """One that has left its group stops nobody."""
    with GraderPool(num_workers=2, timeout_s=3.0) as pool:
        assert endings(pool, ["start sleep", "outlive", "right"]) == ["timeout", "timeout", "right"]
        wait_until(lambda: len(processes_of(pool.pids[0])) == 2, what="a supervisor with one new worker")
    assert is_gone(pool.pids[0])


SCRIPT = """
from scalerl.training.graders.pool import GraderPool, GraderSpec
print('once')
def last(text, answer): print('noise'); return text[-1] == answer
if __name__ == '__main__':
    pool, obey = GraderPool(num_workers=2, timeout_s=600, cpu_limit_s=600), GraderSpec(name='hostile_graders:obey')
    pool.submit('', GraderSpec(name='script:last'), 'so 3', '3')
    print(pool.poll(100)[0].value)
    for text in ('right', 'sleep', 'spin'): pool.submit(text, obey, text, '')
    print(pool.poll(100)[0].value, *pool.pids, flush=True)
    input()
"""


@needs_linux
def test_children_of_a_script_die_with_it(tmp_path: Path):
    """They import it, but do not run it again, and its output is its own."""
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    path = os.pathsep.join([str(Path(__file__).parents[2] / "support"), *filter(None, sys.path)])
    pipes: Any = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    line, variables = (
        [sys.executable, str(script)],
        os.environ | {"PYTHONPATH": path, ANNOUNCED: "script:last\nhostile_graders:obey"},
    )
    started: Any = subprocess.Popen(line, text=True, env=variables, **pipes)
    with started as parent:
        once, first, (second, *sessions) = (parent.stdout.readline().split() for _ in range(3))
        assert (once, first, second) == (["once"], ["1.0"], "1.0")
        assert [len(processes_of(int(session))) for session in sessions] == [2, 3]
        parent.kill()
        assert all(is_gone(int(session)) for session in sessions)
        assert parent.stderr.read() == ""


def test_first_error_and_death_of_a_supervisor_are_reported():
    with GraderPool(num_workers=1, timeout_s=600, cpu_limit_s=0.1) as pool:
        assert endings(pool, ["raise 1", "raise 2", "number", "spin"]) == [*["error"] * 3, "timeout"]
        assert pool.first_errors == {"hostile_graders:obey": "ArithmeticError: number 1"}
        pool.submit("a", OBEY, "sleep", "")
        os.kill(pool.pids[0], signal.SIGKILL)
        with pytest.raises(GraderPoolError, match="died, with exit status -9"):
            pool.poll(timeout=100)


def test_supervisor_that_fails_is_named():
    no_work: Any = Counter
    children = Children("the process of the grader", no_work, limits=ForkLimits())
    children.give("key", "a counter is no work")
    with pytest.raises(GraderPoolError, match=r"the process of the grader failed: AttributeError: .*waits"):
        children.poll(60.0)
    children.close()


def test_stderr_of_graders_goes_through_the_trainers_own(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    """Not straight to the terminal: there it would break a progress bar."""
    monkeypatch.setenv(ANNOUNCED, "own_code:chatty")
    spec = GraderSpec(name="own_code:chatty")
    with GraderPool(num_workers=1) as pool:
        for number in range(250):
            pool.submit(number, spec, f"item {number}", "")
        results: list[Graded] = []
        while len(results) < 250:
            results += pool.poll(1.0)
    shown: list[str] = []
    wait_until(lambda: (shown.append(capsys.readouterr().err), "not shown" in "".join(shown))[1])
    shown_text = "".join(shown)
    assert "judging item 0\n" in shown_text
    assert shown_text.count("judging") == 200
    assert shown_text.endswith("a child process wrote 200 lines to stderr; further lines are not shown\n")
