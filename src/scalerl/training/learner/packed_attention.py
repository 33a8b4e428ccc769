"""Packed sequences: several sequences in one row without padding, which do not attend to each other.

    tokens     a a a b b c c c c        starts   0 3 5 9
    positions  0 1 2 0 1 0 1 2 3

Everything in a transformer except attention works token by token, so a pass over packed sequences computes no padding.
Attention uses `starts`: on a GPU in bf16 with torch's variable-length FlashAttention kernel, otherwise with one
rectangle of padded rows and no mask. transformers passes `starts` on to the attention function registered here.

A sequence may continue the beginning of an earlier one, as completions continue their prompt. Its queries then also
attend to the keys of that beginning, which are gathered in every layer; all other work on the beginning is done once:

    tokens     p p p a a a b b c        b and c continue p p p
    positions  0 1 2 3 4 5 3 4 3
    keys       p p p a a a   p p p b b   p p p c
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from scalerl.errors import PackingError
from scalerl.training.learner.late import moved
from scalerl.training.learner.share import ranges

if TYPE_CHECKING:
    from transformers import PreTrainedModel

NAME = "scalerl_packed"
"""Name of the attention function in transformers. There is no mask function of that name, so no mask is made."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Packing:
    """The positions of the sequences in a row."""

    positions: Tensor
    """Position of each token in its own sequence."""
    starts: Tensor
    """Index of each sequence's first token, then the number of tokens; int32, as the kernel requires."""
    corners: Tensor
    """Index of each token in the flattened rectangle of padded rows."""
    rows: int
    width: int
    """Width of the rectangle: the longest sequence, including a shared beginning."""
    keys: Tensor | None = None
    """With shared beginnings: index in the row of each key, for every whole sequence in turn; otherwise None."""
    key_starts: Tensor | None = None
    """As `starts`, for the keys."""
    key_corners: Tensor | None = None
    """As `corners`, for the keys."""
    own: Tensor | None = None
    """Index of each token of the row among the keys of its own sequence."""
    prefix: Tensor | None = None
    """Indices in the row of tokens that other sequences share."""
    uses: Tensor | None = None
    """Indices of each shared token among the keys of other sequences, padded with the number of keys."""

    @property
    def for_attention(self) -> dict[str, Any]:
        """Return the arguments of `packed_attention`.

        `longest` is a rounded upper bound of the lengths: the kernel needs no more, and few values mean few
        compilations.
        """
        shared = {name: getattr(self, name) for name in ("keys", "key_starts", "key_corners", "own", "prefix", "uses")}
        sizes = {"rows": self.rows, "width": self.width, "longest": 1 << (self.width - 1).bit_length()}
        given = {} if self.keys is None else shared
        return {"starts": self.starts, "corners": self.corners, **sizes, **given}


def pack(lengths: ArrayLike, parents: ArrayLike | None = None, shared: ArrayLike | None = None) -> Packing:
    """Pack sequences of these lengths into a row.

    Sequence i continues the first shared[i] tokens of sequence parents[i], an earlier one that shares nothing itself.
    """
    sizes = np.asarray(lengths, dtype=np.int64)
    before = np.zeros_like(sizes) if shared is None else np.asarray(shared, dtype=np.int64)
    of = np.arange(len(sizes)) if parents is None else np.asarray(parents, dtype=np.int64)
    starts = np.concatenate([[0], np.cumsum(sizes)])
    positions = ranges(before, sizes)
    width = int((sizes + before).max())
    return Packing(
        positions=torch.from_numpy(positions),
        starts=torch.from_numpy(starts.astype(np.int32)),
        corners=torch.from_numpy(ranges(np.arange(len(sizes)) * width + before, sizes)),
        rows=len(sizes),
        width=width,
        **(_shared_keys(starts, of, before, width) if before.any() else {}),
    )


def _shared_keys(
    starts: NDArray[np.int64],
    parents: NDArray[np.int64],
    before: NDArray[np.int64],
    width: int,
) -> dict[str, Tensor]:
    """Return the fields of a Packing whose sequences share beginnings."""
    sizes = np.diff(starts)
    assert not before[parents[before > 0]].any(), "a parent shares nothing itself"
    key_sizes = sizes + before
    key_starts = np.concatenate([[0], np.cumsum(key_sizes)])
    is_shared = ranges(0, key_sizes) < np.repeat(before, key_sizes)
    keys = np.where(is_shared, ranges(starts[parents], key_sizes), ranges(starts[:-1] - before, key_sizes))
    # The indices of each shared token, sorted by token: one row of `uses` per token.
    places = np.flatnonzero(is_shared)
    places = places[np.argsort(keys[places], kind="stable")]
    prefix, num_uses = np.unique(keys[places], return_counts=True)
    # At least two columns: compiled code treats a size of 1 as a special case.
    uses = np.full((len(prefix), max(int(num_uses.max()), 2)), key_starts[-1])
    uses[np.repeat(np.arange(len(prefix)), num_uses), ranges(0, num_uses)] = places
    made = {
        "keys": keys,
        "key_starts": key_starts.astype(np.int32),
        "key_corners": ranges(np.arange(len(sizes)) * width, key_sizes),
        "own": ranges(key_starts[:-1] + before, sizes),
        "prefix": prefix,
        "uses": uses,
    }
    return {name: torch.from_numpy(values) for name, values in made.items()}


def has_kernel(device: torch.device, dtype: torch.dtype, head_dim: int) -> bool:
    """Return whether attention uses the FlashAttention kernel, which depends only on the longest length.

    The kernel supports head sizes that are multiples of 8, up to 256.
    """
    return head_dim % 8 == 0 and head_dim <= 256 and dtype == torch.bfloat16 and device.type == "cuda"


def attend_packed(model: "PreTrainedModel") -> None:
    """Make the model's layers use `packed_attention`; after this, the model accepts only packed rows."""
    from transformers import AttentionInterface

    AttentionInterface.register(NAME, packed_attention)
    model.set_attn_implementation(NAME)


def packed_hidden_states(model: "PreTrainedModel", ids: Tensor, packing: Packing) -> Tensor:
    """Return the hidden states after the last norm, [tokens, hidden]."""
    output = model.base_model(
        input_ids=ids[None],
        position_ids=packing.positions[None],
        use_cache=False,
        return_dict=True,
        **packing.for_attention,
    )
    return output.last_hidden_state[0]


def _windows(config: Any) -> list[int | None]:
    """Return the number of tokens that each layer attends to, from the model's configuration; None for all."""
    window = getattr(config, "sliding_window", None)
    num = config.num_hidden_layers
    kinds = getattr(config, "layer_types", None) or ["sliding_attention" if window else "full_attention"] * num
    if other := sorted(set(kinds) - {"full_attention", "sliding_attention"}):
        raise PackingError(
            f"a {config.model_type} model cannot be trained on packed sequences: it has layers of {other[0]}"
        )
    return [window if kind == "sliding_attention" else None for kind in kinds]


@torch.no_grad()
def check_packing(
    hidden_states: Callable[[Tensor, Packing], Tensor], config: Any, *, device: torch.device, tolerance: float = 1e-3
) -> bool:
    """Raise PackingError unless packed sequences give the same results as single ones; recurrent layers mix them.

    Attention patterns that differ only in long sequences are compared by their settings: every layer must request the
    window of the model's configuration, and no other pattern is allowed. Return whether a sequence may also continue
    the beginning of another. `hidden_states` takes tokens and their packing.
    """
    expected = _windows(config)
    ids = torch.arange(9, device=device) % config.vocab_size
    first, second, third = ids.split([4, 3, 2])
    with _recorded_windows() as asked:
        together = hidden_states(ids[:7], moved(pack([4, 3]), device))
    if asked != expected:
        raise PackingError(
            f"a {config.model_type} model cannot be trained on packed sequences: its layers attend to the last {asked} "
            f"tokens (None: all), and its configuration says {expected}"
        )
    apart = [hidden_states(part, moved(pack([len(part)]), device)) for part in (first, second)]
    if not torch.allclose(together, torch.cat(apart), rtol=tolerance, atol=tolerance):
        raise PackingError(f"a {config.model_type} model cannot be trained: its layers mix packed sequences")
    continued = hidden_states(ids, moved(pack([4, 3, 2], [0, 1, 0], [0, 0, 2]), device))
    alone = hidden_states(torch.cat([first[:2], third]), moved(pack([4]), device))[2:]
    return torch.allclose(continued, torch.cat([together, alone]), rtol=tolerance, atol=tolerance)


_recorded: list[int | None] | None = None


@contextmanager
def _recorded_windows() -> Iterator[list[int | None]]:
    """Record the window of every call of `packed_attention`, in order."""
    global _recorded
    _recorded = windows = []
    try:
        yield windows
    finally:
        _recorded = None


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
    keys: Tensor | None = None,
    key_starts: Tensor | None = None,
    key_corners: Tensor | None = None,
    own: Tensor | None = None,
    prefix: Tensor | None = None,
    uses: Tensor | None = None,
    **others: Any,
) -> tuple[Tensor, None]:
    """Compute causal attention within each sequence: [1, heads, tokens, size] -> [1, tokens, heads, size].

    `keys` and the arguments after it are None if no sequence shares anything.
    """
    if unknown := sorted(name for name in ("softcap", "s_aux", "position_bias") if others.get(name) is not None):
        raise PackingError(f"a model whose attention needs {unknown[0]} cannot be trained on packed sequences")
    if _recorded is not None:
        _recorded.append(sliding_window)
    queries, own_keys, own_values = (part[0].transpose(0, 1) for part in (query, key, value))
    if keys is not None:
        own_keys, own_values = (_GatheredKeys.apply(part, keys, own, prefix, uses) for part in (own_keys, own_values))
    window = -1 if sliding_window is None else sliding_window - 1
    if has_kernel(query.device, query.dtype, query.shape[-1]):
        # torch.nn.attention.varlen wraps the same operation, but its signature changes with every release.
        attended = torch.ops.aten._flash_attention_forward(
            queries,
            own_keys,
            own_values,
            starts,
            # With fewer queries than keys, the last query attends up to the last key: shared keys come first.
            starts if key_starts is None else key_starts,
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
        of_keys = corners if key_corners is None else key_corners
        attended = _attend_padded(queries, own_keys, own_values, corners, of_keys, rows, width, scaling, window)
    return attended[None], None


class _GatheredKeys(torch.autograd.Function):
    """values[keys] for a row with shared beginnings; sums gradients of shared tokens in FP32 and in a fixed order.

    The gradient of ordinary indexing is summed with atomic operations in the dtype of the values.
    """

    @staticmethod
    def forward(ctx, values: Tensor, keys: Tensor, own: Tensor, prefix: Tensor, uses: Tensor) -> Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx.save_for_backward(own, prefix, uses)
        return values.index_select(0, keys)

    @staticmethod
    def backward(ctx, gradient: Tensor) -> tuple[Tensor, None, None, None, None]:  # pyright: ignore[reportIncompatibleMethodOverride]
        own, prefix, uses = ctx.saved_tensors
        total = gradient.index_select(0, own)
        padded = torch.cat([gradient, gradient.new_zeros(1, *gradient.shape[1:])])
        wide = torch.promote_types(gradient.dtype, torch.float32)
        others = padded.index_select(0, uses.flatten()).view(*uses.shape, *gradient.shape[1:]).sum(1, dtype=wide)
        shared = total.index_select(0, prefix).to(wide) + others
        return total.index_copy(0, prefix, shared.to(gradient.dtype)), None, None, None, None


def _attend_padded(
    queries: Tensor,
    keys: Tensor,
    values: Tensor,
    corners: Tensor,
    key_corners: Tensor,
    rows: int,
    width: int,
    scaling: float | None,
    window: int,
) -> Tensor:
    """Attend in padded rows. Padding is on the right, where a causal mask hides it from real tokens.

    Queries are placed at their positions, so the places of a shared beginning's queries stay empty.
    """

    def padded(packed: Tensor, places: Tensor) -> Tensor:
        rectangle = packed.new_zeros(rows * width, *packed.shape[1:]).index_copy(0, places, packed)
        return rectangle.view(rows, width, *packed.shape[1:]).transpose(1, 2)

    parts = padded(queries, corners), padded(keys, key_corners), padded(values, key_corners)
    enable_gqa = queries.shape[1] != keys.shape[1]
    mask: dict[str, Any] = {"is_causal": True}
    if 0 <= window < width - 1:
        everything = torch.ones(width, width, dtype=torch.bool, device=queries.device)
        mask = {"attn_mask": everything.tril().triu(-window)}
    attended = scaled_dot_product_attention(*parts, **mask, scale=scaling, enable_gqa=enable_gqa)
    return attended.transpose(1, 2).flatten(0, 1)[corners]
