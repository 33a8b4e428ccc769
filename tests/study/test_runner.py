"""Running a plan: what is done stays, what was cut goes on, what fails is told, and nothing is left running."""

import io
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from scalerl import store
from scalerl.study import folder as study_folder
from scalerl.study.folder import BusyError, fair_axis, opened, read_study
from scalerl.study.live_table import Screen, duration, event_line, table
from scalerl.study.plan import Plan, make_plan
from scalerl.study.probe import Pace, ProbeError, cost, pace_from, probe
from scalerl.study.progress import Ceiling, Progress, ProgressReader
from scalerl.study.runner import Runner, RunStatus
from scalerl.study.spec import StudyError, load_study

FAKE = Path(__file__).parent / "fake_train.py"
STUDY = """
base = "tiny-cpu"
seeds = [0, 1]
budget.steps = 4
[arms.cispo]
[arms.dapo]
loss = "dapo"
"""


class Log:
    """Writes down what it is told."""

    def __init__(self) -> None:
        self.events: list[tuple[str, str]] = []

    def started(self, status: RunStatus) -> None:
        self.events.append(("started", status.run.name))

    def finished(self, status: RunStatus) -> None:
        self.events.append((status.state, status.run.name))

    def looked(self, statuses: Sequence[RunStatus]) -> None: ...
    def stopping(self, num_running: int, at_once: bool) -> None:
        self.events.append(("at once" if at_once else "stopping", str(num_running)))


def plan_of(tmp_path: Path, text: str = STUDY) -> Plan:
    (tmp_path / "mine.toml").write_text(text)
    return make_plan(*load_study(tmp_path / "mine.toml"), gpu=False)


def command_of(tmp_path: Path, behaviour: dict[str, str]) -> list[str]:
    (tmp_path / "behaviour.json").write_text(json.dumps(behaviour))
    return [sys.executable, str(FAKE), str(tmp_path / "behaviour.json")]


def run(
    tmp_path: Path, behaviour: dict[str, str] | None = None, *, text: str = STUDY, resume: bool = False, **settings: Any
) -> tuple[Runner, Log]:
    plan, out, log = plan_of(tmp_path, text), tmp_path / "out", Log()
    jobs = settings.get("jobs", 1)
    with opened(plan, out, jobs=jobs, shares_device=jobs > 1, resume=resume) as lock:
        command = command_of(tmp_path, behaviour or {})
        runner = Runner(plan, out, command=command, lock=lock, watcher=log, axis="gpu_hours", **settings)
        runner.run()
    return runner, log


def open_only(tmp_path: Path, *, text: str = STUDY, resume: bool = False) -> None:
    with opened(plan_of(tmp_path, text), tmp_path / "out", jobs=1, shares_device=False, resume=resume):
        pass


def states(runner: Runner) -> dict[str, str]:
    return {status.run.name: status.state for status in runner.statuses}


def starts(tmp_path: Path, name: str) -> list[dict[str, Any]]:
    path = tmp_path / "out" / "runs" / name / "starts.jsonl"
    return [row for _, row in store.parse_lines(path.read_text(), path)]


NAMES = [f"{arm}-seed{seed}" for seed in (0, 1) for arm in ("cispo", "dapo")]


# Running --------------------------------------------------------------------------------------------------------------


def test_every_arm_and_seed_is_run_once_and_what_is_done_is_not_repeated(tmp_path):
    runner, log = run(tmp_path)
    assert log.events == [event for name in NAMES for event in (("started", name), ("done", name))]
    assert states(runner) == dict.fromkeys(NAMES, "done")
    assert all(status.progress == Progress(step=4, reward=0.5) for status in runner.statuses)
    runner, log = run(tmp_path, resume=True)
    assert log.events == []
    assert states(runner) == dict.fromkeys(NAMES, "done")
    assert [len(starts(tmp_path, name)) for name in NAMES] == [1] * 4


def test_the_folder_says_what_each_run_is(tmp_path):
    open_only(tmp_path)
    study = read_study(tmp_path / "out")
    assert study is not None
    assert (study["base"], study["shared_device"], study["jobs"]) == ("cispo", False, 1)
    assert [(row["arm"], row["seed"], row["folder"]) for row in study["runs"]] == [
        (*name.split("-seed")[:1], int(name[-1]), f"runs/{name}") for name in NAMES
    ]
    assert study["runs"][1]["changes"]["loss.name"] == "dapo"
    for name in NAMES:
        recipe = json.loads((tmp_path / "out" / "recipes" / f"{name}.json").read_text())
        assert (recipe["seed"], recipe["loss"]["name"]) == (int(name[-1]), name.split("-")[0])


def test_a_failing_arm_is_told_with_its_reason_and_the_rest_is_finished(tmp_path):
    runner, _ = run(
        tmp_path, {"cispo-seed0": "fail", "dapo-seed0": "crash", "cispo-seed1": "die once", "dapo-seed1": "mute"}
    )
    assert {status.run.name: status.reason for status in runner.statuses} == {
        "cispo-seed0": "NanError: the loss is not a number",
        "dapo-seed0": "it cannot be (exit code 1)",
        "cispo-seed1": "killed by SIGKILL",
        "dapo-seed1": "exit code 0",
    }
    runner, _ = run(tmp_path, {"cispo-seed0": "crash"}, resume=True)
    # Not the reason of the first attempt, which still stands in its folder.
    assert [(status.state, status.reason) for status in runner.statuses] == [
        ("failed", "it cannot be (exit code 1)"), ("done", ""), ("done", ""), ("done", "")
    ]  # fmt: skip


def test_a_run_that_was_killed_while_it_made_its_folder_begins_anew(tmp_path):
    open_only(tmp_path)
    left = tmp_path / "out" / "runs" / "dapo-seed1"
    left.mkdir()
    (left / ".recipe.json.unfinished").write_text("{")
    runner, _ = run(tmp_path, resume=True)
    assert states(runner) == dict.fromkeys(NAMES, "done")


def test_jobs_run_at_the_same_time_each_on_a_device_of_its_own(tmp_path):
    text = STUDY.replace("seeds = [0, 1]", "seeds = [0, 1, 2]")
    runner, log = run(tmp_path, text=text, jobs=2, devices=["4", "7"])
    assert set(states(runner).values()) == {"done"}
    assert [kind for kind, _ in log.events[:2]] == ["started", "started"]
    gpus = [starts(tmp_path, name)[0]["gpu"] for name in states(runner)]
    assert gpus[:2] == ["4", "7"]
    assert set(gpus) == {"4", "7"}


def test_a_device_that_was_shared_once_marks_the_study_for_good(tmp_path):
    run(tmp_path, {"dapo-seed1": "fail"}, jobs=2)
    run(tmp_path, resume=True)
    study = read_study(tmp_path / "out")
    assert study is not None
    assert (study["jobs"], study["shared_device"]) == (1, True)
    assert [fair_axis(tmp_path / "out", axis) for axis in ("gpu_hours", "step")] == ["flops", "step"]


# Folders --------------------------------------------------------------------------------------------------------------


def test_a_folder_that_is_taken_is_refused(tmp_path):
    open_only(tmp_path)
    with pytest.raises(StudyError, match="holds a study already: go on with it by --resume"):
        open_only(tmp_path)
    (tmp_path / "out" / "study.json").unlink()
    with pytest.raises(StudyError, match="exists already and is no empty folder"):
        open_only(tmp_path)
    with pytest.raises(StudyError, match="holds no study to resume"):
        open_only(tmp_path, resume=True)


def test_arms_and_seeds_may_be_added_to_a_study(tmp_path):
    run(tmp_path)
    more = STUDY.replace("[0, 1]", "[0, 1, 2]") + "[arms.gspo]\nloss = 'gspo'\n"
    _, log = run(tmp_path, text=more, resume=True, jobs=5)
    assert {name for kind, name in log.events if kind == "done"} == {
        "cispo-seed2", "dapo-seed2", "gspo-seed0", "gspo-seed1", "gspo-seed2"
    }  # fmt: skip


@pytest.mark.parametrize(
    "old, new, said",
    [
        ('loss = "dapo"', "loss = { name = 'dapo', clip_high = 0.3 }", "loss.clip_high of the arm dapo was 0.26"),
        ("steps = 4", "steps = 6", "budget.steps of the arm cispo was 4 and is 6 now"),
        ("seeds = [0, 1]", "seeds = [0]", "the run cispo-seed1 of .*study.json is no longer in the study"),
        ("[arms.dapo]", "[arms.clipped]", "the arm dapo of .*study.json is no longer in the study"),
    ],
)  # fmt: skip
def test_a_study_that_was_changed_is_not_resumed_and_what_changed_is_named(tmp_path, old, new, said):
    open_only(tmp_path)
    with pytest.raises(StudyError, match=said):
        open_only(tmp_path, text=STUDY.replace(old, new), resume=True)


def test_two_studies_do_not_run_in_one_folder(tmp_path, monkeypatch):
    monkeypatch.setattr(study_folder, "_LOCK_WAIT_S", 0.2)
    plan, out = plan_of(tmp_path), tmp_path / "out"
    with (
        opened(plan, out, jobs=1, shares_device=False, resume=False),
        pytest.raises(BusyError, match=r"a study is running in .*out already"),
        opened(plan, out, jobs=1, shares_device=False, resume=True),
    ):
        pass
    open_only(tmp_path, resume=True)


# Stopping -------------------------------------------------------------------------------------------------------------

DRIVER = """
import sys; from pathlib import Path
sys.path.insert(0, {tests!r})
from test_runner import run, states
runner, log = run(Path({tmp!r}), {behaviour!r}, resume={resume!r})
print(log.events); print(runner.interrupted)
"""


def driver(tmp_path: Path, behaviour: dict[str, str], *, resume: bool = False) -> subprocess.Popen[str]:
    """A study in a process of its own, to be stopped and killed."""
    code = DRIVER.format(tests=str(Path(__file__).parent), tmp=str(tmp_path), behaviour=behaviour, resume=resume)
    return subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, start_new_session=True)


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


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
def test_a_study_that_is_killed_leaves_nothing_running_and_goes_on(tmp_path):
    study = driver(tmp_path, {"dapo-seed0": "hang"})
    wait_until(waiting(tmp_path, "dapo-seed0"))
    (first,) = starts(tmp_path, "dapo-seed0")
    assert alive(first["pid"])
    os.kill(study.pid, signal.SIGKILL)
    study.communicate(timeout=30)
    wait_until(lambda: not alive(first["pid"]))
    _, log = run(tmp_path, {"dapo-seed0": "hang"}, resume=True)
    assert [name for kind, name in log.events if kind == "done"] == NAMES[1:]
    assert [len(starts(tmp_path, name)) for name in NAMES] == [1, 2, 1, 1]


def test_ctrl_c_reaches_each_run_once_and_lets_it_save(tmp_path):
    study = driver(tmp_path, {"dapo-seed0": "hang"})
    wait_until(waiting(tmp_path, "dapo-seed0"))
    # As a terminal does it: to the whole group.
    os.killpg(study.pid, signal.SIGINT)
    said, _ = study.communicate(timeout=30)
    events, interrupted = said.splitlines()
    assert interrupted == "True"
    assert "('stopping', '1'), ('stopped', 'dapo-seed0')]" in events
    assert store.read_status(tmp_path / "out" / "runs" / "dapo-seed0") == {"status": "stopped", "reason": ""}
    assert not (tmp_path / "out" / "runs" / "cispo-seed1").exists()
    runner, _ = run(tmp_path, resume=True)
    assert states(runner) == dict.fromkeys(NAMES, "done")


def test_a_second_ctrl_c_ends_a_run_that_does_not_stop(tmp_path):
    stubborn = tmp_path / "stubborn.py"
    stubborn.write_text(
        "import signal, sys, time\nfrom pathlib import Path\nsignal.signal(signal.SIGINT, signal.SIG_IGN)\n"
        f"Path({str(tmp_path / 'ready')!r}).touch()\ntime.sleep(600)\n"
    )
    plan, log, runner = plan_of(tmp_path), Log(), None
    pid = os.getpid()
    stopper = subprocess.Popen(
        [
            sys.executable, "-c",
            "import os, signal, sys, time; from pathlib import Path\n"
            f"while not Path({str(tmp_path / 'ready')!r}).exists(): time.sleep(0.02)\n"
            f"os.kill({pid}, signal.SIGINT); time.sleep(0.5); os.kill({pid}, signal.SIGINT)",
        ]
    )  # fmt: skip
    with opened(plan, tmp_path / "out", jobs=1, shares_device=False, resume=False) as lock:
        runner = Runner(
            plan, tmp_path / "out", command=[sys.executable, str(stubborn)], lock=lock, watcher=log, axis="step"
        )
        runner.run()
    stopper.wait(timeout=30)
    assert runner.interrupted
    assert log.events == [
        ("started", "cispo-seed0"), ("stopping", "1"), ("at once", "1"), ("stopped", "cispo-seed0")
    ]  # fmt: skip


# What is shown --------------------------------------------------------------------------------------------------------


def test_the_forecast_of_a_run_follows_its_evaluations(tmp_path):
    """Noise-free points on a known curve: the ceiling is in its interval, and a new evaluation is taken up."""
    reader = ProgressReader(tmp_path, "gpu_hours")
    assert reader.read() == Progress()
    hours = np.geomspace(0.2, 40, 14)
    for step, hour in enumerate([0.0, *hours]):
        reward = 0.3 + 0.4 / (1 + (2.0 / hour) ** 1.5) if hour else 0.3
        row = {"step": step, "attempt": 1, "set": "main", "gpu_hours": hour, "flops": hour, "tokens": hour}
        store.append_row(tmp_path / store.EVALS, {**row, "reward": reward, "num_samples": 4000})
        if step == 2:
            assert (reader.read().reward, reader.read().ceiling) == (reward, None)
    store.append_row(tmp_path / store.METRICS, {"step": 14, "attempt": 1})
    with (tmp_path / store.METRICS).open("a") as file:
        file.write('{"step": 15, "att')
    progress = reader.read()
    assert progress.step == 14
    assert progress.ceiling is not None
    assert progress.ceiling.low < 0.7 < progress.ceiling.high
    assert progress.ceiling.value == pytest.approx(0.7, abs=0.01)


def test_a_damaged_run_folder_does_not_stop_the_study_that_looks_at_it(tmp_path):
    (tmp_path / store.EVALS).write_text("not json\nnor this\n")
    assert ProgressReader(tmp_path, "gpu_hours").read() == Progress()


def status_of(tmp_path: Path, **more: Any) -> RunStatus:
    return RunStatus(run=plan_of(tmp_path).runs[1], folder=tmp_path, **more)


def test_the_table_shows_every_run_and_its_forecast(tmp_path):
    progress = Progress(step=3, reward=0.5, ceiling=Ceiling(value=0.7, low=0.65, high=0.81))
    console = Console(record=True, width=120, file=io.StringIO())
    console.print(table([status_of(tmp_path, state="running", seconds=200.0, progress=progress)]))
    (line,) = [line for line in console.export_text().splitlines() if "dapo" in line]
    assert line.split() == ["dapo", "0", "running", "3/4", "3", "min", "20", "s", "0.500", "0.700", "[0.650,", "0.810]"]


def test_on_a_terminal_the_table_stands_below_what_is_said(tmp_path):
    console = Console(width=120, file=io.StringIO(), force_terminal=True, color_system=None)
    screen = Screen(console, num_runs=1)
    status = status_of(tmp_path, state="failed", reason="no memory", seconds=3)
    screen.looked([status])
    screen.finished(status)
    screen.close()
    assert isinstance(console.file, io.StringIO)
    shown = console.file.getvalue()
    last = shown[shown.rindex("[1/1] dapo-seed0 failed after 3 s: no memory") :]
    lines = [line for line in last.splitlines() if line.strip().startswith("dapo ")]
    assert [line.split() for line in lines] == [["dapo", "0", "failed", "3", "s"]] * 2


def test_without_a_terminal_every_event_is_a_line(tmp_path):
    console = Console(record=True, width=20, file=io.StringIO())
    screen = Screen(console, num_runs=4)
    screen.already_done(1)
    screen.started(status_of(tmp_path, state="running"))
    screen.finished(status_of(tmp_path, state="failed", reason="[red]no[/red] memory", seconds=3))
    screen.close()
    assert console.export_text().splitlines() == [
        "1 of 4 runs are done already.", "dapo-seed0 started", "[2/4] dapo-seed0 failed after 3 s: [red]no[/red] memory"
    ]  # fmt: skip
    done = status_of(tmp_path, state="done", seconds=7300, progress=Progress(step=4, reward=0.5))
    assert event_line(done) == "dapo-seed0 done after 2.0 h, reward 0.500"
    assert duration(5 * 86400) == "5.0 days"


# What it costs --------------------------------------------------------------------------------------------------------


def test_a_probe_times_the_base_and_leaves_nothing_behind(tmp_path):
    """The stand-in spends 2 s and 0.1 GPU-hours a step, and 3 s on 120 samples before its last step."""
    pace = probe(plan_of(tmp_path).base.recipe, command_of(tmp_path, {}))
    assert pace.step_s == pytest.approx(2)
    assert pace.step_gpu_hours == pytest.approx(0.1)
    assert pace.step_flops == pytest.approx(1e9)
    assert pace.sample_s == pytest.approx(3 / 120)


def test_a_probe_says_why_there_is_no_estimate(tmp_path):
    with pytest.raises(ProbeError, match=r"model\.path and task\.name not set.*add --set model\.path"):
        probe(make_plan(*load_study("loss"), gpu=True).base.recipe, ["false"])
    with pytest.raises(ProbeError, match="the base cannot be run here: it cannot be"):
        probe(plan_of(tmp_path).base.recipe, command_of(tmp_path, {"run": "crash"}))
    with pytest.raises(ProbeError, match="before its first step"):
        pace_from([], [], 1.0)


def test_the_cost_of_a_study_is_that_of_its_steps_evaluations_and_starts(tmp_path):
    pace = Pace(step_s=2.0, step_gpu_hours=0.1, step_flops=1e9, sample_s=0.01, start_up_s=5.0)
    text = STUDY.replace("seeds = [0, 1]", "seeds = [0]").replace("budget.steps = 4", "budget.steps = 20")
    both = "pipeline.groups_per_batch = 32\nevaluation = { every = 5, num_prompts = 10, samples_per_prompt = 3 }\n"
    total = cost(plan_of(tmp_path, text + both), pace)
    # The base: 20 steps, and evaluations of 250 x 4 at 0, 8, 16 and 20. Twice the batch: twice the time a step.
    base, arm = 20 * 2 + 4 * 1000 * 0.01 + 5, 20 * 4 + 5 * 30 * 0.01 + 5
    assert total.hours * 3600 == pytest.approx(base + arm)
    assert total.longest_run_hours * 3600 == pytest.approx(arm)
    assert total.gpu_hours == pytest.approx(20 * 0.1 + 20 * 0.2)
    assert total.steps == 40


@pytest.mark.parametrize("budget, steps", [("gpu_hours = 3.0", 30), ("flops = 7e9", 7), ("flops = 7e9\nsteps = 2", 2)])
def test_a_budget_in_compute_is_counted_in_steps(tmp_path, budget, steps):
    pace = Pace(step_s=2.0, step_gpu_hours=0.1, step_flops=1e9, sample_s=0.0, start_up_s=0.0)
    text = STUDY.replace("budget.steps = 4\n", "") + f"[budget]\n{budget}\n"
    assert cost(plan_of(tmp_path, text), pace).steps == 4 * steps
