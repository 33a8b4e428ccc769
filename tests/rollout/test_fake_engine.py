"""The fake keeps the contract too, as far as it goes without a model; the loop's tests rely on it."""

import pytest
from contracts.engine import *  # noqa: F403
from contracts.fake_engine import FakeEngine
from contracts.requests import drain, make_request

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
def test_a_completion_takes_as_many_polls_as_programmed(polls, num_tokens):
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


def test_it_fails_and_hangs_on_request():
    engine = FakeEngine(fail_at_poll=1)
    engine.submit([make_request(0)])
    engine.poll()
    for _ in range(2):
        with pytest.raises(EngineError, match="told to fail at poll 1"):
            engine.poll()
    engine = FakeEngine(hang=True)
    engine.submit([make_request(0)])
    assert [engine.poll() for _ in range(20)] == [[]] * 20
    assert engine.num_pending == 1
