"""Packed sequences: several sequences in one row, without padding, none of which attends to another.

    tokens     a a a b b c c c c        starts   0 3 5 9
    positions  0 1 2 0 1 0 1 2 3

Everything in a transformer except attention works token by token, so a pass over packed sequences costs no more than
their tokens. Attention uses `starts`: on a GPU in bf16 by torch's variable-length FlashAttention kernel, otherwise by
one rectangle of padded rows. transformers passes `starts` on to the attention function registered here.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from scalerl.errors import PackingError

if TYPE_CHECKING:
    from transformers import PreTrainedModel

NAME = "scalerl_packed"
"""Name of the attention function in transformers, which has no mask function of that name and so makes no mask."""

_KERNEL_SIZES = range(8, 257, 8)
"""Head sizes that the kernel supports."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Packing:
    """Where the sequences of a row are."""

    positions: Tensor
    """Position of each token in its own sequence."""
    starts: Tensor
    """Index of the first token of each sequence, then the number of tokens; int32, as the kernel requires."""
    corners: Tensor
    """Index of each token in the flattened rectangle of padded rows."""
    rows: int
    width: int
    """Width of that rectangle: the longest sequence."""

    @property
    def longest(self) -> int:
        """An upper bound of the lengths: enough for the kernel, and few distinct values mean few compilations."""
        return 1 << (self.width - 1).bit_length()

    def to(self, device: torch.device) -> "Packing":
        moved = {name: getattr(self, name).to(device, non_blocking=True) for name in ("positions", "starts", "corners")}
        return Packing(**moved, rows=self.rows, width=self.width)


def pack(lengths: ArrayLike) -> Packing:
    """Pack sequences of these lengths, one after the other."""
    sizes = np.asarray(lengths, dtype=np.int64)
    starts = np.concatenate([[0], np.cumsum(sizes)])
    positions = np.arange(starts[-1]) - np.repeat(starts[:-1], sizes)
    width = int(sizes.max())
    return Packing(
        positions=torch.from_numpy(positions),
        starts=torch.from_numpy(starts.astype(np.int32)),
        corners=torch.from_numpy(np.repeat(np.arange(len(sizes)) * width, sizes) + positions),
        rows=len(sizes),
        width=width,
    )


def has_kernel(device: torch.device, dtype: torch.dtype, head_dim: int) -> bool:
    """Whether attention uses the FlashAttention kernel, which depends on no length but the longest."""
    return device.type == "cuda" and dtype == torch.bfloat16 and head_dim in _KERNEL_SIZES


def attend_packed(model: "PreTrainedModel") -> None:
    """Make the model's layers use `packed_attention`; from then on the model takes only packed rows."""
    from transformers import AttentionInterface

    AttentionInterface.register(NAME, packed_attention)
    model.set_attn_implementation(NAME)


def packed_hidden_states(model: "PreTrainedModel", ids: Tensor, packing: Packing) -> Tensor:
    """Return the head's inputs, [tokens, hidden]: hidden states after the last norm."""
    output = model.base_model(
        input_ids=ids[None],
        position_ids=packing.positions[None],
        use_cache=False,
        return_dict=True,
        starts=packing.starts,
        corners=packing.corners,
        rows=packing.rows,
        width=packing.width,
        longest=packing.longest,
    )
    return output.last_hidden_state[0]


@torch.no_grad()
def check_packing(model: "PreTrainedModel", *, tolerance: float = 1e-3) -> None:
    """Raise PackingError unless two packed sequences give what each gives alone; recurrent layers would mix them."""
    ids = torch.arange(7, device=model.device) % model.config.vocab_size
    together = packed_hidden_states(model, ids, pack([4, 3]).to(model.device))
    apart = [packed_hidden_states(model, part, pack([len(part)]).to(model.device)) for part in ids.split([4, 3])]
    if not torch.allclose(together, torch.cat(apart), rtol=tolerance, atol=tolerance):
        raise PackingError(f"a {model.config.model_type} model cannot be trained: its layers mix packed sequences")


def packed_attention(
    module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    starts: Tensor,
    corners: Tensor,
    rows: int,
    width: int,
    longest: int,
    scaling: float | None = None,
    sliding_window: int | None = None,
    **others: Any,
) -> tuple[Tensor, None]:
    """Causal attention within each sequence: [1, heads, tokens, size] -> [1, tokens, heads, size]."""
    if unknown := sorted(name for name in ("softcap", "s_aux", "position_bias") if others.get(name) is not None):
        raise PackingError(f"a model whose attention needs {unknown[0]} cannot be trained on packed sequences")
    queries, keys, values = (part[0].transpose(0, 1) for part in (query, key, value))
    window = -1 if sliding_window is None else sliding_window - 1
    if has_kernel(query.device, query.dtype, query.shape[-1]):
        # torch.nn.attention.varlen wraps the same operation, with another signature in every release.
        attended = torch.ops.aten._flash_attention_forward(
            queries,
            keys,
            values,
            starts,
            starts,
            longest,
            longest,
            0.0,
            True,
            False,
            scale=scaling,
            window_size_left=window,
            window_size_right=0,
        )[0]
    else:
        attended = _attend_padded(queries, keys, values, corners, rows, width, scaling, window)
    return attended[None], None


def _attend_padded(
    queries: Tensor,
    keys: Tensor,
    values: Tensor,
    corners: Tensor,
    rows: int,
    width: int,
    scaling: float | None,
    window: int,
) -> Tensor:
    """Attend in padded rows. Padding is on the right, where a causal mask hides it from all real tokens."""

    def padded(packed: Tensor) -> Tensor:
        rectangle = packed.new_zeros(rows * width, *packed.shape[1:]).index_copy(0, corners, packed)
        return rectangle.view(rows, width, *packed.shape[1:]).transpose(1, 2)

    mask = None
    if 0 <= window < width - 1:
        place = torch.arange(width, device=queries.device)
        distance = place[:, None] - place
        mask = (distance >= 0) & (distance <= window)
    attended = scaled_dot_product_attention(
        padded(queries),
        padded(keys),
        padded(values),
        attn_mask=mask,
        is_causal=mask is None,
        scale=scaling,
        enable_gqa=queries.shape[1] != keys.shape[1],
    )
    return attended.transpose(1, 2).flatten(0, 1)[corners]
