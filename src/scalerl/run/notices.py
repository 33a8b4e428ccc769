"""Warnings about a recipe, shown before training begins."""

from collections.abc import Iterator

from scalerl.config import Recipe, remedies, rounds_generator

STABLE_RATE, STABLE_LAG = 0.1, 0.85
"""Learning rate x width, and this x (max_lag + 1), above which runs of the tiny model collapsed (the study
tiny-lag-rate, docs/results/lag-rate.md)."""


def schedule_notices(recipe: Recipe, width: int) -> Iterator[str]:
    """Yield warnings about the learning rate of a model of this width."""
    warmup, steps = recipe.optimizer.warmup_steps, recipe.budget.steps
    if steps is not None and warmup >= steps:
        yield (
            f"optimizer.warmup_steps = {warmup:,} is not below budget.steps = {steps:,}: the learning rate is still "
            f"rising when the run ends"
        )
    lr, lag = recipe.optimizer.lr, recipe.pipeline.max_lag
    if lr * width > STABLE_RATE:
        yield (
            f"optimizer.lr = {lr:g} x width {width:,} = {lr * width:.2g}, above {STABLE_RATE:g}: small models "
            f"collapsed there at any lag; try {STABLE_RATE / width:.1g}"
        )
    elif lr * width * (lag + 1) > STABLE_LAG:
        yield (
            f"optimizer.lr = {lr:g} x width {width:,} x (pipeline.max_lag = {lag} + 1) = {lr * width * (lag + 1):.2g}, "
            f"above {STABLE_LAG:g}: small models collapsed there; lower the rate or the lag"
        )


def mismatch_notices(recipe: Recipe, *, gpu: bool) -> Iterator[str]:
    """Yield a warning if the generator computes probabilities with less precision than the learner."""
    rounded, remedy = rounds_generator(recipe, gpu=gpu), remedies(recipe)["backend"]
    if rounded and recipe.correction.name == "none":
        yield (
            f"{rounded}: generator and learner give the same token different probabilities; watch loss/kl, and if it "
            f"grows, set {' or '.join(remedy)} (docs/results/mismatch.md)"
        )
