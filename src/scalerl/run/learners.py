"""The learner that a recipe describes: in this process, over processes of this machine, or over a cluster."""

import functools
from typing import TYPE_CHECKING, Any

import torch

from scalerl.choose import choose
from scalerl.config import Recipe, body_dtype
from scalerl.config.parts import OptimizerSettings
from scalerl.learner import torch_learner
from scalerl.models.load import name_elsewhere
from scalerl.models.lora import wrap
from scalerl.rl.advantages import BASELINES, NORMALISATIONS
from scalerl.rl.filters import effective_batch
from scalerl.rl.losses import LOSSES, check_result, check_signature
from scalerl.rl.weights import WEIGHTS
from scalerl.run.cluster.place import Place
from scalerl.run.memory import Gpus, check_context_ranks, decide_checkpointing

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from scalerl.run.cluster.ranks import PlacedRanks


def build_learner(model: "PreTrainedModel", recipe: Recipe, *, version: int = 0, place: Place | None = None) -> Any:
    """Return the learner that a recipe describes: it trains `model` in place, or a copy divided among ranks.

    Ranks that `place` has placed on a cluster load the model themselves; others are processes of this machine.
    """
    check_context_ranks(recipe, model.config)
    if place is not None and place.ranks is not None:
        return _build_ray_learner(model, recipe, place.ranks, version=version, gpus=place.rank_gpus)
    gpu = model.device.type == "cuda"
    recipe = decide_checkpointing(recipe, model.config, _gpus(model.device, recipe))
    if recipe.learner.sharding != "none":
        from scalerl.learner.ranks.process import process_learner

        settings = functools.partial(learner_settings, recipe, gpu=gpu)
        return process_learner(model, settings=settings, learner=recipe.learner, seed=recipe.seed, version=version)
    settings = learner_settings(recipe, gpu=gpu)
    return torch_learner(wrap(model, settings.pop("lora")), version=version, **settings)


def _build_ray_learner(
    model: "PreTrainedModel", recipe: Recipe, placed: "PlacedRanks", *, version: int, gpus: Gpus | None
) -> Any:
    from scalerl.run.cluster.ranks import ray_learner

    recipe = decide_checkpointing(recipe, model.config, gpus)
    assert recipe.model.path is not None, "checked by load_inputs"
    return ray_learner(
        placed,
        model=name_elsewhere(recipe.model.path),
        settings=functools.partial(learner_settings, recipe, gpu=placed.on_gpu),
        learner=recipe.learner,
        seed=recipe.seed,
        version=version,
    )


def _gpus(device: torch.device, recipe: Recipe) -> Gpus | None:
    """Return the GPUs of the learner's ranks, with the memory that is free or already this process's; None on a CPU."""
    if device.type != "cuda":
        return None
    usable = torch.cuda.mem_get_info(device)[0] + torch.cuda.memory_reserved(device)
    return Gpus(num=recipe.learner.ranks, bytes_each=float(usable))


def learner_settings(recipe: Recipe, *, gpu: bool) -> dict[str, Any]:
    """Return the functions and settings of a step, as learners take them, and `lora`. Ranks call this themselves."""
    loss = choose(LOSSES, recipe.loss)
    check_signature(loss, recipe.loss.name)
    if ":" in recipe.loss.name:
        check_result(loss, recipe.loss.name)
    return {
        "loss": loss,
        "effective": functools.partial(
            effective_batch,
            drop_truncated=recipe.filter.drop_truncated,
            zero_variance=recipe.filter.zero_variance,
            baseline=choose(BASELINES, recipe.advantage.baseline),
            normalise=choose(NORMALISATIONS, recipe.advantage.normalisation),
        ),
        "weigh": choose(WEIGHTS, recipe.weights),
        "optimizer": _resolved(recipe),
        "learner": recipe.learner,
        "fp32_head": recipe.model.fp32_head in ("both", "learner"),
        "dtype": getattr(torch, body_dtype(recipe, gpu=gpu)),
        "lora": recipe.model.lora,
    }


def _resolved(recipe: Recipe) -> OptimizerSettings:
    """Return the optimiser's settings with the steps over which the learning rate falls."""
    if recipe.optimizer.schedule == "constant":
        return recipe.optimizer.model_copy(update={"decay_steps": None})
    steps = recipe.optimizer.decay_steps or recipe.budget.steps
    return recipe.optimizer.model_copy(update={"decay_steps": steps})
