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


def rate(settings: OptimizerSettings, *, step: int, updates: int) -> float:
    """Return the learning rate of a step, after `step` earlier steps and `updates` earlier updates.

    It rises linearly from lr / warmup_steps at the first update, then follows the schedule down to final_lr_frac of lr
    at decay_steps.
    """
    warmup, total = settings.warmup_steps, settings.decay_steps
    rising = min(1.0, (updates + 1) / warmup if warmup else 1.0)
    if total is None:
        return settings.lr * rising
    place = min(max((step - warmup) / max(total - warmup, 1), 0.0), 1.0)
    falling = settings.final_lr_frac + (1 - settings.final_lr_frac) * SCHEDULES[settings.schedule](place)
    return settings.lr * rising * falling
