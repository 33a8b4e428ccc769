"""Weights on their way between processes: nothing changes, nothing stays behind, and nothing is read too late."""

import os
import pickle
import warnings
from collections.abc import Mapping
from contextlib import suppress
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from contracts.requests import by_key, drain, mixed_requests
from fleets import make_fleet
from tiny_models import sampled_model

from scalerl.training.remote import weights as weights_module
from scalerl.training.remote.weights import (
    InStore,
    OnGpu,
    Publisher,
    SharedMemory,
    Unmapped,
    WeightsFreed,
    pack,
    store,
    unpack,
)
from scalerl.training.rollout.torch.engine import TorchEngine
from scalerl.training.rollout.vllm.worker import WeightReceiver

TENSORS = {
    "matrix": torch.arange(12, dtype=torch.float32).reshape(3, 4),
    "half": torch.linspace(-1, 1, 7).to(torch.bfloat16),
    "scalar": torch.tensor(2.5),
    "transposed": torch.arange(6.0).reshape(2, 3).t(),
    "flags": torch.tensor([True, False]),
    "empty": torch.zeros(0, 3),
}


def check_equal(tensors):
    assert list(tensors) == list(TENSORS)
    for name, tensor in tensors.items():
        assert tensor.dtype == TENSORS[name].dtype
        assert torch.equal(tensor, TENSORS[name])


@pytest.mark.parametrize("bucket_bytes", [1, 64, 200, 10_000])
def test_tensors_survive_the_buckets(bucket_bytes):
    buckets = list(pack(TENSORS.items(), bucket_bytes=bucket_bytes))
    sizes = [[data.nbytes for data, _, _ in bucket.values()] for bucket in buckets]
    assert all(sum(size) >= bucket_bytes > sum(size[:-1]) for size in sizes[:-1])
    check_equal({name: tensor for bucket in buckets for name, tensor in unpack(bucket).items()})


def test_references_are_opened_where_they_are_used(monkeypatch):
    ray, stored = pytest.importorskip("ray"), []
    monkeypatch.setattr(ray, "get", stored.__getitem__)
    monkeypatch.setattr(ray, "put", lambda data: put(data))

    def put(bucket) -> int:
        for data, _, _ in bucket.values():
            data.setflags(write=False)
        stored.append(bucket)
        return len(stored) - 1

    parcel = store(TENSORS.items())
    assert isinstance(parcel, InStore)
    check_equal(pickle.loads(pickle.dumps(parcel)))


def opened_blocks() -> int:
    """Return how many blocks of memory this process has open; other files may close meanwhile."""
    targets = []
    for number in os.listdir("/proc/self/fd"):
        with suppress(OSError):
            targets.append(os.readlink(f"/proc/self/fd/{number}"))
    return sum("memfd:" in target for target in targets)


def test_shared_memory_is_opened_until_newer_weights_come():
    shared, before = SharedMemory(), opened_blocks()
    first = pickle.loads(pickle.dumps(shared.publish(TENSORS.items())))
    assert opened_blocks() > before
    mapped = first.open()
    with first.held() as held:
        second = shared.publish([("matrix", torch.zeros(3, 4))])
        check_equal(held.open())
    check_equal(mapped)
    assert torch.equal(second["matrix"], torch.zeros(3, 4))
    assert list(second) == ["matrix"]
    assert shared.num_blocks == 2, "the first was being read"
    del mapped, held, second
    third = shared.publish([("matrix", torch.ones(3, 4))])
    assert shared.num_blocks == 2, "nobody reads it any more"
    with pytest.raises(WeightsFreed):
        first.open()
    assert torch.equal(third["matrix"], torch.ones(3, 4))
    del third
    shared.close()
    with pytest.raises(WeightsFreed):
        first.open()
    del shared
    assert opened_blocks() == before


def test_memory_of_a_published_weight_can_still_be_freed():
    """FSDP frees gathered weights by resizing their memory, which torch refuses once numpy shares it."""
    tensor, shared = torch.arange(100.0), SharedMemory()
    (bucket,) = pack([("weight", tensor)])
    parcel = shared.publish([("weight", tensor)])
    tensor.untyped_storage().resize_(0)
    assert torch.equal(unpack(bucket)["weight"], torch.arange(100.0))
    assert torch.equal(parcel["weight"], torch.arange(100.0))


def engine(number: int) -> TorchEngine:
    return TorchEngine(sampled_model("llama"), slots=4, max_length=64, stop_tokens=(3,), chunk=8)


def check_samples_as_one(fleet: Any, learner: dict[str, Any], version: int) -> None:
    """Push the learner's weights, change them at once, and compare with an engine that has a copy of them."""
    alone = engine(0)
    alone.push_weights({name: tensor.clone() for name, tensor in learner.items()}, version)
    fleet.push_weights(learner, version)
    for tensor in learner.values():
        tensor.add_(0.1)
    results = []
    for each in (alone, fleet):
        each.submit(mixed_requests(12))
        results.append(by_key(drain(each)))
    expected, completions = results
    assert completions.keys() == expected.keys()
    for key, completion in completions.items():
        assert completion.tokens.tolist() == expected[key].tokens.tolist()
        assert set(completion.versions.tolist()) == {version}


def learner_weights() -> dict[str, Any]:
    return {name: tensor.clone() for name, tensor in sampled_model("llama", seed=1).state_dict().items()}


def test_fleet_of_torch_engines_samples_as_one(request):
    fleet = make_fleet(engine, 2, publish=Publisher())
    request.addfinalizer(fleet.close)
    check_samples_as_one(fleet, learner_weights(), 1)


class LearnersMemory(OnGpu):
    """The learner's own memory, on a CPU; a handle is the tensor itself."""

    def __init__(self, weights: Mapping[str, Any]) -> None:
        self._handles, self._uuid = tuple((name, (tensor,)) for name, tensor in weights.items()), "cpu"

    def wait_for_copies(self) -> None: ...


FAULT = "CUDA error: mapping of buffer object failed\nCompile with `TORCH_USE_CUDA_DSA` for more."


@pytest.mark.parametrize("num_faults", [0, 1, 2])
def test_weights_that_cannot_be_mapped_travel_as_copies(request, monkeypatch, num_faults):
    """Neither, one or both of two generators cannot map the learner's memory."""
    learner, faults, modes = learner_weights(), [FAULT] * num_faults, []
    first = next(iter(learner.values()))

    def map_tensor(handle, number):
        if handle[0] is first and faults:
            raise RuntimeError(faults.pop())
        return handle[0]

    def borrow(weights):
        modes.append("borrowed")
        return LearnersMemory(weights)

    monkeypatch.setattr(weights_module, "map_tensor", map_tensor)
    monkeypatch.setattr(weights_module, "_device_number", lambda uuid: 0)
    fleet = make_fleet(engine, 2, publish=Publisher(borrow=borrow), weights=lambda: learner)
    request.addfinalizer(fleet.close)
    fleet.wait_ready()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for version in (1, 2, 3):
            check_samples_as_one(fleet, learner, version)
    reasons = [str(each.message) for each in caught]
    assert len(reasons) == (num_faults > 0), "one warning"
    assert all("mapping of buffer object failed)" in reason for reason in reasons)
    assert len(modes) == (1 if num_faults else 3), "the next pushes are copies at once"
    assert not fleet.losses


def test_memory_without_handles_is_copied(monkeypatch):
    def refuse(weights):
        raise Unmapped("cudaMallocAsync does not share memory")

    publish = Publisher(borrow=refuse)
    with pytest.warns(UserWarning, match="cudaMallocAsync does not share memory"):
        first = publish(TENSORS)
    check_equal(first)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check_equal(publish(TENSORS))


def test_worker_loads_nothing_of_what_it_cannot_open(monkeypatch):
    loaded: list[str] = []

    class Worker(WeightReceiver):
        device = torch.device("cpu")
        model_runner = SimpleNamespace(
            get_model=SimpleNamespace,
            reload_weights=lambda weights_iterator: loaded.extend(name for name, _ in weights_iterator),
        )

    def fail(handle, number):
        raise RuntimeError(FAULT)

    worker, tensors = Worker(), {"a": torch.zeros(1)}
    monkeypatch.setattr(weights_module, "_device_number", lambda uuid: 0)
    monkeypatch.setattr(weights_module, "map_tensor", fail)
    assert worker.scalerl_open(LearnersMemory(tensors)) == FAULT.splitlines()[0]
    assert worker.scalerl_open(tensors) == ""
    assert loaded == []
    worker.scalerl_load(False)
    assert loaded == ["a"]
