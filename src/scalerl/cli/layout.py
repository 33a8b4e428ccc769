"""scalerl train --check: estimate the memory of a recipe on each GPU."""

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import typer

from scalerl.cli.console import say, table
from scalerl.errors import ClusterError

if TYPE_CHECKING:
    from scalerl.recipe.recipe import Recipe
    from scalerl.training.run.memory import Gpus, Memory, ModelSizes
    from scalerl.training.run.pace import Pace


def check_layout(name: str, recipe: "Recipe", gpus: "Gpus | None", price: float | None = None) -> bool:
    """Print the memory and the time that a recipe needs; raise ClusterError if it does not fit.

    Return True if `gpus` are given; `price` is that of a GPU-hour.

    By default the GPUs are those of this machine. Without GPUs nothing is printed; nor for a cluster of several
    machines, whose GPUs are known only once the run has connected to it.
    """
    from scalerl.training.models.load import load_config
    from scalerl.training.rollout.torch.build import engine_advice
    from scalerl.training.run.memory import (
        Gpus,
        ModelSizes,
        checkpoint_bytes,
        checkpoint_words,
        memory_of,
        settings_that_fit,
    )
    from scalerl.training.run.pace import pace_of

    elsewhere = recipe.cluster.address not in ("", "local")
    devices = gpus or (None if elsewhere else Gpus.here())
    if devices is None:
        return False
    config = load_config(recipe.model.required_path, trust_remote_code=recipe.model.trust_remote_code)
    sizes = ModelSizes.from_config(config)
    memory = memory_of(recipe, sizes, devices)
    _print(memory)
    if not memory.fits:
        raise ClusterError(
            why_not(memory, settings_that_fit(recipe, sizes, devices) or _saving(recipe, sizes, devices))
        )
    if recipe.learner.gradient_checkpointing == "auto":
        recomputes = memory.recipe.learner.gradient_checkpointing is True
        chosen = "on, because not all activations would fit" if recomputes else "off"
        typer.echo(f"gradient checkpointing: {chosen} (learner.gradient_checkpointing is auto)")
    advice = engine_advice(recipe.rollout, sizes.config)
    if advice:
        typer.echo(advice)
    size = checkpoint_bytes(memory.recipe, sizes)
    keeps_best = recipe.best_set is not None
    say(checkpoint_words(size, recipe.checkpoint.keep, keeps_best=keeps_best))
    say(f"Estimate: {pace_words(pace_of(memory.recipe, sizes, devices, memory.slots), price)}")
    if gpus is not None:
        typer.echo(f"{name} fits: {sum(memory.num.values())} of {devices.num} GPUs")
    return gpus is not None


def _saving(recipe: "Recipe", sizes: "ModelSizes", devices: "Gpus") -> "dict[str, Any] | None":
    """Return settings that save enough memory for a recipe to fit on one GPU; None if there are none."""
    from scalerl.recipe.recipe import value_at
    from scalerl.training.run.savings import choose_savings

    choice = choose_savings(recipe, sizes, devices)
    return choice and {key: value for key, value in choice.changes.items() if value != value_at(recipe, key)}


def _print(memory: "Memory") -> None:
    rows = []
    for role, parts in memory.parts.items():
        names = [(role, str(memory.num[role])), *[("", "")] * len(parts)]
        values = [*parts.items(), ("total", memory.total(role))]
        rows += [(*name, part, f"{value / 1e9:.1f}") for name, (part, value) in zip(names, values, strict=True)]
    say(table(("GPUs", "number", "part", f"GB each, of {memory.gpus.bytes_each / 1e9:g}"), rows))
    if memory.host:
        typer.echo(f"The optimiser takes {memory.host / 1e9:.1f} GB of host memory")
    if memory.num["generator"]:
        typer.echo(f"Each generator samples {memory.slots} completions at a time")


def why_not(memory: "Memory", changes: "Mapping[str, Any] | None") -> str:
    """Return a sentence that says why a recipe does not fit, and what to change."""
    fault = _fault(memory)
    gpus = memory.gpus
    if changes is None:
        return f"{fault}: no layout on {gpus.num} such GPUs fits; shorten rollout.context, or use more or larger GPUs"
    texts = [f"--set {key}={str(value).lower()}" for key, value in sorted(changes.items())]
    # --set cannot remove learner.shard_size, which only hybrid sharding accepts.
    without = ", without learner.shard_size" if memory.recipe.learner.sharding == "hybrid" else ""
    return f"{fault}: it fits with {' '.join(texts)}{without}"


def _fault(memory: "Memory") -> str:
    from scalerl.training.run.memory import num_generators

    gpus = memory.gpus
    num = sum(memory.num.values())
    if num > gpus.num:
        generators = f"{num_generators(memory.recipe)} generators of {memory.recipe.rollout.generator_gpus}"
        learner = f"{memory.num['learner']} for the learner"
        return f"{generators} and {learner} are {num} GPUs, but there are {gpus.num}"
    role = memory.overfull[0]
    largest = sorted(memory.parts[role].items(), key=lambda item: -item[1])[:3]
    parts = ", ".join(f"{part} {value / 1e9:.1f}" for part, value in largest)
    needs = f"{memory.total(role) / 1e9:.0f} GB ({parts})"
    return f"a GPU of the {role} needs {needs}, but it has {gpus.bytes_each / 1e9:g}"


def pace_words(pace: "Pace", price: float | None) -> str:
    """Return an estimate of time as text; `price` is that of a GPU-hour."""
    per_hour = 3600 / (pace.step_s + pace.evaluation_s)
    text = f"about {rounded(per_hour)} steps per hour with the rates of {pace.rates.name}s, evaluations included"
    if pace.hours is None or pace.steps is None:
        return text
    gpu_hours = pace.num_gpus * pace.hours
    text += f"; the budget of {rounded(pace.steps)} steps takes about {rounded(pace.hours)} hours"
    text += f" ({rounded(gpu_hours)} GPU-hours)"
    return text if price is None else f"{text} and costs about {price * gpu_hours:,.2f}"


def rounded(number: float) -> str:
    """Return a number with two digits, as estimates deserve."""
    if number >= 100:
        digits = 10 ** (math.floor(math.log10(number)) - 1)
        return f"{round(number / digits) * digits:,.0f}"
    return f"{number:.2g}"
