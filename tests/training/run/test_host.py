"""The machine that a run is on."""

import gc
import json
import os
import stat
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch

from scalerl.training.run.host import (
    CpuTime,
    environment,
    frozen_objects,
    keep_compiled_code,
    limit_host_threads,
    machine_load,
)


@pytest.mark.parametrize("variable, expected", [(None, [1]), ("7", [])])
def test_host_of_a_gpu_uses_one_thread(monkeypatch, variable, expected):
    asked: list[int] = []
    monkeypatch.setattr(torch, "set_num_threads", asked.append)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    if variable is not None:
        monkeypatch.setenv("OMP_NUM_THREADS", variable)
    limit_host_threads(torch.device("cuda"))
    limit_host_threads(torch.device("cpu"))
    assert asked == expected


@pytest.fixture
def _nothing_frozen(monkeypatch):
    """Release what conftest.py froze before the first test, as in a process of a user, and count what is frozen."""
    counted: Any = gc.get_freeze_count
    monkeypatch.setattr(gc, "get_freeze_count", counted.__wrapped__)
    gc.unfreeze()
    yield
    gc.freeze()


@pytest.mark.usefixtures("_nothing_frozen")
def test_existing_objects_are_frozen_for_the_collector():
    with suppress(RuntimeError), frozen_objects():
        assert (before := gc.get_freeze_count()) > 1000
        # Those of the caller stay frozen, except for a few that end meanwhile in other threads.
        with frozen_objects():
            assert before - 100 < gc.get_freeze_count() <= before
        assert before - 100 < gc.get_freeze_count() <= before
        raise RuntimeError
    assert gc.get_freeze_count() == 0


def test_load_of_this_machine(monkeypatch, tmp_path):
    row = machine_load(torch.device("cpu"))
    assert row.keys() == {"host/load", "host/memory_gb"}
    assert 0.05 < row["host/memory_gb"] < 100  # this process has loaded torch
    monkeypatch.setattr("scalerl.training.run.host.STATM", tmp_path / "none")
    assert machine_load(torch.device("cpu")).keys() == {"host/load"}


def test_environment_is_json_with_versions():
    written = json.loads(json.dumps(environment(torch.device("cpu"))))
    assert written["torch"] == torch.__version__
    assert written["device"] == "cpu"


def test_cpu_time_is_counted_over_processes_and_kept_after_their_end():
    code = "import time\nwhile time.process_time() < 0.3: pass\nprint(flush=True); input()"
    child = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert child.stdin is not None
    assert child.stdout is not None
    used, alone = CpuTime(lambda: [child.pid]), CpuTime()
    child.stdout.readline()
    assert used() - alone() > 0.2
    child.communicate(b"\n")
    assert used() - alone() > 0.2
    before = alone()
    time.sleep(0.3)
    assert alone() - before < 0.2  # a process that waits uses none


def test_a_process_on_another_machine_holds_a_core():
    used, alone = CpuTime(lambda: [None, None]), CpuTime()
    time.sleep(0.3)
    assert used() - alone() == pytest.approx(0.6, abs=0.1)


@pytest.mark.parametrize("home", ["home", "file/home"])
def test_compiled_code_is_in_a_folder_of_this_user(monkeypatch, tmp_path, home):
    """Torch's default is a known name in /tmp, where another user can be first."""
    from torch._inductor.runtime.cache_dir_utils import cache_dir, default_cache_dir

    (tmp_path / "file").touch()
    monkeypatch.setenv("SCALERL_CACHE", str(tmp_path / home))
    # As imports of torch leave it.
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", default_cache_dir())
    keep_compiled_code()
    folder = Path(cache_dir())
    assert folder.stat().st_uid == os.getuid()
    if home == "home":
        assert folder == tmp_path / "home" / "compiled"
    else:
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
