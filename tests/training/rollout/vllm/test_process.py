"""vLLM in child processes: the torch engine's completions, also when one of them dies, hangs or runs out of memory."""

import os
import re
import resource
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import forked
import numpy as np
import pytest
from contracts.requests import advance, by_key, drain, make_request, mixed_requests
from contracts.sampling import check_log_probs, replay
from ray_processes import shared_memory, shared_memory_of
from until import wait_until
from vllm_models import VLLM_MODULES, llama, pids_of, started

from scalerl.errors import EngineError
from scalerl.processes import session_members
from scalerl.training.remote import child
from scalerl.training.remote.child import start_process
from scalerl.training.remote.peer import Limits
from scalerl.training.rollout.torch.engine import TorchEngine
from scalerl.training.types import LengthPlan

pytestmark = pytest.mark.xdist_group("children")

STOPS, SLOTS = (3, 9), 8
REQUESTS = mixed_requests(240, longest=40)
MODELS = {seed: llama(seed=seed) for seed in (0, 1)}


@pytest.fixture(scope="module")
def start():
    """Start engines, and check after the last test that no process, shared memory or temporary file of them is left."""
    fleets, pids, memory = [], [], set()

    def note_members(fleet):
        pids.extend(pids_of(fleet))
        memory.update(*(shared_memory_of(session_members(pid)) for pid in pids_of(fleet)))

    def started_here(num=1, **changes):
        fleets.append(started(MODELS[0], num, **changes))
        note_members(fleets[-1])
        return fleets[-1]

    # With a short path, because the path of a socket has at most 107 characters.
    with tempfile.TemporaryDirectory() as path, pytest.MonkeyPatch.context() as patch:
        forked.children(patch, *VLLM_MODULES)
        patch.setattr(tempfile, "tempdir", path)
        yield started_here
        for fleet in fleets:
            note_members(fleet)
            fleet.close()
        assert not [pid for pid in pids if session_members(pid)]
        wait_until(lambda: not memory & shared_memory())
        assert not list(Path(path).iterdir())


@pytest.fixture(scope="module")
def two(start):
    limits = Limits(silent_s=15.0, stuck_s=60.0)
    return start(2, slots=SLOTS, stop_tokens=STOPS, limits=limits, replacements=3)


def versions(fleet):
    """The last reported version of each member's weights."""
    return [seat.report.version for seat in fleet.seats]


@pytest.fixture
def fleet(two):
    """Two members that are ready, with the weights of the first model."""
    drain(two)
    two.push_weights(MODELS[0].state_dict(), two.version + 1)
    wait_until(lambda: two.poll() or (two.num_ready == 2 and {*versions(two)} == {two.version}), seconds=600.0)
    return two


@pytest.fixture(scope="module")
def expected():
    """What the torch engine samples."""
    engine = TorchEngine(MODELS[0], slots=SLOTS, max_length=64, stop_tokens=STOPS)
    engine.submit(REQUESTS)
    return by_key(drain(engine))


def check_equal(completions, expected, version):
    completions = by_key(completions)
    assert completions.keys() == expected.keys()
    for key, completion in completions.items():
        assert completion.tokens.tolist() == expected[key].tokens.tolist()
        np.testing.assert_allclose(completion.log_probs, expected[key].log_probs, atol=1e-4)
        assert set(completion.versions.tolist()) == {version}


def test_updates_within_answers_equal_a_replay_of_the_mixed_cache(fleet):
    requests = [make_request(number, plan=LengthPlan(answer_budget=50)) for number in range(8)]
    # A process may finish before a push reaches it: once in a while, not five times.
    for _ in range(5):
        models = {fleet.version: MODELS[0], fleet.version + 1: MODELS[1], fleet.version + 2: MODELS[0]}
        fleet.submit(requests)
        completions = advance(fleet, 4)
        fleet.push_weights(MODELS[1].state_dict(), fleet.version + 1)
        completions += drain(fleet)
        for completion in completions:
            np.testing.assert_allclose(completion.log_probs, replay(models, completion), atol=1e-4)
        if any(len(set(completion.versions.tolist())) > 1 for completion in completions):
            return
        fleet.push_weights(MODELS[0].state_dict(), fleet.version + 1)
    raise AssertionError("no push took effect within a completion")


@pytest.mark.parametrize(
    ("number", "reason", "kind"),
    [
        (None, r"(?i)cannot load the weights of version \d+.*memory", "died"),
        (signal.SIGSTOP, "no sign of life", "silent"),
        (signal.SIGKILL, "was ended by SIGKILL", "died"),  # noticed at once: silence takes 15 s
    ],
)
def test_a_member_is_lost_and_no_completion_changes(fleet, expected, number, reason, kind):
    fleet.submit(REQUESTS)
    check_equal(drain(fleet), expected, fleet.version)
    assert all(seat.report.work.decoded > 0 for seat in fleet.seats)
    # In turn, so that the rest comes from a newcomer.
    num_lost = len(fleet.losses)
    victim, completions = pids_of(fleet)[num_lost % 2], []
    if number is None:
        in_use = int(Path(f"/proc/{victim}/statm").read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")
        resource.prlimit(victim, resource.RLIMIT_AS, (in_use, in_use))
        fleet.push_weights(MODELS[0].state_dict(), fleet.version + 1)
    fleet.submit(REQUESTS)
    if number is not None:
        os.kill(victim, number)
    while len(fleet.losses) == num_lost:
        completions += fleet.poll()
    assert fleet.losses[-1].kind == kind
    assert re.search(reason, fleet.losses[-1].reason)
    assert fleet.losses[-1].num_requests > 0
    check_equal(completions + drain(fleet), expected, fleet.version)
    assert not session_members(victim)


def test_two_workers_share_the_layers(start, monkeypatch):
    """Tensor parallelism: vLLM starts two more processes, which read the weights from the same memory."""
    monkeypatch.setattr(child, "start_process", start_process)  # one that has imported nothing, and may start others
    monkeypatch.setenv("VLLM_CPU_OMP_THREADS_BIND", "0|1")
    engine = start(settings={"tensor_parallel": 2})
    (pid,) = pids_of(engine)
    assert len(session_members(pid)) >= 3
    requests = [make_request(number, plan=LengthPlan(answer_budget=20)) for number in range(4)]
    for version, model in MODELS.items():
        engine.push_weights(model.state_dict(), version)
        engine.submit(requests)
        check_log_probs(model, drain(engine))
    os.kill(pid, signal.SIGKILL)
    engine.submit(requests)
    for call in (lambda: drain(engine), lambda: engine.submit(requests)):
        with pytest.raises(EngineError, match="SIGKILL"):
            call()
    assert not session_members(pid)


@pytest.mark.slow  # tests/training/remote/test_child.py and test_vllm_runs.py have children with one process
def test_a_child_with_workers_ends_with_its_trainer():
    """It cleans up by itself, because the trainer is killed."""
    code = (
        "import sys, time; sys.path[:0] = ['tests', 'tests/support']\n"
        "from vllm_models import llama, pids_of, started\n"
        "engine = started(llama(), settings={'tensor_parallel': 2})\n"
        "print(*pids_of(engine), flush=True); time.sleep(600)"
    )
    root = Path(__file__).parents[4]
    with tempfile.TemporaryDirectory() as temporary:
        variables = {**os.environ, "TMPDIR": temporary, "VLLM_CPU_OMP_THREADS_BIND": "0|1"}
        command = [sys.executable, "-c", code]
        with subprocess.Popen(command, cwd=root, env=variables, stdout=subprocess.PIPE, text=True) as trainer:
            assert trainer.stdout is not None
            pid = int(trainer.stdout.readline())
            assert len(session_members(pid)) >= 3
            assert os.listdir(temporary)
            memory = shared_memory_of(session_members(pid))
            trainer.kill()
        wait_until(lambda: not session_members(pid))
        assert not os.listdir(temporary)
    wait_until(lambda: not memory & shared_memory())


@pytest.mark.slow  # the way of an error is that of every other: tests/training/remote/test_serve.py
def test_out_of_memory_at_the_start_names_the_reason():
    with pytest.raises(EngineError, match=r"(?i)memory"):
        started(MODELS[0], settings={"engine_args": {"kv_cache_memory_bytes": 1 << 50}})
