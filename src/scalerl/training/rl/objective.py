"""The loss of a micro-batch: the weighted sum of three parts (training/rl/algorithm.py)."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from scalerl.training.rl.algorithm import TokenWeights
from scalerl.training.rl.correction import Corrected
from scalerl.training.rl.kl import KlInputs, k3
from scalerl.training.rl.losses import LossInputs, TokenLoss


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectiveValue:
    """The loss of a micro-batch, and values for its metrics."""

    total: Float[Tensor, ""]
    """The loss, with gradient."""
    policy: TokenLoss
    columns: tuple[Float[Tensor, " tokens"], ...]
    """One vector for each of Objective.columns, without gradient; their means over tokens are metrics."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Objective:
    """The functions of the parts, with their settings bound."""

    loss: Callable[[LossInputs], TokenLoss]
    """A function of training/rl/losses.py."""
    correction: Callable[[LossInputs], Corrected] | None = None
    """A function of training/rl/correction.py, applied before the loss; None for none."""
    kl: Callable[[KlInputs], Tensor] | None = None
    """A function of training/rl/kl.py; None without a KL term."""

    @property
    def columns(self) -> tuple[str, ...]:
        """Names of the metrics in addition to those of every loss."""
        corrected = ("loss/corrected_frac",) if self.correction is not None else ()
        return (*corrected, "loss/reference_kl") if self.kl is not None else corrected

    def __call__(
        self, inputs: LossInputs, weights: TokenWeights, reference_log_probs: Tensor | None = None
    ) -> ObjectiveValue:
        """Return the loss; the KL term needs `reference_log_probs`."""
        seen, columns = inputs, []
        if self.correction is not None:
            corrected = self.correction(inputs)
            seen, columns = corrected.inputs, [corrected.changed.float()]
        policy = self.loss(seen)
        total = (weights.policy * policy.loss).sum()
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
        return ObjectiveValue(total=total, policy=policy, columns=tuple(columns))
