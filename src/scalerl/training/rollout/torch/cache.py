"""A static key-value cache with fixed slots; each row has its own position.

    keys, values: one [slots, kv_heads, max_length, head_dim] tensor per layer, views of one allocation

Prompts are computed in a separate, fixed buffer and copied from there to their slots. A forward pass uses the cache
through a PrefillPass (whole prompts), an ExtendPass (tokens after the filled positions of some rows), a DecodePass (one
token per row) or a KernelPass (the same with a GPU kernel). All but KernelPass replace a transformers Cache: given
position ids and a 4-D mask, models call only its `update`. Slots are never cleared: attention reads only positions that
the current request has written.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, Self

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from scalerl.training.models.shape import head_sizes
from scalerl.training.rollout.torch.layout import RowSpan

ROOM = 4
"""A pause keeps the cache of its requests on a GPU with at least this many times as much free memory."""
ATTENTION = "scalerl_slots"
"""The name of `slot_attention` among the attention functions of transformers."""


class SlotCache:
    """Keys and values of all slots and layers, and the buffer in which prompts are computed."""

    def __init__(
        self,
        config: Any,
        *,
        slots: int,
        max_length: int,
        prompt_tokens: int,
        dtype: torch.dtype,
        device: torch.device,
        num_routed: int = 0,
    ) -> None:
        """`prompt_tokens` is the largest number of prompt tokens computed at once, padding included.

        With `num_routed`, this many experts of every token are stored with its keys and values.
        """
        num_layers = config.num_hidden_layers
        num_kv_heads, head_dim = head_sizes(config)
        # Zeros, not uninitialised memory: a masked NaN would still give NaN.
        self._stored = torch.zeros(
            (2, num_layers, slots, num_kv_heads, max_length, head_dim), dtype=dtype, device=device
        )
        self.keys, self.values = (list(part.unbind()) for part in self._stored.unbind())
        self._computed = torch.zeros(
            2 * num_layers * num_kv_heads * head_dim * prompt_tokens, dtype=dtype, device=device
        )
        self._experts = torch.zeros((slots, 1, max_length, num_routed), dtype=torch.int16, device=device)
        self._computed_experts = torch.zeros((prompt_tokens, num_routed), dtype=torch.int16, device=device)
        self._parts = [*self.keys, *self.values]
        if num_routed:
            self._parts.append(self._experts)
        starts = torch.arange(slots * num_kv_heads, device=device) * max_length
        self._row_starts = starts.view(slots, num_kv_heads)
        zeros = torch.zeros(max_length, dtype=dtype, device=device)
        # Row i is the mask of position max_length - 1 - i. All rows are views of one vector, to save memory.
        self._masks = torch.cat([zeros, torch.full_like(zeros, float("-inf"))]).unfold(0, max_length, 1)

    def places(self, rows: Tensor | slice, position: Tensor) -> Tensor:
        """Return the index of position[i, j] in row rows[i], for every head, in the cache viewed as [-1, head_dim]."""
        return (self._row_starts[rows][:, :, None] + position[:, None]).view(-1)

    def write(self, places: Tensor, keys: Tensor, values: Tensor, layer: int) -> tuple[Tensor, Tensor]:
        """Write new keys and values of a layer to these places; return all keys and values of the layer."""
        width = keys.shape[-1]
        stored = self.keys[layer], self.values[layer]
        for kept, new in zip(stored, (keys, values), strict=True):
            kept.view(-1, width).index_copy_(0, places, new.reshape(-1, width))
        return stored

    def mask(self, position: Tensor, filled: int) -> Tensor:
        """Return [rows, 1, 1, filled]: 0 up to each row's position and -inf after it."""
        last = self._masks.shape[1] - 1
        return self._masks[:, :filled].index_select(0, last - position)[:, None, None]

    def computed(self, rows: int, width: int) -> Tensor:
        """Return the buffer for keys and values of prompts: [2, layers, rows, kv_heads, width, head_dim]."""
        _, num_layers, _, num_kv_heads, _, head_dim = self._stored.shape
        shape = (2, num_layers, rows, num_kv_heads, width, head_dim)
        return self._computed[: math.prod(shape)].view(shape)

    def keep(self, computed: Tensor, rows: Tensor, slots: Tensor) -> None:
        """Copy row rows[i] of the buffer to slot slots[i], for all layers at once.

        Padding on the right is copied, too; the mask hides it until it is overwritten.
        """
        stored = self._stored.flatten(0, 1)[:, :, :, : computed.shape[-2]]
        computed = computed.flatten(0, 1)
        # A row may be copied to many slots. Copy at most a buffer's size at a time.
        most = max(1, self._computed.numel() * computed.shape[1] // computed.numel())
        for some, into in zip(rows.split(most), slots.split(most), strict=True):
            stored.index_copy_(1, into, computed.index_select(1, some))
        if self._experts.shape[-1]:
            num_rows = computed.shape[1]
            width = computed.shape[-2]
            experts = self._computed_experts[: num_rows * width].view(num_rows, 1, width, -1)
            self._experts[:, :, :width].index_copy_(0, slots, experts.index_select(0, rows))

    def routed(self, rows: Tensor | slice, position: Tensor) -> tuple[Tensor, Tensor]:
        """Return a buffer and the rows in it for the experts of tokens at position[i, j] of row rows[i]."""
        starts = self._row_starts[:, 0] // self._row_starts.shape[1]
        return self._experts.flatten(0, 2), (starts[rows][:, None] + position).view(-1)

    def computed_routed(self, num: int) -> tuple[Tensor, Tensor]:
        """Return a buffer and the rows in it for the experts of `num` tokens of prompts, including padding."""
        return self._computed_experts, torch.arange(num, device=self._experts.device)

    def experts(self, row: int, num: int) -> Tensor:
        """Return the experts of the first `num` tokens of a row, [tokens, layers x experts per token]."""
        return self._experts[row, 0, :num]

    def move(self, source: Tensor, target: Tensor, filled: int) -> None:
        """Copy rows up to position `filled` to other rows, all at once, so that rows can be exchanged."""
        for stored in self._parts:
            held = stored[:, :, :filled]
            held.index_copy_(0, target, held.index_select(0, source))

    def copy_out(self, rows: Tensor, filled: int) -> list[Tensor]:
        """Return the content of rows up to position `filled`, one tensor per layer.

        It is in the memory of the device if that has room, otherwise in the host's, which takes seconds.
        """
        parts = [stored[:, :, :filled] for stored in self._parts]
        num_bytes = sum(len(rows) * part[0].numel() * part.element_size() for part in parts)
        stays = has_room(rows.device, num_bytes)
        held = (part.index_select(0, rows) for part in parts)
        return [part if stays else part.cpu() for part in held]

    def copy_in(self, held: Sequence[Tensor], rows: Tensor) -> None:
        """Write the result of copy_out to rows."""
        for stored, values in zip(self._parts, held, strict=True):
            stored[:, :, : values.shape[2]].index_copy_(0, rows, values.to(stored.device))


def has_room(device: torch.device, num_bytes: int) -> bool:
    """Return whether a GPU has much more free memory than this; False for a CPU."""
    if device.type != "cuda":
        return False
    allowed = torch.cuda.get_per_process_memory_fraction(device) * torch.cuda.mem_get_info(device)[1]
    reserved = torch.cuda.memory_reserved(device)
    allocated = torch.cuda.memory_allocated(device)
    free = min(torch.cuda.mem_get_info(device)[0] + reserved, allowed) - allocated
    return free > ROOM * num_bytes


class Pass(ABC):
    """A forward pass over some tokens, which writes their keys and values. transformers calls only `update`."""

    mask: Tensor | None = None

    @abstractmethod
    def update(self, keys: Tensor, values: Tensor, layer_idx: int, *_: object, **__: object) -> tuple[Tensor, Tensor]:
        """Write the new keys and values, and return all that attention reads."""

    def attend(self, query: Tensor, keys: Tensor, values: Tensor, layer: int, scale: float) -> Tensor:
        """Write the new keys and values, and compute attention."""
        return attend(query, *self.update(keys, values, layer), self.mask, scale)


class PrefillPass(Pass):
    """Padded prompts from position 0; each attends only to itself. See SlotCache.computed."""

    def __init__(self, computed: Tensor) -> None:
        self._keys, self._values = computed

    def update(self, keys: Tensor, values: Tensor, layer_idx: int, *_: object, **__: object) -> tuple[Tensor, Tensor]:
        self._keys[layer_idx].copy_(keys)
        self._values[layer_idx].copy_(values)
        return keys, values


class ExtendPass(Pass):
    """Tokens after the filled positions of some rows; each attends to its row up to itself."""

    def __init__(self, cache: SlotCache, rows: Tensor | slice, filled: int) -> None:
        """Tokens attend only to the first `filled` positions; `at` sets theirs."""
        self._cache = cache
        self._rows = rows
        self._filled = filled

    def at(self, position: Tensor) -> Self:
        """Set the positions of the tokens, [rows, width]."""
        self._places = self._cache.places(self._rows, position)
        self.mask = self._cache.mask(position.reshape(-1), self._filled).view(len(position), 1, -1, self._filled)
        return self

    def update(self, keys: Tensor, values: Tensor, layer_idx: int, *_: object, **__: object) -> tuple[Tensor, Tensor]:
        keys, values = self._cache.write(self._places, keys, values, layer_idx)
        return keys[self._rows, :, : self._filled], values[self._rows, :, : self._filled]


class DecodePass(ExtendPass):
    """One token per row, with masked attention to the filled positions of the row's span."""

    def __init__(self, cache: SlotCache, spans: Sequence[RowSpan]) -> None:
        super().__init__(cache, slice(spans[-1].stop), spans[0].filled)
        self.spans = spans
        self._parts = [(slice(span.start, span.stop), span.filled) for span in spans]
        self._seen: list[list[tuple[Tensor, Tensor]]] = []
        """By layer, the keys and values that each part attends to."""
        for keys, values in zip(cache.keys, cache.values, strict=True):
            seen = [(keys[rows, :, :filled], values[rows, :, :filled]) for rows, filled in self._parts]
            self._seen.append(seen)

    def at(self, position: Tensor) -> Self:
        super().at(position)
        assert self.mask is not None
        self._masks = [self.mask[rows, ..., :filled] for rows, filled in self._parts]
        return self

    def attend(self, query: Tensor, keys: Tensor, values: Tensor, layer: int, scale: float) -> Tensor:
        """Write the new keys and values, and compute attention span by span."""
        self._cache.write(self._places, keys, values, layer)
        parts = [
            attend(query[rows], *seen, mask, scale)
            for (rows, _), seen, mask in zip(self._parts, self._seen[layer], self._masks, strict=True)
        ]
        return parts[0] if len(parts) == 1 else torch.cat(parts)


class KernelPass:
    """One token per row, with a kernel that reads only filled positions, so one CUDA graph serves all lengths."""

    def __init__(self, cache: SlotCache, position: Tensor) -> None:
        self._cache = cache
        self._position = position

    def attend(
        self, joined: Tensor, cosine: Tensor, sine: Tensor, layer: int, scale: float, norms: tuple[Any, Any] | None
    ) -> Tensor:
        """Apply the rotary embedding, write the new keys and values, and attend.

        `joined` is the product for queries, keys and values, [rows, (heads + 2 kv_heads) head_dim]; the result is
        [rows, heads head_dim].
        """
        from scalerl.training.rollout.torch import kernels

        stored = (self._cache.keys[layer], self._cache.values[layer])
        return kernels.decode_attention(joined, cosine, sine, self._position, *stored, scale=scale, norms=norms)


def attend(query: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None, scale: float | None) -> Tensor:
    """Compute attention with grouped heads: [rows, heads, seq, head_dim] -> [rows, seq, heads, head_dim].

    With a mask and one token per row, the heads of a group become queries, so that each key head is read once instead
    of being repeated in memory. Without a mask, attention is causal.
    """
    num_rows, num_heads, length, head_dim = query.shape
    num_kv_heads = keys.shape[1]
    if mask is not None and length == 1:
        grouped = query.reshape(num_rows, num_kv_heads, num_heads // num_kv_heads, head_dim)
        result = scaled_dot_product_attention(grouped, keys, values, attn_mask=mask, scale=scale)
        return result.reshape(num_rows, 1, num_heads, head_dim)
    grouped = num_heads != num_kv_heads
    result = scaled_dot_product_attention(
        query, keys, values, attn_mask=mask, is_causal=mask is None, scale=scale, enable_gqa=grouped
    )
    return result.transpose(1, 2)


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
    """Call `attend` with the signature of transformers; raise ValueError for unsupported features."""
    for name in ("softcap", "s_aux", "position_bias"):
        if kwargs.get(name) is not None:
            raise ValueError(f"the torch engine cannot run {type(module).__name__}: its attention uses {name}")
    return attend(query, key, value, attention_mask, scaling).contiguous(), None
