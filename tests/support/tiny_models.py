"""Random models of every supported family, small enough for a test."""

import copy
from typing import Any

import torch
from transformers import (
    AutoModelForCausalLM,
    LlamaConfig,
    MistralConfig,
    OlmoeConfig,
    Qwen2Config,
    Qwen3Config,
    Qwen3MoeConfig,
    SmolLM3Config,
)

from scalerl.training.models.routers import routers_of

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


def _peaked(**changes: Any) -> dict[str, Any]:
    peaked = {"vocab_size": 64, "hidden_size": 32, "intermediate_size": 48, "initializer_range": 0.3}
    no_tokens = dict.fromkeys(("bos_token_id", "eos_token_id", "pad_token_id"))
    return SIZES | peaked | no_tokens | {"max_position_embeddings": 256} | changes


# Heads of 16 are the least that the kernels of a GPU take.
SAMPLED = {
    "llama": LlamaConfig(**_peaked()),
    "llama-tied": LlamaConfig(**_peaked(head_dim=16, tie_word_embeddings=True)),
    "llama-biased": LlamaConfig(**_peaked(attention_bias=True, mlp_bias=True)),
    "llama-no-groups": LlamaConfig(**_peaked(num_key_value_heads=4)),
    "mistral": MistralConfig(**_peaked(sliding_window=None)),
    "qwen2": Qwen2Config(**_peaked(num_attention_heads=2, num_key_value_heads=1)),
    "qwen3": Qwen3Config(**_peaked(head_dim=16, tie_word_embeddings=True)),
}
"""What engines are tested with: peaked distributions over a vocabulary of 64."""


def tiny_model(family="smollm", *, seed=0, dtype=torch.float32):
    return random_model({**FAMILIES, **MIXTURES, **WINDOWED}[family], seed, dtype)


def sampled_model(config: Any, seed: int = 0) -> Any:
    """Return a model for tests of engines, of a config or of the family that this names."""
    model = random_model(SAMPLED[config] if isinstance(config, str) else config, seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            # As built, biases are 0 and norms 1: an engine that forgot them would pass.
            if parameter.ndim == 1:
                parameter.add_(torch.randn_like(parameter) * (0.2 if "norm" in name else 1.0))
    return model


def random_model(config: Any, seed: int = 0, dtype: torch.dtype = torch.float32) -> Any:
    torch.manual_seed(seed)
    return AutoModelForCausalLM.from_config(copy.deepcopy(config), attn_implementation="sdpa", dtype=dtype).eval()


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
