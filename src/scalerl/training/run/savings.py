"""Choose settings that save memory, so that a model can be trained on one GPU, by what they cost in time.

    all weights     FP32 moments, moments in 8 bits, or weights and moments in host memory
    adapters        over frozen weights as their files have them, or in 4 bits

Each can be combined with shorter passes and fewer slots. All weights are trained unless that takes more than FULL_WORTH
times as long as adapters; a saving that makes a step little faster is not used. Seconds are rough, by the rates below:
they compare settings and do not predict a run.
"""

import itertools
import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from scalerl.recipe.recipe import Recipe, replaced, value_at
from scalerl.training.run.memory import Gpus, Memory, ModelSizes, host_bytes, memory_of, num_generators

FLOPS, BANDWIDTH, BUS = 1e14, 1e12, 2e10
"""FLOPs per second of a GPU, and bytes per second of its memory and of the bus to the host."""
ROOM = 0.95
"""Largest share of a GPU's memory that the chosen settings may need, by the estimate."""
WORTH = 1.1
"""Settings with fewer savings are chosen if a step takes at most this many times as long as with the fastest."""
FULL_WORTH = 3.0
"""All weights are trained if a step takes at most this many times as long as with adapters."""
RANK = 32
SHORTEST_PASS = 2048
FEWEST_SLOTS = 8
"""Fewest completions sampled at a time, if there is no room for a whole batch."""

SAVINGS: tuple[Mapping[str, Any], ...] = (
    {"model.lora.rank": 0, "model.lora.bits": 16, "optimizer.bits": 32, "optimizer.on_host": False},
    {"model.lora.rank": 0, "model.lora.bits": 16, "optimizer.bits": 8, "optimizer.on_host": False},
    {"model.lora.rank": 0, "model.lora.bits": 16, "optimizer.bits": 8, "optimizer.on_host": True},
    {"model.lora.rank": RANK, "model.lora.bits": 16, "optimizer.bits": 32, "optimizer.on_host": False},
    {"model.lora.rank": RANK, "model.lora.bits": 4, "optimizer.bits": 32, "optimizer.on_host": False},
)
KEYS = (*SAVINGS[0], "learner.micro_batch_tokens", "rollout.slots")


@dataclass(frozen=True, slots=True, kw_only=True)
class SavingsChoice:
    """Settings that fit on a GPU."""

    changes: Mapping[str, Any]
    memory: Memory
    seconds: Mapping[str, float]
    """Seconds of each part of a step."""

    @property
    def total(self) -> float:
        """Seconds of a step."""
        return sum(self.seconds.values())


def step_seconds(recipe: Recipe, sizes: ModelSizes, slots: int) -> dict[str, float]:
    """Return roughly how long each part of a step takes."""
    shape, pipeline, optimizer = sizes.shape, recipe.pipeline, recipe.optimizer
    weights, trained, adapters = shape.params, sizes.trained(recipe), recipe.model.lora.rank > 0
    decodes = recipe.model.lora.bits == 4
    prompt, tokens = recipe.rollout.max_prompt_tokens, pipeline.batch * recipe.longest
    passes = math.ceil(tokens / max(recipe.learner.micro_batch_tokens, recipe.rollout.context))
    products = (4 if adapters else 6) + (2 if recipe.learner.gradient_checkpointing is True else 0)
    # A weight is read as bf16. A weight in 4 bits is read, written decoded and read again.
    reads = 4.5 if decodes else 2.0
    # A pass reads every weight two or three times and adds to gradients in FP32.
    touched = (products / 2) * reads * weights + 10 * trained
    # Weights, gradients and moments are read; weights and moments are written. Rounding to 8 bits repeats that.
    updated = (24 + (40 if optimizer.bits == 8 else 0)) * trained
    return {
        "sampling": (recipe.longest - prompt) * math.ceil(pipeline.batch / slots) * weights * reads / BANDWIDTH
        + 2 * weights * pipeline.groups_per_batch * prompt / FLOPS,
        "training": products * weights * tokens / FLOPS + passes * touched / BANDWIDTH,
        "update": updated / BANDWIDTH + host_bytes(recipe, sizes) / BUS,
    }


def choose_savings(
    recipe: Recipe, sizes: ModelSizes, gpus: Gpus, is_open: Collection[str] = KEYS
) -> SavingsChoice | None:
    """Return the settings to train with on one of the GPUs; None if none fit, or if the recipe needs other devices.

    Only those of KEYS that are in `is_open` may change.
    """
    if recipe.learner.sharding != "none" or num_generators(recipe) or recipe.rollout.engine != "torch":
        return None
    choices = [_fastest(recipe, sizes, Gpus(1, ROOM * gpus.bytes_each), saving, is_open) for saving in SAVINGS]
    of_weights, of_adapters = (
        _fewest(
            [each for each in choices if each is not None and (each.changes["model.lora.rank"] > 0) == has_adapters]
        )
        for has_adapters in (False, True)
    )
    if of_weights is None or (of_adapters is not None and of_weights.total > FULL_WORTH * of_adapters.total):
        return of_adapters
    return of_weights


def _fewest(choices: Sequence[SavingsChoice]) -> SavingsChoice | None:
    """Return the choice with the fewest savings, the first, that is about as fast as the fastest."""
    least = min((each.total for each in choices), default=0.0)
    return next((each for each in choices if each.total <= WORTH * least), None)


def _fastest(
    recipe: Recipe, sizes: ModelSizes, room: Gpus, saving: Mapping[str, Any], is_open: Collection[str]
) -> SavingsChoice | None:
    """Return the fastest settings that fit with a saving; None if none do, or if it changes a setting not open."""
    current, batch = {key: value_at(recipe, key) for key in KEYS}, recipe.pipeline.batch
    if saving["model.lora.rank"] and "model.lora.rank" not in is_open:
        saving = {**saving, "model.lora.rank": current["model.lora.rank"]}
    if any(saving[key] != current[key] for key in saving if key not in is_open):
        return None
    passes, slots = [current["learner.micro_batch_tokens"]], [current["rollout.slots"] or batch]
    if "learner.micro_batch_tokens" in is_open:
        passes += [2**power for power in range(20, 10, -1) if SHORTEST_PASS <= 2**power < passes[0]]
    if "rollout.slots" in is_open:
        slots = sorted({max(batch >> power, min(batch, FEWEST_SLOTS)) for power in range(6)}, reverse=True)
    choices = []
    for num_tokens, num_slots in itertools.product(passes, slots):
        changes = {**saving, "learner.micro_batch_tokens": num_tokens, "rollout.slots": num_slots}
        memory = memory_of(replaced(recipe, changes), sizes, room)
        if memory.fits:
            seconds = step_seconds(memory.recipe, sizes, num_slots)
            choices.append(SavingsChoice(changes=changes, memory=memory, seconds=seconds))
    return min(choices, key=lambda choice: choice.total, default=None)


def reasons(recipe: Recipe, sizes: ModelSizes, gpus: Gpus, choice: SavingsChoice) -> dict[str, str]:
    """Return the reason for the value of each of KEYS, with its cost."""
    size, changes = f"{gpus.bytes_each / 1e9:.3g} GB", choice.changes

    def without(key: str) -> float:
        """Return the gigabytes that the choice would need without this saving."""
        plain = {**changes, **SAVINGS[0]} if key == "model.lora.rank" else {**changes, key: SAVINGS[0][key]}
        other = replaced(choice.memory.recipe, plain)
        return memory_of(other, sizes, choice.memory.gpus).total("learner") / 1e9

    why = dict.fromkeys(KEYS, f"a GPU of {size} has room for it")
    if changes["model.lora.rank"]:
        why["model.lora.rank"] = f"training all weights would take {without('model.lora.rank'):.3g} of {size}"
    if changes["model.lora.bits"] == 4:
        why["model.lora.bits"] = (
            f"{without('model.lora.bits'):.3g} of {size} otherwise; decoding makes sampling 1 to 2 times slower"
        )
    if changes["optimizer.bits"] == 8:
        why["optimizer.bits"] = f"{without('optimizer.bits'):.3g} of {size} otherwise"
    if changes["optimizer.on_host"]:
        why["optimizer.bits"] = "fewer bytes to move between host and GPU"
        why["optimizer.on_host"] = (
            f"{without('optimizer.on_host'):.3g} of {size} otherwise; takes {choice.memory.host / 1e9:.3g} GB of host "
            f"memory, and about {choice.memory.host / BUS:.1f} s per step"
        )
    if changes["rollout.slots"] < recipe.pipeline.batch:
        why["rollout.slots"] = f"as many as a GPU of {size} has room for, of {recipe.pipeline.batch}"
    return why
