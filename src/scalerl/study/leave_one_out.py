"""The arms of the paper's leave-one-out study: each replaces one component of ScaleRL by that of the baseline."""

from collections.abc import Callable
from typing import Any

from scalerl.recipe.parts import InterruptionSettings
from scalerl.recipe.recipe import Recipe


def _length_penalty(recipe: Recipe) -> dict[str, Any]:
    """Return a length penalty over as many tokens as the answer had, up to the length of an interrupted completion."""
    length = recipe.length
    if not isinstance(length, InterruptionSettings):
        return {}
    max_length = length.thinking_max + length.answer_budget
    return {"length": {"name": "penalty", "max_length": max_length, "cache": length.answer_budget}}


# arXiv 2510.13786, figure 5 and section 4; clips, averages and normalisation are those of the baseline of section 2.
LEAVE_ONE_OUT: dict[str, Callable[[Recipe], dict[str, Any]]] = {
    "ppo-off-policy-8": lambda recipe: {"pipeline": {"max_lag": 7, "push_every": 8, "drain": True}},
    "dapo-loss": lambda recipe: {"loss": {"name": "dapo", "clip_low": 0.2, "clip_high": 0.26}},
    "no-fp32-head": lambda recipe: {"model": {"fp32_head": "none"}},
    "sample-average": lambda recipe: {"weights": "sample"},
    "prompt-normalisation": lambda recipe: {"advantage": {"normalisation": "prompt"}},
    "no-zero-variance-filter": lambda recipe: {"filter": {"zero_variance": False}},
    "uniform-sampling": lambda recipe: {"curriculum": "uniform"},
    "length-penalty": _length_penalty,
}
