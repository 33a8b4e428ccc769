"""The ranks that train one model together, and sums over them. A single process is a team of one."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

BUCKET_ELEMENTS = 2**24
"""Gradients are summed over ranks in buffers of this many numbers, so that there is no second copy of all of them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Team:
    """This process's place among the ranks; all of them call the same methods in the same order."""

    rank: int = 0
    size: int = 1

    def add(self, values: Tensor) -> Tensor:
        """Return the sum over all ranks, in place."""
        if self.size > 1:
            torch.distributed.all_reduce(values)
        return values

    def largest(self, values: Tensor) -> Tensor:
        """Return the maximum over all ranks, in place."""
        if self.size > 1:
            torch.distributed.all_reduce(values, torch.distributed.ReduceOp.MAX)
        return values

    @torch.no_grad()
    def add_gradients(self, parameters: Sequence[Tensor]) -> None:
        """Sum the gradients of all ranks. A rank without a gradient adds zeros; if no rank has one, there is none."""
        if self.size == 1:
            return
        flags = [parameter.grad is not None for parameter in parameters]
        has_any = self.add(torch.tensor(flags, dtype=torch.float32, device=parameters[0].device)).tolist()
        used = [parameter for parameter, num in zip(parameters, has_any, strict=True) if num]
        for parameter in used:
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
        gradients = [parameter.grad for parameter in used if parameter.grad is not None]
        for bucket in _buckets(gradients):
            flat = self.add(torch.cat([gradient.flatten() for gradient in bucket]))
            sizes = [gradient.numel() for gradient in bucket]
            for gradient, part in zip(bucket, flat.split(sizes), strict=True):
                gradient.copy_(part.view_as(gradient))


def _buckets(tensors: Sequence[Tensor]) -> list[list[Tensor]]:
    """Divide tensors into runs with one dtype and at most BUCKET_ELEMENTS numbers, or with one larger tensor."""
    buckets: list[list[Tensor]] = []
    size = 0
    for tensor in tensors:
        if not buckets or size + tensor.numel() > BUCKET_ELEMENTS or buckets[-1][0].dtype != tensor.dtype:
            buckets.append([])
            size = 0
        buckets[-1].append(tensor)
        size += tensor.numel()
    return buckets
