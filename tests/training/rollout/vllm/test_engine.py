"""vLLM in this process: both contracts, and what is its own."""

import pytest
from contracts.engine import *  # noqa: F403
from contracts.sampling import *  # noqa: F403
from vllm_models import llama

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
