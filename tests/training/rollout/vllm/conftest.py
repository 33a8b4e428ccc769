"""Most tests here need vLLM; `make test-vllm` runs them in an environment of their own."""

import os
from pathlib import Path

import pytest
import torch
from vllm_models import engine_on, llama, spec

from scalerl.training.rollout.vllm.spec import environment

HERE = Path(__file__).parent
WITHOUT = ("test_without_vllm.py", "test_cuda_parcels.py")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if HERE in item.path.parents and item.path.name not in WITHOUT:
            item.add_marker(pytest.mark.vllm)
            # vLLM 0.32 reads this name of torch's when it is imported.
            item.add_marker(pytest.mark.filterwarnings("ignore:`torch.distributed.reduce_op` is deprecated"))


@pytest.fixture(scope="session", autouse=True)
def _vllm_environment():
    os.environ.update(environment(on_gpu=torch.cuda.is_available()))


@pytest.fixture(scope="session")
def engine_of():
    """Return engines in this process, with the weights of `llama(tied=tied)`; one at a time of equal settings."""
    cores = {}

    def make(*others, tied=False, version=0, **changes):
        model = llama(tied=tied)
        return engine_on(cores, spec(model, **changes), model.state_dict(), version, *others)

    return make
