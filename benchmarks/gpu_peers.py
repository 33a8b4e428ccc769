"""Sampling with transformers, which benchmarks/gpu.py compares our engine with.

    generate     a whole batch until its longest completion ends, with a cache that grows
    static       the same with a cache of fixed size, which it compiles on a GPU by itself
    continuous   its continuous batching, each request with its own length

Each returns (tokens within the requests' own lengths, seconds); compilation and warm-up are not timed.
"""

import time
from collections.abc import Sequence
from typing import Any

import torch
from gpu_cases import now
from transformers import ContinuousBatchingConfig, GenerationConfig

from scalerl.types import Request

_STOP_S = 30.0  # for its thread to notice that it is to stop


class PeerError(RuntimeError):
    """A peer cannot run here."""


def run_generate(model: Any, batch: Sequence[Request]) -> tuple[int, float]:
    _generate(model, batch, num_tokens=4)
    start = now(model.device)
    _generate(model, batch, num_tokens=max_length(batch))
    return sum_lengths(batch), now(model.device) - start


def run_static(model: Any, batch: Sequence[Request]) -> tuple[int, float]:
    longest = max_length(batch)
    _generate(model, batch, num_tokens=longest, cache_implementation="static")
    start = now(model.device)
    _generate(model, batch, num_tokens=longest, cache_implementation="static")
    return sum_lengths(batch), now(model.device) - start


@torch.no_grad()
def _generate(model: Any, batch: Sequence[Request], *, num_tokens: int, **settings: Any) -> None:
    prompts = torch.tensor([request.prompt_tokens for request in batch], device=model.device)
    made = model.generate(
        inputs=prompts,
        attention_mask=torch.ones_like(prompts),
        do_sample=True,
        top_k=0,
        max_new_tokens=num_tokens,
        **settings,
    )
    if made.shape[1] != prompts.shape[1] + num_tokens:
        raise PeerError(f"it gave {made.shape[1] - prompts.shape[1]} tokens of {num_tokens}")


@torch.no_grad()
def run_continuous(model: Any, requests: Sequence[Request], slots: int, *, seconds: float) -> tuple[int, float]:
    """Stop after `seconds` and count what was sampled by then."""
    config = GenerationConfig(
        do_sample=True, top_k=0, max_new_tokens=max_length(requests), eos_token_id=-1, pad_token_id=0
    )
    with model.continuous_batching_context_manager(
        generation_config=config, continuous_batching_config=_settings(model, slots), block=True, timeout=_STOP_S
    ) as manager:
        start, tokens, left = now(model.device), 0, len(requests)
        for request in requests:
            manager.add_request(list(request.prompt_tokens), max_new_tokens=request.length.max_tokens, eos_token_id=-1)
        while left and time.perf_counter() - start < seconds:
            if (result := manager.get_result(timeout=0.1)) is not None:
                tokens, left = tokens + _num_tokens(result), left - 1
            elif not manager.is_running():
                raise PeerError("its thread ended early")
        elapsed = now(model.device) - start
        if left:
            manager.stop(block=True, timeout=_STOP_S, hard_stop=True)
            while (result := manager.get_result(timeout=0.1)) is not None:
                tokens += len(result.generated_tokens)
        return tokens, elapsed


def _settings(model: Any, slots: int) -> ContinuousBatchingConfig:
    """Return its default settings, but with as many concurrent requests as our engine has slots.

    On a CPU the cache is small, because by default it would take all memory.
    """
    if model.device.type == "cuda":
        return ContinuousBatchingConfig(max_requests_per_batch=slots)
    return ContinuousBatchingConfig(max_requests_per_batch=slots, block_size=32, num_blocks=32, max_batch_tokens=64)


def _num_tokens(result: Any) -> int:
    if result.error is not None:
        raise PeerError(str(result.error))
    return len(result.generated_tokens)


def sum_lengths(requests: Sequence[Request]) -> int:
    return sum(request.length.max_tokens for request in requests)


def max_length(requests: Sequence[Request]) -> int:
    return max(request.length.max_tokens for request in requests)
