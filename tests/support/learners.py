"""Learners on tiny models, and the gradients they compute."""

import tempfile

import torch
from batches import VERSION
from tiny_models import tiny_model

from scalerl.config import load_recipe
from scalerl.run.parts import build_learner

SETTINGS = ("optimizer.lr=1e-3", "optimizer.warmup_steps=0", "optimizer.grad_clip=0", "budget.steps=1")


def recipe_of(*overrides):
    return load_recipe("scalerl", [*SETTINGS, *overrides])


def make_learner(*overrides, family="smollm", dtype=torch.float32, seed=0):
    model, recipe = tiny_model(family, seed=seed, dtype=dtype), recipe_of(*overrides)
    if recipe.learner.sharding == "none":
        return build_learner(model, recipe, version=VERSION)
    # Ranks load it by themselves, before this returns.
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        named = recipe.model.model_copy(update={"path": folder})
        return build_learner(model, recipe.model_copy(update={"model": named}), version=VERSION)


def gradients_of(learner, batch):
    """What a step hands to the optimiser, and its row."""
    gradients = {}

    def keep(*arguments):
        for name, parameter in learner.policy.parameters.items():
            gradients[name] = parameter.grad.clone()

    learner._optimizer.register_step_pre_hook(keep)
    row = learner.step(batch)
    return gradients, row
