"""What a device can do at best, measured, and the least time of a decode step that follows from it.

The least that one token for every slot takes:

    body        each weight is read once and multiplied with every slot
    attention   the keys and values before the new token are read once for each slot and key-value head: the query heads
                of a group share them. Slots share nothing, since each holds its own copy of its context.
    head        as the body, in FP32. Logits need not go through memory: a fused kernel could sample from them.

What the L2 cache can hold from the step before is not counted as read. Writing the new keys, norms, rotary embeddings
and softmax are left out. Bytes are divided by the bandwidth of reading alone, which is higher than that of a copy.

    limit = sum over the parts of max(bytes / read bandwidth, FLOPs / matmul rate)
    bound = max(all bytes / read bandwidth, all FLOPs / matmul rate)

The parts of a layer depend on each other, so a batch computed as one goes through them in order: `limit`. Only half
batches that take turns could overlap the reading of one part with the arithmetic of another: `bound`, the strict one.
"""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from scalerl.models.shape import ModelShape, head_sizes


def now(device: torch.device) -> float:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()


def ceilings(device: torch.device) -> dict[str, float]:
    """Return bytes per second read, and copied; FLOPs per second in bf16 (FP32 on a CPU); bytes of the L2 cache."""
    on_gpu = device.type == "cuda"
    size, dtype = (8192, torch.bfloat16) if on_gpu else (256, torch.float32)
    # Far larger than any cache; on a GPU so large that a launch takes a thousandth of it.
    source = torch.randn(2**30 if on_gpu else 2**20, device=device)
    read = max(source.nbytes / least_seconds(work, device) for work in reading(source).values())
    target = torch.empty_like(source)
    copied = least_seconds(lambda: target.copy_(source), device)
    copy = 2 * source.nbytes / copied
    del source, target
    left, right = (torch.randn(size, size, device=device).to(dtype) for _ in range(2))
    multiplied = least_seconds(lambda: left @ right, device)
    l2_bytes = getattr(torch.cuda.get_device_properties(device), "L2_cache_size", 0) if on_gpu else 0
    return {
        # A copy reads as well, so reading is at least as fast.
        "read_bandwidth": max(read, copy),
        "copy_bandwidth": copy,
        "matmul": 2 * size**3 / multiplied,
        "l2_bytes": float(l2_bytes),
    }


def reading(source: torch.Tensor) -> dict[str, Callable[[], Any]]:
    """Return functions that read a tensor once and write next to nothing."""
    matrix = source.view(-1, 8192)
    halves = source.view(torch.bfloat16).view(-1, 8192)
    vector = torch.ones(8192, device=source.device)
    ways: dict[str, Callable[[], Any]] = {
        "sum": source.sum,
        "amax": source.amax,
        "matrix x vector": lambda: matrix @ vector,
        "bf16 matrix x vector": lambda: halves @ vector.to(torch.bfloat16),
    }
    if source.is_cuda:
        try:
            from gpu_read import read_by_kernel

            read_by_kernel(source)
        except Exception:  # Without Triton, or where it cannot compile: the others are measured.
            return ways
        ways["triton"] = lambda: read_by_kernel(source)
        ways["triton bf16"] = lambda: read_by_kernel(source.view(torch.bfloat16))
    return ways


def least_seconds(work: Callable[[], Any], device: torch.device, repeats: int = 12) -> float:
    """Return the shortest of several times, by the device's own clock where it has one."""
    times = []
    for number in range(repeats + 2):
        if device.type == "cuda":
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            start.record()
            work()
            end.record()
            end.synchronize()
            elapsed = start.elapsed_time(end) / 1e3
        else:
            began = time.perf_counter()
            work()
            elapsed = time.perf_counter() - began
        if number > 1:
            times.append(elapsed)
    return min(times)


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodeLimits:
    """The least seconds of one token for every slot."""

    limit_s: float
    bound_s: float
    copy_limit_s: float
    """By an earlier rule: the bandwidth of a copy, logits written and read, no L2 cache."""


def decode_limits(config: Any, slots: int, attended: float, ceiling: Mapping[str, float], *, item: int) -> DecodeLimits:
    """Return the limits at a mean context of `attended` tokens, the new one included; `item` is bytes per number."""
    shape = ModelShape.from_config(config)
    num_kv_heads, head_dim = head_sizes(config)
    cached = item * 2 * shape.layers * num_kv_heads * head_dim
    parts = (
        (item * shape.body_params, 2 * shape.body_params * slots),
        (cached * (attended - 1) * slots, 4 * shape.layers * shape.attention_width * attended * slots),
        (4 * shape.head_params, 2 * shape.head_params * slots),
    )
    read, rate = ceiling["read_bandwidth"], ceiling["matmul"]
    kept, moved = ceiling["l2_bytes"], []
    for num_bytes, _ in parts:
        in_cache = min(kept, num_bytes)
        kept -= in_cache
        moved.append(num_bytes - in_cache)
    copy = ceiling["copy_bandwidth"]
    return DecodeLimits(
        limit_s=sum(max(num / read, flops / rate) for num, (_, flops) in zip(moved, parts, strict=True)),
        bound_s=max(sum(moved) / read, sum(flops for _, flops in parts) / rate),
        copy_limit_s=sum(max(num / copy, flops / rate) for num, flops in (*parts, (8 * config.vocab_size * slots, 0))),
    )
