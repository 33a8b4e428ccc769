"""Choose settings that save memory, so that a model can be trained on one GPU, by what they cost in time.

    all weights     FP32 moments, moments in 8 bits, or weights and moments in host memory
    adapters        over frozen weights as their files have them, or in 4 bits

Each can be combined with shorter passes and fewer slots. All weights are trained unless that takes more than FULL_WORTH
times as long as adapters; a saving that makes a step little faster is not used. Seconds are those of pace.py.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from scalerl.recipe.recipe import Recipe, replaced, value_at
from scalerl.training.run.memory import Gpus, Memory, ModelSizes, memory_of, num_generators
from scalerl.training.run.pace import BUS, StepTime, rates_of

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
    step_s: float
    """Estimated seconds of a step."""


def choose_savings(
    recipe: Recipe, sizes: ModelSizes, gpus: Gpus, is_open: Collection[str] = KEYS
) -> SavingsChoice | None:
    """Return the settings to train with on one of the GPUs; None if none fit, or if the recipe needs other devices.

    Only those of KEYS that are in `is_open` may change.
    """
    if recipe.learner.sharding != "none" or num_generators(recipe) or recipe.rollout.engine != "torch":
        return None
    room = Gpus(1, ROOM * gpus.bytes_each)
    of_weights: list[SavingsChoice] = []
    of_adapters: list[SavingsChoice] = []
    for saving in SAVINGS:
        choice = _fastest(recipe, sizes, room, saving, is_open)
        if choice is not None:
            (of_adapters if choice.changes["model.lora.rank"] else of_weights).append(choice)
    weights = _fewest(of_weights)
    adapters = _fewest(of_adapters)
    if weights is None or (adapters is not None and weights.step_s > FULL_WORTH * adapters.step_s):
        return adapters
    return weights


def _fewest(choices: Sequence[SavingsChoice]) -> SavingsChoice | None:
    """Return the choice with the fewest savings, the first, that is about as fast as the fastest."""
    least = min((each.step_s for each in choices), default=0.0)
    return next((each for each in choices if each.step_s <= WORTH * least), None)


def _fastest(
    recipe: Recipe, sizes: ModelSizes, room: Gpus, saving: Mapping[str, Any], is_open: Collection[str]
) -> SavingsChoice | None:
    """Return the fastest settings that fit with a saving; None if none do, or if it changes a setting not open.

    Of settings that take as long, those with the longest passes are chosen.
    """
    current = {key: value_at(recipe, key) for key in KEYS}
    if saving["model.lora.rank"] and "model.lora.rank" not in is_open:
        saving = {**saving, "model.lora.rank": current["model.lora.rank"]}
    if any(saving[key] != current[key] for key in saving if key not in is_open):
        return None
    best = None
    passes = _passes(recipe) if "learner.micro_batch_tokens" in is_open else [current["learner.micro_batch_tokens"]]
    for slots in _slots(recipe, is_open):
        for num_tokens in passes:
            changes = {**saving, "learner.micro_batch_tokens": num_tokens, "rollout.slots": slots}
            memory = memory_of(replaced(recipe, changes), sizes, room)
            if not memory.fits:
                continue
            # The longest passes that fit may need all activations to be recomputed, where shorter ones keep them.
            step_s = StepTime(memory.recipe, sizes, rates_of(room.bytes_each / ROOM), slots).step_s()
            if best is None or step_s < best.step_s:
                best = SavingsChoice(changes=changes, memory=memory, step_s=step_s)
    return best


def _passes(recipe: Recipe) -> list[int]:
    """Return lengths of passes to try, the recipe's first."""
    longest = recipe.learner.micro_batch_tokens
    return [longest, *(2**power for power in range(20, 10, -1) if SHORTEST_PASS <= 2**power < longest)]


def _slots(recipe: Recipe, is_open: Collection[str]) -> list[int]:
    """Return numbers of slots to try, the most first."""
    batch = recipe.pipeline.batch
    if "rollout.slots" not in is_open:
        return [recipe.rollout.slots or batch]
    return sorted({max(batch >> power, min(batch, FEWEST_SLOTS)) for power in range(6)}, reverse=True)


def reasons(recipe: Recipe, sizes: ModelSizes, gpus: Gpus, choice: SavingsChoice) -> dict[str, str]:
    """Return the reason for the value of each of KEYS, with its cost."""
    size = f"{gpus.bytes_each / 1e9:.3g} GB"
    changes = choice.changes

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
