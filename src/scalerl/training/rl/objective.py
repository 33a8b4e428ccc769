"""The loss of a micro-batch: the weighted sum of three parts (training/rl/algorithm.py)."""

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from scalerl.training.rl.algorithm import TokenWeights
from scalerl.training.rl.correction import Corrected
from scalerl.training.rl.correction import none as no_correction
from scalerl.training.rl.kl import KlInputs, k3
from scalerl.training.rl.losses import LossInputs, TokenLoss


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectiveValue:
    """The loss of a micro-batch, and values for its metrics."""

    total: Float[Tensor, ""]
    """The loss, with gradient."""
    policy: TokenLoss
    in_loss: Bool[Tensor, " tokens"]
    """The tokens that the policy loss trains on: those that the correction does not leave out."""
    columns: tuple[Float[Tensor, " tokens"], ...]
    """One vector for each of Objective.columns, without gradient; their means over trained tokens are metrics."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Objective:
    """The functions of the parts, with their settings bound."""

    loss: Callable[[LossInputs], TokenLoss]
    """A function of rl/losses.py."""
    correction: Callable[[LossInputs], Corrected] = no_correction
    """A function of rl/correction.py."""
    kl: Callable[[KlInputs], Tensor] | None = None
    """A function of rl/kl.py; None without a KL term."""

    @property
    def columns(self) -> tuple[str, ...]:
        """Names of the metrics in addition to those of every loss."""
        if self.kl is None:
            return ("loss/corrected_frac",)
        return ("loss/corrected_frac", "loss/reference_kl")

    def __call__(
        self, inputs: LossInputs, weights: TokenWeights, reference_log_probs: Tensor | None = None
    ) -> ObjectiveValue:
        """Return the loss; the KL term needs `reference_log_probs`."""
        corrected = self.correction(inputs)
        policy = self.loss(replace(inputs, trained=corrected.trained))
        losses = policy.loss
        if corrected.importance is not None:
            losses = losses * reweighing(policy, corrected.importance)
        total = (weights.policy * losses).sum()
        columns = [corrected.changed.float()]
        if weights.imitation is not None:
            total = total - (weights.imitation * inputs.log_probs).sum()
        if self.kl is not None:
            assert reference_log_probs is not None
            terms = KlInputs(
                log_probs=inputs.log_probs,
                generator_log_probs=inputs.generator_log_probs,
                reference_log_probs=reference_log_probs,
            )
            # None where the tasks of a batch have no KL part; another task of the run has.
            if weights.kl is not None:
                total = total + (weights.kl * self.kl(terms)).sum()
            with torch.no_grad():
                # Do not use the term itself: its value need not estimate the KL.
                columns.append(k3(terms))
        return ObjectiveValue(total=total, policy=policy, in_loss=corrected.trained, columns=tuple(columns))


def reweighing(policy: TokenLoss, importance: Float[Tensor, " tokens"]) -> Float[Tensor, " tokens"]:
    """Return the factor of each token's loss that puts another importance weight in the place of the loss's own.

    The factor is outside the loss, so the clip still sees the loss's ratio; where it acts, the gradient stays 0.
    """
    own = policy.ratio if policy.importance is None else policy.importance
    return importance / own.clamp(min=torch.finfo(own.dtype).tiny)
