"""The fake engine keeps the contract of engines that does not need a model; the loop's tests rely on it."""

import pytest
from contracts.engine import *  # noqa: F403
from contracts.requests import drain, make_request
from fake_engine import FakeEngine, random_polls

from scalerl.errors import EngineError
from scalerl.types import LengthPlan


@pytest.fixture
def make_engine():
    def make(*, slots=4, stop_tokens=(), version=0):
        return FakeEngine(polls=lambda request: 4, slots=slots, stop_tokens=stop_tokens, version=version)

    return make


@pytest.fixture
def new_weights():
    return {}


@pytest.mark.parametrize("num_tokens", [1, 2, 7, 50])
@pytest.mark.parametrize("polls", [1, 2, 5, 20])
def test_completion_takes_the_programmed_polls(polls, num_tokens):
    engine = FakeEngine(polls=lambda request: polls)
    engine.submit([make_request(plan=LengthPlan(answer_budget=num_tokens))])
    returned = []
    for number in range(polls):
        engine.push_weights({}, number)
        returned.append(len(engine.poll()))
    assert returned == [0] * (polls - 1) + [1]


def test_versions_follow_the_polls():
    engine = FakeEngine(polls=lambda request: 4)
    engine.submit([make_request(plan=LengthPlan(answer_budget=8))])
    completions = []
    for version in range(4):
        engine.push_weights({}, version)
        completions += engine.poll()
    assert completions[0].versions.tolist() == [0, 0, 1, 1, 2, 2, 3, 3]
    assert engine.pushed == [0, 1, 2, 3]


def test_stragglers_are_overtaken():
    engine = FakeEngine(polls=lambda request: 50 if request.group == "0/0" else 1)
    engine.submit([make_request(number) for number in range(5)])
    assert [completion.request.group for completion in drain(engine)] == ["0/1", "0/2", "0/3", "0/4", "0/0"]


def test_fails_and_hangs_as_programmed():
    engine = FakeEngine(fail_at_poll=1)
    engine.submit([make_request(0)])
    engine.poll()
    for _ in range(2):
        with pytest.raises(EngineError, match="fails from poll 1 on"):
            engine.poll()
    engine = FakeEngine(hang=True)
    engine.submit([make_request(0)])
    assert [engine.poll() for _ in range(20)] == [[]] * 20
    assert engine.num_pending == 1


def returned_order(seed):
    engine = FakeEngine(slots=3, seed=seed)
    engine.submit([make_request(number) for number in range(20)])
    return [completion.request.group for completion in drain(engine)]


def test_order_is_drawn_by_the_seed():
    assert returned_order(1) == returned_order(1)
    assert sorted(returned_order(1)) == sorted(returned_order(2))
    assert len({tuple(returned_order(seed)) for seed in (None, 1, 2)}) == 3


def test_random_polls_depend_on_the_request_alone():
    polls = [random_polls(make_request(number)) for number in range(200)]
    assert polls == [random_polls(make_request(number)) for number in range(200)]
    assert set(polls) == {1, 2, 3, 4, 50, 100, 150, 200}


def test_failure_can_be_any_exception():
    engine = FakeEngine(fail_at_poll=0, failure=ConnectionError("the engine's process ended"))
    with pytest.raises(ConnectionError, match="process ended"):
        engine.poll()
