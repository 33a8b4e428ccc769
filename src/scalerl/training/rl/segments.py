"""Reductions over the segments of a flat array, such as the tokens of a completion or the completions of a group."""

import torch
from jaxtyping import Bool, Float, Int, Shaped
from torch import Tensor


def dense_index(ids: Int[Tensor, " items"]) -> tuple[Int[Tensor, " items"], int]:
    """Renumber ids as 0 .. num - 1, in sorted order. Return the index of each item, and num."""
    if _are_dense(ids):
        return ids, int(ids[-1]) + 1
    segments, index = torch.unique(ids, return_inverse=True)
    return index, segments.numel()


def _are_dense(ids: Int[Tensor, " items"]) -> bool:
    """Return whether ids are already 0, 0, 1, 1, 1, 2, ..., as the learner's are: checking is faster than sorting."""
    if not ids.numel() or ids.is_cuda or ids.dtype != torch.long or int(ids[0]) != 0:
        return False
    steps = ids.diff()
    return bool(((steps == 0) | (steps == 1)).all())


def segment_sum(values: Float[Tensor, " items"], index: Int[Tensor, " items"], num: int) -> Float[Tensor, " segments"]:
    return values.new_zeros(num).index_add(0, index, values)


def segment_count(mask: Bool[Tensor, " items"], index: Int[Tensor, " items"], num: int) -> Int[Tensor, " segments"]:
    return torch.zeros(num, dtype=torch.long, device=mask.device).index_add(0, index, mask.long())


def segment_min(
    values: Shaped[Tensor, " items"], index: Int[Tensor, " items"], num: int
) -> Shaped[Tensor, " segments"]:
    return values.new_zeros(num).scatter_reduce(0, index, values, "amin", include_self=False)


def segment_max(
    values: Shaped[Tensor, " items"], index: Int[Tensor, " items"], num: int
) -> Shaped[Tensor, " segments"]:
    return values.new_zeros(num).scatter_reduce(0, index, values, "amax", include_self=False)
