"""Compute the memory that a layout needs on each device, and find the nearest layout that fits if it does not."""

import itertools
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from scalerl.config import Recipe, body_dtype
from scalerl.errors import RecipeError, UsageError
from scalerl.loop.slots import full_slots
from scalerl.run.cluster.memory import Demands, Layout, ModelSizes, generator_bytes, learner_bytes, slot_bytes

COMFORTABLE = 0.9
"""Share of a GPU's memory up to which gradient_checkpointing = "auto" keeps all activations: estimates are not
exact, and free memory is not in one piece."""
CACHE_SHARE = 0.9
"""Share of a generator's free memory that its cache takes if the number of slots is not set."""
SHARED_CACHE_SHARE = 0.25
"""The same beside a learner on the same device."""
_ROPES_OF_WHOLE_PASSES = frozenset({"dynamic", "longrope"})
"""Rotary positions whose frequencies transformers chooses by the largest position of a pass."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpus:
    """The devices of a plan."""

    num: int
    bytes_each: float

    @classmethod
    def parse(cls, text: str) -> "Gpus":
        """Read "8x80": eight devices of 80 GB (10^9 bytes)."""
        match = re.fullmatch(r"(\d+)\s*x\s*(\d+(?:\.\d+)?)\s*(?:GB)?", text, re.IGNORECASE)
        if match is None or int(match[1]) < 1 or float(match[2]) <= 0:
            raise UsageError(f"--gpus {text} is not a number of GPUs and the memory of each, such as 8x80 (GB)")
        return cls(num=int(match[1]), bytes_each=1e9 * float(match[2]))


@dataclass(frozen=True, slots=True, kw_only=True)
class Price:
    """The memory of a layout, by role and part, on each device."""

    layout: Layout
    parts: Mapping[str, Mapping[str, float]]
    """"learner" and, if it is on other devices, "generator"."""
    gpus: Gpus

    def total(self, role: str) -> float:
        return sum(self.parts[role].values())

    @property
    def overfull(self) -> tuple[str, ...]:
        """Roles whose devices have too little memory."""
        return tuple(role for role in self.parts if self.total(role) > self.gpus.bytes_each)

    @property
    def fits(self) -> bool:
        return not self.overfull and self.layout.gpus <= self.gpus.num


def decide_checkpointing(recipe: Recipe, config: Any, gpus: Gpus | None) -> Recipe:
    """Return the recipe with learner.gradient_checkpointing decided: with auto, if the GPUs need it; not on a CPU."""
    if recipe.learner.gradient_checkpointing != "auto":
        return recipe
    needed = False
    if gpus is not None:
        sizes = ModelSizes.from_config(config)
        needed = not _is_comfortable(price(sizes, layout_of(recipe), demands_of(recipe), gpus))
    learner = recipe.learner.model_copy(update={"gradient_checkpointing": needed})
    return recipe.model_copy(update={"learner": learner})


def _is_comfortable(priced: Price) -> bool:
    return priced.total("learner") <= COMFORTABLE * priced.gpus.bytes_each


def layout_of(recipe: Recipe) -> Layout:
    """Return the layout that a recipe asks for."""
    learner, rollout = recipe.learner, recipe.rollout
    shards = {"full": learner.ranks, "hybrid": learner.shard_size or 1}.get(learner.sharding, 1)
    generators = rollout.generators or int(_samples_elsewhere(recipe))
    slots = rollout.slots or full_slots(recipe.pipeline)
    return Layout(
        generators=generators,
        gpus_per_generator=rollout.generator_gpus,
        slots=-(-slots // max(generators, 1)),
        ranks=learner.ranks,
        shards=shards,
        micro_batch_tokens=learner.micro_batch_tokens,
        checkpointing=learner.gradient_checkpointing is True,
        context_ranks=learner.context_ranks,
    )


def check_context_ranks(recipe: Recipe, config: Any) -> None:
    """Raise RecipeError if passes of a model cannot be divided among learner.context_ranks ranks."""
    size, ranks = recipe.learner.context_ranks, recipe.learner.ranks
    if size == 1:
        return
    heads = config.num_attention_heads
    if heads % size:
        possible = [str(number) for number in range(1, ranks + 1) if heads % number == 0 == ranks % number]
        raise RecipeError(
            f"learner.context_ranks is {size}, which does not divide the model's {heads} attention heads: with "
            f"learner.ranks = {ranks} it can be {' or '.join(possible)}"
        )
    if unsuited := _indivisible_positions(config):
        raise RecipeError(
            f"learner.context_ranks is {size}, but the positions of this model ({unsuited[0]} in its config.json) "
            f"depend on the longest sequence of a pass, which a slice does not show: set learner.context_ranks = 1"
        )


def _indivisible_positions(config: Any) -> list[str]:
    """Return the kinds of rotary positions of a model that depend on a whole pass."""
    given = getattr(config, "rope_parameters", None) or {}
    # One table, or one for each kind of layer.
    tables = given.values() if all(isinstance(value, Mapping) for value in given.values()) else [given]
    return sorted({str(table.get("rope_type")) for table in tables} & _ROPES_OF_WHOLE_PASSES)


def _samples_elsewhere(recipe: Recipe) -> bool:
    """Return whether vLLM has GPUs of its own, apart from those of the learner's ranks."""
    devices = recipe.rollout.vllm.devices if recipe.rollout.engine == "vllm" else ()
    return bool(devices) and set(devices).isdisjoint(range(recipe.learner.ranks))


def demands_of(recipe: Recipe) -> Demands:
    """Return what a recipe asks for on GPUs, besides the layout."""
    return Demands(
        context=recipe.rollout.context,
        dtype_bytes=2 if body_dtype(recipe, gpu=True) == "bfloat16" else 4,
        fp32_head=recipe.model.fp32_head in ("both", "generator"),
        lora_rank=recipe.model.lora.rank,
        second_copy=recipe.learner.start_kl > 0,
        most_slots=None if recipe.rollout.slots else full_slots(recipe.pipeline),
        parallel=(1,) if recipe.rollout.engine == "torch" else (1, 2, 4, 8),
    )


def price(sizes: ModelSizes, layout: Layout, demands: Demands, gpus: Gpus) -> Price:
    """Return the memory that a layout needs on each device. Slots that are not set follow from what is left."""
    layout = _with_slots(sizes, layout, demands, gpus)
    learner, generator = learner_bytes(sizes, layout, demands), generator_bytes(sizes, layout, demands)
    if layout.generators:
        return Price(layout=layout, parts={"learner": learner, "generator": generator}, gpus=gpus)
    both = {f"generator's {part}": value for part, value in generator.items() if value}
    return Price(layout=layout, parts={"learner": {**learner, **both}}, gpus=gpus)


def _with_slots(sizes: ModelSizes, layout: Layout, demands: Demands, gpus: Gpus) -> Layout:
    if demands.most_slots is None:
        return layout
    empty = replace(layout, slots=0)
    used = sum(generator_bytes(sizes, empty, demands).values())
    share = CACHE_SHARE
    if not layout.generators:
        used += sum(learner_bytes(sizes, layout, demands).values())
        share = SHARED_CACHE_SHARE
    each = slot_bytes(sizes, layout, demands) + 8 * sizes.vocabulary
    wanted = -(-demands.most_slots // max(layout.generators, 1))
    return replace(layout, slots=min(max(int(share * (gpus.bytes_each - used) / each), 1), wanted))


def nearest(
    sizes: ModelSizes, layout: Layout, demands: Demands, gpus: Gpus, *, can_divide: bool = True
) -> Price | None:
    """Return the layout that fits with the fewest changes, and of those the one with the least; None if none does.

    Sequences are divided among more devices only if nothing else fits and the model allows it (`can_divide`), and among
    fewer only if that does not fit either.
    """
    powers = (2**power for power in range(gpus.num.bit_length() if can_divide else 0))
    more = (size for size in powers if size > layout.context_ranks and sizes.heads % size == 0)
    fewer = (size for size in range(layout.context_ranks - 1, 0, -1) if sizes.heads % size == 0)
    for context_ranks in (layout.context_ranks, *more, *fewer):
        candidates = []
        for candidate in _candidates(replace(layout, context_ranks=context_ranks), demands, gpus):
            priced = price(sizes, candidate, demands, gpus)
            if priced.fits:
                candidates.append((_distance(layout, candidate), priced))
        if candidates:
            return min(candidates, key=lambda pair: pair[0])[1]
    return None


def _candidates(layout: Layout, demands: Demands, gpus: Gpus) -> Iterator[Layout]:
    ranks = sorted({layout.ranks, *(2**power for power in range(gpus.num.bit_length()) if 2**power <= gpus.num)})
    parallel = sorted({layout.gpus_per_generator, *demands.parallel})
    # A micro-batch holds at least one sequence of the whole context.
    tokens = sorted({layout.micro_batch_tokens, *(demands.context * 2**power for power in range(4))})
    fewer = () if demands.most_slots is not None else (max(layout.slots // 2**power, 1) for power in range(1, 6))
    slots = sorted({layout.slots, *fewer})
    for num_ranks, each, most_tokens, num_slots in itertools.product(ranks, parallel, tokens, slots):
        if most_tokens > layout.micro_batch_tokens:
            continue
        left = gpus.num - num_ranks
        most = left // each
        for generators in {layout.generators, most, most // 2}:
            if not 0 <= generators <= most or (generators == 0) != (layout.generators == 0):
                continue
            for shards, checkpointing in itertools.product({layout.shards, 1, num_ranks}, {layout.checkpointing, True}):
                if layout.context_ranks > 1 and (num_ranks % layout.context_ranks or shards < num_ranks):
                    continue
                if shards <= num_ranks and num_ranks % shards == 0:
                    yield replace(
                        layout,
                        generators=generators,
                        gpus_per_generator=each,
                        slots=num_slots,
                        ranks=num_ranks,
                        shards=shards,
                        micro_batch_tokens=most_tokens,
                        checkpointing=checkpointing,
                    )


def slots_on(recipe: Recipe, config: Any, gpus: Gpus) -> int:
    """Return the slots of all generators together, if each has GPUs of this size: as many as the loop can fill and fit.

    The recipe does not set rollout.slots.
    """
    layout = price(ModelSizes.from_config(config), layout_of(recipe), demands_of(recipe), gpus).layout
    return layout.slots * max(layout.generators, 1)


def explain(own: Price, found: Price | None, *, slots_follow: bool) -> str:
    """Return a sentence that says why a layout does not fit, and names the nearest one that does."""
    gpus, layout = own.gpus, own.layout
    if layout.gpus > gpus.num:
        fault = f"{layout.generators} generators of {layout.gpus_per_generator} and {layout.ranks} for the learner are "
        fault += f"{layout.gpus} GPUs, and there are {gpus.num}"
    else:
        role = own.overfull[0]
        parts = sorted(own.parts[role].items(), key=lambda item: -item[1])[:3]
        largest = ", ".join(f"{part} {value / 1e9:.1f}" for part, value in parts)
        fault = f"a GPU of the {role} needs {own.total(role) / 1e9:.0f} GB ({largest}), and it has "
        fault += f"{gpus.bytes_each / 1e9:g}"
    if found is None:
        return f"{fault}: no layout on {gpus.num} such GPUs fits; shorten rollout.context, or use more or larger GPUs"
    changes = " ".join(f"--set {text}" for text in settings_for(layout, found.layout, slots_follow=slots_follow))
    without = ", without learner.shard_size" if _is_hybrid(layout) and not _is_hybrid(found.layout) else ""
    return f"{fault}: the nearest layout that fits is {changes}{without}"


def _distance(layout: Layout, other: Layout) -> tuple[float, ...]:
    """Return a sort key for changing one layout into another: the weighted number of changed settings comes first."""
    changed = [name for name in layout.__slots__ if getattr(layout, name) != getattr(other, name) and name != "slots"]
    changed += ["slots"] * (other.slots < layout.slots)
    # Slower but equal: recomputing, smaller passes. Then sharding, then other devices, then fewer slots.
    costs = {"checkpointing": 1.3, "micro_batch_tokens": 1.0, "shards": 1.1, "ranks": 1.5, "generators": 1.5}
    total = sum(costs.get(name, 2.0) for name in changed)
    smaller = layout.micro_batch_tokens / other.micro_batch_tokens + layout.slots / other.slots
    return total, smaller, other.ranks, -other.generators, other.gpus_per_generator


def settings_for(before: Layout, after: Layout, *, slots_follow: bool) -> list[str]:
    """Return the --set of a recipe that turn one layout into another; `slots_follow` from memory."""
    texts = {
        "generators": f"rollout.generators={after.generators}",
        "gpus_per_generator": f"rollout.gpus_per_generator={after.gpus_per_generator}",
        "slots": f"rollout.slots={after.slots * max(after.generators, 1)}",
        "ranks": f"learner.ranks={after.ranks}",
        "shards": f"learner.sharding={'full' if after.shards > 1 else 'replicate'}",
        "context_ranks": f"learner.context_ranks={after.context_ranks}",
        "micro_batch_tokens": f"learner.micro_batch_tokens={after.micro_batch_tokens}",
        "checkpointing": f"learner.gradient_checkpointing={str(after.checkpointing).lower()}",
    }
    changed = [name for name in texts if getattr(before, name) != getattr(after, name)]
    if slots_follow:
        changed = [name for name in changed if name != "slots"]
    if "ranks" in changed and "shards" not in changed and (after.shards == 1 or _is_hybrid(before) > _is_hybrid(after)):
        changed.append("shards")
    return [texts[name] for name in changed]


def _is_hybrid(layout: Layout) -> bool:
    return 1 < layout.shards < layout.ranks


def priced_recipe(recipe: Recipe, config: Any, gpus: Gpus) -> tuple[Price, Price | None]:
    """Return the memory of a recipe's layout, and the nearest layout that fits if this one does not."""
    sizes, layout, demands = ModelSizes.from_config(config), layout_of(recipe), demands_of(recipe)
    own = price(sizes, layout, demands, gpus)
    if recipe.learner.gradient_checkpointing == "auto" and not _is_comfortable(own):
        checkpointed = price(sizes, replace(layout, checkpointing=True), demands, gpus)
        own = checkpointed if checkpointed.fits else own
    can_divide = not _indivisible_positions(config)
    return own, None if own.fits else nearest(sizes, layout, demands, gpus, can_divide=can_divide)
