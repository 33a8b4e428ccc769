"""Memory per device by part, from a model's configuration alone: no weights are loaded and no device is touched.

Bytes, with N the parameters, T the trained ones, s the devices that share one copy, and t the tokens of a micro-batch,
or of a sequence of the whole context if that is longer, divided by learner.context_ranks:

    learner     weights 4 N / s (masters) + 2 N (rounded body, or what is gathered of a sharded one at a time)
                optimiser 12 T / s (two moments and the gradient)
                activations t x layers x (what a layer keeps per token)
                logits 2 chunks of FP32 logits and the head's gradient
    generator   weights 2 N and the head in FP32, cache slots x context x (keys and values of all layers), logits

What a layer keeps for its backward pass, per token in elements: 4 hidden + 2 heads x size + 2 key-value heads x size +
4 x intermediate of the experts it is routed to; with gradient checkpointing its input alone, and one layer at a time.
Ranks that divide a pass keep what attention returns before and after it is exchanged (heads x size more), and keys and
values of the heads that several of them need.
"""

import math
from dataclasses import dataclass
from typing import Any, Self

from scalerl.models.shape import head_sizes
from scalerl.rl.logprobs import GPU_CHUNK, GPU_CHUNK_LOGITS

RESERVE_BYTES = 1.5e9
"""The device's context, libraries and fragments."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSizes:
    """The sizes of a model that its memory depends on."""

    params: int
    """All parameters, every expert counted, a tied head once."""
    layer_params: int
    """Parameters of the largest layer."""
    head_params: int
    linear_rows: int
    """Sum over the linear layers of a model, without the head, of inputs + outputs: adapters of rank 1."""
    layers: int
    heads: int
    kv_heads: int
    head_size: int
    hidden: int
    vocabulary: int
    kept_per_token: int
    """Elements that a layer keeps per token for its backward pass."""
    cache_per_token: int
    """Elements of keys and values of all layers per token."""

    @classmethod
    def from_config(cls, config: Any) -> Self:
        """Build the model on the meta device and count."""
        import torch
        from transformers import AutoModelForCausalLM

        with torch.device("meta"):
            model = AutoModelForCausalLM.from_config(config)
        head: Any = model.get_output_embeddings()
        layers = _layers(model)
        linears = [module for module in model.modules() if isinstance(module, torch.nn.Linear) and module is not head]
        num_kv_heads, head_size = head_sizes(config)
        width = config.num_attention_heads * head_size
        intermediate = getattr(config, "intermediate_size", 4 * config.hidden_size)
        if num_experts := getattr(config, "num_experts_per_tok", None):
            intermediate = num_experts * (getattr(config, "moe_intermediate_size", None) or intermediate)
        return cls(
            params=sum(parameter.numel() for parameter in model.parameters()),
            layer_params=max(sum(parameter.numel() for parameter in layer.parameters()) for layer in layers),
            head_params=head.weight.numel(),
            linear_rows=sum(linear.in_features + linear.out_features for linear in linears),
            layers=config.num_hidden_layers,
            heads=config.num_attention_heads,
            kv_heads=num_kv_heads,
            head_size=head_size,
            hidden=config.hidden_size,
            vocabulary=config.vocab_size,
            kept_per_token=4 * config.hidden_size + 2 * width + 2 * num_kv_heads * head_size + 4 * intermediate,
            cache_per_token=2 * config.num_hidden_layers * num_kv_heads * head_size,
        )

    def kept_of_slices(self, context_ranks: int) -> int:
        """Return the elements that a layer keeps per token if this many ranks divide a pass."""
        if context_ranks == 1:
            return self.kept_per_token
        repeats = context_ranks // math.gcd(self.kv_heads, context_ranks)
        return self.kept_per_token + (self.heads + 2 * (repeats - 1) * self.kv_heads) * self.head_size


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """How a run is laid out over GPUs."""

    generators: int
    """Number of generators; 0 means that the learner's device also samples, in turns with training."""
    gpus_per_generator: int
    slots: int
    """Completions that one generator samples at a time."""
    ranks: int
    """Devices of the learner."""
    shards: int
    """Number of the learner's devices that share one copy of the model's state; 1 means that each holds all of it."""
    micro_batch_tokens: int
    checkpointing: bool
    context_ranks: int = 1
    """Number of the learner's devices that divide the tokens of a micro-batch among them."""

    @property
    def gpus(self) -> int:
        return self.generators * self.gpus_per_generator + self.ranks


@dataclass(frozen=True, slots=True, kw_only=True)
class Demands:
    """What a recipe asks for, besides the layout."""

    context: int
    dtype_bytes: int
    """Bytes per number of the model's body."""
    fp32_head: bool
    lora_rank: int
    second_copy: bool
    """Whether the learner keeps a second copy of the weights, for learner.start_kl."""
    most_slots: int | None
    """Slots of all generators together that the lag rule can fill, if their number follows from memory; None if the
    recipe gives it."""
    parallel: tuple[int, ...]
    """Numbers of GPUs that the engine can spread a model over."""


def learner_bytes(sizes: ModelSizes, layout: Layout, demands: Demands) -> dict[str, float]:
    """Return the memory of one device of the learner, by part."""
    trained = demands.lora_rank * sizes.linear_rows if demands.lora_rank else sizes.params
    share = 1 / layout.shards
    rounded = demands.dtype_bytes < 4
    if layout.shards > 1:
        # Two layers are gathered at a time, and the embedding and the head in FP32.
        body = 2 * sizes.layer_params * demands.dtype_bytes + 4 * sizes.head_params
    else:
        body = sizes.params * demands.dtype_bytes if rounded else 0
    copy = sizes.params * demands.dtype_bytes * share if demands.second_copy else 0
    kept = sizes.kept_of_slices(layout.context_ranks)
    per_token = sizes.layers * sizes.hidden + kept if layout.checkpointing else sizes.layers * kept
    chunk = max(GPU_CHUNK, GPU_CHUNK_LOGITS // sizes.vocabulary)
    # A sequence longer than a micro-batch has a pass of its own.
    tokens = max(layout.micro_batch_tokens, demands.context) / layout.context_ranks
    chunk = min(chunk, tokens)
    return {
        "weights": 4 * sizes.params * share + body + copy,
        "optimiser": 12 * trained * share,
        "activations": tokens * per_token * demands.dtype_bytes,
        "logits": 2.0 * chunk * sizes.vocabulary * 4 + 4 * sizes.head_params,
        "reserve": RESERVE_BYTES,
    }


def generator_bytes(sizes: ModelSizes, layout: Layout, demands: Demands) -> dict[str, float]:
    """Return the memory of one device of a generator, by part; without generators, what it adds to the learner's."""
    parallel = max(layout.gpus_per_generator, 1)
    head = 4 * sizes.head_params if demands.fp32_head and demands.dtype_bytes < 4 else 0
    return {
        "weights": (sizes.params * demands.dtype_bytes + head) / parallel,
        "cache": layout.slots * slot_bytes(sizes, layout, demands),
        "logits": 2.0 * layout.slots * sizes.vocabulary * 4,
        "reserve": RESERVE_BYTES if layout.generators else 0.0,
    }


def slot_bytes(sizes: ModelSizes, layout: Layout, demands: Demands) -> float:
    """Return the cache of one slot on each device of a generator."""
    cache = demands.context * sizes.cache_per_token * demands.dtype_bytes
    return cache / max(layout.gpus_per_generator, 1)


def _layers(model: Any) -> list[Any]:
    from transformers.modeling_layers import GradientCheckpointingLayer

    layers = [module for module in model.modules() if isinstance(module, GradientCheckpointingLayer)]
    return layers or [model.base_model]
