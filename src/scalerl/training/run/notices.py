"""Warnings about a recipe, shown before training begins."""

from collections.abc import Iterator, Mapping, Sequence

from scalerl.recipe.effects import without_effect
from scalerl.recipe.parts import OptimizerSettings
from scalerl.recipe.recipe import Recipe, remedies, rounds_generator
from scalerl.training.run.inputs import Inputs
from scalerl.training.run.prompts import Prompts

# Runs of the tiny model collapsed above these (docs/results/ablations.md).
STABLE_RATE = 0.1
"""Learning rate x width."""
STABLE_LAG = 0.85
"""Learning rate x width x (max_lag + 1)."""


def notices(recipe: Recipe, inputs: Inputs, prompts: Mapping[str, Prompts], *, gpu: bool) -> tuple[str, ...]:
    """Return all warnings about a recipe; `prompts` are those to train on, by task."""
    width = inputs.model.model.config.hidden_size
    corrects = recipe.correction.name != "none"
    all_prompts = [*(each.prompts for each in inputs.eval_sets), *prompts.values()]
    return (
        *(task.notice for task in inputs.tasks.values() if task.notice),
        *(notice for each in all_prompts for notice in each.notices),
        *without_effect(recipe, gpu=gpu),
        *schedule_notices(recipe.optimizer, max_lag=recipe.pipeline.max_lag, steps=recipe.budget.steps, width=width),
        *mismatch_notices(rounds_generator(recipe, gpu=gpu), remedies(recipe)["backend"], corrects=corrects),
    )


def schedule_notices(optimizer: OptimizerSettings, *, max_lag: int, steps: int | None, width: int) -> Iterator[str]:
    """Yield warnings about the learning rate of a model of this width; `steps` is the limit of the budget."""
    warmup = optimizer.warmup_steps
    lr = optimizer.lr
    if steps is not None and warmup >= steps:
        yield (
            f"optimizer.warmup_steps = {warmup:,} is not below budget.steps = {steps:,}: the learning rate is still "
            f"rising when the run ends"
        )
    if lr * width > STABLE_RATE:
        yield (
            f"optimizer.lr = {lr:g} x width {width:,} = {lr * width:.2g}, above {STABLE_RATE:g}: small models "
            f"collapsed there at any lag; try {STABLE_RATE / width:.1g}"
        )
    elif (product := lr * width * (max_lag + 1)) > STABLE_LAG:
        yield (
            f"optimizer.lr = {lr:g} x width {width:,} x (pipeline.max_lag = {max_lag} + 1) = {product:.2g}, above "
            f"{STABLE_LAG:g}: small models collapsed there; lower the rate or the lag"
        )


def mismatch_notices(rounded: str, remedy: Sequence[str], *, corrects: bool) -> Iterator[str]:
    """Yield a warning if a setting, `rounded`, makes the generator less precise than the learner, uncorrected."""
    if rounded and not corrects:
        yield (
            f"{rounded}: generator and learner give the same token different probabilities; watch loss/kl, and if it "
            f"grows, set {' or '.join(remedy)} (docs/results/ablations.md)"
        )
