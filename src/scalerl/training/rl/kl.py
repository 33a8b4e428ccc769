"""The KL term of the loss: terms per token that pull the policy towards any reference.

    d_t = log pi(y_t) - log reference(y_t)

The generator sampled the tokens, so a term estimates a divergence at the positions that it visited. A term is a
function of `KlInputs` whose keyword-only arguments are its settings.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

_LARGEST_DIFFERENCE = 20.0
"""Larger differences of log-probs count as this, so that no token overflows the loss."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KlInputs:
    """The inputs of a KL term: flat vectors with one entry per token."""

    log_probs: Float[Tensor, " tokens"]
    """Log-probs under the weights in training, with gradient."""
    generator_log_probs: Float[Tensor, " tokens"]
    reference_log_probs: Float[Tensor, " tokens"]


def k3(inputs: KlInputs) -> Float[Tensor, " tokens"]:
    """GRPO's term: non-negative, with a mean over the policy's samples of KL(pi || reference).

    k3_t = exp(-d_t) + d_t - 1   (Schulman 2020; GRPO, equation 4)
    Its gradient, 1 - exp(-d_t), is in expectation that of the other direction, KL(reference || pi).
    """
    difference = (inputs.reference_log_probs - inputs.log_probs).clamp(max=_LARGEST_DIFFERENCE)
    return torch.expm1(difference) - difference


def reverse(inputs: KlInputs, *, cap: float = 5.0) -> Float[Tensor, " tokens"]:
    """The reverse KL as a policy gradient: it lowers a token by how much likelier it is than in the reference.

    r_t = sg(min(rho_t, cap) d_t) log pi(y_t),   rho_t = pi(y_t) / pi_gen(y_t)
    Its mean gradient over the generator's samples is that of KL(pi || reference) at each place (Liu et al. 2025, arXiv
    2510.01555), up to the cap. This is the loss of on-policy distillation (Lu and Thinking Machines 2025). Only its
    gradient has a meaning, not its value.
    """
    difference = inputs.log_probs.detach() - inputs.reference_log_probs
    ratio = (inputs.log_probs.detach() - inputs.generator_log_probs).exp().clamp(max=cap)
    return ratio * difference.clamp(-_LARGEST_DIFFERENCE, _LARGEST_DIFFERENCE) * inputs.log_probs


ESTIMATORS = {"k3": k3, "reverse": reverse}
