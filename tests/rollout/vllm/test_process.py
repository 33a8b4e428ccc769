"""What happens to a run when vLLM's process dies, hangs or runs out of memory; and what is left behind: nothing."""

import os
import resource
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest
from contracts.requests import drain, make_request
from contracts.sampling import check_log_probs
from ray_processes import left_in_shared_memory
from vllm_models import llama, pids_of, saved, started

from scalerl.errors import EngineError, RecipeError
from scalerl.remote.session import session_members
from scalerl.rollout.fleet.fleet import Fleet
from scalerl.types import LengthPlan

LONG = LengthPlan(answer_budget=1900)
pytestmark = pytest.mark.xdist_group("shared memory")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return saved(llama(), tmp_path_factory.mktemp("process") / "model")


@pytest.fixture
def temporary(monkeypatch):
    """A folder for temporary files; with a short path, because the path of a socket has at most 107 characters."""
    with tempfile.TemporaryDirectory() as path:
        monkeypatch.setattr(tempfile, "tempdir", path)
        yield Path(path)
        monkeypatch.undo()


@pytest.fixture
def start(folder, temporary):
    """Start an engine, and check after the test that no process, shared memory or temporary file is left."""
    before, engines, pids = left_in_shared_memory(), [], []

    def start_one(**changes):
        engines.append(started(folder, context=2048, **changes))
        pids.extend(pids_of(engines[-1]))
        return engines[-1]

    yield start_one
    for engine in engines:
        engine.close()
    assert not [pid for pid in pids if session_members(pid)]
    assert left_in_shared_memory() <= before
    assert not list(temporary.iterdir())


def seconds_until_it_fails(engine: Fleet, message: str) -> float:
    """Poll until the engine raises, and check that it does so again."""
    begun = time.monotonic()
    with pytest.raises(EngineError, match=message):
        drain(engine)
    with pytest.raises(EngineError, match=message):
        engine.submit([make_request()])
    seconds = time.monotonic() - begun
    print(f"failed {seconds:.1f} s later")
    return seconds


def test_out_of_memory_on_the_way_names_the_reason(start):
    engine = start()
    engine.submit([make_request()])
    drain(engine)
    in_use = int(Path(f"/proc/{pids_of(engine)[0]}/statm").read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")
    resource.prlimit(pids_of(engine)[0], resource.RLIMIT_AS, (in_use, in_use))
    engine.submit([make_request(plan=LONG)])
    begun = time.monotonic()
    engine.push_weights(llama(seed=1).state_dict(), 1)
    assert seconds_until_it_fails(engine, r"(?i)cannot load the weights of version 1.*memory") < 25
    assert time.monotonic() - begun < 25


def test_out_of_memory_at_the_start_names_the_reason(folder):
    begun = time.monotonic()
    with pytest.raises(EngineError, match=r"(?i)memory"):
        started(folder, cache_bytes=1 << 50)
    assert time.monotonic() - begun < 120


def test_wrong_arguments_name_the_setting(folder):
    with pytest.raises(RecipeError, match=r"rollout\.vllm.*no_such_argument"):
        started(folder, settings={"engine_args": {"no_such_argument": 1}})


def test_the_child_ends_with_its_trainer(folder, temporary):
    """Here a child with two workers cleans up by itself, because the trainer is killed."""
    code = (
        "import sys, time; sys.path[:0] = ['tests', 'tests/support']\n"
        "from vllm_models import pids_of, started\n"
        f"engine = started({folder!r}, settings={{'tensor_parallel': 2}})\n"
        "print(*pids_of(engine), flush=True); time.sleep(600)"
    )
    root, before = Path(__file__).parents[3], left_in_shared_memory()
    variables = {**os.environ, "TMPDIR": str(temporary), "VLLM_CPU_OMP_THREADS_BIND": "0|1"}
    command = [sys.executable, "-c", code]
    with subprocess.Popen(command, cwd=root, env=variables, stdout=subprocess.PIPE, text=True) as trainer:
        assert trainer.stdout is not None
        pid = int(trainer.stdout.readline())
        assert len(session_members(pid)) >= 3
        assert list(temporary.iterdir())
        trainer.kill()
    deadline = time.monotonic() + 10
    while session_members(pid) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not session_members(pid)
    assert left_in_shared_memory() <= before
    assert not list(temporary.iterdir())


def test_two_workers_share_the_layers_and_leave_nothing_behind(start, monkeypatch):
    """Tensor parallelism: vLLM starts two more processes, which read the weights from the same memory."""
    monkeypatch.setenv("VLLM_CPU_OMP_THREADS_BIND", "0|1")
    engine = start(settings={"tensor_parallel": 2})
    assert len(session_members(pids_of(engine)[0])) >= 3
    newer = llama(seed=1)
    requests = [make_request(number, plan=LengthPlan(answer_budget=20)) for number in range(4)]
    for version, model in enumerate((llama(), newer)):
        engine.push_weights(model.state_dict(), version)
        engine.submit(requests)
        check_log_probs(model, drain(engine))
    os.kill(pids_of(engine)[0], signal.SIGKILL)
    engine.submit(requests)
    seconds_until_it_fails(engine, "SIGKILL")
