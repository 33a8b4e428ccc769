"""The driver's side of ranks, and the loop of commands inside a rank, without processes."""

import pickle
import threading
import time
from collections import deque
from pathlib import Path
from typing import Any

import pytest
from learners import make_learner

from scalerl.errors import LearnerError, RankLost, RecipeError, RunFolderError
from scalerl.learner.ranks.driver import RankedLearner
from scalerl.learner.ranks.rank import RankFacts, check_visible
from scalerl.learner.ranks.serve import DriverGone, obey

FACTS = RankFacts(version=3, shape=make_learner().shape, device="cpu", num_local=1, peak_bytes=0)


class ScriptedRank:
    """A rank in this process that answers every command with what it was given."""

    def __init__(self, rank: int, answers: Any = None) -> None:
        self.rank, self.killed, self.lost_at = rank, False, float("inf")
        self._answers: deque[tuple[str, Any]] = deque([("ready", FACTS)])
        self._results = answers or {}
        self.commands: list[Any] = []

    def send(self, message: bytes) -> None:
        command, _ = pickle.loads(message)
        self.commands.append(command)
        result = self._results.get(command)
        if command in self._results or self.lost_at == float("inf"):
            self._answers.append(("error", result) if isinstance(result, Exception) else ("done", result))

    def receive(self, timeout_s: float) -> tuple[str, Any] | None:
        self.check()
        if not self._answers:
            return None
        kind, value = self._answers.popleft()
        if kind == "error":
            raise value
        return kind, value

    def check(self) -> None:
        if time.monotonic() > self.lost_at:
            raise RankLost(f"rank {self.rank} was lost")

    def kill(self) -> None:
        self.killed = True

    def join(self) -> None:
        self.kill()


def published(rank: Any) -> Any:
    """A function of a module, as ranks are given."""
    return {"weights of": rank}


def test_loss_noticed_late_is_the_reason():
    """A rank fails because another one is gone, and its failure is seen first."""
    ranks = [ScriptedRank(0, {"step": LearnerError("rank 0 failed: connection closed")}), ScriptedRank(1)]
    learner = RankedLearner(lambda: ranks, cause_s=2.0)
    ranks[1].lost_at = time.monotonic() + 0.3
    with pytest.raises(RankLost, match="rank 1 was lost"):
        learner.step(())  # pyright: ignore[reportArgumentType]
    assert all(rank.killed for rank in ranks)
    with pytest.raises(RankLost, match="rank 1 was lost"):
        learner.rank_facts()


def test_failure_without_a_loss_is_reported_itself():
    ranks = [ScriptedRank(0, {"step": LearnerError("rank 0 failed: out of memory")}), ScriptedRank(1)]
    learner = RankedLearner(lambda: ranks, cause_s=0.1)
    with pytest.raises(LearnerError, match="out of memory"):
        learner.step(())  # pyright: ignore[reportArgumentType]
    assert all(rank.killed for rank in ranks)


def test_rank_that_is_never_ready_is_lost_with_the_limit():
    ranks = [ScriptedRank(0), ScriptedRank(1)]
    ranks[1]._answers.clear()
    sentence = r"rank 1 of the learner is not ready after 0.2 s \(learner.start_s\): it hangs, or needs longer to load"
    with pytest.raises(RankLost, match=sentence):
        RankedLearner(lambda: ranks, start_s=0.2)
    assert all(rank.killed for rank in ranks)


def test_check_finds_a_rank_that_died_while_idle():
    ranks = [ScriptedRank(0), ScriptedRank(1)]
    learner = RankedLearner(lambda: ranks)
    learner.check()
    ranks[0].lost_at = 0.0
    learner.check()  # At once after another check: nothing is looked at.
    assert not ranks[0].killed
    time.sleep(0.6)
    with pytest.raises(RankLost, match="rank 0"):
        learner.check()
    assert all(rank.killed for rank in ranks)


def test_checkpoint_ends_if_its_writer_dies(tmp_path: Path):
    """Nobody else looks at the ranks while the last checkpoint of a run is written."""
    ranks = [ScriptedRank(0, {"snapshot": True, "write": None}), ScriptedRank(1, {"snapshot": True, "write": None})]
    learner = RankedLearner(lambda: ranks)
    state = learner.state_dict()
    ranks[1].lost_at = time.monotonic() + 0.3
    with pytest.raises(RankLost, match="rank 1"):
        state.write(tmp_path)


def test_published_weights_are_what_rank_0_returns():
    ranks = [ScriptedRank(0, {published: {"a": "reference"}}), ScriptedRank(1, {published: None})]
    learner = RankedLearner(lambda: ranks, publish=published)
    assert learner.weights() == {"a": "reference"}
    assert ranks[1].commands == [published], "all ranks take part"


class Obeying:
    """The methods that `obey` calls on a rank."""

    def facts(self) -> str:
        return "facts"

    def count(self, num: int) -> Any:
        return iter(range(num))

    def fail(self) -> None:
        raise ZeroDivisionError("by zero\nsecond line")

    def read(self) -> None:
        raise EOFError("a file is cut off")

    def close(self) -> None: ...


def answers_to(*commands: tuple[Any, tuple[Any, ...]]) -> list[tuple[str, Any]]:
    inbox, answers = deque(pickle.dumps(command) for command in commands), []
    obey(lambda: Obeying(), 5, inbox.popleft, lambda kind, value: answers.append((kind, value)))  # pyright: ignore[reportArgumentType, reportReturnType]
    return answers


def test_commands_are_answered_in_order_until_close():
    answers = answers_to(("count", (2,)), (published, ()), ("close", ()))
    assert [kind for kind, _ in answers] == ["ready", "item", "item", "done", "done", "done"]
    assert [value for _, value in answers][:4] == ["facts", 0, 1, None]
    assert isinstance(answers[4][1]["weights of"], Obeying)


def test_failure_is_answered_in_one_line_with_the_rank():
    answers: list[tuple[str, Any]] = []
    inbox = deque([pickle.dumps(("fail", ()))])
    with pytest.raises(ZeroDivisionError):
        obey(lambda: Obeying(), 5, inbox.popleft, lambda kind, value: answers.append((kind, value)))  # pyright: ignore[reportArgumentType, reportReturnType]
    kind, error = answers[-1]
    assert kind == "error"
    assert str(error) == "rank 5 of the learner failed: ZeroDivisionError: by zero"
    (where,) = pickle.loads(pickle.dumps(error)).__notes__
    assert 'raise ZeroDivisionError("by zero' in where


def test_error_that_cannot_be_sent_is_answered_as_text():
    answers: list[tuple[str, Any]] = []

    def make() -> Any:
        error = RecipeError("no such model")
        error.lock = threading.Lock()  # pyright: ignore[reportAttributeAccessIssue]
        raise error

    def answer(kind: str, value: Any) -> None:
        answers.append((kind, str(pickle.loads(pickle.dumps(value)))))

    with pytest.raises(RecipeError):
        obey(make, 5, deque[bytes]().popleft, answer)
    assert answers == [("error", "no such model")]


def test_end_of_a_file_is_answered_and_that_of_the_pipe_is_not():
    answers: list[tuple[str, Any]] = []

    def make(cut_off: bool) -> Any:
        return Obeying().read() if cut_off else Obeying()

    def receive() -> bytes:
        raise EOFError

    def answer(kind: str, value: Any) -> None:
        answers.append((kind, str(value)))

    reason = "rank 5 of the learner failed: EOFError: a file is cut off"
    with pytest.raises(EOFError):
        obey(lambda: make(True), 5, receive, answer)
    with pytest.raises(EOFError):
        obey(lambda: make(False), 5, deque([pickle.dumps(("read", ()))]).popleft, answer)
    assert answers == [("error", reason), ("ready", "facts"), ("error", reason)]
    with pytest.raises(DriverGone):
        obey(lambda: make(False), 5, receive, answer)
    assert answers[3:] == [("ready", "facts")], "nobody is left to be answered"


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
    ranks = [ScriptedRank(0), ScriptedRank(1)]
    learner = RankedLearner(lambda: ranks)
    learner.check_folder(tmp_path)
    assert [rank.commands for rank in ranks] == [["see"], ["see"]]
    assert not list(tmp_path.iterdir())
