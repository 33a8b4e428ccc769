"""scalerl train --check: estimate the memory of a recipe on each GPU."""

import functools
from typing import TYPE_CHECKING, Any

import typer

from scalerl.cli.console import say, table
from scalerl.errors import ClusterError

if TYPE_CHECKING:
    from scalerl.recipe.recipe import Recipe
    from scalerl.training.run.memory import Gpus, Memory, ModelSizes


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
        check_context_ranks,
        checkpoint_bytes,
        checkpoint_words,
        memory_of,
        settings_that_fit,
        why_not,
    )
    from scalerl.training.run.pace import pace_of

    load = functools.partial(load_config, recipe.model.required_path, trust_remote_code=recipe.model.trust_remote_code)
    if recipe.learner.context_ranks > 1:
        check_context_ranks(recipe.learner, load())
    elsewhere = recipe.cluster.address not in ("", "local")
    devices = gpus or (None if elsewhere else Gpus.here())
    if devices is None:
        return False
    sizes = ModelSizes.from_config(load())
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
    if advice := engine_advice(recipe.rollout, sizes.config):
        typer.echo(advice)
    size, keeps_best = checkpoint_bytes(memory.recipe, sizes), recipe.best_set is not None
    say(checkpoint_words(size, recipe.checkpoint.keep, keeps_best=keeps_best))
    say(f"Estimate: {pace_of(memory.recipe, sizes, devices, memory.slots).words(price)}")
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
