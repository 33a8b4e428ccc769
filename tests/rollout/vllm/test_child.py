"""vLLM in a child process that runs by itself: both contracts, over a few processes that all tests share."""

import time

import pytest
from contracts.engine import *  # noqa: F403
from contracts.requests import drain, make_request
from contracts.sampling import *  # noqa: F403
from vllm_models import llama, saved, spec, started
from vllm_views import View

from scalerl.errors import EngineError
from scalerl.rollout.fleet.fleet import Fleet
from scalerl.rollout.vllm.build import fleet_of
from scalerl.types import LengthPlan

SLOTS = 128
pytestmark = pytest.mark.xdist_group("child")  # the processes are shared


@pytest.fixture
def model():
    return llama()


@pytest.fixture
def new_weights():
    return llama(seed=1).state_dict()


@pytest.fixture(scope="module")
def processes(tmp_path_factory):
    """Processes by the stop tokens that they were started with."""
    processes: dict[tuple[int, ...], Fleet] = {}
    folder = saved(llama(), tmp_path_factory.mktemp("child") / "model")

    def process(stop_tokens):
        if stop_tokens not in processes:
            processes[stop_tokens] = started(folder, slots=SLOTS, stop_tokens=stop_tokens)
        return processes[stop_tokens]

    yield process
    for each in processes.values():
        each.close()


@pytest.fixture
def make_engine(processes, model):
    weights = {name: weight.clone() for name, weight in model.state_dict().items()}

    def make(*, slots=4, stop_tokens=(), version=0):
        if slots < 1:
            return fleet_of([spec("unused", slots=slots)], vocabulary=64)
        return View(processes(tuple(stop_tokens)), slots=slots, version=version, weights=weights)

    return make


# A view cannot close its process, so the last test here takes the place of this one.
del globals()["test_closed_engine_raises"]


def test_it_samples_while_nobody_polls(make_engine):
    engine = make_engine(slots=8)
    engine.submit([make_request(number, plan=LengthPlan(answer_budget=40)) for number in range(8)])
    time.sleep(2.0)
    begun = time.monotonic()
    completions = drain(engine)
    assert len(completions) == 8
    assert time.monotonic() - begun < 1.0, "they were finished before anybody asked"


def test_a_closed_process_raises(processes):
    engine = processes((3,))
    engine.submit([make_request()])
    engine.close()
    engine.close()
    assert engine.num_pending == 0
    for call in (engine.poll, lambda: engine.submit([make_request()])):
        with pytest.raises(EngineError, match="closed"):
            call()
