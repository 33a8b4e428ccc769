"""Build the embedded engine from a recipe's rollout settings, after checking that its cache fits into memory."""

from typing import Any

import torch

from scalerl.errors import RecipeError
from scalerl.recipe.parts import RolloutSettings
from scalerl.training.models.load import LoadedModel
from scalerl.training.rollout.memory import cache_bytes, free_bytes
from scalerl.training.rollout.torch.body import FUSED_TYPES
from scalerl.training.rollout.torch.engine import TorchEngine

TORCH_LEADS = 3.5e9
"""Number of parameters of the body up to which the torch engine was faster than vLLM in all measurements."""


def build_engine(
    model: LoadedModel,
    settings: RolloutSettings,
    *,
    dtype: torch.dtype,
    fp32_head: bool,
    records_experts: bool = False,
) -> TorchEngine:
    """Return a TorchEngine with a copy of the model; RecipeError if its cache needs more memory than is free."""
    assert settings.slots is not None, "training/run/parts.py has chosen the number of slots"
    needed = cache_bytes(model.model.config, settings.slots, settings.context, dtype)
    free = free_bytes(model)
    # A system that runs out of memory may kill the process without a message.
    if free is not None and needed > free:
        raise RecipeError(
            f"{settings.slots} slots (rollout.slots) of {settings.context} tokens (rollout.context) need a cache of "
            f"{needed / 1e9:.1f} GB, but only {free / 1e9:.1f} GB of memory are free: lower one of the two"
        )
    return TorchEngine(
        model.model,
        slots=settings.slots,
        max_length=settings.context,
        stop_tokens=model.stop_tokens,
        dtype=dtype,
        device=model.device,
        fp32_head=fp32_head,
        records_experts=records_experts,
    )


def engine_advice(settings: RolloutSettings, config: Any) -> str | None:
    """Return a sentence if measurements favour the other engine (docs/gpus.md); otherwise None."""
    from scalerl.training.models.shape import ModelShape

    fused = config.model_type in FUSED_TYPES
    if settings.engine == "torch" and not fused:
        return f'the torch engine has no kernels of its own for {config.model_type}: try rollout.engine = "vllm"'
    needed = settings.vllm.tensor_parallel > 1 or settings.vllm.quantisation or settings.vllm.devices
    if settings.engine == "vllm" and fused and not needed and ModelShape.from_config(config).body_params < TORCH_LEADS:
        return (
            'rollout.engine = "torch" samples models of up to 3B faster on one GPU: 1.1 to 6.7 times as many tokens '
            "per second on an H200 with mixed lengths, unless long prompts are shared (docs/gpus.md)"
        )
    return None
