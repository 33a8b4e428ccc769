"""Tiny random models, built from a config: peaked distributions over a vocabulary of 64."""

from typing import Any

import torch
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

SHAPE: dict[str, Any] = {
    "vocab_size": 64,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "initializer_range": 0.3,
    "bos_token_id": None,
    "eos_token_id": None,
    "pad_token_id": None,
}


def shape(**changes: Any) -> dict[str, Any]:
    return {**SHAPE, **changes}


FAMILIES = {
    "llama": lambda: LlamaForCausalLM(LlamaConfig(**SHAPE)),
    # Heads of 16, as of the qwens: the least that the kernels of a GPU take.
    "llama-tied": lambda: LlamaForCausalLM(LlamaConfig(**shape(head_dim=16, tie_word_embeddings=True))),
    "llama-biased": lambda: LlamaForCausalLM(LlamaConfig(**shape(attention_bias=True, mlp_bias=True))),
    "llama-no-groups": lambda: LlamaForCausalLM(LlamaConfig(**shape(num_key_value_heads=4))),
    "mistral": lambda: MistralForCausalLM(MistralConfig(**shape(sliding_window=None))),
    "qwen2": lambda: Qwen2ForCausalLM(Qwen2Config(**shape(num_attention_heads=2, num_key_value_heads=1))),
    "qwen3": lambda: Qwen3ForCausalLM(Qwen3Config(**shape(head_dim=16, tie_word_embeddings=True))),
}


def make_model(family: str, seed: int = 0):
    torch.manual_seed(seed)
    model = FAMILIES[family]().eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            # As built, biases are 0 and norms 1: an engine that forgot them would pass.
            if parameter.ndim == 1:
                parameter.add_(0.2 * torch.randn_like(parameter) if "norm" in name else torch.randn_like(parameter))
    return model
