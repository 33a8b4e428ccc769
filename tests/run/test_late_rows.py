"""Runs whose metrics are read late, as on a GPU: the same rows in the same order, also after errors and kills."""

import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from small_runs import SMALL, check_lineage, small, without_time

from scalerl import store
from scalerl.learner.late import LateMetrics
from scalerl.learner.step import TorchLearner
from scalerl.run.observer import NullObserver
from scalerl.run.run import Run


class Events(NullObserver):
    """Records what a run reports, in order."""

    def __init__(self) -> None:
        self.seen: list[tuple[str, int]] = []

    def stepped(self, row: Any) -> None:
        self.seen.append(("step", row["step"]))

    def evaluated(self, rows: Any, outlooks: Any, alarms: Any) -> None:
        self.seen.append(("evaluation", rows[0]["step"]))


@pytest.fixture
def late(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make learners read late on a CPU too."""
    monkeypatch.setattr(TorchLearner, "reads_late", True)


@pytest.mark.parametrize("overlap", [0, 0.5])
def test_late_rows_equal_rows_written_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, overlap: float):
    # An evaluation beside training is sampled at another pace than one that training waits for, but at the same in
    # both runs.
    settings = small("budget.steps=5", f"evaluation.overlap={overlap}")
    seen, rows = [], []
    for name in ("at once", "late"):
        monkeypatch.setattr(TorchLearner, "reads_late", name == "late")
        events = Events()
        run = Run(settings, tmp_path / name, observer=events)
        run.train()
        seen.append(events.seen)
        rows.append((store.read_metrics(tmp_path / name), store.read_evals(tmp_path / name)))
        assert without_time(run.metrics) == without_time(rows[-1][0])
    for here, there in zip(*rows, strict=True):
        assert without_time(here) == without_time(there)
    # The columns of a row come in the same order, those of time too.
    assert [list(row) for row in rows[0][0]] == [list(row) for row in rows[1][0]]
    assert [row["step"] for row in rows[1][0]] == [1, 2, 3, 4, 5]
    for kind in ("step", "evaluation"):
        assert [event for event in seen[0] if event[0] == kind] == [event for event in seen[1] if event[0] == kind]
    # No evaluation is reported before the row of its step.
    assert all(seen[1].index(("step", step)) < seen[1].index(("evaluation", step)) for step in (3, 5))


def test_a_row_is_written_when_the_next_step_is_done(tmp_path: Path, late: None, monkeypatch: pytest.MonkeyPatch):
    num_rows = []
    folder, step = tmp_path / "run", TorchLearner.step

    def counted(self: TorchLearner, batch: Any) -> Any:
        metrics = step(self, batch)
        num_rows.append(len(store.read_metrics(folder)) if (folder / store.METRICS).exists() else 0)
        assert isinstance(metrics, LateMetrics)
        return metrics

    monkeypatch.setattr(TorchLearner, "step", counted)
    Run(small("budget.steps=5", "evaluation.every=100", "checkpoint.every=3"), folder).train()
    # Before the row of step n is written step n + 1 is under way, unless a checkpoint comes between: that of step 3.
    assert num_rows == [0, 0, 1, 3, 3]
    assert [row["step"] for row in store.read_metrics(folder)] == [1, 2, 3, 4, 5]


@pytest.mark.parametrize("error", [RuntimeError("no memory left"), KeyboardInterrupt()])
def test_the_last_row_survives_an_error_in_a_step(
    tmp_path: Path, late: None, monkeypatch: pytest.MonkeyPatch, error: BaseException
):
    folder, step = tmp_path / "run", TorchLearner.step

    def failing(self: TorchLearner, batch: Any) -> Any:
        if self.version == 3:
            raise error
        return step(self, batch)

    monkeypatch.setattr(TorchLearner, "step", failing)
    run = Run(small("budget.steps=10", "evaluation.every=100"), folder)
    with pytest.raises(type(error)):
        run.train()
    assert [row["step"] for row in store.read_metrics(folder)] == [1, 2, 3]
    assert store.read_status(folder)["status"] == ("failed" if isinstance(error, RuntimeError) else "stopped")
    monkeypatch.setattr(TorchLearner, "step", step)
    Run(small("budget.steps=10", "evaluation.every=100"), folder, resume=True).train()
    check_lineage(folder, 10)


def test_a_device_that_fails_is_the_error_of_the_run(tmp_path: Path, late: None, monkeypatch: pytest.MonkeyPatch):
    folder, read = tmp_path / "run", TorchLearner._metrics

    def failing(self: TorchLearner, *arguments: Any, **options: Any) -> Any:
        if self.version >= 3:
            raise RuntimeError("the device is lost")
        return read(self, *arguments, **options)

    monkeypatch.setattr(TorchLearner, "_metrics", failing)
    run = Run(small("budget.steps=10", "evaluation.every=100", "checkpoint.every=2"), folder)
    with pytest.raises(RuntimeError, match="the device is lost"):
        run.train()
    assert [row["step"] for row in store.read_metrics(folder)] == [1, 2]
    assert store.read_status(folder)["reason"] == "RuntimeError: the device is lost"


KILLED = """
import os, signal, sys
import torch
torch.set_num_threads(1)
from scalerl.cli import main
from scalerl.learner.step import TorchLearner
from scalerl.run.run import Run

TorchLearner.reads_late = True
last = int(sys.argv.pop(1))
write = Run._write_row

def write_or_die(self):
    if self._unwritten is not None and self.pipeline.version > last and self.metrics[-1]["step"] == last:
        os.kill(os.getpid(), signal.SIGKILL)
    write(self)

Run._write_row = write_or_die
main()
"""


def test_kills_between_a_step_and_its_row_lose_nothing(tmp_path: Path, late: None):
    """Each kill comes at the worst moment: steps are done, and the rows of one or two are not written."""
    folder, settings = tmp_path / "run", (*SMALL, "evaluation.every=100", "budget.steps=10")
    words = [word for setting in settings for word in ("--set", setting)]
    # Checkpoints are at even steps: step 3 lies between two of them, step 6 is lost just before its checkpoint.
    for attempt, last in enumerate((2, 5)):
        command = [sys.executable, "-c", KILLED, str(last), "train", "tiny-cpu", "--out", str(folder), *words]
        done = subprocess.run([*command, *["--resume"] * attempt], capture_output=True, text=True)
        assert done.returncode == -signal.SIGKILL, done.stdout + done.stderr
        assert [row["step"] for row in store.read_metrics(folder)] == list(range(1, last + 1))
    Run(small("budget.steps=10", "evaluation.every=100"), folder, resume=True).train()
    check_lineage(folder, 10)
    assert [row["attempt"] for row in store.read_metrics(folder)] == [1, 1, 2, 2, 3, 3, 3, 3, 3, 3]
