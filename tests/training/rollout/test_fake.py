"""The fake engine keeps the contract of engines that does not need a model; the loop's tests rely on it."""

import pytest
from contracts.engine import *  # noqa: F403
from fake_engine import FakeEngine


@pytest.fixture
def make_engine():
    def make(*, slots=4, stop_tokens=(), version=0):
        return FakeEngine(polls=lambda request: 4, slots=slots, stop_tokens=stop_tokens, version=version)

    return make


@pytest.fixture
def new_weights():
    return {}
