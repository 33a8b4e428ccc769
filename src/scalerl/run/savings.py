"""Settings that save memory, so that a model can be trained on one GPU, and what they cost in time.

    all weights     FP32 moments, moments in 8 bits, or weights and moments in host memory
    adapters        over frozen weights as their files have them, or in 4 bits

Each also with shorter passes and fewer slots. All weights are trained unless adapters take half the time or less, and a
saving is left out where it gains little. Seconds are rough, by the rates below: they compare settings, and do not
predict a run.
"""

import itertools
import math
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from scalerl.config import Recipe, replaced, value_at
from scalerl.run.memory import Gpus, Memory, ModelSizes, host_bytes, memory_of

FLOPS, BANDWIDTH, BUS = 1e14, 1e12, 2e10
"""FLOPs per second of a GPU, and bytes per second of its memory and of the bus to the host."""
ROOM = 0.95
"""Share of a GPU's memory that chosen settings may take by the estimate."""
WORTH = 1.1
"""Times as long as the fastest settings that a step may take with fewer savings."""
FULL_WORTH = 3.0
"""Times as long as with adapters that a step of all weights may take."""
RANK = 32
SHORTEST_PASS = 2048
FEWEST_SLOTS = 8
"""Completions that are sampled at a time, at least, if there is no room for a batch of them."""

SAVINGS: tuple[Mapping[str, Any], ...] = (
    {"model.lora.rank": 0, "model.lora.bits": 16, "optimizer.bits": 32, "optimizer.on_host": False},
    {"model.lora.rank": 0, "model.lora.bits": 16, "optimizer.bits": 8, "optimizer.on_host": False},
    {"model.lora.rank": 0, "model.lora.bits": 16, "optimizer.bits": 8, "optimizer.on_host": True},
    {"model.lora.rank": RANK, "model.lora.bits": 16, "optimizer.bits": 32, "optimizer.on_host": False},
    {"model.lora.rank": RANK, "model.lora.bits": 4, "optimizer.bits": 32, "optimizer.on_host": False},
)
KEYS = (*SAVINGS[0], "learner.micro_batch_tokens", "rollout.slots")


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """Settings that fit on a GPU."""

    changes: Mapping[str, Any]
    memory: Memory
    seconds: Mapping[str, float]
    """Of a step, by part."""

    @property
    def total(self) -> float:
        """Seconds of a step."""
        return sum(self.seconds.values())


def step_seconds(recipe: Recipe, sizes: ModelSizes, slots: int) -> dict[str, float]:
    """Return about how long the parts of a step take."""
    shape, pipeline, optimizer = sizes.shape, recipe.pipeline, recipe.optimizer
    weights, trained, adapters = shape.params, sizes.trained(recipe), recipe.model.lora.rank > 0
    decodes = recipe.model.lora.bits == 4
    batch, prompt = pipeline.groups_per_batch * pipeline.completions_per_group, recipe.rollout.max_prompt_tokens
    length = recipe.longest - prompt
    tokens = batch * recipe.longest
    passes = math.ceil(tokens / max(recipe.learner.micro_batch_tokens, recipe.rollout.context))
    products = (4 if adapters else 6) + (2 if recipe.learner.gradient_checkpointing is True else 0)
    # A weight is read as bf16; one in 4 bits is read, written and read.
    reads = 4.5 if decodes else 2.0
    # A pass reads every weight twice or thrice, and adds to gradients in FP32.
    touched = (products / 2) * reads * weights + 10 * trained
    # Weights, gradients and moments are read, and all but gradients written; rounding to 8 bits passes over them again.
    updated = (24 + (40 if optimizer.bits == 8 else 0)) * trained
    return {
        "sampling": length * math.ceil(batch / slots) * weights * reads / BANDWIDTH
        + 2 * weights * pipeline.groups_per_batch * prompt / FLOPS,
        "training": products * weights * tokens / FLOPS + passes * touched / BANDWIDTH,
        "update": updated / BANDWIDTH + host_bytes(recipe, sizes) / BUS,
    }


def choose_savings(recipe: Recipe, sizes: ModelSizes, gpus: Gpus, is_open: Collection[str] = KEYS) -> Choice | None:
    """Return the settings to train with on one of the GPUs; None if none fit.

    Of KEYS, those that are not in `is_open` stay as they are.
    """
    own = {key: value_at(recipe, key) for key in KEYS}
    best = [each for each in _fastest(recipe, sizes, gpus, own, is_open) if each is not None]
    chosen: Choice | None = None
    for has_adapters in (False, True):
        tier = [each for each in best if (each.changes["model.lora.rank"] > 0) == has_adapters]
        if not tier:
            continue
        least = min(each.total for each in tier)
        first = next(each for each in tier if each.total <= WORTH * least)
        if chosen is None or chosen.total > FULL_WORTH * first.total:
            chosen = first
    return chosen


def _fastest(
    recipe: Recipe, sizes: ModelSizes, gpus: Gpus, own: Mapping[str, Any], is_open: Collection[str]
) -> Iterator[Choice | None]:
    """Yield the fastest settings that fit with each of the savings that the settings which are not open allow."""
    batch = recipe.pipeline.groups_per_batch * recipe.pipeline.completions_per_group
    tokens, lora = own["learner.micro_batch_tokens"], {"model.lora.rank": own["model.lora.rank"]}
    passes = [tokens, *(2**power for power in range(20, 10, -1) if SHORTEST_PASS <= 2**power < tokens)]
    slots = sorted({max(batch >> power, min(batch, FEWEST_SLOTS)) for power in range(6)}, reverse=True)
    room = Gpus(1, ROOM * gpus.bytes_each)
    for saving in SAVINGS:
        saving = {**saving, **({} if "model.lora.rank" in is_open or not saving["model.lora.rank"] else lora)}
        if any(saving[key] != own[key] for key in saving if key not in is_open):
            continue
        choices = []
        for num_tokens, num_slots in itertools.product(
            passes if "learner.micro_batch_tokens" in is_open else passes[:1],
            slots if "rollout.slots" in is_open else [own["rollout.slots"] or batch],
        ):
            changes = {**saving, "learner.micro_batch_tokens": num_tokens, "rollout.slots": num_slots}
            memory = memory_of(replaced(recipe, changes), sizes, room)
            if memory.fits:
                seconds = step_seconds(memory.recipe, sizes, num_slots)
                choices.append(Choice(changes=changes, memory=memory, seconds=seconds))
        yield min(choices, key=lambda choice: choice.total, default=None)


def reasons(recipe: Recipe, sizes: ModelSizes, gpus: Gpus, choice: Choice) -> dict[str, str]:
    """Return why each of KEYS is what it is, and what that costs."""
    size, changes = f"{gpus.bytes_each / 1e9:.3g} GB", choice.changes

    def without(key: str) -> float:
        """Return the gigabytes with everything chosen but this."""
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
        moved = "fewer bytes to move from and to the host"
        why["optimizer.bits"] = (
            moved if changes["optimizer.on_host"] else f"{without('optimizer.bits'):.3g} of {size} otherwise"
        )
    if changes["optimizer.on_host"]:
        seconds = choice.memory.host / BUS
        why["optimizer.on_host"] = (
            f"{without('optimizer.on_host'):.3g} of {size} otherwise; takes {choice.memory.host / 1e9:.3g} GB of host "
            f"memory, and about {seconds:.1f} s per step"
        )
    batch = recipe.pipeline.groups_per_batch * recipe.pipeline.completions_per_group
    if changes["rollout.slots"] < batch:
        why["rollout.slots"] = f"as many as a GPU of {size} has room for, of {batch}"
    return why
