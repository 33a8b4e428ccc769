"""The machine that a run is on."""

import gc
import json

import pytest
import torch

from scalerl.run.host import environment, frozen_objects, limit_host_threads


@pytest.mark.parametrize("variable, expected", [(None, [2]), ("7", [])])
def test_host_of_a_gpu_uses_few_threads(monkeypatch, variable, expected):
    asked: list[int] = []
    monkeypatch.setattr(torch, "set_num_threads", asked.append)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    if variable is not None:
        monkeypatch.setenv("OMP_NUM_THREADS", variable)
    limit_host_threads(torch.device("cuda"))
    assert asked == expected
    monkeypatch.setattr(torch, "get_num_threads", lambda: 64)
    limit_host_threads(torch.device("cuda"))
    assert asked == expected + [1] * (variable is None)
    limit_host_threads(torch.device("cpu"))
    assert len(asked) == 2 * (variable is None)


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
