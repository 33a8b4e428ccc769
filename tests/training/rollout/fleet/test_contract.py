"""A fleet keeps the contract of engines, over fake engines and over the torch engine."""

import pytest
from contracts.engine import *  # noqa: F403
from contracts.requests import by_key, drain, make_request
from fake_engine import FakeEngine
from fleets import make_fleet
from gated import GatedEngine
from until import wait_until

from scalerl.training.types import LengthPlan

# A fleet is not told the slots of its generators.
del globals()["test_zero_slots_are_refused"]


@pytest.fixture
def num_members():
    return 3


@pytest.fixture
def make_engine(num_members, request):
    def make(*, slots=4, stop_tokens=(), version=0, engine=FakeEngine):
        def member(number: int):
            return engine(polls=lambda request: 4, slots=slots, stop_tokens=stop_tokens, version=version)

        fleet = make_fleet(member, num_members, slots=slots, version=version)
        request.addfinalizer(fleet.close)
        return fleet

    return make


@pytest.fixture
def new_weights():
    return {}


@pytest.mark.parametrize("num_members", [1])
def test_versions_rise_within_a_completion(make_engine, new_weights):
    """As in the contract, but the member samples by itself, so a gate says when."""
    gates = []

    def gated(**settings):
        gates.append(GatedEngine(**settings))
        return gates[-1]

    fleet = make_engine(slots=2, version=4, engine=gated)
    fleet.wait_ready()
    fleet.submit([make_request(number, plan=LengthPlan(answer_budget=40)) for number in range(3)])
    engine = wait_until(lambda: gates and gates[0])
    engine.allow(1)
    engine.wait_idle()
    # The second poll has begun, with the old weights.
    fleet.push_weights(new_weights, 5)
    assert fleet.version == 5
    engine.allow(1)
    engine.wait_idle()
    fleet.push_weights(new_weights, 9)
    engine.allow(100)
    completions = by_key(drain(fleet))
    assert completions["0/0#0"].versions.tolist() == [4] * 20 + [5] * 10 + [9] * 10
    assert completions["0/2#0"].versions.tolist() == [9] * 40
    with pytest.raises(ValueError, match="versions must rise"):
        fleet.push_weights(new_weights, 8)
