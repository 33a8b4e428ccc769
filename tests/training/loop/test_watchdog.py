"""Engines and calls that no longer move."""

import threading
import time
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import pytest
from simulated import AtOnce, SimulatedEngine, complete, grade, make_requests

from scalerl.errors import EngineStalled, LearnerError
from scalerl.training.loop.watchdog import Watchdog, WatchedEngine, WatchedGrading
from scalerl.training.tasks.curriculum import Issued
from scalerl.training.types import Completion


def hangs(watchdog: Callable[[Callable[[str], None]], Watchdog], what: str = "", call: Any = None) -> str:
    """Return the reason reported for a call that hangs until it is reported: `call`, or everything that is watched."""
    reasons: list[str] = []
    released = threading.Event()

    def on_hung(reason: str) -> None:
        reasons.append(reason)
        released.set()

    def wait(*_: object) -> None:
        assert released.wait(300)

    with watchdog(on_hung) as dog, dog.watching(what) if call is None else nullcontext():
        wait() if call is None else call(dog, wait)
    (reason,) = reasons
    return reason


def test_hung_call_is_reported_with_its_place():
    reason = hangs(lambda on_hung: Watchdog(on_hung, limit_s=0.1), "the grader")
    assert reason.startswith("the grader did not return for 0.1 s (it was at ")
    assert "wait" in reason


def test_time_between_calls_is_not_counted():
    reasons: list[str] = []
    with Watchdog(reasons.append, limit_s=0.5) as dog:

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
    assert reasons == []


def test_unwatched_call_inside_a_watched_one_may_take_long():
    reasons: list[str] = []
    with Watchdog(reasons.append, limit_s=0.2) as dog, dog.watching("the grader"), dog.watching(None):
        time.sleep(0.6)
    assert reasons == []


def test_grading_call_that_hangs_is_noticed():
    completions = [complete(request, [0]) for request in make_requests(Issued(problem_id="p", epoch=0))]
    grading = WatchedGrading(AtOnce(grade), Watchdog(pytest.fail))
    grading.submit([completions])
    assert grading.poll(wait=True) == [grade(completions)]

    def submit(dog: Watchdog, wait: Callable[..., None]) -> None:
        stuck = AtOnce(grade)
        stuck.submit = wait
        WatchedGrading(stuck, dog).submit([completions])

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
