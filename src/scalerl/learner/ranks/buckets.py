"""Weights in buckets of bytes: how they travel from a rank, a few at a time.

(name, tensor) one by one -> Bucket: an index and one buffer of at most BUCKET_BYTES -> (name, tensor)
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

BUCKET_BYTES = 64 * 2**20
_ALIGNMENT = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Bucket:
    """Some weights as bytes."""

    index: tuple[tuple[str, str, tuple[int, ...], int], ...]
    """Name, dtype, shape and offset in the buffer of each weight."""
    buffer: bytearray

    def tensors(self) -> Iterator[tuple[str, Tensor]]:
        """Yield the weights, which share the buffer's memory."""
        flat = torch.frombuffer(self.buffer, dtype=torch.uint8)
        for name, dtype_name, shape, start in self.index:
            dtype: torch.dtype = getattr(torch, dtype_name)
            num = torch.Size(shape).numel()
            yield name, flat[start : start + num * dtype.itemsize].view(dtype).reshape(shape)


def buckets(named: Iterable[tuple[str, Tensor]], limit: int = BUCKET_BYTES) -> Iterator[Bucket]:
    """Yield all weights in buckets. No more than one bucket, and the next weight, exist at a time."""
    parts: list[tuple[str, Tensor]] = []
    size = 0
    for name, tensor in named:
        needed = _aligned(tensor.numel() * tensor.element_size())
        if parts and size + needed > limit:
            yield _joined(parts, size)
            parts, size = [], 0
        # A copy on the host: what was gathered is not kept on the device.
        parts.append((name, tensor.detach().to("cpu")))
        size += needed
    if parts:
        yield _joined(parts, size)


def _joined(parts: list[tuple[str, Tensor]], size: int) -> Bucket:
    buffer = bytearray(size)
    flat = torch.frombuffer(buffer, dtype=torch.uint8)
    index, start = [], 0
    for name, tensor in parts:
        raw = tensor.contiguous().view(-1).view(torch.uint8)
        flat[start : start + raw.numel()] = raw
        index.append((name, str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape), start))
        start += _aligned(raw.numel())
    return Bucket(index=tuple(index), buffer=buffer)


def _aligned(num_bytes: int) -> int:
    return -(-num_bytes // _ALIGNMENT) * _ALIGNMENT
