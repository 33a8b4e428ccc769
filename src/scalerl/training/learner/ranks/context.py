"""Divide the tokens of a pass among ranks, for sequences whose activations do not fit on one device.

    rank 0   t0 t1 t2   all heads                 t0 .. t5   heads 0 1                 t0 t1 t2   all heads
    rank 1   t3 t4 t5   all heads    exchange ->  t0 .. t5   heads 2 3    exchange ->  t3 t4 t5   all heads
             embedding, norms, MLPs               attention                            MLPs, head, log-probs

Neighbouring ranks form a group that computes each pass together. Everything except attention works token by token, so
each rank computes it for a slice of the packed row. In attention, each rank has the whole row of some heads; packed
rows, shared beginnings and sliding windows work as in one process. The backward pass exchanges gradients in the same
way.

Log-probs are gathered, so that every rank of a group computes the loss of the whole pass, including losses over whole
sequences. Each rank propagates the gradient of its own slice only, and the gradients of all ranks are summed.
"""

import datetime
import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from scalerl.errors import PackingError
from scalerl.training.learner.batch import ForwardInputs, Scored
from scalerl.training.learner.packed_attention import Packing, lengthened, pack


class ContextGroup:
    """One rank's view of the ranks that compute a pass together. All of them call the same methods together."""

    def __init__(self, *, rank: int, num_ranks: int, size: int, timeout_s: float = 600.0) -> None:
        """Join the group of `size` neighbouring ranks to which this rank belongs; all `num_ranks` ranks do so."""
        import torch.distributed as dist

        wait = datetime.timedelta(seconds=timeout_s)
        groups = [dist.new_group(range(first, first + size), timeout=wait) for first in range(0, num_ranks, size)]
        self._group: Any = groups[rank // size]
        self.size = size
        self.index = rank % size

    def sliced(self, inputs: ForwardInputs) -> tuple[ForwardInputs, Tensor]:
        """Return this rank's slice of inputs on the host, and the indices of the targets that it predicts.

        Only the positions of the packing are sliced, because attention needs the rest of it for the whole row. The row
        is padded so that all slices have the same length.
        """
        packing = lengthened(inputs.packing, -len(inputs.ids) % self.size)
        length = len(packing.positions) // self.size
        first = self.index * length
        ids = torch.cat([inputs.ids, inputs.ids.new_zeros(len(packing.positions) - len(inputs.ids))])
        own = ((inputs.place >= first) & (inputs.place < first + length)).nonzero()[:, 0]
        part = replace(
            inputs,
            ids=ids[first : first + length],
            packing=replace(packing, positions=packing.positions[first : first + length]),
            place=inputs.place[own] - first,
            targets=inputs.targets[own],
        )
        return part, own

    def gather(self, log_probs: Tensor, entropy: Tensor, own: Tensor, num_targets: int) -> Scored:
        """Return log-probs and entropies of all targets; gradients flow only to this rank's slice."""
        return _GatheredLogProbs.apply(log_probs, entropy, own, num_targets, self._group)  # pyright: ignore[reportReturnType]

    def to_heads(self, *parts: Tensor) -> tuple[Tensor, ...]:
        """Exchange all heads of this rank's tokens for this rank's heads of all tokens: queries, keys, values.

        [tokens / ranks, heads, size] -> [tokens, heads / ranks, size]. Key-value heads are repeated if there are too
        few to divide.
        """
        parts = tuple(_repeated(part, self.size) for part in parts)
        wide = torch.cat([part.reshape(len(part), self.size, -1) for part in parts], dim=2)
        moved = _swapped(wide.transpose(0, 1), self._group).flatten(0, 1)
        widths = [part[0].numel() // self.size for part in parts]
        return tuple(
            piece.unflatten(1, (-1, part.shape[2]))
            for piece, part in zip(moved.split(widths, dim=1), parts, strict=True)
        )

    def to_tokens(self, attended: Tensor) -> Tensor:
        """Exchange this rank's heads of all tokens for all heads of this rank's tokens."""
        return _swapped(attended.unflatten(0, (self.size, -1)), self._group).transpose(0, 1).flatten(1, 2)


@torch.no_grad()
def check_slices(
    group: ContextGroup,
    hidden_states: Callable[[Tensor, Packing, ContextGroup | None], Tensor],
    config: Any,
    *,
    device: torch.device,
    tolerance: float = 1e-3,
) -> None:
    """Raise PackingError unless slices of a row give the same results as the whole row.

    They differ if a layer uses anything but the given positions of tokens.
    """
    place = torch.arange(6 * group.size + 1)
    ids = place % config.vocab_size
    row = ForwardInputs(ids=ids, packing=pack([4, len(ids) - 4]), place=place, targets=ids, temperature=1.0)
    part, own = group.sliced(row)
    row = row.to(device)
    part = part.to(device)
    theirs = hidden_states(row.ids, row.packing, None)[own]
    ours = hidden_states(part.ids, part.packing, group)[part.place]
    if not torch.allclose(ours, theirs, rtol=tolerance, atol=tolerance):
        raise PackingError(
            f"a {config.model_type} model gives different results for slices of a sequence than for the whole: set "
            f"learner.context_ranks = 1"
        )


def _repeated(part: Tensor, size: int) -> Tensor:
    """Repeat each head until the number of heads is a multiple of `size`."""
    num_heads = part.shape[1]
    times = size // math.gcd(num_heads, size)
    return part if times == 1 else part[:, :, None].expand(-1, -1, times, -1).flatten(1, 2)


class _AllToAll(torch.autograd.Function):
    """Send values[i] to rank i of the group, and return what all ranks sent to this one; the same for gradients."""

    @staticmethod
    def forward(ctx, values: Tensor, group: Any) -> Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx.group = group
        return _exchanged(values, group)

    @staticmethod
    @once_differentiable
    def backward(ctx, gradient: Tensor) -> tuple[Tensor, None]:  # pyright: ignore[reportIncompatibleMethodOverride]
        return _exchanged(gradient, ctx.group), None


# Not compiled: an exchange comes between two compiled graphs of a layer.
_swapped: Callable[[Tensor, Any], Tensor] = torch.compiler.disable(_AllToAll.apply)  # pyright: ignore[reportAssignmentType]


def _exchanged(values: Tensor, group: Any) -> Tensor:
    values = values.contiguous()
    received = torch.empty_like(values)
    torch.distributed.all_to_all_single(received, values, group=group)
    return received


class _GatheredLogProbs(torch.autograd.Function):
    """Log-probs and entropies of all ranks of a group; each rank propagates only the gradient of its own slice."""

    @staticmethod
    def forward(ctx, log_probs: Tensor, entropy: Tensor, own: Tensor, num: int, group: Any) -> Scored:  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx.save_for_backward(own)
        values = torch.stack([log_probs, entropy])
        # Each target is in one slice, so the sums are exact.
        gathered = values.new_zeros(2, num).index_copy_(1, own, values)
        torch.distributed.all_reduce(gathered, group=group)
        everything = gathered[0].clone(), gathered[1].clone()
        ctx.mark_non_differentiable(everything[1])
        return everything

    @staticmethod
    @once_differentiable
    def backward(ctx, gradient: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        (own,) = ctx.saved_tensors
        return gradient.index_select(0, own), None, None, None, None
