"""vLLM in this process: both contracts, and what is its own."""

import pytest
from contracts.engine import *  # noqa: F403
from contracts.requests import by_key, drain, make_request
from contracts.sampling import *  # noqa: F403
from vllm_models import llama

from scalerl.types import Work

pytestmark = pytest.mark.xdist_group("engines")


# With a tied head, the harder case; most of the contract is not about models.
@pytest.fixture
def model():
    return llama(tied=True)


@pytest.fixture
def new_weights():
    return llama(tied=True, seed=1).state_dict()


@pytest.fixture(params=["steps one by one", "steps overlap"])
def make_engine(engine_of, request, monkeypatch):
    """Whether a step is prepared while another is computed, which vLLM does on GPUs, and on a CPU if it is made to."""
    from vllm.platforms.cpu import CpuPlatform  # pyright: ignore[reportMissingImports]

    overlaps, check = request.param == "steps overlap", CpuPlatform.check_and_update_config

    def check_and_overlap(config):
        check(config)
        config.scheduler_config.async_scheduling = overlaps

    monkeypatch.setattr(CpuPlatform, "check_and_update_config", staticmethod(check_and_overlap))

    def make(*, slots=4, **changes):
        engine = engine_of(overlaps, tied=True, slots=slots, **changes)
        assert (engine.core().batch_queue is not None) == overlaps
        return engine

    return make


def test_a_warm_up_is_not_counted_and_changes_no_token(make_engine):
    results = []
    for warm in (False, True):
        engine = make_engine()
        if warm:
            engine.warm_up()
            assert (engine.work, engine.num_pending) == (Work(), 0)
        engine.submit([make_request(number) for number in range(3)])
        results.append({key: completion.tokens.tolist() for key, completion in by_key(drain(engine)).items()})
    assert results[0] == results[1]
