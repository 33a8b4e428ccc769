"""Learning-rate schedules: the share of the largest rate at a place between the end of warm-up (0) and the end (1)."""

import math
from collections.abc import Callable, Mapping

from scalerl.recipe.parts import OptimizerSettings


def constant(place: float) -> float:
    return 1.0


def linear(place: float) -> float:
    return 1.0 - place


def cosine(place: float) -> float:
    return 0.5 * (1 + math.cos(math.pi * place))


SCHEDULES: Mapping[str, Callable[[float], float]] = {"constant": constant, "linear": linear, "cosine": cosine}


def rate(settings: OptimizerSettings, *, step: int, updates: int, start: int = 0) -> float:
    """Return the learning rate of a step, after `step` earlier steps and `updates` earlier updates.

    It is 0 before the step `start`. Then it rises linearly from lr / warmup_steps at the first update, and follows the
    schedule down to final_lr_frac of lr at decay_steps.
    """
    if step < start:
        return 0.0
    rising = min(1.0, (updates + 1) / settings.warmup_steps) if settings.warmup_steps else 1.0
    if settings.decay_steps is None:
        return settings.lr * rising
    top = start + settings.warmup_steps
    place = (step - top) / max(settings.decay_steps - top, 1)
    share = SCHEDULES[settings.schedule](min(max(place, 0.0), 1.0))
    falling = settings.final_lr_frac + (1 - settings.final_lr_frac) * share
    return settings.lr * rising * falling
