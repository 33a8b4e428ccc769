"""Engines and calls that no longer move."""

import threading
import time
from collections.abc import Callable

import pytest
from simulated import SimulatedEngine, make_requests

from scalerl.tasks.curriculum import Issued
from scalerl.train.watch import EngineStalled, Watchdog, WatchedEngine
from scalerl.types import Completion


def hangs(watchdog: Callable[[Callable[[str], None]], Watchdog], what: str) -> str:
    """What is said of a call that returns only once somebody has said it."""
    said: list[str] = []
    released = threading.Event()

    def on_hung(reason: str) -> None:
        said.append(reason)
        released.set()

    with watchdog(on_hung) as dog, dog.watching(what):
        assert released.wait(20)
    (reason,) = said
    return reason


def test_a_call_that_does_not_return_is_noticed_and_its_place_named():
    reason = hangs(lambda on_hung: Watchdog(on_hung, limit_s=0.1), "the grader")
    assert reason.startswith("the grader did not return for 0.1 s (it was at ")
    assert "wait" in reason


def test_calls_that_return_and_time_between_them_are_no_hang():
    said: list[str] = []
    with Watchdog(said.append, limit_s=0.5) as dog:
        work = dog.watched("the engine", lambda seconds: time.sleep(seconds) or seconds)
        # Together they take longer than the limit, and the learner longer still.
        assert [work(0.1) for _ in range(7)] == [0.1] * 7
        time.sleep(0.8)
        with dog.watching("the grader"):
            for _ in range(7):
                work(0.1)
    assert said == []


class Silent(SimulatedEngine):
    """Answers every poll with nothing."""

    def poll(self) -> list[Completion]:
        return []


def test_a_learner_that_takes_long_between_two_empty_polls_is_no_fault_of_the_engine():
    now = [0.0]
    engine = WatchedEngine(Silent(slots=1), Watchdog(pytest.fail), quiet_s=60.0, clock=lambda: now[0])
    engine.submit(make_requests(Issued(problem_id="p", epoch=0)))
    for version in range(3):
        assert engine.poll() == []
        now[0] += 59.0
        assert engine.poll() == []
        now[0] += 3600.0
        engine.push_weights({"version": version}, version)
    engine.poll()
    now[0] += 60.0
    with pytest.raises(EngineStalled, match="sampled nothing for 60 s while 2 requests are with it"):
        engine.poll()
