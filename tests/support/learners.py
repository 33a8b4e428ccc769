"""Learners on tiny models, and the gradients they compute."""

import tempfile

import torch
from batches import VERSION
from tiny_models import SIZES, random_model, tiny_model
from transformers import LlamaConfig

from scalerl.recipe.load import load_recipe
from scalerl.training.learner.state import whole
from scalerl.training.run.learners import build_learner

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


def foreseeing(learner):
    """Give the head of its critic numbers, so that values differ and the layers below have a gradient."""
    row = learner.critic.policy.model.get_output_embeddings()
    with torch.no_grad():
        row.weight.copy_(torch.linspace(-0.5, 0.5, row.weight.numel()).view_as(row.weight))
        row.bias.fill_(0.1)
    return learner


def gpu_model(**changes):
    """A Llama on a GPU, with heads of 16, which the attention kernel takes."""
    return random_model(LlamaConfig(**SIZES | {"hidden_size": 64} | changes)).to("cuda")  # pyright: ignore[reportArgumentType]


def check_close(ours, theirs, digits, rtol=0.0):
    """Compare gradients by name, each to so many digits of its largest entry."""
    assert ours.keys() == theirs.keys()
    for name, gradient in theirs.items():
        largest = float(gradient.abs().max())
        torch.testing.assert_close(ours[name], gradient, rtol=rtol, atol=digits * largest, msg=name)


def gradients_of(learner, batch):
    """What a step hands to the optimiser, whole also where ranks divide it, and its row."""
    gradients, update = {}, learner.optimizer.update

    def keep(given, **options):
        gradients.update({name: whole(gradient).clone() for name, gradient in given.items()})
        update(given, **options)

    learner.optimizer.update = keep
    return gradients, learner.step(batch)
