"""Runs whose metrics are read late, as on a GPU: the same rows in the same order, also after errors and kills."""

import functools
import os
import signal
from pathlib import Path
from typing import Any

import forked
import pytest
from small_runs import SHORT, SMALL, check_lineage, small, without_time

from scalerl.runfolder import store
from scalerl.training.learner.step import TorchLearner
from scalerl.training.run.observer import RunObserver
from scalerl.training.run.run import TrainingRun


class Events(RunObserver):
    """Records what a run reports, in order."""

    def __init__(self) -> None:
        self.seen: list[tuple[str, int]] = []

    def stepped(self, row: Any) -> None:
        self.seen.append(("step", row["step"]))

    def evaluated(self, rows: Any) -> None:
        self.seen.append(("evaluation", rows[0]["step"]))


@pytest.fixture
def late(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make learners read late on a CPU too."""
    monkeypatch.setattr(TorchLearner, "reads_late", True)


def test_late_rows_equal_rows_written_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    # With an evaluation between steps, a checkpoint after step 2, and a last step without either.
    settings = small("budget.steps=5", "checkpoint.every=2")
    step, seen, rows, num_written = TorchLearner.step, [], [], []
    for name in ("at once", "late"):
        folder, events, num = tmp_path / name, Events(), []
        seen.append(events.seen)
        num_written.append(num)

        def counted(self: TorchLearner, batch: Any, events: Events = events, num: list[int] = num) -> Any:
            num.append(sum(kind == "step" for kind, _ in events.seen))
            return step(self, batch)

        monkeypatch.setattr(TorchLearner, "reads_late", name == "late")
        monkeypatch.setattr(TorchLearner, "step", counted)
        run = TrainingRun(settings, folder, observer=events)
        run.train()
        rows.append((store.read_metrics(folder), store.read_evals(folder)))
        assert without_time(run.rows.metrics) == without_time(rows[-1][0])
    for here, there in zip(*rows, strict=True):
        assert without_time(here) == without_time(there)
    # The columns of a row come in the same order, those of time too.
    assert [list(row) for row in rows[0][0]] == [list(row) for row in rows[1][0]]
    assert [row["step"] for row in rows[1][0]] == [1, 2, 3, 4, 5]
    # When step n begins, the row of step n - 1 is not written, unless a checkpoint (2, 4) or an evaluation (3) came.
    assert num_written == [[0, 1, 2, 3, 4], [0, 0, 2, 3, 4]]
    for kind in ("step", "evaluation"):
        assert [event for event in seen[0] if event[0] == kind] == [event for event in seen[1] if event[0] == kind]
    # No evaluation is reported before the row of its step.
    assert all(seen[1].index(("step", step)) < seen[1].index(("evaluation", step)) for step in (3, 5))


@pytest.mark.parametrize(
    "method, error, rows, status",
    [
        ("step", RuntimeError("no memory left"), 3, "failed"),
        ("step", KeyboardInterrupt(), 3, "stopped"),
        # Nor can the row of the last step be read then.
        ("_metrics", RuntimeError("the device is lost"), 2, "failed"),
    ],
)
def test_rows_survive_an_error_in_a_step(
    tmp_path: Path, late: None, monkeypatch: pytest.MonkeyPatch, method: str, error: Any, rows: int, status: str
):
    folder, original = tmp_path / "run", getattr(TorchLearner, method)

    def failing(self: TorchLearner, *arguments: Any, **options: Any) -> Any:
        if self.version >= 3:
            raise error
        return original(self, *arguments, **options)

    monkeypatch.setattr(TorchLearner, method, failing)
    run = TrainingRun(small("budget.steps=10", "evaluation.every=100", "evaluation.num_prompts=2"), folder)
    with pytest.raises(type(error), match=str(error) or None):
        run.train()
    assert [row["step"] for row in store.read_metrics(folder)] == list(range(1, rows + 1))
    written = store.read_status(folder) or {}
    assert written["status"] == status
    assert str(error) in written["reason"]


def die_late(last: int) -> None:
    """Make this process read late, and kill itself before it writes the row after this one."""
    append = store.append_row

    def append_or_die(path: Path, row: Any) -> None:
        if path.name == store.METRICS and row["step"] == last + 1:
            os.kill(os.getpid(), signal.SIGKILL)
        append(path, row)

    TorchLearner.reads_late = True  # pyright: ignore[reportAttributeAccessIssue]
    store.append_row = append_or_die  # pyright: ignore[reportAttributeAccessIssue]


@pytest.mark.parametrize("kills", [(5,), pytest.param((2, 5), marks=pytest.mark.slow)])
def test_kills_between_a_step_and_its_row_lose_nothing(tmp_path: Path, late: None, kills: tuple[int, ...]):
    """Each kill comes at the worst moment: steps are done, and the rows of one or two are not written."""
    folder, settings = tmp_path / "run", (*SMALL, *SHORT, "evaluation.every=100", "budget.steps=8")
    words = [word for setting in settings for word in ("--set", setting)]
    # Checkpoints are at even steps: after row 5, step 6 is lost just before its own; after row 2, steps 3 and 4 are.
    for attempt, last in enumerate(kills):
        command = ["train", "tiny-cpu", "--out", str(folder), *words, *["--resume"] * attempt]
        process = forked.start(command, output=tmp_path / "log", prepare=functools.partial(die_late, last))
        process.join()
        assert process.exitcode == -signal.SIGKILL, (tmp_path / "log").read_text()
        assert [row["step"] for row in store.read_metrics(folder)] == list(range(1, last + 1))
    TrainingRun(small("budget.steps=8", "evaluation.every=100"), folder, resume=True).train()
    check_lineage(folder, 8)
    # The rows that count are those of the attempts up to their last checkpoints, 2 and 4.
    attempts = [row["attempt"] for row in store.read_metrics(folder)]
    assert attempts == ([1] * 4 + [2] * 4 if len(kills) == 1 else [1, 1, 2, 2] + [3] * 4)
