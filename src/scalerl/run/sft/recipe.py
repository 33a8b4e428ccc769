"""SFT as a recipe describes it."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from scalerl.config import Recipe, body_dtype
from scalerl.errors import RecipeError
from scalerl.run.parts import build_tasks
from scalerl.run.sft.make import SftObserver, SftResult, SftStart, sft


def sft_from_recipe(
    recipe: Recipe,
    out: Path,
    *,
    model: str = "",
    record: Mapping[str, Any] | None = None,
    resume: bool = False,
    observer: SftObserver | None = None,
) -> SftResult | None:
    """Make a base model from the demonstrations of the recipe's tasks; `model` is used instead of the recipe's."""
    base = model or recipe.sft.model or recipe.model.path
    if not base:
        raise RecipeError(
            "model.path is not set, so there is nothing to start from: set it, or sft.model, or add --model new"
        )
    tasks = build_tasks(recipe)
    dtype = getattr(torch, body_dtype(recipe, gpu=torch.cuda.is_available()))
    return sft(
        tasks if recipe.tasks else next(iter(tasks.values())),
        out,
        recipe.sft,
        start=SftStart(model=base, seed=recipe.seed, dtype=dtype, trust_remote_code=recipe.model.trust_remote_code),
        weights={name: task.weight for name, task in recipe.tasks.items()} or None,
        learner=recipe.learner,
        grading=recipe.grading,
        record=record,
        resume=resume,
        observer=observer,
    )
