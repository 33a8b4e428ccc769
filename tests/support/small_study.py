"""A study of two arms and two seeds whose runs are made up, for the tests of what runs it and looks at it."""

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from scalerl.runfolder import store
from scalerl.study.folder import open_study
from scalerl.study.plan import StudyPlan, make_plan
from scalerl.study.runner import Runner, RunStatus
from scalerl.study.spec import load_study

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

    def stopping(self, num_running: int, at_once: bool) -> None:
        self.events.append(("at once" if at_once else "stopping", str(num_running)))


def plan_of(tmp_path: Path, text: str = STUDY) -> StudyPlan:
    (tmp_path / "mine.toml").write_text(text)
    return make_plan(*load_study(tmp_path / "mine.toml"), gpu=False)


def command_of(tmp_path: Path, behaviour: dict[str, Any]) -> list[str]:
    (tmp_path / "behaviour.json").write_text(json.dumps(behaviour))
    return [sys.executable, str(FAKE), str(tmp_path / "behaviour.json")]


def run(
    tmp_path: Path, behaviour: dict[str, Any] | None = None, *, text: str = STUDY, resume: bool = False, **settings: Any
) -> tuple[Runner, Log]:
    command = command_of(tmp_path, behaviour or {})
    return run_plan(plan_of(tmp_path, text), tmp_path / "out", command, resume=resume, **settings)


def run_plan(
    plan: StudyPlan, out: Path, command: Sequence[str], *, resume: bool, **settings: Any
) -> tuple[Runner, Log]:
    """Run a plan by a command."""
    log, jobs = Log(), settings.get("jobs", 1)
    with open_study(plan, out, jobs=jobs, shares_device=jobs > 1, resume=resume) as lock:
        runner = Runner(plan, out, command=command, lock=lock, observer=log, **settings)
        runner.run()
    return runner, log


def open_only(tmp_path: Path, *, text: str = STUDY, resume: bool = False) -> None:
    with open_study(plan_of(tmp_path, text), tmp_path / "out", jobs=1, shares_device=False, resume=resume):
        pass


def states(runner: Runner) -> dict[str, str]:
    return {status.run.name: status.state for status in runner.statuses}


def starts(tmp_path: Path, name: str) -> list[dict[str, Any]]:
    path = tmp_path / "out" / "runs" / name / "starts.jsonl"
    return [row for _, row in store.parse_lines(path.read_text(), path)]


NAMES = [f"{arm}-seed{seed}" for seed in (0, 1) for arm in ("cispo", "dapo")]
