"""vLLM in this process: both contracts, and what is its own."""

import pytest
from contracts.engine import *  # noqa: F403
from contracts.requests import by_key, drain, make_request
from contracts.sampling import *  # noqa: F403
from vllm_models import llama, saved, spec

from scalerl.rollout.vllm.engine import VllmEngine
from scalerl.types import Work


@pytest.fixture(params=["tied"])
def tied(request):
    """Whether the head is the embedding; the harder case, and most of the contract is not about models."""
    return request.param == "tied"


@pytest.fixture
def model(tied):
    return llama(tied=tied)


@pytest.fixture
def new_weights(tied):
    return llama(tied=tied, seed=1).state_dict()


@pytest.fixture(params=["steps one by one", "steps overlap"])
def overlaps(request, monkeypatch):
    """Whether a step is prepared while another is computed, which vLLM does on GPUs, and on a CPU if it is made to."""
    if request.param == "steps one by one":
        return False
    from vllm.platforms.cpu import CpuPlatform  # pyright: ignore[reportMissingImports]

    check = CpuPlatform.check_and_update_config

    def check_and_overlap(config):
        check(config)
        config.scheduler_config.async_scheduling = True

    monkeypatch.setattr(CpuPlatform, "check_and_update_config", staticmethod(check_and_overlap))
    return True


@pytest.fixture
def make_engine(model, tmp_path, overlaps):
    folder = saved(model, tmp_path / "model")

    def make(*, slots=4, stop_tokens=(), version=0, **changes):
        engine = VllmEngine(spec(folder, slots=slots, stop_tokens=stop_tokens, version=version, **changes))
        assert (engine._core().batch_queue is not None) == overlaps
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
