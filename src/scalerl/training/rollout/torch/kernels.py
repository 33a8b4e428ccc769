"""The operations of a decode step between its matrix products, as Triton kernels. Imported only on a CUDA device.

    add_norm          hidden += change; RMS norm
    decode_attention  rotary embedding, write the new key and value, attention to each row's filled positions
    gated             silu(gate) * up
    sample_step       temperature, softmax, one token per row and its log-prob, and the row's next position

test_kernels.py compares each with plain torch. The result of a row depends only on that row.
"""
# Triton is installed only with CUDA builds of torch, and its functions are launched by subscript.
# pyright: reportMissingImports=false, reportIndexIssue=false

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

_GROUP = 16
"""Query heads per program: the smallest tile of a matrix unit. Heads beyond the group are padding."""
_PROGRAMS = 1024
"""Enough programs to fill a large GPU; if there are fewer rows, several programs share the positions of a row."""
_SHORTEST_SPLIT = 256
_VOCABULARY_BLOCK = 4096
_LOG2_E = 1.4426950408889634


def fits(head_dim: int) -> bool:
    return head_dim in (16, 32, 64, 128, 256)


def add_norm(hidden: Tensor, change: Tensor | None, weight: Tensor, epsilon: float) -> Tensor:
    """Add rows [tokens, width] to `hidden` in place and normalise the sum. Sums are rounded as in torch."""
    normed = torch.empty_like(hidden)
    num_rows, width = hidden.shape
    block = triton.next_power_of_2(width)
    warps = 4 if block <= 2048 else 8
    _add_norm[(num_rows,)](
        hidden, hidden if change is None else change, weight, normed, epsilon, width,
        HAS_CHANGE=change is not None, BLOCK=block, num_warps=warps,
    )  # fmt: skip
    return normed


@triton.jit
def _add_norm(hidden, change, weight, normed, epsilon, width, HAS_CHANGE: tl.constexpr, BLOCK: tl.constexpr):
    columns = tl.arange(0, BLOCK)
    inside = columns < width
    places = tl.program_id(0).to(tl.int64) * width + columns
    values = tl.load(hidden + places, mask=inside, other=0.0)
    if HAS_CHANGE:
        added = tl.load(change + places, mask=inside, other=0.0)
        values = (values.to(tl.float32) + added.to(tl.float32)).to(values.dtype)
        tl.store(hidden + places, values, mask=inside)
    wide = values.to(tl.float32)
    scale = tl.rsqrt(tl.sum(wide * wide) / width + epsilon)
    scaled = wide * scale * tl.load(weight + columns, mask=inside, other=0.0).to(tl.float32)
    tl.store(normed + places, scaled.to(values.dtype), mask=inside)


def gated(gate_up: Tensor) -> Tensor:
    """Return silu(gate) * up: [tokens, 2 width] -> [tokens, width]."""
    num_rows, width = gate_up.shape[0], gate_up.shape[1] // 2
    result = gate_up.new_empty(num_rows, width)
    block = min(1024, triton.next_power_of_2(width))
    _gated[(num_rows, triton.cdiv(width, block))](gate_up, result, width, BLOCK=block, num_warps=4)
    return result


@triton.jit
def _gated(gate_up, result, width, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = columns < width
    gate = tl.load(gate_up + row * 2 * width + columns, mask=inside, other=0.0)
    up = tl.load(gate_up + row * 2 * width + width + columns, mask=inside, other=0.0)
    wide = gate.to(tl.float32)
    active = (wide / (1.0 + tl.exp(-wide))).to(gate.dtype)
    tl.store(result + row * width + columns, (active.to(tl.float32) * up.to(tl.float32)).to(gate.dtype), mask=inside)


def decode_attention(
    joined: Tensor,
    cosine: Tensor,
    sine: Tensor,
    position: Tensor,
    keys: Tensor,
    values: Tensor,
    *,
    scale: float,
    norms: tuple[Any, Any] | None,
) -> Tensor:
    """Attend with one token per row, after applying the rotary embedding and writing the new keys and values.

    joined: [rows, (heads + 2 kv_heads) head_dim]; cosine and sine: tables by position, with the sign of rotate_half in
    `sine`; keys and values: [slots, kv_heads, max_length, head_dim].
    """
    num_rows, (_, num_kv_heads, max_length, head_dim) = len(joined), keys.shape
    num_heads = joined.shape[1] // head_dim - 2 * num_kv_heads
    group = num_heads // num_kv_heads
    assert group <= _GROUP, f"{group} query heads per key head are more than {_GROUP}"
    wanted = triton.cdiv(_PROGRAMS, num_rows * num_kv_heads)
    splits = triton.next_power_of_2(max(1, min(wanted, max_length // _SHORTEST_SPLIT)))
    result = joined.new_empty(num_rows, num_heads * head_dim)
    sums = joined.new_empty((splits, num_rows, num_heads, head_dim), dtype=torch.float32) if splits > 1 else result
    peaks = joined.new_empty((2, splits, num_rows, num_heads), dtype=torch.float32) if splits > 1 else result
    query_weight, key_weight, epsilon = joined, joined, 0.0
    if norms is not None:
        query_weight, key_weight, epsilon = norms[0].weight, norms[1].weight, norms[0].variance_epsilon
    block = 64 if head_dim <= 128 else 32
    _attend[(num_rows * num_kv_heads, splits)](
        joined, cosine, sine, position, keys, values, result, sums, peaks,
        query_weight, key_weight, epsilon, scale * _LOG2_E, num_rows, max_length,
        triton.cdiv(triton.cdiv(max_length, splits), block) * block,
        KV_HEADS=num_kv_heads, GROUP=group, PADDED=_GROUP, DIM=head_dim, BLOCK=block, SPLITS=splits,
        NORMED=norms is not None,
        num_warps=4, num_stages=3,
    )  # fmt: skip
    if splits > 1:
        _join_splits[(num_rows * num_heads,)](sums, peaks, result, num_rows * num_heads, DIM=head_dim, SPLITS=splits)
    return result


@triton.jit
def _rotated(source, weight, cosine, sine, columns, rolled, keep, epsilon, DIM: tl.constexpr, NORMED: tl.constexpr):
    """Load heads [heads, DIM] from `source`, normalise them if NORMED, and apply the rotary embedding, in FP32."""
    plain = tl.load(source + columns, mask=keep, other=0.0).to(tl.float32)
    other = tl.load(source + rolled, mask=keep, other=0.0).to(tl.float32)
    if NORMED:
        scale = tl.rsqrt(tl.sum(plain * plain, 1) / DIM + epsilon)[:, None]
        plain = plain * scale * tl.load(weight + columns).to(tl.float32)
        other = other * scale * tl.load(weight + rolled).to(tl.float32)
    return plain * tl.load(cosine + columns).to(tl.float32) + other * tl.load(sine + columns).to(tl.float32)


@triton.jit
def _attend(
    joined, cosine, sine, position, keys, values, result, sums, peaks, query_weight, key_weight,
    epsilon, scale, num_rows, max_length, split_length,
    KV_HEADS: tl.constexpr, GROUP: tl.constexpr, PADDED: tl.constexpr, DIM: tl.constexpr, BLOCK: tl.constexpr,
    SPLITS: tl.constexpr, NORMED: tl.constexpr,
):  # fmt: skip
    row, kv_head, split = tl.program_id(0) // KV_HEADS, tl.program_id(0) % KV_HEADS, tl.program_id(1)
    dtype = joined.dtype.element_ty
    place = tl.load(position + row)
    cosine += place * DIM
    sine += place * DIM
    columns = tl.arange(0, DIM)[None, :]
    rolled = (columns + DIM // 2) % DIM
    lanes = tl.arange(0, PADDED)
    used = (lanes < GROUP)[:, None]
    joined += row.to(tl.int64) * (KV_HEADS * (GROUP + 2) * DIM)
    heads = joined + (kv_head * GROUP + lanes)[:, None] * DIM
    query = _rotated(heads, query_weight, cosine, sine, columns, rolled, used, epsilon, DIM, NORMED).to(dtype)
    source = joined + (KV_HEADS * GROUP + kv_head) * DIM + tl.zeros((1, 1), tl.int32)
    key = _rotated(source, key_weight, cosine, sine, columns, rolled, columns >= 0, epsilon, DIM, NORMED).to(dtype)
    value = tl.load(source + KV_HEADS * DIM + columns)
    base = (row.to(tl.int64) * KV_HEADS + kv_head) * max_length * DIM
    keys += base
    values += base
    if split == 0:
        # The new position is not read from memory: the sum starts with it.
        tl.store(keys + place * DIM + columns, key)
        tl.store(values + place * DIM + columns, value)
        peak = tl.sum(query.to(tl.float32) * key.to(tl.float32), 1) * scale
        total = tl.zeros((PADDED,), tl.float32) + 1.0
        sum_ = tl.zeros((PADDED, DIM), tl.float32) + value.to(tl.float32)
    else:
        peak = tl.zeros((PADDED,), tl.float32) - 1.0e30
        total = tl.zeros((PADDED,), tl.float32)
        sum_ = tl.zeros((PADDED, DIM), tl.float32)
    first = split * split_length
    last = tl.minimum(first + split_length, place)
    for start in range(first, last, BLOCK):
        at = start + tl.arange(0, BLOCK)
        seen = at < last
        tile = at[:, None] * DIM + columns
        block_keys = tl.load(keys + tile, mask=seen[:, None], other=0.0)
        scores = tl.dot(query, tl.trans(block_keys), input_precision="ieee") * scale
        scores = tl.where(seen[None, :], scores, float("-inf"))
        higher = tl.maximum(peak, tl.max(scores, 1))
        shares = tl.exp2(scores - higher[:, None])
        shrunk = tl.exp2(peak - higher)
        block_values = tl.load(values + tile, mask=seen[:, None], other=0.0)
        total = total * shrunk + tl.sum(shares, 1)
        sum_ = sum_ * shrunk[:, None] + tl.dot(shares.to(dtype), block_values, input_precision="ieee")
        peak = higher
    head = row * (KV_HEADS * GROUP) + kv_head * GROUP + lanes
    if SPLITS == 1:
        tl.store(result + head[:, None] * DIM + columns, (sum_ / total[:, None]).to(dtype), mask=used)
    else:
        entry = split * (num_rows * KV_HEADS * GROUP) + head
        tl.store(sums + entry[:, None].to(tl.int64) * DIM + columns, sum_, mask=used)
        tl.store(peaks + entry, peak, mask=lanes < GROUP)
        tl.store(peaks + SPLITS * num_rows * KV_HEADS * GROUP + entry, total, mask=lanes < GROUP)


@triton.jit
def _join_splits(sums, peaks, result, num_heads, DIM: tl.constexpr, SPLITS: tl.constexpr):
    head = tl.program_id(0)
    entries = tl.arange(0, SPLITS) * num_heads + head
    peak = tl.load(peaks + entries)
    total = tl.load(peaks + SPLITS * num_heads + entries)
    weight = tl.exp2(peak - tl.max(peak, 0))
    columns = tl.arange(0, DIM)[None, :]
    parts = tl.load(sums + entries[:, None].to(tl.int64) * DIM + columns)
    joint = tl.sum(parts * weight[:, None], 0) / tl.sum(total * weight, 0)
    tl.store(result + head * DIM + tl.arange(0, DIM), joint.to(result.dtype.element_ty))


def sample_step(
    logits: Tensor,
    *,
    step: Tensor,
    noise: Tensor,
    temperature: Tensor,
    greedy: Tensor,
    forced: Tensor,
    tokens: Tensor,
    log_probs: Tensor,
    token: Tensor,
    position: Tensor,
    last_position: int,
) -> None:
    """Sample as `sampling.sample` does without top_p, for one step of a chunk.

    This reads the logits once, and one block of them a second time. Forced tokens replace sampled ones. Results are
    written to the tensors that the next step reads.
    """
    num_rows, vocabulary = logits.shape
    block = min(_VOCABULARY_BLOCK, triton.next_power_of_2(vocabulary))
    blocks = triton.cdiv(vocabulary, block)
    peaks, totals = logits.new_empty(2, num_rows, blocks)
    warps = 8 if block >= 2048 else 1
    _block_totals[(num_rows, blocks)](
        logits, temperature, peaks, totals, vocabulary, blocks, BLOCK=block, num_warps=warps
    )
    _choose[(num_rows,)](
        logits, peaks, totals, step, noise, temperature, greedy, forced, tokens, log_probs, token, position,
        vocabulary, blocks, num_rows, last_position,
        BLOCK=block, BLOCKS=triton.next_power_of_2(blocks), num_warps=warps,
    )  # fmt: skip


@triton.jit
def _block_totals(logits, temperature, peaks, totals, vocabulary, blocks, BLOCK: tl.constexpr):
    row, block = tl.program_id(0), tl.program_id(1)
    columns = block * BLOCK + tl.arange(0, BLOCK)
    scaled = tl.load(logits + row.to(tl.int64) * vocabulary + columns, mask=columns < vocabulary, other=float("-inf"))
    scaled = scaled / tl.load(temperature + row)
    peak = tl.max(scaled, 0)
    # A block of -inf has weight 0, whereas the difference of two infinities would be NaN.
    total = tl.sum(tl.exp(scaled - tl.where(peak == float("-inf"), 0.0, peak)), 0)
    tl.store(peaks + row * blocks + block, peak)
    tl.store(totals + row * blocks + block, total)


@triton.jit
def _choose(
    logits, peaks, totals, step, noise, temperature, greedy, forced, tokens, log_probs, token, position,
    vocabulary, blocks, num_rows, last_position, BLOCK: tl.constexpr, BLOCKS: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0)
    at = tl.load(step) * num_rows + row
    is_greedy = tl.load(greedy + row)
    numbers = tl.arange(0, BLOCKS)
    block_peaks = tl.load(peaks + row * blocks + numbers, mask=numbers < blocks, other=float("-inf"))
    block_totals = tl.load(totals + row * blocks + numbers, mask=numbers < blocks, other=0.0)
    peak = tl.max(block_peaks, 0)
    weights = tl.where(block_totals == 0.0, 0.0, block_totals * tl.exp(block_peaks - peak))
    total = tl.sum(weights, 0)
    threshold = tl.load(noise + at) * total
    passed = tl.cumsum(weights, 0)
    chosen = _first(passed > threshold, weights > 0.0, numbers, BLOCKS)
    chosen = tl.where(is_greedy, tl.argmax(block_peaks, 0), chosen)
    chosen = tl.minimum(chosen, blocks - 1)
    before = tl.sum(tl.where(numbers < chosen, weights, 0.0), 0)

    offsets = tl.arange(0, BLOCK)
    columns = chosen * BLOCK + offsets
    inside = columns < vocabulary
    scaled = tl.load(logits + row.to(tl.int64) * vocabulary + columns, mask=inside, other=float("-inf"))
    scaled = scaled / tl.load(temperature + row)
    shares = tl.where(inside, tl.exp(scaled - peak), 0.0)
    place = _first(tl.cumsum(shares, 0) > threshold - before, shares > 0.0, offsets, BLOCK)
    place = tl.where(is_greedy, tl.argmax(scaled, 0), place)
    place = tl.minimum(place, vocabulary - 1 - chosen * BLOCK)
    log_prob = tl.sum(tl.where(offsets == place, scaled, 0.0), 0) - peak - tl.log(total)

    wanted = tl.load(forced + at)
    result = tl.where(wanted >= 0, wanted, (chosen * BLOCK + place).to(tl.int64))
    tl.store(tokens + at, result)
    tl.store(log_probs + at, tl.where(wanted >= 0, 0.0, log_prob))
    tl.store(token + row, result)
    # A finished slot may continue to the end of the cache, where it overwrites only itself.
    tl.store(position + row, tl.minimum(tl.load(position + row) + 1, last_position))


@triton.jit
def _first(passed, possible, numbers, COUNT: tl.constexpr):
    """Return the first possible entry that passed, or else the last possible one, in spite of rounding."""
    first = tl.min(tl.where(passed & possible, numbers, COUNT), 0)
    last = tl.max(tl.where(possible, numbers, 0), 0)
    return tl.where(first < COUNT, first, last)
