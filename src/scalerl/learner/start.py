"""A term that holds the policy near the model it started from: KL(policy || start), which the paper leaves out.

    k3_t = exp(d_t) - d_t - 1 >= 0,   d_t = log pi_start(y_t) - log pi(y_t)

Its mean over tokens that the policy sampled estimates the divergence (Schulman 2020), as in GRPO's loss. It is added to
the loss of each token before the weights are applied.
"""

import copy
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from scalerl.learner.batch import ForwardInputs
from scalerl.learner.body import make_body
from scalerl.learner.packed_attention import packed_hidden_states
from scalerl.models.load import head
from scalerl.rl.logprobs import log_probs_and_entropy

if TYPE_CHECKING:
    from transformers import PreTrainedModel

_LARGEST_DIFFERENCE = 20.0
"""Beyond this a token's term is constant, so that one token cannot overflow the loss."""


class StartPolicy:
    """A frozen copy of a model, as it is when this is built."""

    def __init__(self, model: "PreTrainedModel", *, dtype: torch.dtype, fp32_head: bool) -> None:
        frozen = copy.deepcopy(model).requires_grad_(False)
        self._body = make_body(frozen, dtype).eval()
        self._head = head(frozen)
        self._fp32_head = fp32_head

    @torch.no_grad()
    def log_probs(self, inputs: ForwardInputs) -> Tensor:
        """Return the log-prob of each target under the start."""
        inputs = inputs.to(self._head.weight.device)
        hidden = packed_hidden_states(self._body, inputs.ids, inputs.packing).index_select(0, inputs.place)
        log_probs, _ = log_probs_and_entropy(
            hidden,
            self._head.weight,
            inputs.targets,
            temperature=inputs.temperature,
            bias=self._head.bias,
            fp32=self._fp32_head,
        )
        return log_probs


def kl_terms(log_probs: Tensor, start_log_probs: Tensor) -> Tensor:
    """Return k3 of each token; its gradient flows to `log_probs`."""
    difference = (start_log_probs - log_probs).clamp(max=_LARGEST_DIFFERENCE)
    return torch.expm1(difference) - difference
