"""The driver's side of ranks, without processes."""

import functools
import queue
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from learners import make_learner
from until import wait_until

from scalerl.errors import LearnerError, RankLost, RunFolderError
from scalerl.training.learner.ranks import driver
from scalerl.training.learner.ranks.driver import RankedLearner
from scalerl.training.learner.ranks.rank import check_visible
from scalerl.training.remote.peer import Lost
from scalerl.training.remote.serve import RemoteFailure


@functools.cache
def facts() -> tuple[int, Any]:
    """Return what a rank reports when it is ready."""
    return 3, make_learner().shape


class ScriptedRank:
    """A link to a rank that answers every command with what it was given."""

    where, pid, is_placed = "", None, True

    def __init__(self, answers: Any = None, *, is_ready: bool = True) -> None:
        self.killed, self.lost_at = False, float("inf")
        self._messages: queue.SimpleQueue[tuple[str, Any]] = queue.SimpleQueue()
        if is_ready:
            self._messages.put(("ready", facts()))
        self._results = answers or {}
        self.commands: list[Any] = []

    def has_left(self) -> bool:
        return False

    def packed(self, name: Any, arguments: tuple[Any, ...]) -> Any:
        return name

    def write(self, command: Any) -> None:
        self.commands.append(command)
        result = self._results.get(command)
        if command in self._results or self.lost_at == float("inf"):
            self._messages.put(("error", result) if isinstance(result, Exception) else ("done", result))

    def read(self) -> list[tuple[str, Any]]:
        if time.monotonic() > self.lost_at:
            raise Lost("died", "was lost")
        try:
            return [self._messages.get(timeout=0.01)]
        except queue.Empty:
            return [("beat", 0.0)]

    def kill(self) -> None:
        self.killed = True


def test_loss_noticed_late_is_the_reason():
    """A rank fails because another one is gone, and its failure is seen first."""
    ranks = [ScriptedRank({"step": RemoteFailure("connection closed")}), ScriptedRank()]
    learner = RankedLearner(ranks, cause_s=60.0)
    ranks[1].lost_at = time.monotonic() + 0.3
    with pytest.raises(RankLost, match="rank 1 of the learner was lost"):
        learner.step(())  # pyright: ignore[reportArgumentType]
    assert all(rank.killed for rank in ranks)
    with pytest.raises(RankLost, match="rank 1 of the learner was lost"):
        learner.weights()


def test_failure_without_a_loss_is_reported_itself():
    ranks = [ScriptedRank({"step": RemoteFailure("out of memory")}), ScriptedRank()]
    learner = RankedLearner(ranks, cause_s=0.1)
    with pytest.raises(LearnerError, match="out of memory"):
        learner.step(())  # pyright: ignore[reportArgumentType]
    assert all(rank.killed for rank in ranks)


def test_check_finds_a_rank_that_died_while_idle(monkeypatch: pytest.MonkeyPatch):
    now = [100.0]
    monkeypatch.setattr(driver, "time", SimpleNamespace(monotonic=lambda: now[0]))
    ranks = [ScriptedRank(), ScriptedRank()]
    learner = RankedLearner(ranks)
    learner.check()
    ranks[0].lost_at = 0.0
    wait_until(lambda: ranks[0].killed, what="the end of its link")
    learner.check()  # At once after another check: nothing is looked at.
    assert not ranks[1].killed
    now[0] += 0.6
    with pytest.raises(RankLost, match="rank 0"):
        learner.check()
    assert all(rank.killed for rank in ranks)


def test_checkpoint_ends_if_its_writer_dies(tmp_path: Path):
    """Nobody else looks at the ranks while the last checkpoint of a run is written."""
    ranks = [ScriptedRank({"snapshot": True, "write": None}), ScriptedRank({"snapshot": True, "write": None})]
    learner = RankedLearner(ranks)
    state = learner.state_dict()
    ranks[1].lost_at = time.monotonic() + 0.3
    with pytest.raises(RankLost, match="rank 1"):
        state.write(tmp_path)


@pytest.mark.parametrize("first", [{}, {"has_written": True}], ids=["none has answered", "one has answered"])
def test_checkpoint_that_is_written_while_the_learner_is_closed_fails(tmp_path: Path, first: dict[str, Any]):
    """As a run does that fails meanwhile, and whose process ends only when the checkpoint has ended."""
    ranks = [ScriptedRank({"snapshot": True, "write": None, **more}) for more in (first, {})]
    learner, ends = RankedLearner(ranks, cause_s=0.1), []
    state = learner.state_dict()

    def write() -> None:
        try:
            ends.append(state.write(tmp_path))
        except LearnerError as error:
            ends.append(str(error))

    for rank in ranks:
        rank.lost_at = time.monotonic() + 100  # and until then it answers only what it has an answer to
    writer = threading.Thread(target=write, daemon=True)
    writer.start()
    while "has_written" not in ranks[1].commands:
        time.sleep(0.01)
    for rank in ranks:
        rank.lost_at = time.monotonic() + 0.5
    learner.close()
    writer.join(100)
    assert ends == ["the learner is closed"]


def test_folder_that_a_rank_does_not_see_is_one_sentence(tmp_path: Path):
    file = tmp_path / "file"
    file.touch()
    check_visible(file, rank=1)
    check_visible(tmp_path, rank=1)
    with pytest.raises(RunFolderError, match=r"rank 1 of the learner, on .*, does not see .*a file system that all"):
        check_visible(tmp_path / "elsewhere" / "file", rank=1, wait_s=0.0)


def test_file_may_appear_a_moment_later(tmp_path: Path):
    late = threading.Timer(0.2, (tmp_path / "file").touch)
    late.start()
    check_visible(tmp_path / "file", rank=0)
    late.join()


def test_new_file_of_the_driver_is_looked_for_and_removed(tmp_path: Path):
    ranks = [ScriptedRank(), ScriptedRank()]
    learner = RankedLearner(ranks)
    learner.check_folder(tmp_path)
    assert [rank.commands for rank in ranks] == [["see"], ["see"]]
    assert not list(tmp_path.iterdir())
