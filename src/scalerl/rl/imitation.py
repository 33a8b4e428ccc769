"""Imitation beside reinforcement: which tokens are also learned by their log-likelihood, and with which weight.

A function of the tokens of a batch; its keyword-only arguments are its settings. `average` is a function of
rl/weights.py that only waits for the mask of the tokens that it averages over.
"""

from collections.abc import Callable

from jaxtyping import Bool, Float
from torch import Tensor

Mask = Bool[Tensor, " tokens"]
Weights = Float[Tensor, " tokens"]


def none(correct: Mask, trained: Mask, average: Callable[[Tensor], Tensor]) -> Weights | None:
    """Nothing is imitated: ScaleRL's own."""
    return None


def correct(correct: Mask, trained: Mask, average: Callable[[Tensor], Tensor], *, coefficient: float = 0.1) -> Weights:
    """Imitate the correct ones of the kept completions.

    loss <- loss - coefficient x average of log pi(y_t) over tokens of correct completions   (VAPO, arXiv 2504.05118,
    section 4.3, with 0.1)
    """
    return coefficient * average(correct & trained)


IMITATIONS = {"none": none, "correct": correct}
