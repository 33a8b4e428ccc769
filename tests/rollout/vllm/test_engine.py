"""vLLM in this process: both contracts, and what is its own."""

import pytest
from contracts.engine import *  # noqa: F403
from contracts.sampling import *  # noqa: F403
from vllm_models import llama, saved, spec

from scalerl.rollout.vllm.engine import VllmEngine


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


@pytest.fixture
def make_engine(model, tmp_path):
    folder = saved(model, tmp_path / "model")

    def make(*, slots=4, stop_tokens=(), version=0, **changes):
        return VllmEngine(spec(folder, slots=slots, stop_tokens=stop_tokens, version=version, **changes))

    return make
