"""Weights in buckets of bytes: nothing changes on the way, and no bucket is larger than asked."""

import pytest
import torch
from contracts.requests import by_key, drain, mixed_requests
from families import make_model

from scalerl.rollout.fleet.fleet import Fleet
from scalerl.rollout.fleet.threads import ThreadLauncher
from scalerl.rollout.fleet.weights import Published, clone, fetch, pack, publish, unpack
from scalerl.rollout.torch.engine import TorchEngine

TENSORS = {
    "matrix": torch.arange(12, dtype=torch.float32).reshape(3, 4),
    "half": torch.linspace(-1, 1, 7).to(torch.bfloat16),
    "scalar": torch.tensor(2.5),
    "transposed": torch.arange(6.0).reshape(2, 3).t(),
    "flags": torch.tensor([True, False]),
    "empty": torch.zeros(0, 3),
}


@pytest.mark.parametrize("bucket_bytes", [1, 64, 200, 10_000])
def test_tensors_survive_the_buckets(bucket_bytes):
    buckets = list(pack(TENSORS.items(), bucket_bytes=bucket_bytes))
    assert all(len(bucket.index) == 1 or bucket.data.nbytes <= bucket_bytes + 64 for bucket in buckets)
    tensors = {name: tensor for bucket in buckets for name, tensor in unpack(bucket).items()}
    assert list(tensors) == list(TENSORS)
    for name, tensor in tensors.items():
        assert tensor.dtype == TENSORS[name].dtype
        assert torch.equal(tensor, TENSORS[name])


def test_published_weights_are_fetched_by_reference():
    stored = []

    def put(data) -> int:
        data.setflags(write=False)
        stored.append(data)
        return len(stored) - 1

    published = publish(TENSORS.items(), put, bucket_bytes=64)
    assert isinstance(published, Published)
    assert set(published) == set(TENSORS)
    assert len(published.buckets) == len(stored) > 1
    fetched = fetch(published.buckets, stored.__getitem__)
    assert all(torch.equal(fetched[name], tensor) for name, tensor in TENSORS.items())


def test_memory_of_a_packed_weight_can_still_be_freed():
    """FSDP frees gathered weights by resizing their memory, which torch refuses once numpy shares it."""
    tensor = torch.arange(100.0)
    (bucket,) = pack([("weight", tensor)])
    tensor.untyped_storage().resize_(0)
    assert torch.equal(unpack(bucket)["weight"], torch.arange(100.0))


def test_fleet_of_torch_engines_samples_as_one(request):
    model, weights = make_model("llama"), make_model("llama", seed=1).state_dict()

    def engine(number: int) -> TorchEngine:
        return TorchEngine(model, slots=4, max_length=64, stop_tokens=(3,), chunk=8)

    alone = engine(0)
    fleet = Fleet(ThreadLauncher(engine, slots=4, copy=clone), 2, check=lambda request: None)
    request.addfinalizer(fleet.close)
    for each in (alone, fleet):
        pushed = clone(weights)
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
