"""A fleet of threads: who gets what, what happens when members die or hang, and evaluations beside training."""

import dataclasses
import itertools
from collections import Counter

import pytest
from contracts.requests import drain, make_request
from fleets import make_fleet, wait_for
from gated import GatedEngine

from scalerl.errors import EngineError, RecipeError
from scalerl.loop.seams import PausableEngine
from scalerl.rollout.fake import FakeEngine
from scalerl.rollout.fleet.fleet import Fleet
from scalerl.rollout.fleet.members import Limits
from scalerl.rollout.fleet.messages import Report
from scalerl.rollout.fleet.threads import ThreadLauncher
from scalerl.types import LengthPlan


@pytest.fixture
def gated():
    """Return a function that makes a fleet of gated engines, and the engines made so far, by member."""
    made: dict[int, list[GatedEngine]] = {}
    fleets = []

    def make(num_members: int, **settings):
        def engine(number: int) -> GatedEngine:
            made.setdefault(number, []).append(GatedEngine(polls=lambda request: 1, slots=64))
            return made[number][-1]

        fleet = make_fleet(engine, num_members, slots=settings.pop("slots", 64), **settings)
        fleets.append(fleet)
        wait_for(lambda: (fleet.poll(), fleet.num_ready == num_members)[1])
        return fleet, made

    yield make
    for engines in made.values():
        for engine in engines:
            engine.break_down()
    for fleet in fleets:
        fleet.close()


def group(number: int, size: int = 2):
    return [dataclasses.replace(make_request(number, seed=100 * number + index), index=index) for index in range(size)]


def keys(requests) -> list[str]:
    return sorted(request.key for request in requests)


def received(engines, num: int) -> set[str]:
    """Wait until an engine was given that many requests, and return their keys."""
    wait_for(lambda: len(engines[-1].submitted) >= num)
    return {request.key for request in engines[-1].submitted}


def test_groups_stay_together_and_go_to_the_least_loaded(gated):
    fleet, made = gated(2)
    fleet.submit([*group(0, 5), *group(1), *group(2), *group(3)])
    first, second = received(made[0], 5), received(made[1], 6)
    assert first == set(keys(group(0, 5)))
    assert second == set(keys([*group(1), *group(2), *group(3)]))
    fleet.submit(group(4))
    made[0][0].allow(1)
    assert set(keys(group(4))) <= received(made[0], 7)


def test_requests_of_a_dead_member_are_given_to_others(gated):
    fleet, made = gated(2)
    requests = [request for number in range(6) for request in group(number)]
    fleet.submit(requests)
    lost = received(made[0], 6)
    made[0][0].break_down()
    wait_for(lambda: (fleet.poll(), fleet.losses)[1])
    (loss,) = fleet.losses
    assert (loss.number, loss.kind, loss.num_requests) == (0, "died", 6)
    assert "broke down" in loss.reason
    made[1][0].allow(1)
    assert lost <= received(made[1], 12)
    made[1][0].allow(100)
    assert keys(completion.request for completion in drain(fleet)) == keys(requests)
    assert fleet.num_pending == 0


def test_hung_member_is_replaced_and_its_late_answers_ignored(gated):
    fleet, made = gated(2, limits=Limits(stuck_s=0.1))
    requests = [*group(0), *group(1)]
    fleet.submit(requests)
    received(made[0], 2)
    received(made[1], 2)
    # Both hang; replacements take over. Then the old ones wake up.
    completions = []
    wait_for(lambda: (completions.extend(fleet.poll()), len(fleet.losses) >= 2)[1])
    assert {loss.kind for loss in fleet.losses} == {"stuck"}
    for engines in made.values():
        for engine in engines:
            engine.allow(100)

    def all_back() -> bool:
        completions.extend(fleet.poll())
        for engines in made.values():
            engines[-1].allow(100)
        return not fleet.num_pending

    wait_for(all_back)
    for _ in range(5):
        completions.extend(fleet.poll())
    assert keys(completion.request for completion in completions) == keys(requests)


def test_newcomer_starts_with_the_last_weights(gated):
    fleet, made = gated(1)
    fleet.push_weights({"a": 1}, 3)
    fleet.push_weights({"a": 2}, 7)
    fleet.submit(group(0))
    received(made[0], 2)
    made[0][0].break_down()
    wait_for(lambda: (fleet.poll(), len(made[0]) == 2)[1])
    made[0][1].allow(100)
    completions = drain(fleet)
    assert {completion.first_version for completion in completions} == {7}
    assert made[0][1].pushed == [7]


def test_too_many_replacements_end_the_fleet_with_the_reason(gated):
    fleet, made = gated(1, limits=Limits(replacements=2))
    fleet.submit(group(0))

    def break_all() -> bool:
        for engine in made[0]:
            engine.break_down()
        fleet.poll()
        return False

    with pytest.raises(EngineError, match=r"generator 0 was lost .*broke down.* after 2 replacements"):
        wait_for(break_all)
    assert len(made[0]) == 3
    with pytest.raises(EngineError, match="after 2 replacements"):
        fleet.poll()


def test_engine_that_cannot_be_built_ends_the_fleet(request):
    def fails(number: int):
        raise MemoryError("no room on device 0")

    fleet = make_fleet(fails, 2, limits=Limits(replacements=3))
    request.addfinalizer(fleet.close)
    fleet.submit(group(0))
    with pytest.raises(EngineError, match="MemoryError: no room on device 0"):
        wait_for(lambda: (fleet.poll(), False)[1])


def test_mistake_of_the_user_ends_the_fleet_at_once(request):
    def make(number):
        raise RecipeError("no such engine: choose another")

    fleet = make_fleet(make, 2)
    request.addfinalizer(fleet.close)
    fleet.submit([make_request(0)])
    with pytest.raises(RecipeError, match=r"^no such engine: choose another$"):
        drain(fleet)
    assert fleet.num_lost == 1
    with pytest.raises(EngineError, match="no such engine"):
        fleet.poll()


class Scripted:
    """A member that makes the given reports and then falls silent, as a process under SIGSTOP does."""

    def __init__(self, reports) -> None:
        self.reports, self.killed = iter(reports), False

    def give(self, number, commands) -> None: ...

    def take(self):
        return next(self.reports, None)

    def kill(self) -> None:
        self.killed = True


class ScriptedLauncher:
    """Starts members that make the given reports; waiting takes virtual time."""

    def __init__(self, reports) -> None:
        self.now_s, self.members, self._reports = 0.0, [], reports

    def start(self, number: int) -> Scripted:
        self.members.append(Scripted(self._reports()))
        return self.members[-1]

    def wait(self, members, timeout_s: float) -> None:
        self.now_s += timeout_s

    def publish(self, weights):
        return weights

    def close(self) -> None: ...

    def fleet(self, **settings) -> Fleet:
        return Fleet(self, 1, check=lambda request: None, clock=lambda: self.now_s, wait_s=0.5, **settings)


def test_silence_counts_only_while_the_driver_listens():
    launcher = ScriptedLauncher(lambda: [Report(ready=True)])
    fleet = launcher.fleet()
    fleet.submit(group(0))
    for _ in range(25):
        fleet.poll()
        launcher.now_s += 1000.0  # a step of the learner
    assert not fleet.losses
    for _ in range(10):
        fleet.poll()
    (loss,) = fleet.losses
    assert loss.kind == "silent"
    assert launcher.members[0].killed
    assert len(launcher.members) == 2


@pytest.mark.parametrize(
    ("reports", "reason"),
    [
        (lambda: itertools.repeat(Report()), "it was not ready after 20 s"),
        (lambda: (), "it has not answered for 10 s, and is not ready yet"),
    ],
    ids=["it reports while its model is loaded", "it never reports"],
)
def test_member_that_never_becomes_ready_is_lost(reports, reason):
    launcher = ScriptedLauncher(reports)
    fleet = launcher.fleet(limits=Limits(start_s=20.0, silent_start_s=10.0, replacements=2))
    with pytest.raises(EngineError, match=rf"\({reason}\), after 2 replacements"):
        fleet.wait_ready()
    assert [(loss.kind, loss.reason) for loss in fleet.losses] == [("start", reason)] * 3
    assert all(member.killed for member in launcher.members)


def test_evaluation_beside_training_goes_first(gated):
    fleet, made = gated(1, slots=4)
    assert isinstance(fleet, PausableEngine)
    training = [request for number in range(20) for request in group(number)]
    evaluation = [
        dataclasses.replace(request, group=f"eval/{request.group}", purpose="evaluation")
        for request in (*group(1), *group(2))
    ]
    fleet.push_weights({}, 1)
    fleet.submit(training)
    received(made[0], 5)
    fleet.submit(evaluation)
    made[0][0].allow(1)
    made[0][0].wait_idle()
    # One poll's requests later, those of the evaluation are with the engine, before the rest of training.
    started = [request.purpose for request in made[0][0].submitted]
    assert started.count("evaluation") == len(evaluation)
    assert len(started) < len(training)
    made[0][0].allow(100)
    assert keys(completion.request for completion in drain(fleet)) == keys([*training, *evaluation])
    assert fleet.eval_work.decoded == 8 * len(evaluation)
    assert fleet.work.decoded == 8 * (len(training) + len(evaluation))


def test_work_of_lost_members_stays_counted(gated):
    fleet, made = gated(1)
    fleet.submit(group(0))
    received(made[0], 2)
    made[0][0].allow(1)
    assert len(drain(fleet)) == 2
    before = fleet.work
    assert before.decoded == 16
    fleet.submit(group(1))
    made[0][0].break_down()
    wait_for(lambda: (fleet.poll(), len(made[0]) == 2)[1])
    assert fleet.work == before
    made[0][1].allow(5)
    drain(fleet)
    assert fleet.work.decoded == 32


def test_member_lost_in_a_pause_is_replaced_in_it(gated):
    fleet, made = gated(2)
    outside, inside = [*group(0), *group(1)], [*group(2), *group(3)]
    fleet.submit(outside)
    for engines in made.values():
        received(engines, 2)
    with fleet.paused():
        assert fleet.num_pending == 0
        fleet.submit(inside)
        # Member 0 has begun a poll when the pause comes, and ends it.
        made[0][0].break_down()
        made[1][0].allow(1)
        wait_for(lambda: (fleet.poll(), len(made[0]) == 2)[1])

        def allow_all() -> bool:
            returned.extend(fleet.poll())
            for engines in made.values():
                engines[-1].allow(5)
            return not fleet.num_pending

        returned: list = []
        wait_for(allow_all)
        assert keys(completion.request for completion in returned) == keys(inside)
    assert fleet.num_pending == len(outside)
    for engines in made.values():
        engines[-1].allow(100)
    assert keys(completion.request for completion in drain(fleet)) == keys(outside)


def test_devices_of_ready_members_are_known(request):
    launcher = ThreadLauncher(lambda number: FakeEngine(), slots=2, devices=lambda number: (f"here/gpu:{number}",))
    fleet = Fleet(launcher, 3, check=lambda request: None)
    request.addfinalizer(fleet.close)
    wait_for(lambda: (fleet.poll(), fleet.num_ready == 3)[1])
    assert Counter(fleet.devices) == Counter(f"here/gpu:{number}" for number in range(3))


def test_long_answers_are_balanced_by_requests():
    fleet = make_fleet(lambda number: FakeEngine(slots=4), 3)
    requests = [make_request(number, plan=LengthPlan(answer_budget=1 + number)) for number in range(30)]
    fleet.submit(requests)
    assert keys(completion.request for completion in drain(fleet)) == keys(requests)
    fleet.close()
