import os
import subprocess
import sys
from pathlib import Path

import forked
from hypothesis import given
from hypothesis import strategies as st
from workers import Schedule

SUPPORT = Path(__file__).parent / "support"
BAD = """
import os, time, pytest

@pytest.fixture(scope="module")
def shared():
    yield os.getpid()
    print("torn down")

def test_good(shared, tmp_path): (tmp_path / "file").touch()
def test_wrong(shared): print("said before"); assert shared < 0
def test_dies():
    if not os.fork():
        time.sleep(2)
        os._exit(0)
    os._exit(3)
@pytest.mark.parametrize("number", range(20))
def test_more(shared, number): assert shared == os.getpid()
def test_skipped(): pytest.skip("no reason")
"""
LEAKS = """
def test_leaves_a_file_open():
    here = [open(__file__)]
    here.append(here)
"""


def pytest_in(folder: Path, *words: str) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-m", "pytest", "-p", "workers", "-p", "no:cacheprovider", "-W", "error", *words, folder]
    environment = os.environ | {"PYTHONPATH": str(SUPPORT)}
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=60)


def test_every_kind_of_end_is_counted(tmp_path):
    (tmp_path / "test_bad.py").write_text(BAD)
    (tmp_path / "test_leaks.py").write_text(LEAKS)
    done = pytest_in(tmp_path, "--workers", "2")
    *_, last = done.stdout.splitlines()
    assert done.returncode == 1, done.stdout
    assert "2 failed, 22 passed, 1 skipped, 1 error" in last, done.stdout
    assert "test_dies - the process of this test ended with 3" in done.stdout
    assert "said before" in done.stdout
    assert "unclosed file" in done.stdout


def test_first_failure_ends_all_where_asked(tmp_path):
    (tmp_path / "test_bad.py").write_text(BAD)
    done = pytest_in(tmp_path, "--workers", "1", "-x")
    assert done.returncode == 1
    # The one after it had been given already.
    assert "2 failed, 1 passed" in done.stdout.splitlines()[-1], done.stdout


@given(parts=st.lists(st.integers(1, 9), max_size=6), asks=st.lists(st.tuples(st.integers(0, 2), st.integers(0, 9))))
def test_schedule_runs_every_test_once_and_parts_in_order(parts, asks):
    numbers = iter(range(100))
    named = {str(name): [next(numbers) for _ in range(size)] for name, size in enumerate(parts)}
    schedule, ran = Schedule(named, whole={"0"}), []
    workers: dict[int, list[int]] = {worker: [] for worker in range(3)}
    for worker, lost in [*asks, *[(number % 3, 9) for number in range(300)]]:
        test = schedule.after(worker)
        if test is None:
            continue
        if lost == 0:
            schedule.give_back(worker, [test])
        else:
            workers[worker].append(test)
            ran.append(test)
    assert sorted(ran) == list(range(sum(parts)))


def _code(number: int) -> None:
    sys.exit(number)


def test_forked_process_reports_its_exit():
    processes = [forked.context().Process(target=_code, args=(number,)) for number in (0, 7)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    assert [process.exitcode for process in processes] == [0, 7]
