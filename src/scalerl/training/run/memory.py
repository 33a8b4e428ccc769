"""Estimate the memory of a run on each GPU from the model's configuration, and find settings that fit.

In bytes, with N parameters, T trained parameters, s devices that share one copy of the weights, b bytes per number of
the body, f bytes per number in the model's files, and t tokens per pass: those of a micro-batch, or of the context if
that is longer:

    learner     weights       4 N / s (masters) + b N (rounded body; if sharded, only the layers gathered at a time; an
                              untied head is not copied). With optimizer.on_host, only the head has its master here.
                              With adapters f N, plus b N if the dtypes differ; weights in 4 bits take 9/16 of a byte
                              each, plus one decoded layer
                critic        weights and optimiser once more, for advantage.credit = "gae"
                optimiser     4 T / s (gradient) + 8 T / s (two moments; 2 1/16 in 8 bits). On the host: two portions
                              of moments instead
                activations   t x layers x (numbers that a layer keeps per token) x b
                logits        2 chunks of FP32 logits, the head's two parts with the portion that is being split, and
                              a pass's gradient of the head
                update        a portion in FP32 with its rounding (8 bits), or b x the layers with merged adapters for
                              a push; counted only beyond the activations and logits, which are free by then
    generator   weights       b N, and the head in FP32; under adapters, only what the learner does not share
                cache         slots x context x (keys and values of all layers) x b
                prompts       what a layer computes in a pass: for the torch engine the longest prompt, for vLLM the
                              whole context. The torch engine also has a buffer for the keys and values of one context,
                              from which prompts are copied to their slots
                logits        2 rows of FP32 logits per slot

For its backward pass a layer keeps this many numbers per token: 4 hidden + 2 heads x size + 2 key-value heads x size +
4 x intermediate, of the experts that the token is routed to. With gradient checkpointing, layers keep only their inputs
and one layer is recomputed at a time.
"""

import itertools
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, Self

from scalerl.errors import UsageError
from scalerl.recipe.parts import (
    LearnerSettings,
    OptimizerSettings,
    RolloutSettings,
    StartReferenceSettings,
    TeacherReferenceSettings,
)
from scalerl.recipe.recipe import Recipe, body_dtype, pushes_adapters, replaced, value_at
from scalerl.training.learner.optimizer import BLOCK as MOMENT_BLOCK
from scalerl.training.learner.optimizer import PORTION
from scalerl.training.loop.slots import full_slots
from scalerl.training.models.load import load_config
from scalerl.training.models.nf4 import BLOCK as NF4_BLOCK
from scalerl.training.models.shape import ModelShape, head_sizes
from scalerl.training.rl.head_products import SPLIT_AT_ONCE
from scalerl.training.rl.logprobs import GPU_CHUNK, GPU_CHUNK_LOGITS

RESERVE_BYTES = 1.5e9
"""Memory for the device's context, libraries and fragmentation."""
COMFORTABLE = 0.9
"""Share of a GPU's memory up to which gradient_checkpointing = "auto" keeps all activations: estimates are not exact,
and free memory is fragmented."""
CACHE_SHARE = {"apart": 0.9, "shared": 0.25}
"""Share of the free memory that a generator's cache takes if rollout.slots is not set: on its own devices ("apart"), or
on the learner's ("shared"). A vLLM on its own GPUs takes rollout.vllm.memory_share of their memory in total."""
_SPLIT_BYTES = 12
"""Bytes per number of the head that is split into two parts at a time."""
_ROUNDING_BYTES = 36
"""Bytes per number of a portion that an update of 8-bit moments needs in addition to the moments."""


class Gpus(NamedTuple):
    """A number of GPUs with equal memory."""

    num: int
    bytes_each: float

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read "8x80": eight devices of 80 GB (10^9 bytes)."""
        match = re.fullmatch(r"(\d+)\s*x\s*(\d+(?:\.\d+)?)\s*(?:GB)?", text, re.IGNORECASE)
        if match is None or int(match[1]) < 1 or float(match[2]) <= 0:
            raise UsageError(f"--gpus {text} must be a number of GPUs and the memory of each, such as 8x80 (GB)")
        return cls(num=int(match[1]), bytes_each=1e9 * float(match[2]))

    @classmethod
    def here(cls, num: int | None = None, *, device: Any = 0) -> Self | None:
        """Return the GPUs of this machine, all or `num`, with the usable memory of `device`; None without GPUs."""
        import torch

        if not torch.cuda.is_available():
            return None
        usable = torch.cuda.mem_get_info(device)[0] + torch.cuda.memory_reserved(device)
        return cls(num=num or torch.cuda.device_count(), bytes_each=float(usable))


class ModelSizes(NamedTuple):
    """The sizes of a model that its memory depends on."""

    config: Any
    shape: ModelShape

    @classmethod
    def from_config(cls, config: Any) -> Self:
        return cls(config, ModelShape.from_config(config))

    @property
    def file_bytes(self) -> int:
        """Bytes per weight as it is loaded from the model's files: bf16, or else FP32."""
        return 2 if str(self.config.dtype).endswith("bfloat16") else 4

    def trained(self, recipe: Recipe) -> int:
        """Return the number of trained weights: all, or those of the adapters on every linear layer."""
        rank = recipe.model.lora.rank
        return rank * self.shape.linear_rows if rank else self.shape.params

    @property
    def cache_per_token(self) -> int:
        """Numbers in the keys and values of all layers, per token."""
        return 2 * self.config.num_hidden_layers * math.prod(head_sizes(self.config))

    @property
    def kept_per_token(self) -> int:
        """Numbers that a layer keeps per token for its backward pass."""
        hidden = self.config.hidden_size
        heads = self.config.num_attention_heads
        kv_heads, head_size = head_sizes(self.config)
        intermediate = getattr(self.config, "intermediate_size", 4 * hidden)
        if num_experts := getattr(self.config, "num_experts_per_tok", None):
            intermediate = num_experts * (getattr(self.config, "moe_intermediate_size", None) or intermediate)
        return 4 * hidden + 2 * (heads + kv_heads) * head_size + 4 * intermediate


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """The memory that a recipe needs on each device, by role and part."""

    recipe: Recipe
    parts: Mapping[str, Mapping[str, float]]
    """Bytes by part, of "learner" and, if it has its own devices, "generator"."""
    slots: int
    """Completions that each generator samples at a time."""
    num: Mapping[str, int]
    """GPUs of each role."""
    gpus: Gpus
    host: float
    """Bytes of the optimiser in host memory."""

    def total(self, role: str) -> float:
        return sum(self.parts[role].values())

    @property
    def overfull(self) -> tuple[str, ...]:
        """Roles that need more memory than a device has."""
        return tuple(role for role in self.parts if self.total(role) > self.gpus.bytes_each)

    @property
    def fits(self) -> bool:
        return not self.overfull and sum(self.num.values()) <= self.gpus.num


def learner_bytes(recipe: Recipe, sizes: ModelSizes) -> dict[str, float]:
    """Return the bytes on one device of the learner, by part."""
    learner = recipe.learner
    shards = {"full": learner.ranks, "hybrid": learner.shard_size or 1}.get(learner.sharding, 1)
    activations = _activation_bytes(recipe, sizes)
    logits = _logit_bytes(recipe, sizes)
    update = _update_bytes(recipe, sizes, shards)
    parts = {
        "weights": _learner_weights(recipe, sizes, shards) + _reference_bytes(recipe, sizes.shape),
        "optimiser": _optimiser_bytes(recipe.optimizer, sizes.trained(recipe)) / shards,
    }
    if recipe.has_critic:
        parts["critic"] = _critic_bytes(recipe, sizes)
    parts["activations"] = activations
    parts["logits"] = logits
    if update:
        # Activations and logits are free by then.
        parts["update"] = max(update - activations - logits, 0.0)
    parts["reserve"] = RESERVE_BYTES
    return parts


def _tokens_per_pass(recipe: Recipe) -> int:
    # A sequence longer than a micro-batch gets its own pass.
    return max(recipe.learner.micro_batch_tokens, recipe.rollout.context)


def _activation_bytes(recipe: Recipe, sizes: ModelSizes) -> float:
    layers = sizes.shape.layers
    kept = sizes.kept_per_token
    per_token = layers * kept
    if recipe.learner.gradient_checkpointing is True:
        per_token = layers * sizes.config.hidden_size + kept
    return _tokens_per_pass(recipe) * per_token * number_bytes(recipe)


def _logit_bytes(recipe: Recipe, sizes: ModelSizes) -> float:
    """Return the bytes of two chunks of logits, and of what a pass makes of the head: its two parts, the portion that
    is being split and, unless it is frozen, the pass's own gradient beside that of the step."""
    shape = sizes.shape
    vocabulary = sizes.config.vocab_size
    chunk = min(max(GPU_CHUNK, GPU_CHUNK_LOGITS // vocabulary), _tokens_per_pass(recipe))
    logits = 2.0 * chunk * vocabulary * 4
    if recipe.model.lora.rank and sizes.file_bytes == 2:
        # The head is frozen and narrow.
        return logits
    gradient = 0 if recipe.model.lora.rank else 4 * shape.head_params
    if not rounded_bytes(recipe):
        return logits + gradient
    parts = 4 * shape.head_params
    return logits + gradient + parts + _SPLIT_BYTES * min(SPLIT_AT_ONCE, shape.head_params)


def _update_bytes(recipe: Recipe, sizes: ModelSizes, shards: int) -> float:
    """Return the bytes of merged layers for a push, or of a portion of moments in FP32."""
    merged = rounding = 0.0
    if recipe.model.lora.rank and shards == 1 and not pushes_adapters(recipe.model, recipe.rollout):
        merged = sizes.shape.layers * sizes.shape.layer_params * number_bytes(recipe)
    if recipe.optimizer.bits == 8:
        rounding = _ROUNDING_BYTES * min(PORTION, sizes.trained(recipe))
    return max(merged, rounding)


def _reference_bytes(recipe: Recipe, shape: ModelShape) -> float:
    """Return the bytes of a second model in the learner's process."""
    reference = recipe.reference
    if isinstance(reference, TeacherReferenceSettings):
        return ModelShape.from_config(load_config(reference.path)).params * number_bytes(recipe)
    if isinstance(reference, StartReferenceSettings):
        # A copy of the masters, and another one rounded for the body.
        return shape.params * (4 + rounded_bytes(recipe))
    return 0


def _learner_weights(recipe: Recipe, sizes: ModelSizes, shards: int) -> float:
    """Return the bytes of master weights and of the body on one device."""
    shape = sizes.shape
    each = number_bytes(recipe)
    if shards > 1:
        # Two layers are gathered at a time, and the embedding and the head in FP32.
        return 4 * shape.params / shards + 2 * shape.layer_params * each + 4 * shape.head_params
    copied = shape.params
    if not sizes.config.tie_word_embeddings:
        copied -= shape.head_params
    if recipe.model.lora.rank:
        return _adapted_weights(recipe, sizes, copied)
    if recipe.optimizer.on_host:
        return 4.0 * shape.head_params + each * copied
    return 4.0 * shape.params + rounded_bytes(recipe) * copied


def _adapted_weights(recipe: Recipe, sizes: ModelSizes, copied: int) -> float:
    """Return the bytes of adapters, of the frozen weights under them, and of a body of `copied` numbers."""
    shape = sizes.shape
    each = number_bytes(recipe)
    rounded = _num_rounded(recipe, shape)
    adapters = (4 + rounded_bytes(recipe)) * sizes.trained(recipe)
    frozen = sizes.file_bytes * (shape.params - rounded) + _nf4_bytes(rounded, shape, each)
    if each == sizes.file_bytes:
        return adapters + frozen
    return adapters + frozen + each * (copied - rounded)


def _num_rounded(recipe: Recipe, shape: ModelShape) -> int:
    """Return the number of weights that are kept in 4 bits."""
    return shape.linear_params if recipe.model.lora.bits == 4 else 0


def _critic_bytes(recipe: Recipe, sizes: ModelSizes) -> float:
    """Return the bytes of a critic's weights and optimiser; its passes end before the policy's begin."""
    # With adapters, the frozen weights are shared with the policy: only what is trained is the critic's own.
    trained = sizes.trained(recipe)
    each = 4 + rounded_bytes(recipe)
    if recipe.optimizer.on_host:
        each = number_bytes(recipe)
    return each * trained + _optimiser_bytes(recipe.optimizer, trained)


def _nf4_bytes(rounded: int, shape: ModelShape, each: int) -> float:
    """Return the bytes of weights in 4 bits with their scales, and of one decoded layer."""
    if not rounded:
        return 0.0
    return rounded * (0.5 + 4 / NF4_BLOCK) + shape.layer_params * each


def _optimiser_bytes(settings: OptimizerSettings, trained: int) -> float:
    """Return the bytes of gradients and moments on the device; of hosted moments, only the portions in transit."""
    gradients = 4.0 * trained
    if settings.on_host:
        return gradients + min(2 * PORTION, trained) * (4 + _moment_bytes(settings))
    return gradients + _moment_bytes(settings) * trained


def _moment_bytes(settings: OptimizerSettings) -> float:
    """Return the bytes of both moments of a weight."""
    return 8.0 if settings.bits == 32 else 2 * (1 + 4 / MOMENT_BLOCK)


def host_bytes(recipe: Recipe, sizes: ModelSizes) -> float:
    """Return the bytes that optimizer.on_host keeps in host memory."""
    if not recipe.optimizer.on_host:
        return 0.0
    masters = 4 * (sizes.shape.params - sizes.shape.head_params)
    return masters + _moment_bytes(recipe.optimizer) * sizes.shape.params


def checkpoint_bytes(recipe: Recipe, sizes: ModelSizes) -> float:
    """Return the bytes of a checkpoint: trained weights and moments, of the critic too."""
    num_models = 2 if recipe.has_critic else 1
    return num_models * sizes.trained(recipe) * (4 + _moment_bytes(recipe.optimizer))


def checkpoint_words(num_bytes: float, keep: int, *, keeps_best: bool) -> str:
    """Say the memory and the disk that checkpoints of this size take."""
    num = keep + keeps_best + 1
    return (
        f"A checkpoint takes {num_bytes / 1e9:.1f} GB: once in host memory, from where it is written while training "
        f"continues, and up to {num} times on disk ({num * num_bytes / 1e9:.0f} GB)"
    )


def generator_bytes(recipe: Recipe, sizes: ModelSizes, slots: int) -> dict[str, float]:
    """Return the bytes on one device of a generator, by part, or those that the engine adds to the learner's device."""
    rollout = recipe.rollout
    each = number_bytes(recipe)
    parallel = max(rollout.generator_gpus, 1)
    prompt = rollout.context
    buffered = 0
    if rollout.engine == "torch":
        if not recipe.task.environment.name:
            # If the slot of a conversation was reused, the whole conversation is computed again.
            prompt = rollout.max_prompt_tokens
        buffered = (rollout.context + prompt) * sizes.cache_per_token
    return {
        "weights": _generator_weights(recipe, sizes) / parallel,
        "cache": slots * rollout.context * sizes.cache_per_token * each / parallel,
        "prompts": (prompt * sizes.kept_per_token + buffered) * each / parallel,
        "logits": 2.0 * slots * sizes.config.vocab_size * 4,
        "reserve": RESERVE_BYTES if num_generators(recipe) else 0.0,
    }


def _generator_weights(recipe: Recipe, sizes: ModelSizes) -> float:
    shape = sizes.shape
    each = number_bytes(recipe)
    head = 0
    if rounded_bytes(recipe) and recipe.model.fp32_head in ("both", "generator"):
        head = 4 * shape.head_params
    if not pushes_adapters(recipe.model, recipe.rollout):
        return shape.params * each + head
    rounded = _num_rounded(recipe, shape)
    plain = shape.params - rounded
    weights = each * sizes.trained(recipe)
    # Weights with the dtype of the files are shared with the learner, or, in another process, the only copy.
    if sizes.file_bytes != each:
        weights += each * plain + head
    if num_generators(recipe):
        weights += _nf4_bytes(rounded, shape, each) + sizes.file_bytes * plain
    elif rounded:
        weights += shape.layer_params * each
    return weights


def number_bytes(recipe: Recipe) -> int:
    """Return the bytes of a number of the body on a GPU."""
    return 2 if body_dtype(recipe.model, gpu=True) == "bfloat16" else 4


def rounded_bytes(recipe: Recipe) -> int:
    """Return the bytes of a number in a rounded copy of FP32 weights; 0 if the body is FP32 and needs no copy."""
    each = number_bytes(recipe)
    return each if each < 4 else 0


def num_generators(recipe: Recipe) -> int:
    """Return the number of engines with their own GPUs: generators, or a vLLM that does not share the learner's."""
    rollout = recipe.rollout
    if rollout.generators or rollout.engine != "vllm":
        return rollout.generators
    devices = set(rollout.vllm.devices)
    return int(bool(devices) and devices.isdisjoint(range(recipe.learner.ranks)))


def num_gpus(learner: LearnerSettings, rollout: RolloutSettings) -> int:
    """Return the number of GPUs that a run on GPUs holds; a GPU that learner and vLLM share counts once."""
    ranks = learner.ranks
    if rollout.generators or rollout.engine != "vllm":
        return ranks + rollout.generators * rollout.generator_gpus
    return len({*range(ranks), *(rollout.vllm.devices or range(rollout.generator_gpus))})


def memory_of(recipe: Recipe, sizes: ModelSizes, gpus: Gpus) -> Memory:
    """Return the memory of a recipe; `recipe` and `slots` of the result hold the open settings as decided here.

    Activations are recomputed if they would not all fit. There are as many slots as the remaining memory has room for.
    """
    if recipe.learner.gradient_checkpointing == "auto":
        kept = memory_of(replaced(recipe, {"learner.gradient_checkpointing": False}), sizes, gpus)
        if kept.total("learner") <= COMFORTABLE * gpus.bytes_each:
            return kept
        recipe = replaced(recipe, {"learner.gradient_checkpointing": True})
    learner = learner_bytes(recipe, sizes)
    generators = num_generators(recipe)
    slots = math.ceil((recipe.rollout.slots or full_slots(recipe.pipeline)) / max(generators, 1))
    if recipe.rollout.slots is None:
        used = 0.0 if generators else sum(learner.values())
        slots = min(_slots_with_room(recipe, sizes, gpus, used), slots)
    generator = generator_bytes(recipe, sizes, slots)
    parts = {"learner": learner}
    if generators:
        parts["generator"] = generator
    else:
        learner |= {f"generator's {part}": value for part, value in generator.items() if value}
    return Memory(
        recipe=recipe,
        parts=parts,
        slots=slots,
        num={"learner": recipe.learner.ranks, "generator": generators * recipe.rollout.generator_gpus},
        gpus=gpus,
        host=host_bytes(recipe, sizes),
    )


def _slots_with_room(recipe: Recipe, sizes: ModelSizes, gpus: Gpus, used: float) -> int:
    """Return how many slots a generator's device has room for beside the `used` bytes; at least one."""
    empty = sum(generator_bytes(recipe, sizes, 0).values())
    each = sum(generator_bytes(recipe, sizes, 1).values()) - empty
    used += empty
    if not num_generators(recipe):
        free = CACHE_SHARE["shared"] * (gpus.bytes_each - used)
    elif recipe.rollout.engine == "vllm":
        free = recipe.rollout.vllm.memory_share * gpus.bytes_each - used
    else:
        free = CACHE_SHARE["apart"] * (gpus.bytes_each - used)
    return max(int(free / each), 1)


def decide_checkpointing(recipe: Recipe, config: Any, gpus: Gpus | None) -> Recipe:
    """Return the recipe with gradient_checkpointing = "auto" decided: on if the GPUs need it, off on a CPU."""
    if recipe.learner.gradient_checkpointing != "auto":
        return recipe
    if gpus is None:
        return replaced(recipe, {"learner.gradient_checkpointing": False})
    return memory_of(recipe, ModelSizes.from_config(config), gpus).recipe


def settings_that_fit(recipe: Recipe, sizes: ModelSizes, gpus: Gpus) -> dict[str, Any] | None:
    """Return settings with which a recipe fits, as few and as cheap changes as possible; None if none are known."""
    for layout in _layouts(recipe, gpus.num):
        # Only hybrid sharding, which is not proposed, has a shard size.
        tried = replaced(recipe, layout | {"learner.shard_size": None})
        if memory_of(tried, sizes, gpus).fits:
            return {key: value for key, value in layout.items() if value != value_at(recipe, key)}
    return None


def _layouts(recipe: Recipe, num_gpus: int) -> Iterator[dict[str, Any]]:
    """Yield layouts to try on so many GPUs, in order of their cost: recomputation, shorter passes, fewer slots, larger
    generators, more ranks, fewer ranks."""
    learner = recipe.learner
    rollout = recipe.rollout
    factors = [2**power for power in range(num_gpus.bit_length())]
    nums_of_ranks = [learner.ranks * by for by in factors] + [learner.ranks // by for by in factors[1:]]
    is_vllm = rollout.engine == "vllm"
    parallel = [max(rollout.generator_gpus, 1)]
    if is_vllm:
        parallel = [parallel[0] * by for by in factors]
    nums_of_slots: list[int | None] = [None]
    if rollout.slots is not None:
        nums_of_slots = [rollout.slots // by or None for by in factors]
    pass_lengths = [learner.micro_batch_tokens, min(learner.micro_batch_tokens, rollout.context)]
    recomputes = [learner.gradient_checkpointing]
    if learner.gradient_checkpointing is False:
        recomputes = [False, True]
    keeps_sharding = learner.sharding != "hybrid"
    choices = itertools.product(nums_of_ranks, parallel, nums_of_slots, pass_lengths, recomputes)
    for ranks, gpus_each, slots, pass_tokens, recomputing in choices:
        if not 0 < ranks <= num_gpus:
            continue
        generators = min(rollout.generators, (num_gpus - ranks) // gpus_each)
        if generators < min(rollout.generators, 1):
            continue
        layout: dict[str, Any] = {
            "learner.ranks": ranks,
            "learner.sharding": learner.sharding if keeps_sharding and ranks == learner.ranks else "full",
            "learner.micro_batch_tokens": pass_tokens,
            "learner.gradient_checkpointing": recomputing,
            "rollout.generators": generators,
            "rollout.slots": slots,
            "rollout.vllm.tensor_parallel": gpus_each,
        }
        if is_vllm and rollout.gpus_per_generator is not None:
            layout["rollout.gpus_per_generator"] = gpus_each
        yield layout
