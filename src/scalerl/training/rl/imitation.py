"""Imitation in addition to RL: the weights of tokens that are also trained by log-likelihood.

An imitation is a function of the tokens of a batch; its keyword-only arguments are its settings. `average` is a
function of training/rl/weights.py whose last argument is the mask of the tokens to average over.
"""

from collections.abc import Callable

from jaxtyping import Bool, Float
from torch import Tensor

Mask = Bool[Tensor, " tokens"]
Weights = Float[Tensor, " tokens"]


def none(correct: Mask, trained: Mask, average: Callable[[Tensor], Tensor]) -> Weights | None:
    """Imitate nothing: ScaleRL's choice."""
    return None


def correct(correct: Mask, trained: Mask, average: Callable[[Tensor], Tensor], *, coefficient: float = 0.1) -> Weights:
    """Imitate those kept completions that are correct.

    loss <- loss - coefficient x average of log pi(y_t) over tokens of correct completions   (VAPO, arXiv 2504.05118,
    section 4.3, with 0.1)
    """
    return coefficient * average(correct & trained)


IMITATIONS = {"none": none, "correct": correct}
