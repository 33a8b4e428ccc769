"""A fleet whose members are vLLM processes: the torch engine's completions, also when a member dies or hangs."""

import os
import signal
import time

import numpy as np
import pytest
from contracts.requests import by_key, drain, mixed_requests
from ray_processes import left_in_shared_memory
from until import wait_until
from vllm_models import llama, pids_of, saved, started

from scalerl.remote.peer import Limits
from scalerl.remote.session import session_members
from scalerl.rollout.torch.engine import TorchEngine

STOPS = (3, 9)
pytestmark = pytest.mark.xdist_group("shared memory")
SLOTS = 8
REQUESTS = mixed_requests(240, longest=40)


@pytest.fixture(scope="module")
def expected():
    """What the torch engine samples with the weights of version 1."""
    engine = TorchEngine(llama(), slots=SLOTS, max_length=64, stop_tokens=STOPS, version=0)
    engine.push_weights(llama(seed=1).state_dict(), 1)
    engine.submit(REQUESTS)
    return by_key(drain(engine))


def check_equal(completions, expected):
    completions = by_key(completions)
    assert completions.keys() == expected.keys()
    for key, completion in completions.items():
        assert completion.tokens.tolist() == expected[key].tokens.tolist()
        np.testing.assert_allclose(completion.log_probs, expected[key].log_probs, atol=1e-4)
        assert set(completion.versions.tolist()) == {1}


def wait_until_ready(fleet):
    wait_until(lambda: fleet.poll() or fleet.num_ready == 2, seconds=600.0)


def test_members_die_and_hang_and_no_completion_changes(tmp_path, expected):
    folder, before = saved(llama(), tmp_path), left_in_shared_memory()
    limits = Limits(silent_s=15.0, stuck_s=60.0)
    fleet = started(folder, 2, slots=SLOTS, stop_tokens=STOPS, limits=limits, replacements=2)
    members = pids_of(fleet)
    try:
        fleet.push_weights(llama(seed=1).state_dict(), 1)
        fleet.submit(REQUESTS)
        check_equal(drain(fleet), expected)
        assert all(seat.report.work.decoded > 0 for seat in fleet._seats)

        kinds = ((signal.SIGKILL, "SIGKILL", 10.0), (signal.SIGSTOP, "no sign of life", 30.0))
        for place, (kind, reason, most_s) in enumerate(kinds):
            victim = pids_of(fleet)[place]
            fleet.submit(REQUESTS)
            os.kill(victim, kind)
            begun, completions, num_lost = time.monotonic(), [], len(fleet.losses)
            while len(fleet.losses) == num_lost:
                completions += fleet.poll()
            seconds = time.monotonic() - begun
            print(f"the loss was noticed {seconds:.1f} s after {kind.name}")
            assert seconds < most_s
            # The rest comes from the other one, which is a newcomer the second time.
            check_equal(completions + drain(fleet), expected)
            assert reason in fleet.losses[-1].reason
            assert fleet.losses[-1].num_requests > 0
            assert not session_members(victim)
            wait_until_ready(fleet)
            members += pids_of(fleet)
        assert len(fleet.losses) == 2
        assert len(set(members)) == 4
    finally:
        fleet.close()
    assert not [pid for pid in members if session_members(pid)]
    assert left_in_shared_memory() <= before
