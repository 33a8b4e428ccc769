"""A term that holds the policy near the model it started from: KL(policy || start), which the paper leaves out.

    k3_t = exp(d_t) - d_t - 1 >= 0,   d_t = log pi_start(y_t) - log pi(y_t)

Its mean over tokens that the policy sampled estimates the divergence (Schulman 2020), as in GRPO's loss. It is added to
the loss of each token before the weights are applied.
"""

import torch
from torch import Tensor

_LARGEST_DIFFERENCE = 20.0
"""Beyond this a token's term is constant, so that one token cannot overflow the loss."""


def kl_terms(log_probs: Tensor, start_log_probs: Tensor) -> Tensor:
    """Return k3 of each token; its gradient flows to `log_probs`."""
    difference = (start_log_probs - log_probs).clamp(max=_LARGEST_DIFFERENCE)
    return torch.expm1(difference) - difference
