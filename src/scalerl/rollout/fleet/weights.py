"""Weights for transport between processes: tensors packed into buckets of bytes with an index.

A bucket is what is sent at once. `pack` takes tensors one by one, so a learner that gathers its shards name by name
never holds more than one bucket; `unpack` makes tensors of a bucket's own memory, without a copy.
"""

import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from torch import Tensor

BUCKET_BYTES = 64 * 2**20
_ALIGNED = 64
"""Tensors start at multiples of this, so that a view of any dtype is aligned."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where a tensor is in its bucket."""

    dtype: str
    shape: tuple[int, ...]
    offset: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Bucket:
    """Several tensors in one array of bytes, or a reference to such an array."""

    index: Mapping[str, Place]
    data: Any


class Published(dict[str, Place]):
    """References to buckets of weights stored elsewhere. It is a mapping, so that the loop can pass it on as weights.

    A learner may return one from `weights()`; a fleet then passes its references to the members as they are.
    """

    def __init__(self, buckets: Iterable[Bucket]) -> None:
        self.buckets = tuple(buckets)
        super().__init__({name: place for bucket in self.buckets for name, place in bucket.index.items()})


def publish(
    named: "Iterable[tuple[str, Tensor]]", put: Callable[[NDArray[np.uint8]], Any], *, bucket_bytes: int = BUCKET_BYTES
) -> Published:
    """Pack tensors into buckets and store each with `put`, which returns a reference to it."""
    buckets = pack(named, bucket_bytes=bucket_bytes)
    return Published(Bucket(index=bucket.index, data=put(bucket.data)) for bucket in buckets)


def fetch(buckets: Iterable[Bucket], get: Callable[[Any], NDArray[np.uint8]]) -> "dict[str, Tensor]":
    """Return the tensors of buckets whose references `get` resolves."""
    tensors: dict[str, Tensor] = {}
    for bucket in buckets:
        tensors.update(unpack(Bucket(index=bucket.index, data=get(bucket.data))))
    return tensors


def pack(named: "Iterable[tuple[str, Tensor]]", *, bucket_bytes: int = BUCKET_BYTES) -> Iterator[Bucket]:
    """Yield buckets of at most `bucket_bytes`; a larger tensor gets a bucket of its own."""
    index: dict[str, Place] = {}
    parts: list[tuple[int, Tensor]] = []
    total = 0
    for name, tensor in named:
        num_bytes = tensor.numel() * tensor.element_size()
        if parts and total + num_bytes > bucket_bytes:
            yield Bucket(index=index, data=_joined(parts, total))
            index, parts, total = {}, [], 0
        index[name] = Place(dtype=str(tensor.dtype).removeprefix("torch."), shape=tuple(tensor.shape), offset=total)
        parts.append((total, tensor))
        total += -(-num_bytes // _ALIGNED) * _ALIGNED
    if parts:
        yield Bucket(index=index, data=_joined(parts, total))


def unpack(bucket: Bucket) -> "dict[str, Tensor]":
    """Return the tensors of a bucket. They share its memory and must not be written to."""
    import torch

    with warnings.catch_warnings():
        # The memory of an object store is read-only; the engine only copies from it.
        warnings.simplefilter("ignore")
        data = torch.from_numpy(bucket.data)
    tensors = {}
    for name, place in bucket.index.items():
        dtype = getattr(torch, place.dtype)
        num_bytes = int(np.prod(place.shape)) * dtype.itemsize
        part = data[place.offset : place.offset + num_bytes]
        # A part without elements has no stride to be viewed with.
        tensors[name] = (part.view(dtype) if num_bytes else part.to(dtype)).reshape(place.shape)
    return tensors


def clone(weights: Mapping[str, Any]) -> dict[str, Any]:
    """Return copies of tensors on their own device."""
    return {name: tensor.detach().clone() for name, tensor in weights.items()}


def _joined(parts: "list[tuple[int, Tensor]]", total: int) -> NDArray[np.uint8]:
    import torch

    data = np.zeros(total, dtype=np.uint8)
    flat = torch.from_numpy(data)
    for offset, tensor in parts:
        # reshape(-1) first: a scalar cannot be viewed as bytes. Not numpy(), which would keep FSDP from freeing the
        # memory of a gathered weight.
        raw = tensor.detach().contiguous().reshape(-1).view(torch.uint8)
        flat[offset : offset + raw.numel()].copy_(raw)
    return data
