"""Weights on their way between processes: nothing changes, nothing stays behind, and nothing is read too late."""

import os
import pickle
from contextlib import suppress

import pytest
import torch
from contracts.requests import by_key, drain, mixed_requests
from fleets import make_fleet
from tiny_models import sampled_model

from scalerl.remote.weights import Gone, InStore, SharedMemory, pack, publisher, store, unpack
from scalerl.rollout.torch.engine import TorchEngine

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
    assert all(len(spans) == 1 or data.nbytes <= bucket_bytes + 64 for spans, data in buckets)
    check_equal({name: tensor for bucket in buckets for name, tensor in unpack(*bucket).items()})


def test_references_are_opened_where_they_are_used(monkeypatch):
    ray, stored = pytest.importorskip("ray"), []
    monkeypatch.setattr(ray, "get", stored.__getitem__)
    monkeypatch.setattr(ray, "put", lambda data: put(data))

    def put(data) -> int:
        data.setflags(write=False)
        stored.append(data)
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
    assert len(shared._blocks) == 2, "the first was being read"
    del mapped, held, second
    third = shared.publish([("matrix", torch.ones(3, 4))])
    assert len(shared._blocks) == 2, "nobody reads it any more"
    with pytest.raises(Gone):
        first.open()
    assert torch.equal(third["matrix"], torch.ones(3, 4))
    del third
    shared.close()
    with pytest.raises(Gone):
        first.open()
    del shared
    assert opened_blocks() == before


def test_memory_of_a_published_weight_can_still_be_freed():
    """FSDP frees gathered weights by resizing their memory, which torch refuses once numpy shares it."""
    tensor, shared = torch.arange(100.0), SharedMemory()
    ((spans, data),) = pack([("weight", tensor)])
    parcel = shared.publish([("weight", tensor)])
    tensor.untyped_storage().resize_(0)
    assert torch.equal(unpack(spans, data)["weight"], torch.arange(100.0))
    assert torch.equal(parcel["weight"], torch.arange(100.0))


def test_fleet_of_torch_engines_samples_as_one(request):
    model, weights = sampled_model("llama"), sampled_model("llama", seed=1).state_dict()

    def engine(number: int) -> TorchEngine:
        return TorchEngine(model, slots=4, max_length=64, stop_tokens=(3,), chunk=8)

    alone, fleet = engine(0), make_fleet(engine, 2, publish=publisher())
    request.addfinalizer(fleet.close)
    for each in (alone, fleet):
        pushed = {name: tensor.clone() for name, tensor in weights.items()}
        each.push_weights(pushed, 1)
        # The learner goes on changing its weights at once.
        for tensor in pushed.values():
            tensor.zero_()
        each.submit(mixed_requests(12))
    expected, completions = by_key(drain(alone)), by_key(drain(fleet))
    assert completions.keys() == expected.keys()
    for key, completion in completions.items():
        assert completion.tokens.tolist() == expected[key].tokens.tolist()
        assert set(completion.versions.tolist()) == {1}
