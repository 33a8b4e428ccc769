"""train --check: the memory of a recipe's layout on every GPU, before anything starts."""

import functools
from typing import TYPE_CHECKING, Any

import typer

from scalerl.errors import ClusterError, RecipeError, UsageError

if TYPE_CHECKING:
    from scalerl.config import Recipe
    from scalerl.run.cluster.layout import Gpus, Price


def check_layout(name: str, recipe: "Recipe", gpus: str | None, *, check: bool) -> bool:
    """Print what the layout needs; return whether that is all there is to do. ClusterError if it does not fit.

    The GPUs are those given, or else those of this machine; without any there is nothing to price. Those of a cluster
    of several machines are not known before the run connects to it, which then counts them.
    """
    if gpus is not None and not check:
        raise UsageError("--gpus prices a layout without training: give it with --check")
    if recipe.model.path is None:
        raise RecipeError("model.path is not set, so there is nothing to train: add --set model.path=...")
    from scalerl.models.load import load_config
    from scalerl.run.cluster.layout import Gpus, check_context_ranks, explain, priced_recipe

    load = functools.partial(load_config, recipe.model.path, trust_remote_code=recipe.model.trust_remote_code)
    if recipe.learner.context_ranks > 1:
        check_context_ranks(recipe, load())
    elsewhere = recipe.cluster.address not in ("", "local")
    devices = Gpus.parse(gpus) if gpus is not None else None if elsewhere else _here()
    if devices is None:
        return False
    own, other = priced_recipe(recipe, load(), devices)
    _print(own)
    if recipe.learner.gradient_checkpointing == "auto" and own.fits:
        chosen = "on, since not all activations would fit" if own.layout.checkpointing else "off"
        typer.echo(f"gradient checkpointing: {chosen} (learner.gradient_checkpointing is auto)")
    slots_follow = recipe.rollout.slots is None
    if not own.fits:
        raise ClusterError(explain(own, other, slots_follow=slots_follow))
    if gpus is not None:
        typer.echo(f"{name} fits: {own.layout.gpus} of {devices.num} GPUs")
    return gpus is not None


def _here() -> "Gpus | None":
    import torch

    from scalerl.run.cluster.layout import Gpus

    if not torch.cuda.is_available():
        return None
    memory = torch.cuda.get_device_properties(0).total_memory
    return Gpus(num=torch.cuda.device_count(), bytes_each=float(memory))


def _print(price: "Price") -> None:
    from rich import box
    from rich.table import Table

    from scalerl.cli.console import table_console

    layout = price.layout
    table: Any = Table(box=box.SIMPLE_HEAD)
    for header in ("GPUs", "number", "part", "GB each"):
        table.add_column(header, justify="right" if header in ("number", "GB each") else "left")
    numbers = {"learner": layout.ranks, "generator": layout.generators * layout.gpus_per_generator}
    for role, parts in price.parts.items():
        for place, (part, value) in enumerate(parts.items()):
            shown = (role, str(numbers[role])) if place == 0 else ("", "")
            table.add_row(*shown, part, f"{value / 1e9:.1f}")
        table.add_row("", "", "in all", f"{price.total(role) / 1e9:.1f} of {price.gpus.bytes_each / 1e9:g}")
    table_console().print(table)
    if layout.generators:
        typer.echo(f"{layout.slots} completions at a time in each generator")
