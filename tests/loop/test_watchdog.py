"""Engines and calls that no longer move."""

import threading
import time
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import pytest
from simulated import AtOnce, SimulatedEngine, complete, grade, make_requests

from scalerl.errors import EngineStalled, LearnerError
from scalerl.loop import watchdog as watch
from scalerl.loop.watchdog import Watchdog, WatchedEngine, WatchedGrading, patience_s
from scalerl.tasks.curriculum import Issued
from scalerl.types import Completion


def hangs(watchdog: Callable[[Callable[[str], None]], Watchdog], what: str = "", call: Any = None) -> str:
    """What is said of a call that returns only once somebody has said it: `call`, or all that is watched."""
    said: list[str] = []
    released = threading.Event()

    def on_hung(reason: str) -> None:
        said.append(reason)
        released.set()

    def wait(*_: object) -> None:
        assert released.wait(20)

    with watchdog(on_hung) as dog, dog.watching(what) if call is None else nullcontext():
        wait() if call is None else call(dog, wait)
    (reason,) = said
    return reason


def test_hung_call_is_reported_with_its_place():
    reason = hangs(lambda on_hung: Watchdog(on_hung, limit_s=0.1), "the grader")
    assert reason.startswith("the grader did not return for 0.1 s (it was at ")
    assert "wait" in reason


def test_time_between_calls_is_not_counted():
    said: list[str] = []
    with Watchdog(said.append, limit_s=0.5) as dog:

        def work() -> None:
            with dog.watching("the engine"):
                time.sleep(0.1)

        # Together they take longer than the limit, and the learner longer still.
        for _ in range(7):
            work()
        time.sleep(0.8)
        with dog.watching("the grader"):
            for _ in range(7):
                work()
    assert said == []


def test_unwatched_call_inside_a_watched_one_may_take_long():
    said: list[str] = []
    with Watchdog(said.append, limit_s=0.2) as dog, dog.watching("the grader"), dog.watching(None):
        time.sleep(0.6)
    assert said == []


def test_limit_follows_the_longest_call():
    assert patience_s(0, 0.0) == patience_s(4, 0.01) == 600.0
    assert patience_s(5, 0.01) == 30.0
    assert patience_s(5, 2.0) == 100.0
    # Nothing has ever more time than the first calls.
    assert patience_s(10**6, 100.0) == 600.0


def test_limit_is_learnt_per_name(monkeypatch: pytest.MonkeyPatch):
    for name, value in (("LEAST_HUNG_S", 0.2), ("TIMES_LONGEST", 4), ("FEW_CALLS", 3)):
        monkeypatch.setattr(watch, name, value)

    def learnt(on_hung: Callable[[str], None]) -> Watchdog:
        dog = Watchdog(on_hung)
        with dog.watching("the grader"):
            for seconds in (0.0, 0.15, 0.0):
                with dog.watching("the engine"):
                    time.sleep(seconds)
        return dog

    reason = hangs(learnt, "the engine")
    limit_s = float(reason.removeprefix("the engine did not return for ").partition(" s ")[0])
    assert 0.6 <= limit_s < 6
    dog = learnt(pytest.fail)
    with dog, dog.watching("the grader"):
        # One call of this name is too few, however long the engine's took.
        time.sleep(limit_s / 2 + 0.3)
    # A limit of the user's own is not second-guessed.
    assert Watchdog(pytest.fail, limit_s=3600.0)._limit_of("the engine") == 3600.0


def test_grading_call_that_hangs_is_noticed():
    completions = [complete(request, [0]) for request in make_requests(Issued(problem_id="p", epoch=0))]
    grading = WatchedGrading(AtOnce(grade), Watchdog(pytest.fail))
    grading.submit(completions)
    assert grading.poll(wait=True) == [grade(completions)]

    def submit(dog: Watchdog, wait: Callable[..., None]) -> None:
        stuck = AtOnce(grade)
        stuck.submit = wait
        WatchedGrading(stuck, dog).submit(completions)

    reason = hangs(lambda on_hung: Watchdog(on_hung, limit_s=0.1), call=submit)
    assert reason.startswith("the grader did not return for 0.1 s")


class Silent(SimulatedEngine):
    """Answers every poll with nothing."""

    def poll(self) -> list[Completion]:
        return []


def test_slow_learner_does_not_make_the_engine_stalled():
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


def test_polls_notice_the_death_of_another_part():
    def check() -> None:
        raise LearnerError("rank 1 is gone")

    engine = WatchedEngine(Silent(slots=1), Watchdog(pytest.fail), check=check)
    with pytest.raises(LearnerError, match="rank 1 is gone"):
        engine.poll()
