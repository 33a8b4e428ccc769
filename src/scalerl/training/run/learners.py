"""Build the learner that a recipe describes: in this process, or with ranks on this machine or a cluster."""

import functools
import os
from typing import TYPE_CHECKING, Any

import torch

from scalerl.recipe.choose import choose
from scalerl.recipe.parts import LearnerSettings, OptimizerSettings
from scalerl.recipe.recipe import Recipe, body_dtype, pushes_adapters, replaced
from scalerl.training.learner import torch_learner
from scalerl.training.learner.references import REFERENCES
from scalerl.training.models.load import name_elsewhere
from scalerl.training.models.lora import wrap
from scalerl.training.rl.advantages import BASELINES, NORMALISATIONS
from scalerl.training.rl.algorithm import foresee, reinforce
from scalerl.training.rl.correction import CORRECTIONS
from scalerl.training.rl.credit import CREDITS, returns
from scalerl.training.rl.entropy import CONTROLS
from scalerl.training.rl.filters import effective_batch
from scalerl.training.rl.imitation import IMITATIONS
from scalerl.training.rl.kl import ESTIMATORS
from scalerl.training.rl.losses import LOSSES, check_result, check_signature
from scalerl.training.rl.objective import Objective
from scalerl.training.rl.weights import WEIGHTS
from scalerl.training.run.cluster.place import Place
from scalerl.training.run.memory import Gpus, decide_checkpointing

if TYPE_CHECKING:
    from transformers import PreTrainedModel


def build_learner(model: "PreTrainedModel", recipe: Recipe, *, version: int = 0, place: Place | None = None) -> Any:
    """Return the learner that a recipe describes. It trains `model` in place, or its ranks load the model by name.

    Ranks are processes on this machine, or Ray actors that `place` holds.
    """
    if place is None:
        device = model.device
        gpus = None
    else:
        device = place.computes_on
        gpus = place.gpus
    gpu = device.type == "cuda"
    if gpus is None and gpu:
        gpus = Gpus.here(recipe.learner.ranks, device=device)
    recipe = decide_checkpointing(recipe, model.config, gpus)
    if recipe.learner.sharding == "none":
        settings = learner_settings(recipe, gpu=gpu)
        return torch_learner(wrap(model, settings.pop("lora")), version=version, **settings)
    common: dict[str, Any] = {
        "model": name_elsewhere(recipe.model.required_path),
        "settings": functools.partial(learner_settings, recipe, gpu=gpu),
        "seed": recipe.seed,
        "version": version,
    }
    if place is not None and place.ranks is not None:
        from scalerl.training.run.cluster.ranks import ray_learner

        return ray_learner(place.ranks, recipe.learner, **common)
    return child_learner(recipe.learner, device, **common)


def child_learner(learner: LearnerSettings, device: torch.device, **fields: Any) -> Any:
    """Return a learner whose ranks are processes on this machine; `fields` are fields of RankSpec."""
    from scalerl.training.learner.ranks.driver import child_ranks, ranked_learner

    threads = max(torch.get_num_threads() // learner.ranks, 1)
    if device.type == "cuda":
        # With a GPU, one thread on the host is fastest; 0 leaves the user's number.
        threads = 0 if "OMP_NUM_THREADS" in os.environ else 1
    return ranked_learner(child_ranks, learner, device=device.type, threads=threads, **fields)


def learner_settings(recipe: Recipe, *, gpu: bool) -> dict[str, Any]:
    """Return the arguments of torch_learner for a recipe, and `lora`. Each rank calls this function itself."""
    loss = choose(LOSSES, recipe.loss)
    check_signature(loss, recipe.loss.name)
    if ":" in recipe.loss.name:
        check_result(loss, recipe.loss.name)
    has_kl = recipe.reference is not None
    return {
        "algorithm": _algorithm(recipe),
        "objective": Objective(
            loss=loss,
            correction=choose(CORRECTIONS, recipe.correction),
            kl=choose(ESTIMATORS, recipe.kl.estimator) if has_kl else None,
        ),
        "reference": choose(REFERENCES, recipe.kl.reference) if has_kl else None,
        "critic": _critic(recipe) if recipe.has_critic else None,
        "optimizer": _resolved(recipe),
        "learner": recipe.learner,
        "fp32_head": recipe.model.fp32_head in ("both", "learner"),
        "dtype": getattr(torch, body_dtype(recipe.model, gpu=gpu)),
        "lora": recipe.model.lora,
        "merges": not pushes_adapters(recipe.model, recipe.rollout),
        "router_replay": recipe.model.router_replay,
    }


def _algorithm(recipe: Recipe) -> Any:
    return functools.partial(
        reinforce,
        effective=functools.partial(
            _effective(recipe),
            zero_variance=recipe.filter.zero_variance,
            baseline=choose(BASELINES, recipe.advantage.baseline),
        ),
        normalise=choose(NORMALISATIONS, recipe.advantage.normalisation),
        credit=choose(CREDITS, recipe.advantage.credit),
        average=choose(WEIGHTS, recipe.weights),
        entropy=choose(CONTROLS, recipe.entropy),
        imitation=choose(IMITATIONS, recipe.imitation),
        kl=recipe.kl.coefficient,
    )


def _effective(recipe: Recipe) -> Any:
    fewest = 1 if recipe.has_critic else 2
    return functools.partial(effective_batch, drop_truncated=recipe.filter.drop_truncated, fewest=fewest)


def _critic(recipe: Recipe) -> Any:
    """Return the critic's class with its settings bound. The critic also learns from groups with equal rewards."""
    from scalerl.training.learner.critic import Critic

    credit: Any = recipe.advantage.credit
    targets = functools.partial(returns, gamma=credit.gamma, level=credit.level)
    return functools.partial(
        Critic,
        algorithm=functools.partial(
            foresee, effective=functools.partial(_effective(recipe), zero_variance=False), returns=targets
        ),
        optimizer=replaced(_resolved(recipe), {"lr": recipe.critic.lr or 10 * recipe.optimizer.lr}),
        warmup_steps=recipe.critic.warmup_steps,
    )


def _resolved(recipe: Recipe) -> OptimizerSettings:
    """Return the optimiser's settings with the number of steps over which the learning rate decays."""
    steps = None
    if recipe.optimizer.schedule != "constant":
        steps = recipe.optimizer.decay_steps or recipe.budget.steps
    return replaced(recipe.optimizer, {"decay_steps": steps})
