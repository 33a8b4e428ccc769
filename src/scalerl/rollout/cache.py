"""A static key-value cache over fixed slots, each row of which is written at its own position.

    keys, values: one [slots, kv_heads, max_length, head_dim] tensor a layer, allocated once

A forward pass sees the cache through a DecodePass (one token a slot) or a PrefillPass (whole prompts). Both stand in
for a transformers Cache: of one, the models only call `update`, given position ids and a ready 4-D mask.
What a slot held before is never cleared: a mask hides every position that the present request has not written.
"""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

ATTENTION = "scalerl_slots"
"""The name `slot_attention` has in transformers' table of attention functions."""


class SlotCache:
    """The storage."""

    def __init__(
        self,
        *,
        num_layers: int,
        slots: int,
        num_kv_heads: int,
        max_length: int,
        head_dim: int,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        shape = (slots, num_kv_heads, max_length, head_dim)
        # Zeros and not just any memory: a masked NaN would still be a NaN.
        self.keys = [torch.zeros(shape, dtype=dtype, device=device) for _ in range(num_layers)]
        self.values = [torch.zeros(shape, dtype=dtype, device=device) for _ in range(num_layers)]
        self.shape = shape
        starts = torch.arange(slots * num_kv_heads, device=device) * max_length
        self._row_starts = starts.view(slots, num_kv_heads)
        self._places = torch.arange(max_length, device=device)

    def rows(self, position: Tensor) -> Tensor:
        """Where position[slot] lies for every slot and head, in the cache seen as a table of head_dim wide rows."""
        return (self._row_starts + position[:, None]).view(-1)

    def mask(self, position: Tensor, filled: int) -> Tensor:
        """[slots, 1, 1, filled], 0 up to each slot's position and -inf after it."""
        mask = torch.zeros((len(position), filled), dtype=self.keys[0].dtype, device=position.device)
        return mask.masked_fill_(self._places[:filled] > position[:, None], float("-inf"))[:, None, None]


class DecodePass:
    """One token of every slot, at its own position, attending to the first `filled` positions under a mask."""

    def __init__(self, cache: SlotCache, position: Tensor, filled: int) -> None:
        self._cache, self._filled = cache, filled
        self._rows = cache.rows(position)
        self.mask: Tensor | None = cache.mask(position, filled)

    def update(self, keys: Tensor, values: Tensor, layer_idx: int, *_: object, **__: object) -> tuple[Tensor, Tensor]:
        seen = []
        for stored, new in ((self._cache.keys[layer_idx], keys), (self._cache.values[layer_idx], values)):
            width = stored.shape[-1]
            stored.view(-1, width).index_copy_(0, self._rows, new.reshape(-1, width))
            seen.append(stored[:, :, : self._filled])
        return seen[0], seen[1]


class PrefillPass:
    """Padded prompts from position 0 on; row `rows[i]` is kept in slot `slots[i]`. They attend to themselves alone."""

    mask: Tensor | None = None

    def __init__(self, cache: SlotCache, rows: Sequence[int], slots: Sequence[int]) -> None:
        self._cache = cache
        device = cache.keys[0].device
        self._rows = torch.tensor(rows, device=device)
        self._slots = torch.tensor(slots, device=device)

    def update(self, keys: Tensor, values: Tensor, layer_idx: int, *_: object, **__: object) -> tuple[Tensor, Tensor]:
        width = keys.shape[2]
        # The right padding lands beyond the prompt, where the mask hides it until it is overwritten.
        self._cache.keys[layer_idx][self._slots, :, :width] = keys[self._rows]
        self._cache.values[layer_idx][self._slots, :, :width] = values[self._rows]
        return keys, values


def attend(query: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None, scale: float | None) -> Tensor:
    """Attention with grouped heads: [rows, heads, seq, head_dim] -> [rows, seq, heads, head_dim].

    With a mask, of one token a row: the heads of a group become its queries, so each key head is read once instead of
    being repeated in memory. Without one, causal.
    """
    num_rows, num_heads, length, head_dim = query.shape
    num_kv_heads = keys.shape[1]
    if mask is not None:
        assert length == 1, "a masked pass is one token a row"
        grouped = query.reshape(num_rows, num_kv_heads, num_heads // num_kv_heads, head_dim)
        result = scaled_dot_product_attention(grouped, keys, values, attn_mask=mask, scale=scale)
        return result.reshape(num_rows, 1, num_heads, head_dim)
    if num_heads != num_kv_heads:
        keys, values = (each.repeat_interleave(num_heads // num_kv_heads, dim=1) for each in (keys, values))
    return scaled_dot_product_attention(query, keys, values, is_causal=True, scale=scale).transpose(1, 2)


def slot_attention(
    module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    **kwargs: object,
) -> tuple[Tensor, None]:
    """`attend` as transformers calls it. What it cannot do is refused, not ignored."""
    for name in ("softcap", "s_aux", "position_bias"):
        if kwargs.get(name) is not None:
            raise ValueError(f"the torch engine cannot run {type(module).__name__}: its attention uses {name}")
    return attend(query, key, value, attention_mask, scaling).contiguous(), None
