"""What transformers offers for sampling on a GPU; benchmarks/gpu.py measures against it."""

import time
from collections.abc import Sequence
from typing import Any

import torch
import transformers

from scalerl.types import Request


def now(device: torch.device) -> float:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()


@torch.no_grad()
def run_generate(model: Any, requests: Sequence[Request], slots: int) -> float:
    start = now(model.device)
    for first in range(0, len(requests), slots):
        batch = requests[first : first + slots]
        prompts = torch.tensor([request.prompt_tokens for request in batch], device=model.device)
        model.generate(
            inputs=prompts,
            attention_mask=torch.ones_like(prompts),
            do_sample=True,
            top_k=0,
            max_new_tokens=max_length(batch),
        )
    return now(model.device) - start


@torch.no_grad()
def run_continuous(model: Any, requests: Sequence[Request]) -> float:
    """transformers' continuous batching, each request with its own length; its start and its graphs are not timed."""
    config = transformers.GenerationConfig(do_sample=True, top_k=0, max_new_tokens=max_length(requests), pad_token_id=0)
    with model.continuous_batching_context_manager(generation_config=config, block=True, timeout=5) as manager:
        start, left = now(model.device), len(requests)
        for request in requests:
            manager.add_request(list(request.prompt_tokens), max_new_tokens=request.length.max_tokens, eos_token_id=-1)
        while left:
            result = manager.get_result(timeout=1)
            if result is not None and result.is_finished():
                left -= 1
            elif result is None and not manager.is_running():
                raise RuntimeError("its thread ended early")
        return now(model.device) - start


def max_length(requests: Sequence[Request]) -> int:
    return max(request.length.max_tokens for request in requests)
