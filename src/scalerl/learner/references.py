"""References of the KL part: what the policy's log-probs are compared with.

A reference is built by a function of REFERENCES from the model that will be trained, and from a function that makes a
policy of a model that will not; its keyword-only arguments are its settings.
"""

import copy
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from scalerl.models.shape import ModelShape, forward_flops

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from scalerl.learner.batch import MicroBatch, Prepared
    from scalerl.learner.policy import Policy

Freeze = Callable[["PreTrainedModel"], "Policy"]


class Reference(ABC):
    """Log-probs of the tokens that are trained on, by something that is not trained."""

    @abstractmethod
    def log_probs(self, micro: "MicroBatch") -> Tensor:
        """Return the log-prob of every target of a micro-batch, at the temperature that it was sampled at."""

    @abstractmethod
    def flops(self, prepared: "Prepared") -> float:
        """Return the FLOPs of these log-probs for a whole batch."""


class FrozenModel(Reference):
    """A model in this process that does not change."""

    def __init__(self, policy: "Policy") -> None:
        self._policy = policy
        self._shape = ModelShape.from_config(policy.model.config)

    @torch.no_grad()
    def log_probs(self, micro: "MicroBatch") -> Tensor:
        return self._policy.run(micro.inputs)[0]

    def flops(self, prepared: "Prepared") -> float:
        num_logits = int(prepared.facts["batch/trained_tokens"])
        return forward_flops(self._shape, prepared.lengths, num_logits, shared=prepared.shared)


def start(model: "PreTrainedModel", freeze: Freeze) -> Reference:
    """The model as it is when the run starts, in a copy."""
    return FrozenModel(freeze(copy.deepcopy(model).requires_grad_(False)))


REFERENCES: dict[str, Callable[..., Reference]] = {"start": start}
