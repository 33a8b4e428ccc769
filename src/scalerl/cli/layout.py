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

    By default the GPUs are those of this machine. Without GPUs nothing is printed; nor for a cluster of several
    machines, whose GPUs are known only once the run has connected to it. `price` is that of a GPU-hour. Return whether
    this was all that was asked for: True if `gpus` are given, which need not be here.
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

    is_here = recipe.cluster.address in ("", "local")
    devices = gpus
    if devices is None and is_here:
        devices = Gpus.here()
    if devices is None:
        return False
    config = load_config(recipe.model.required_path, trust_remote_code=recipe.model.trust_remote_code)
    sizes = ModelSizes.from_config(config)
    memory = memory_of(recipe, sizes, devices)
    _print(memory)
    if not memory.fits:
        changes = settings_that_fit(recipe, sizes, devices) or _changes_that_save(recipe, sizes, devices)
        raise ClusterError(why_not(memory, changes))
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
    pace = pace_of(memory.recipe, sizes, devices, memory.slots)
    say(f"Estimate: {pace_words(pace, price)}")
    if gpus is not None:
        typer.echo(f"{name} fits: {sum(memory.num.values())} of {devices.num} GPUs")
    return gpus is not None


def _changes_that_save(recipe: "Recipe", sizes: "ModelSizes", devices: "Gpus") -> "dict[str, Any] | None":
    """Return changes that save enough memory for a recipe to fit on one GPU; None if there are none."""
    from scalerl.recipe.recipe import value_at
    from scalerl.training.run.savings import choose_savings

    choice = choose_savings(recipe, sizes, devices)
    if choice is None:
        return None
    return {key: value for key, value in choice.changes.items() if value != value_at(recipe, key)}


def _print(memory: "Memory") -> None:
    """Print a table of what is in the memory of the GPUs of each role, and what is elsewhere."""
    rows: list[tuple[str, ...]] = []
    for role, parts in memory.parts.items():
        # Only the first row of a role names it.
        of_role = (role, str(memory.num[role]))
        for part, num_bytes in {**parts, "total": memory.total(role)}.items():
            rows.append((*of_role, part, f"{num_bytes / 1e9:.1f}"))
            of_role = ("", "")
    say(table(("GPUs", "number", "part", f"GB each, of {memory.gpus.bytes_each / 1e9:g}"), rows))
    if memory.host:
        typer.echo(f"The optimiser takes {memory.host / 1e9:.1f} GB of host memory")
    if memory.num["generator"]:
        typer.echo(f"Each generator samples {memory.slots} completions at a time")


def why_not(memory: "Memory", changes: "Mapping[str, Any] | None") -> str:
    """Return a sentence that says why a recipe does not fit, and what to change."""
    what_lacks = _what_lacks(memory)
    if changes is None:
        remedy = "shorten rollout.context, or use more or larger GPUs"
        return f"{what_lacks}: no layout on {memory.gpus.num} such GPUs fits; {remedy}"
    options = [f"--set {key}={str(value).lower()}" for key, value in sorted(changes.items())]
    # --set cannot remove learner.shard_size, which only hybrid sharding accepts.
    without = ", without learner.shard_size" if memory.recipe.learner.sharding == "hybrid" else ""
    return f"{what_lacks}: it fits with {' '.join(options)}{without}"


def _what_lacks(memory: "Memory") -> str:
    """Return a clause that says of what there is too little: of GPUs, or of memory on one of them."""
    from scalerl.training.run.memory import num_generators

    gpus = memory.gpus
    num = sum(memory.num.values())
    if num > gpus.num:
        generators = f"{num_generators(memory.recipe)} generators of {memory.recipe.rollout.generator_gpus}"
        learner = f"{memory.num['learner']} for the learner"
        return f"{generators} and {learner} are {num} GPUs, but there are {gpus.num}"
    role = memory.overfull[0]
    by_size = sorted(memory.parts[role].items(), key=lambda item: -item[1])
    largest = ", ".join(f"{part} {num_bytes / 1e9:.1f}" for part, num_bytes in by_size[:3])
    needs = f"{memory.total(role) / 1e9:.0f} GB ({largest})"
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
    if price is not None:
        text += f" and costs about {price * gpu_hours:,.2f}"
    return text


def rounded(number: float) -> str:
    """Return a number with two digits, as estimates deserve."""
    if number >= 100:
        unit = 10 ** (math.floor(math.log10(number)) - 1)
        return f"{round(number / unit) * unit:,.0f}"
    return f"{number:.2g}"
