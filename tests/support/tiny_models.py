"""Models of every supported family, small enough for a test."""

import copy
from typing import Any

import torch
from transformers import (
    AutoModelForCausalLM,
    LlamaConfig,
    OlmoeConfig,
    Qwen2Config,
    Qwen3Config,
    Qwen3MoeConfig,
    SmolLM3Config,
)

from scalerl.models.routers import routers_of

VOCAB = 23

SIZES: dict[str, Any] = {
    "vocab_size": VOCAB,
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "bos_token_id": 1,
    "eos_token_id": 1,
    "pad_token_id": 0,
}

# SmolLM and SmolLM2 are Llama models; SmolLM3 is a family of its own.
FAMILIES = {
    "llama": LlamaConfig(**SIZES),
    "llama_with_biases": LlamaConfig(**SIZES, attention_bias=True, mlp_bias=True),
    "smollm": LlamaConfig(**SIZES, tie_word_embeddings=True),
    "smollm3": SmolLM3Config(**SIZES, tie_word_embeddings=True),
    "qwen2": Qwen2Config(**SIZES, tie_word_embeddings=True),
    "qwen3": Qwen3Config(**SIZES, head_dim=8),
}


_EXPERTS: dict[str, Any] = {"num_experts": 4, "num_experts_per_tok": 2, "initializer_range": 0.2}
_HEADS: dict[str, Any] = {"head_dim": 8}
MIXTURES = {
    "qwen3_moe": Qwen3MoeConfig(**SIZES, **_EXPERTS, **_HEADS, moe_intermediate_size=12),
    "olmoe": OlmoeConfig(**SIZES, **_EXPERTS),
}
"""Mixtures of experts."""
WINDOWED = {
    "qwen2_windowed": Qwen2Config(**SIZES, use_sliding_window=True, sliding_window=5, max_window_layers=1),
}
"""Models of which some layers attend to the last few tokens only."""


def tiny_model(family="smollm", *, seed=0, dtype=torch.float32):
    torch.manual_seed(seed)
    config = copy.deepcopy({**FAMILIES, **MIXTURES, **WINDOWED}[family])
    return AutoModelForCausalLM.from_config(config, attn_implementation="sdpa", dtype=dtype).eval()


def chosen_experts(model, completion):
    """The experts that transformers' own pass over prompt and completion chooses, [tokens, layers x experts]."""
    seen = []
    hooks = [router.register_forward_hook(lambda *call: seen.append(call[-1][2])) for router in routers_of(model)]
    tokens = [*completion.request.prompt_tokens, *completion.tokens.tolist()][:-1]
    with torch.no_grad():
        model(input_ids=torch.tensor([tokens], device=model.device))
    for hook in hooks:
        hook.remove()
    return torch.cat(seen, dim=1).cpu().numpy()
