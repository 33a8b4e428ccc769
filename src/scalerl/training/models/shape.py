"""The shape of a model, and the FLOPs of processing tokens with it.

For one token that attends to c tokens, including itself, and is multiplied by N parameters in the body:

    forward   2 N + 4 x layers x attention_width x c         plus 2 x head_params if its logits are computed
    training  3 x forward: the backward pass costs two forward passes, one for activations and one for weights
    with adapters (LoRA) of A parameters: frozen matrices have no gradient, so 4 N and 4 x head_params, and 6 A

A matrix product costs 2 FLOPs per parameter; queries x keys and probabilities x values cost 2 x attention_width each.
Embedding look-ups, norms and softmax are left out, as usual (Kaplan et al. 2020, section 2.1). Only useful work counts:
no padding, no recomputation (gradient checkpointing, the head's second pass).
"""

from dataclasses import dataclass, field
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike

from scalerl.training.types import Work


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelShape:
    """The sizes of a model that determine the FLOPs of a token and the memory of the model."""

    body_params: int
    """Parameters by which a token is multiplied before the head; of experts, only those to which it is routed."""
    head_params: int
    layers: int
    attention_width: int
    """Heads x head size."""
    params: int = field(default=0, compare=False)
    """Number of all parameters, including all experts; a tied head counts once."""
    layer_params: int = field(default=0, compare=False)
    """Parameters of the largest layer."""
    linear_rows: int = field(default=0, compare=False)
    """Sum of inputs + outputs over all linear layers except the head: the parameters of adapters of rank 1."""
    linear_params: int = field(default=0, compare=False)
    """Number of weights in these layers."""

    @classmethod
    def from_config(cls, config: Any) -> Self:
        """Return the shape of any causal language model that transformers supports, without allocating weights.

        The model is built on the meta device, and every matrix except embeddings is counted, so that no family needs
        its own formula. Attention counts as full and causal in every layer.
        """
        import torch
        from transformers import AutoModelForCausalLM
        from transformers.modeling_layers import GradientCheckpointingLayer

        with torch.device("meta"):
            model = AutoModelForCausalLM.from_config(config)
        head = model.get_output_embeddings()
        modules = list(model.modules())
        layers = [module for module in modules if isinstance(module, GradientCheckpointingLayer)] or [model.base_model]
        linears = [module for module in modules if isinstance(module, torch.nn.Linear) and module is not head]
        body = 0
        for module in modules:
            if module is head or isinstance(module, torch.nn.Embedding):
                continue
            for parameter in module.parameters(recurse=False):
                if parameter.ndim == 3:
                    # The experts of a layer are one tensor: experts x rows x columns.
                    body += parameter.numel() * config.num_experts_per_tok // parameter.shape[0]
                elif parameter.ndim == 2:
                    body += parameter.numel()
        return cls(
            body_params=body,
            head_params=config.hidden_size * config.vocab_size,
            layers=config.num_hidden_layers,
            attention_width=config.num_attention_heads * head_sizes(config)[1],
            params=_num_params(model),
            layer_params=max(map(_num_params, layers)),
            linear_rows=sum(linear.in_features + linear.out_features for linear in linears),
            linear_params=sum(linear.weight.numel() for linear in linears),
        )


def _num_params(module: Any) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


def head_sizes(config: Any) -> tuple[int, int]:
    """Return the number of key-value heads of a model and their size."""
    heads = config.num_attention_heads
    return (
        getattr(config, "num_key_value_heads", None) or heads,
        getattr(config, "head_dim", None) or config.hidden_size // heads,
    )


def forward_flops(shape: ModelShape, lengths: ArrayLike, num_logits: int, *, shared: ArrayLike = 0) -> float:
    """Return the FLOPs of one pass over sequences of these lengths, with the head at `num_logits` positions.

    `shared` is the number of tokens before each sequence that another sequence has computed; it attends to them, too.

    A causal sequence of n tokens attends to 1 + 2 + ... + n = n (n + 1) / 2 positions, whether the tokens are processed
    at once or one by one with a cache, so the formula holds for the learner and the generator. A prompt and its
    completion are prompt + completion - 1 tokens: the last one is not an input.
    """
    tokens = np.asarray(lengths, dtype=np.float64)
    attended = float((tokens * (tokens + 1) / 2 + tokens * np.asarray(shared, dtype=np.float64)).sum())
    body = 2.0 * shape.body_params * float(tokens.sum())
    return body + 4.0 * shape.layers * shape.attention_width * attended + 2.0 * shape.head_params * num_logits


def training_flops(
    shape: ModelShape, lengths: ArrayLike, num_logits: int, *, shared: ArrayLike = 0, adapters: int = 0
) -> float:
    """Return the FLOPs of a forward and backward pass. With `adapters` (their parameters), only those are trained."""
    full = 3.0 * forward_flops(shape, lengths, num_logits, shared=shared)
    if not adapters:
        return full
    tokens = float(np.sum(lengths))
    return full - 2.0 * (shape.body_params * tokens + shape.head_params * num_logits) + 6.0 * adapters * tokens


def work_flops(shape: ModelShape, before: Work, after: Work) -> float:
    """Return the FLOPs of an engine's work between two readings (formula at the top of this file)."""
    logits = after.decoded - before.decoded
    tokens = after.prefilled - before.prefilled + logits
    attended = after.attended - before.attended
    body = 2.0 * shape.body_params * tokens + 4.0 * shape.layers * shape.attention_width * attended
    return body + 2.0 * shape.head_params * logits
