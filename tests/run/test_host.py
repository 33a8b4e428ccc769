"""The machine that a run is on."""

import gc
import json

import pytest
import torch

from scalerl.run.host import environment, frozen_objects, limit_host_threads


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


def test_existing_objects_are_frozen_for_the_collector():
    def fail_within():
        with frozen_objects():
            assert gc.get_freeze_count() > 1000
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail_within()
    assert gc.get_freeze_count() == 0


def test_environment_is_json_with_versions():
    written = json.loads(json.dumps(environment(torch.device("cpu"))))
    assert written["torch"] == torch.__version__
    assert written["device"] == "cpu"
