"""A critic: a second model that predicts the return of a completion before each of its tokens (PPO).

It starts as a copy of the policy with one row of zeros as its head. It is a learner with the same batches, packing and
optimiser as the policy, but with another algorithm (rl.algorithm.foresee) and loss (rl.losses.squared_error). The
values of a batch are computed before the critic learns from it.
"""

import copy
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from scalerl.recipe.parts import OptimizerSettings
from scalerl.training.learner.batch import ForwardInputs, MicroBatch, PreparedBatch, Scored, sequences_of
from scalerl.training.learner.policy import LocalPolicy
from scalerl.training.learner.step import TorchLearner
from scalerl.training.models.load import head
from scalerl.training.models.shape import training_flops
from scalerl.training.rl.algorithm import Algorithm
from scalerl.training.rl.losses import LossInputs, squared_error
from scalerl.training.rl.objective import Objective, ObjectiveValue
from scalerl.training.types import Batch

if TYPE_CHECKING:
    from transformers import PreTrainedModel

_SHOWN = {"loss/value": "critic/loss", "optim/grad_norm": "critic/grad_norm", "optim/skipped": "critic/skipped"}


class ValueModel(LocalPolicy):
    """A model whose head has one row. It returns the value before each target instead of the target's log-prob."""

    def _from_hidden(self, hidden: Any, inputs: ForwardInputs) -> Scored:
        row = head(self.model)
        values = nn.functional.linear(hidden.to(row.weight.dtype), row.weight, row.bias).squeeze(-1)
        return values, values.detach()


def value_model(model: "PreTrainedModel") -> "PreTrainedModel":
    """Return a copy of a model with a head of one row of zeros. Frozen weights are shared."""
    made = copy.deepcopy(model, {id(weight): weight for weight in model.parameters() if not weight.requires_grad})
    old = head(made).weight
    row = nn.Linear(old.shape[1], 1, device=old.device, dtype=torch.promote_types(old.dtype, torch.float32))
    nn.init.zeros_(row.weight)
    nn.init.zeros_(row.bias)
    made.set_output_embeddings(row)
    return made


class Critic(TorchLearner):
    """A value model and its optimiser."""

    def __init__(
        self,
        policy: ValueModel,
        *,
        algorithm: Algorithm,
        optimizer: OptimizerSettings,
        warmup_steps: int = 0,
        **settings: Any,
    ) -> None:
        super().__init__(
            policy, algorithm=algorithm, objective=Objective(loss=squared_error), optimizer=optimizer, **settings
        )
        self.warmup_steps = warmup_steps
        """Number of first steps in which only the critic learns."""
        self._seen: list[tuple[MicroBatch, Tensor]] = []

    def learn(self, batch: Batch) -> tuple[Tensor, dict[str, float]]:
        """Train on a batch; return the value of each of its tokens before this update, and metrics.

        The value of a token that is not trained is 0.
        """
        self._seen = []
        row = self.step(batch)
        foreseen = torch.zeros(3, sum(map(len, sequences_of(batch)[0])))
        for micro, values in self._seen:
            told = torch.stack([values.cpu().float(), micro.weights.advantages.cpu(), torch.ones(len(micro.token))])
            foreseen[:, torch.from_numpy(micro.token)] = told
        device = self.policy.device
        values, targets, seen = self._team.add(foreseen.to(device)).cpu()
        metrics = {name: row[key] for key, name in _SHOWN.items() if key in row}
        metrics |= {key: row[key] for key in ("batch/flops", "time/step_s") if key in row}
        return values, metrics | _explained(values[seen > 0].numpy(), targets[seen > 0].numpy())

    def _evaluate(self, micro: MicroBatch, log_probs: Tensor) -> tuple[LossInputs, ObjectiveValue]:
        self._seen.append((micro, log_probs.detach()))
        return super()._evaluate(micro, log_probs)

    def _flops(self, prepared: PreparedBatch) -> float:
        shared: Mapping[str, Any] = {"shared": prepared.shared, "adapters": self._num_adapter_params}
        return training_flops(self.shape, prepared.lengths, 0, **shared)


def _explained(values: np.ndarray, targets: np.ndarray) -> dict[str, float]:
    """Return the share of the variance of the targets that the values explain; empty if all targets are equal."""
    if not len(targets) or not (variance := float(targets.var())):
        return {}
    return {"critic/explained": 1 - float((targets - values).var()) / variance}
