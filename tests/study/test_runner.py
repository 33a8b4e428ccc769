"""Running a plan: done runs are kept, others continue, failures are reported, and no process is left."""

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from small_study import NAMES, STUDY, Log, open_only, plan_of, run, run_plan, starts, states
from until import wait_until

from scalerl.runfolder import store
from scalerl.study.folder import read_study

# Running --------------------------------------------------------------------------------------------------------------


def test_every_arm_and_seed_is_run_once(tmp_path):
    runner, log = run(tmp_path)
    assert log.events == [event for name in NAMES for event in (("started", name), ("done", name))]
    assert states(runner) == dict.fromkeys(NAMES, "done")
    assert all((status.step, status.reward) == (4, 0.5) for status in runner.statuses)
    runner, log = run(tmp_path, resume=True)
    assert log.events == []
    assert states(runner) == dict.fromkeys(NAMES, "done")
    assert [len(starts(tmp_path, name)) for name in NAMES] == [1] * 4


def test_raised_budget_continues_finished_runs(ended):
    more = STUDY.replace("steps = 4", "steps = 6")
    runner, log = run(ended, text=more, resume=True)
    assert set(states(runner).values()) == {"done"}
    assert [name for event, name in log.events if event == "started"] == NAMES
    assert store.read_metrics(ended / "out" / "runs" / NAMES[0])[-1]["step"] == 6
    assert run(ended, text=more, resume=True)[1].events == []


def test_failing_arm_is_reported_and_the_rest_finishes(tmp_path):
    runner, _ = run(
        tmp_path, {"cispo-seed0": "fail", "dapo-seed0": "crash", "cispo-seed1": "die once", "dapo-seed1": "mute"}
    )
    assert {status.run.name: status.reason for status in runner.statuses} == {
        "cispo-seed0": "NanError: the loss is not a number",
        "dapo-seed0": "it cannot be (exit code 1)",
        "cispo-seed1": "killed by SIGKILL after step 2",
        "dapo-seed1": "exit code 0",
    }
    # A killed run cannot record its end: the study does.
    status = json.loads((tmp_path / "out" / "runs" / "cispo-seed1" / store.STATUS).read_text())
    assert (status["status"], status["reason"]) == ("failed", "killed by SIGKILL after step 2")
    runner, _ = run(tmp_path, {"cispo-seed0": "crash"}, resume=True)
    # Not the reason of the first attempt, which still stands in its folder.
    assert [(status.state, status.reason) for status in runner.statuses] == [
        ("failed", "it cannot be (exit code 1)"), ("done", ""), ("done", ""), ("done", "")
    ]  # fmt: skip


def killed_at_first(run_folder: Path) -> None:
    for path in run_folder.iterdir():
        path.unlink()
    (run_folder / ".recipe.json.unfinished").write_text("{")


@pytest.mark.parametrize(
    "damage, num_starts",
    [
        (killed_at_first, 1),  # while it made its folder: it begins anew
        (lambda run_folder: (run_folder / store.RECIPE).unlink(), 2),  # the study has it
        (lambda run_folder: (run_folder / store.STATUS).write_text('{"sta'), 2),
    ],
)
def test_run_with_a_damaged_folder_is_taken_up_again(ended, damage, num_starts):
    damage(ended / "out" / "runs" / "dapo-seed1")
    runner, log = run(ended, resume=True)
    assert log.events == [("started", "dapo-seed1"), ("done", "dapo-seed1")]
    assert states(runner) == dict.fromkeys(NAMES, "done")
    assert len(starts(ended, "dapo-seed1")) == num_starts


def test_run_that_cannot_start_does_not_stop_the_rest(tmp_path):
    open_only(tmp_path)
    (tmp_path / "out" / "logs" / "dapo-seed0.log").mkdir()
    runner, _ = run(tmp_path, resume=True)
    assert states(runner) == {**dict.fromkeys(NAMES, "done"), "dapo-seed0": "failed"}
    (reason,) = [status.reason for status in runner.statuses if status.reason]
    assert reason == f"cannot write {tmp_path / 'out' / 'logs' / 'dapo-seed0.log'}: Is a directory"


def test_jobs_run_at_the_same_time_on_separate_devices(tmp_path):
    text = STUDY.replace("seeds = [0, 1]", "seeds = [0, 1, 2]")
    runner, log = run(tmp_path, text=text, jobs=2, devices=["4", "7"])
    assert set(states(runner).values()) == {"done"}
    assert [kind for kind, _ in log.events[:2]] == ["started", "started"]
    gpus = [starts(tmp_path, name)[0]["gpu"] for name in states(runner)]
    assert gpus[:2] == ["4", "7"]
    assert set(gpus) == {"4", "7"}


def test_study_stays_marked_after_runs_shared_a_device(ended):
    run(ended, {"dapo-seed1": "fail"}, jobs=2, resume=True)
    run(ended, resume=True)
    study = read_study(ended / "out")
    assert study is not None
    assert (study["jobs"], study["shared_device"]) == (1, True)


# Stopping -------------------------------------------------------------------------------------------------------------

DRIVER = """
import sys; from pathlib import Path
sys.path.insert(0, {tests!r})
from small_study import run
runner, log = run(Path({tmp!r}), {behaviour!r})
print(log.events); print(runner.interrupted)
"""


def driver(tmp_path: Path, behaviour: dict[str, str]) -> subprocess.Popen[str]:
    """A study in a process of its own, to be stopped and killed."""
    code = DRIVER.format(tests=str(Path(__file__).parents[1] / "support"), tmp=str(tmp_path), behaviour=behaviour)
    return subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, start_new_session=True)


def waiting(tmp_path: Path, name: str) -> Callable[[], bool]:
    """Whether this run hangs, all its rows written."""
    path = tmp_path / "out" / "runs" / name / store.EVALS
    return lambda: path.is_file() and path.read_text().count("\n") == 5


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().split(")")[1].split()[0] != "Z"
    except OSError:
        return False


@pytest.mark.skipif(sys.platform != "linux", reason="the leash is Linux's")
def test_killed_study_leaves_nothing_running(tmp_path):
    study = driver(tmp_path, {"dapo-seed0": "hang"})
    wait_until(waiting(tmp_path, "dapo-seed0"))
    (first,) = starts(tmp_path, "dapo-seed0")
    assert alive(first["pid"])
    os.kill(study.pid, signal.SIGKILL)
    study.communicate(timeout=300)
    wait_until(lambda: not alive(first["pid"]))
    _, log = run(tmp_path, {"dapo-seed0": "hang"}, resume=True)
    assert [name for kind, name in log.events if kind == "done"] == NAMES[1:]
    assert [len(starts(tmp_path, name)) for name in NAMES] == [1, 2, 1, 1]


def test_ctrl_c_reaches_each_run_once_and_lets_it_save(tmp_path):
    study = driver(tmp_path, {"dapo-seed0": "hang"})
    wait_until(waiting(tmp_path, "dapo-seed0"))
    # As a terminal does it: to the whole group.
    os.killpg(study.pid, signal.SIGINT)
    printed, _ = study.communicate(timeout=300)
    events, interrupted = printed.splitlines()
    assert interrupted == "True"
    assert "('stopping', '1'), ('stopped', 'dapo-seed0')]" in events
    assert store.read_status(tmp_path / "out" / "runs" / "dapo-seed0") == {"status": "stopped", "reason": ""}
    assert not (tmp_path / "out" / "runs" / "cispo-seed1").exists()
    runner, _ = run(tmp_path, resume=True)
    assert states(runner) == dict.fromkeys(NAMES, "done")


def test_a_second_ctrl_c_ends_a_run_that_does_not_stop(tmp_path, monkeypatch):
    stubborn = tmp_path / "stubborn.py"
    stubborn.write_text(
        "import signal, sys, time\nfrom pathlib import Path\nsignal.signal(signal.SIGINT, signal.SIG_IGN)\n"
        f"Path({str(tmp_path / 'ready')!r}).touch()\ntime.sleep(600)\n"
    )
    stopping, noted = threading.Event(), Log.stopping
    monkeypatch.setattr(Log, "stopping", lambda *arguments: (noted(*arguments), stopping.set()))

    def press_twice() -> None:
        wait_until((tmp_path / "ready").exists)
        os.kill(os.getpid(), signal.SIGINT)
        # Two at the same time would be one.
        assert stopping.wait(120)
        os.kill(os.getpid(), signal.SIGINT)

    pressing = threading.Thread(target=press_twice)
    pressing.start()
    runner, log = run_plan(plan_of(tmp_path), tmp_path / "out", [sys.executable, str(stubborn)], resume=False)
    pressing.join()
    assert runner.interrupted
    assert log.events == [
        ("started", "cispo-seed0"), ("stopping", "1"), ("at once", "1"), ("stopped", "cispo-seed0")
    ]  # fmt: skip
