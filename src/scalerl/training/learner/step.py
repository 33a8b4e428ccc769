"""One step: a batch in, new weights and a row of metrics out.

    prepare (batch.py) -> for each micro-batch: policy -> objective -> backward -> sum over ranks -> clip -> AdamW

The learner does not know the algorithm: one function weighs the tokens of a batch before it is split (rl/algorithm.py),
another sums their loss (rl/objective.py), so that gradients of micro-batches and of ranks can simply be added. The
master weights are FP32: at the paper's learning rate of 5e-7 a bf16 weight would not change, because neighbouring bf16
numbers differ by up to 0.8 %. The policy (policy.py, or ranks/sharded.py) computes with weights rounded to bf16.

On a GPU a step does not wait for its own kernels: its metrics are read when the next step needs to know whether the
update was skipped, or when they are accessed (late.py). The optimiser's kernel itself skips a bad update.
"""

import functools
import math
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Protocol

import torch
from torch import Tensor

from scalerl.recipe.parts import LearnerSettings, OptimizerSettings
from scalerl.training.learner.batch import ForwardInputs, MicroBatch, PreparedBatch, prepare
from scalerl.training.learner.late import HostCopy, LateMetrics, StepTimer
from scalerl.training.learner.optimizer import AdamW
from scalerl.training.learner.packed_attention import pack
from scalerl.training.learner.policy import Policy
from scalerl.training.learner.references import Reference
from scalerl.training.learner.schedules import rate
from scalerl.training.learner.state import State, load_state, state_of, whole
from scalerl.training.learner.team import Team
from scalerl.training.models.lora import num_adapter_params
from scalerl.training.models.shape import ModelShape, training_flops
from scalerl.training.rl.algorithm import Algorithm
from scalerl.training.rl.losses import LossInputs
from scalerl.training.rl.metrics import SUMS, step_metrics, token_sums
from scalerl.training.rl.objective import Objective, ObjectiveValue
from scalerl.training.types import Batch


class BatchCritic(Protocol):
    """A critic that is trained with the policy: training/learner/critic.py."""

    warmup_steps: int
    """Number of first steps in which only the critic learns."""

    def learn(self, batch: Batch) -> tuple[Tensor, dict[str, float]]:
        """Train on a batch; return the value of each of its tokens before this update, and metrics."""
        ...

    def state_dict(self) -> State: ...
    def load_state_dict(self, state: State) -> None: ...


class TorchLearner:
    """A policy and its optimiser. Its version is the number of steps taken, including steps without an update."""

    def __init__(
        self,
        policy: Policy,
        *,
        algorithm: Algorithm,
        objective: Objective,
        optimizer: OptimizerSettings,
        learner: LearnerSettings,
        reference: Reference | None = None,
        critic: BatchCritic | None = None,
        team: Team | None = None,
        version: int = 0,
    ) -> None:
        """`reference` is for the KL term of the objective, `critic` for advantages; both are optional."""
        self.policy = policy
        self._team = team or Team()
        self.algorithm = algorithm
        self.objective = objective
        self._reference = reference
        self.critic = critic
        self._settings = optimizer
        self._learner = learner
        self.shape = ModelShape.from_config(policy.model.config)
        self._num_adapter_params = num_adapter_params(policy.model)
        self.optimizer = AdamW(
            policy.parameters, optimizer, device=policy.device, hosted=policy.hosted, copies=policy.copies
        )
        self.version = version
        self._updates = 0
        """Number of updates at a rate above 0."""
        self._unread: LateMetrics | None = None
        """Metrics of the last step that have not been read yet."""

    @property
    def reads_late(self) -> bool:
        """Whether the metrics of a step are read only when they are accessed.

        Ranks send them to the driver at once, and on a CPU there is nothing to wait for.
        """
        return self.policy.device.type == "cuda" and self._team.size == 1

    def step(self, batch: Batch) -> Mapping[str, float]:
        """Train on a batch and return its metrics. If some are not finite, they are left out and no weight changes.

        On a GPU, the first access to the metrics waits for the device.
        """
        assert batch.version == self.version, f"a batch for version {batch.version} came at {self.version}"
        values = None
        judged = {}
        if self.critic is not None:
            values, judged = self.critic.learn(batch)
        prepared = self._prepare(batch, values)
        if self._reference is not None:
            self._reference.begin(prepared.micro_batches)
        timer = StepTimer(self.policy.device)
        self.policy.clear_gradients()
        # The sums of token_sums, and the loss.
        sums = torch.zeros(len(SUMS) + len(self.objective.columns) + 1, dtype=torch.float64, device=self.policy.device)
        ratio_max = torch.full_like(sums[0], -torch.inf)
        for micro in prepared.micro_batches:
            part, largest = self._backward(micro)
            sums += part
            ratio_max = torch.maximum(ratio_max, largest)
        for log_probs in self._pad(prepared):
            log_probs.sum().backward()
        routed = self.policy.replay.take_counts()
        sums = torch.cat([sums, routed])
        critic_s = judged.pop("time/step_s", 0.0)
        critic_flops = judged.pop("batch/flops", 0.0)
        known = prepared.facts | judged | {"optim/lr": self.lr, "batch/flops": self._flops(prepared) + critic_flops}
        norm = torch.zeros_like(ratio_max)
        if prepared.num_passes:
            self.policy.collect_gradients(self._team)
            self._team.add(sums)
            self._team.largest(ratio_max)
            norm = self._update(loss=sums[-1 - len(routed)])
        self.policy.clear_gradients()
        timer.stop()
        host = HostCopy(torch.cat([sums, torch.stack([ratio_max, norm.double()])]))
        self.version += 1
        read = functools.partial(self._metrics, prepared, known, host, timer, critic_s)
        metrics = LateMetrics({name: value for name, value in known.items() if math.isfinite(value)}, read)
        if not self.reads_late:
            return metrics.read()
        self._unread = metrics
        return metrics

    def _metrics(
        self, prepared: PreparedBatch, known: Mapping[str, float], values: HostCopy, timer: StepTimer, critic_s: float
    ) -> dict[str, float]:
        """Wait for the values of a step and return its metrics; count the update if it was not skipped.

        The values are the sums of `_backward` and of the routers, the largest ratio and the gradient norm.
        """
        *sums, loss, num_replaced, num_routed, ratio_max, norm = values.wait().tolist()
        others = {"lag": prepared.lag, "num_nonfinite": prepared.num_nonfinite, "columns": self.objective.columns}
        metrics = {**known, **step_metrics(sums, ratio_max, prepared.effective, **others)}
        has_update = prepared.num_passes > 0
        skipped = has_update and not (math.isfinite(norm) and math.isfinite(loss))
        # Steps in which only the critic learns use up nothing of the policy's warm-up.
        self._updates += has_update and not skipped and known["optim/lr"] > 0
        if has_update:
            metrics |= {"optim/grad_norm": norm, "loss/value": loss}
        metrics["optim/skipped"] = float(skipped)
        if num_routed:
            metrics["loss/router_disagreement"] = num_replaced / num_routed
        metrics |= {name: seconds + critic_s for name, seconds in timer.metrics().items()}
        return {name: value for name, value in metrics.items() if math.isfinite(value)}

    @property
    def pids(self) -> Sequence[int | None]:
        """Ids of other processes: none."""
        return ()

    def check(self) -> None:
        """Do nothing: no other process can die."""

    def check_folder(self, folder: Path) -> None:
        """Do nothing: no other process must see the folder."""

    def close(self) -> None:
        """Do nothing: there is no other process to end."""

    def settle(self) -> None:
        """Wait for the last step, so that its weights can be read on the host."""
        self._settle()
        self.optimizer.settle()

    def _settle(self) -> None:
        """Read the metrics of the last step: the next learning rate depends on whether it was an update."""
        unread = self._unread
        self._unread = None
        if unread is not None:
            unread.read()

    @property
    def lr(self) -> float:
        """Learning rate of the next update."""
        self._settle()
        start = 0 if self.critic is None else self.critic.warmup_steps
        return rate(self._settings, step=self.version, updates=self._updates, start=start)

    def weights(self) -> dict[str, Tensor]:
        """Return all weights with adapters merged in, tied ones once. They may be views: copy what you keep."""
        return dict(self.policy.weights())

    def state_dict(self) -> State:
        """Return everything that a checkpoint needs, as tensors: weights, moments, random state, counters."""
        self.settle()
        counters = {"version": torch.tensor(self.version), "updates": torch.tensor(self._updates)}
        state = state_of(self.policy.parameters, self.optimizer.state, self.policy.device) | {"counters": counters}
        if self.critic is not None:
            state |= {f"critic_{kind}": tensors for kind, tensors in self.critic.state_dict().items() if kind != "rng"}
        return state

    @torch.no_grad()
    def load_state_dict(self, state: State) -> None:
        """Restore a state that `state_dict` returned, exactly; it may be from another number of ranks."""
        # Read the last metrics now: read later, they would count their update in the restored state.
        self.settle()
        load_state(state, self.policy.parameters, self.optimizer.state, self.policy.device)
        self.version = int(state["counters"]["version"])
        self._updates = int(state["counters"]["updates"])
        self.policy.refresh()
        if self.critic is not None:
            own = {kind: state[f"critic_{kind}"] for kind in ("weights", "optimizer", "counters")}
            self.critic.load_state_dict(own | {"rng": state["rng"]})

    def _prepare(self, batch: Batch, critic: Tensor | None = None) -> PreparedBatch:
        return prepare(
            batch,
            algorithm=self.algorithm,
            micro_batch_tokens=self._learner.micro_batch_tokens,
            share_from=self.policy.share_from if self._learner.share_prompts else None,
            rank=self._team.rank,
            num_ranks=self._team.size,
            critic=critic,
        )

    def _backward(self, micro: MicroBatch) -> tuple[Tensor, Tensor]:
        """Add a micro-batch's share to the gradient; return sums over its tokens and the largest ratio.

        The sums are those of token_sums, and the loss.
        """
        log_probs, entropy = self.policy.run(micro.inputs)
        inputs, value = self._evaluate(micro, log_probs)
        value.total.backward()
        sums, ratio_max = token_sums(value.policy, inputs, entropy, value.columns, in_loss=value.in_loss)
        return torch.cat([sums, value.total.detach().double()[None]]), ratio_max

    def _evaluate(self, micro: MicroBatch, log_probs: Tensor) -> tuple[LossInputs, ObjectiveValue]:
        """Return the inputs of the objective for a micro-batch, and its value."""
        reference = None if self._reference is None else self._reference.log_probs(micro, self.policy)
        micro = micro.to(self.policy.device)
        inputs = LossInputs(
            log_probs=log_probs,
            generator_log_probs=micro.generator_log_probs,
            advantages=micro.weights.advantages,
            completion_of_token=micro.completion_of_token,
            trained=torch.ones_like(micro.completion_of_token, dtype=torch.bool),
        )
        return inputs, self.objective(inputs, micro.weights, reference)

    @torch.no_grad()
    def mean_loss(self, batch: Batch) -> float:
        """Return the loss of a batch without training on it."""
        prepared = self._prepare(batch)
        loss = torch.zeros((), dtype=torch.float64, device=self.policy.device)
        for micro in prepared.micro_batches:
            log_probs, _ = self.policy.run(micro.inputs)
            loss += self._evaluate(micro, log_probs)[1].total
        for _ in self._pad(prepared):
            pass
        return self._team.add(loss).item()

    def _pad(self, prepared: PreparedBatch) -> Iterator[Tensor]:
        """Run passes without targets if other ranks have more: all ranks must gather each layer together."""
        if not self.policy.equal_passes:
            return
        empty = ForwardInputs.blank(pack([1]), 0)
        for _ in range(prepared.num_passes - len(prepared.micro_batches)):
            yield self.policy.run(empty)[0]

    def _update(self, loss: Tensor) -> Tensor:
        """Clip and update, unless the loss or a gradient is not finite; return the gradient norm.

        One bad batch must not end a run. The optimiser's kernel reads `is_bad`, so the host does not wait. At rate 0
        the moments do not change either: those of a critic's warm-up would be a part of the first updates after it.
        """
        gradients = self.policy.gradients()
        norm = whole(torch.nn.utils.get_total_norm(gradients.values()))
        if self._settings.grad_clip:
            torch.nn.utils.clip_grads_with_norm_(self.policy.holders.values(), self._settings.grad_clip, norm)
        lr = self.lr
        if lr > 0:
            is_bad = (~(norm.isfinite() & loss.isfinite())).float()
            self.optimizer.update(gradients, lr=lr, is_bad=is_bad, seed=self.version)
        return norm

    def _flops(self, prepared: PreparedBatch) -> float:
        num_logits = int(prepared.facts["batch/trained_tokens"])
        sizes = self.shape, prepared.lengths, num_logits
        training = training_flops(*sizes, shared=prepared.shared, adapters=self._num_adapter_params)
        if self._reference is None:
            return training
        return training + self._reference.flops(prepared, self.shape)


def compilation_s() -> float:
    """Return the seconds that torch has spent on compilation in this process."""
    utils = sys.modules.get("torch._dynamo.utils")
    return 0.0 if utils is None else utils.calculate_time_spent()["total_wall_time"]
