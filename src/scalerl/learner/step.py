"""One step: a batch in, new weights and a row of metrics out.

    prepare (batch.py) -> for each micro-batch: body -> head -> loss x weight -> backward -> clip -> AdamW

Token weights are fixed before the batch is split, so gradients of micro-batches simply add up. The master weights are
FP32: at the paper's learning rate of 5e-7 a bf16 weight would not change, since neighbouring bf16 numbers differ by up
to 0.8 %. A bf16 body is a second, rounded copy of them (body.py).

A step waits for the device once, at its end, for the metrics. The optimiser's kernel itself skips a bad update.
"""

import math
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from scalerl.config.parts import LearnerSettings, OptimizerSettings
from scalerl.learner.batch import ForwardInputs, MicroBatch, Prepared, prepare
from scalerl.learner.body import compile_layers, make_body, prepare_for_training
from scalerl.learner.cuda_graphs import LEAST_TOKENS, MOST_WORK, PassGraphs, reads_device, recorder
from scalerl.learner.packed_attention import has_kernel, pack, packed_hidden_states
from scalerl.learner.schedules import rate
from scalerl.learner.start import StartPolicy, kl_terms
from scalerl.models.load import head
from scalerl.models.lora import merged_weights, num_adapter_params
from scalerl.models.shape import ModelShape, forward_flops, head_sizes, training_flops
from scalerl.rl.filters import EffectiveBatch
from scalerl.rl.logprobs import log_probs_and_entropy
from scalerl.rl.losses import LossInputs, TokenLoss
from scalerl.rl.metrics import TokenSums, step_metrics, token_sums
from scalerl.types import Batch

if TYPE_CHECKING:
    from transformers import PreTrainedModel


WARM_UP_LENGTHS = (499, 61)
"""Sequence lengths of the warm-up passes: two, and not round numbers, so that compiled code is valid for any length."""


class TorchLearner:
    """A model and its optimiser. Its version is the number of steps taken, including steps without an update."""

    def __init__(
        self,
        model: "PreTrainedModel",
        *,
        loss: Callable[[LossInputs], TokenLoss],
        effective: Callable[..., EffectiveBatch],
        weigh: Callable[[Tensor, Tensor, Tensor], Tensor],
        optimizer: OptimizerSettings,
        learner: LearnerSettings,
        fp32_head: bool = True,
        dtype: torch.dtype = torch.float32,
        compiled: bool | None = None,
        version: int = 0,
    ) -> None:
        """`model` holds the master weights and is trained in place; `dtype` is that of the body.

        By default the layers are `compiled` on a GPU: once, here, for packed rows of any number of tokens.
        """
        self._model = model
        self._parameters = {name: p for name, p in model.named_parameters() if p.requires_grad}
        if wrong := {p.dtype for p in self._parameters.values()} - {torch.float32, torch.float64}:
            raise ValueError(f"master weights must be float32, and this model's are {', '.join(map(str, wrong))}")
        self._device = model.device
        self._loss, self._effective, self._weigh = loss, effective, weigh
        self._settings, self._micro_batch_tokens = optimizer, learner.micro_batch_tokens
        self._share_prompts = learner.share_prompts
        self._body = make_body(model, dtype)
        # With an FP32 body the two settings mean the same head.
        self._fp32_head = fp32_head or dtype == torch.float32
        self._shape, self._num_adapter_params = ModelShape.from_config(model.config), num_adapter_params(model)
        prepare_for_training(self._body, learner.gradient_checkpointing)
        # Plain AdamW: the paper names no exceptions, so norms and biases decay like all other weights.
        self._optimizer = torch.optim.AdamW(
            self._parameters.values(),
            lr=optimizer.lr,
            betas=(optimizer.beta1, optimizer.beta2),
            eps=optimizer.eps,
            weight_decay=optimizer.weight_decay,
            fused=True,
        )
        self._start_kl = learner.start_kl
        self._start = StartPolicy(model, dtype=dtype, fp32_head=self._fp32_head) if learner.start_kl else None
        self._version = version
        self._updates = 0
        self._graphs: PassGraphs | None = None
        if self._device.type == "cuda" if compiled is None else compiled:
            compile_layers(self._body)
            self._warm_up()
            if not learner.gradient_checkpointing:
                self._graphs = self._pass_graphs()

    @property
    def version(self) -> int:
        return self._version

    @property
    def shape(self) -> ModelShape:
        return self._shape

    def step(self, batch: Batch) -> dict[str, float]:
        """Train on a batch and return its metrics. Non-finite metrics are left out, and then no weight has changed."""
        assert batch.version == self._version, f"a batch for version {batch.version} came at {self._version}"
        prepared = prepare(
            batch,
            effective=self._effective,
            weigh=self._weigh,
            micro_batch_tokens=self._micro_batch_tokens,
            # Graphs are for small passes, whose launches take longer than their work: fewer tokens save nothing there.
            share_prompts=self._share_prompts and self._graphs is None,
        )
        self._optimizer.zero_grad(set_to_none=True)
        tokens: TokenSums | None = None
        loss = torch.zeros((), dtype=torch.float64, device=self._device)
        self._start_kl_sum = torch.zeros_like(loss)
        for micro in prepared.micro_batches:
            part, value = self._backward(micro)
            tokens = part if tokens is None else tokens + part
            loss += value
        if self._graphs is not None:
            self._graphs.add_to_masters()
        metrics = prepared.facts | {"optim/lr": self.lr, "batch/flops": self._flops(prepared)}
        norm = self._update(loss) if prepared.micro_batches else None
        self._optimizer.zero_grad(set_to_none=True)
        metrics |= step_metrics(tokens, prepared.effective, lag=prepared.lag, num_nonfinite=prepared.num_nonfinite)
        metrics |= self._outcome(norm, loss)
        if self._start is not None and (num := prepared.facts["batch/trained_tokens"]):
            metrics["loss/start_kl"] = self._start_kl_sum.item() / num
        self._version += 1
        return {name: value for name, value in metrics.items() if math.isfinite(value)}

    @property
    def lr(self) -> float:
        """Learning rate of the next update."""
        return rate(self._settings, step=self._version, updates=self._updates)

    def weights(self) -> dict[str, Tensor]:
        """Return all FP32 weights, adapters merged in, a tied one once. They are not copies: copy what you keep."""
        return merged_weights(self._model)

    def state_dict(self) -> dict[str, dict[str, Tensor]]:
        """Return everything a checkpoint needs, as tensors: weights, optimiser moments, random state, counters."""
        moments = {
            f"{name}/{key}": value
            for name, parameter in self._parameters.items()
            for key, value in self._optimizer.state[parameter].items()
        }
        rng = {"cpu": torch.get_rng_state()}
        if self._device.type == "cuda":
            rng["cuda"] = torch.cuda.get_rng_state(self._device)
        counters = {"version": torch.tensor(self._version), "updates": torch.tensor(self._updates)}
        weights = {name: parameter.detach() for name, parameter in self._parameters.items()}
        return {"weights": weights, "optimizer": moments, "rng": rng, "counters": counters}

    @torch.no_grad()
    def load_state_dict(self, state: Mapping[str, Mapping[str, Tensor]]) -> None:
        """Restore the state at which state_dict was taken, exactly."""
        weights = state["weights"]
        if differing := weights.keys() ^ self._parameters.keys():
            raise ValueError(
                f"the saved weights are of another model: {sorted(differing)[0]} is only in one of the two"
            )
        for name, parameter in self._parameters.items():
            parameter.copy_(weights[name])
        self._optimizer.state.clear()
        for key, value in state["optimizer"].items():
            name, _, moment = key.rpartition("/")
            parameter = self._parameters[name]
            self._optimizer.state[parameter][moment] = value.to(parameter.device, copy=True)
        torch.set_rng_state(state["rng"]["cpu"].cpu())
        if self._device.type == "cuda" and "cuda" in state["rng"]:
            torch.cuda.set_rng_state(state["rng"]["cuda"].cpu(), self._device)
        self._version = int(state["counters"]["version"])
        self._updates = int(state["counters"]["updates"])
        self._refresh_body()

    def _backward(self, micro: MicroBatch) -> tuple[TokenSums, Tensor]:
        """Add one micro-batch's share to the gradient."""
        run = self._run if self._graphs is None else self._graphs
        log_probs, entropy = run(micro.inputs)
        micro = micro.to(self._device)
        loss_inputs = LossInputs(
            log_probs=log_probs,
            generator_log_probs=micro.generator_log_probs,
            advantages=micro.advantages,
            completion_of_token=micro.completion_of_token,
            trained=torch.ones_like(micro.weights, dtype=torch.bool),
        )
        token_loss = self._loss(loss_inputs)
        per_token = token_loss.loss
        if self._start is not None:
            terms = kl_terms(log_probs, self._start.log_probs(micro.inputs))
            self._start_kl_sum += terms.detach().double().sum()
            per_token = per_token + self._start_kl * terms
        loss = (micro.weights * per_token).sum()
        loss.backward()
        return token_sums(token_loss, loss_inputs, entropy), loss.detach()

    def _run(self, inputs: ForwardInputs) -> tuple[Tensor, Tensor]:
        """Return the log-probs and entropies of a pass."""
        inputs = inputs.to(self._device)
        hidden = _Rows.apply(packed_hidden_states(self._body, inputs.ids, inputs.packing), inputs.place)
        return self._log_probs(hidden, inputs.targets, inputs.temperature)

    def _warm_up(self) -> None:
        """Run full and small passes and discard their gradients, so that everything is compiled before the first step.

        The compiler specialises on the first size and makes it dynamic when it sees the second.
        """
        for length in WARM_UP_LENGTHS:
            length = min(length, self._model.config.max_position_embeddings - 1)
            for num in (max(self._micro_batch_tokens // length, 3), 3):
                packing = pack([length] * num).to(self._device)
                ids = torch.zeros_like(packing.positions)
                log_probs, _ = self._log_probs(packed_hidden_states(self._body, ids, packing), ids, 1.0)
                log_probs.sum().backward()
        self._optimizer.zero_grad(set_to_none=True)

    def _pass_graphs(self) -> PassGraphs | None:
        """Return the CUDA graphs of passes, or None if passes are too large or depend on more than their shape."""
        most_tokens = MOST_WORK // sum(parameter.numel() for parameter in self._model.parameters())
        _, head_dim = head_sizes(self._model.config)
        if most_tokens < LEAST_TOKENS or not has_kernel(self._device, self._body.dtype, head_dim):
            return None
        leaves = self._leaves()
        if reads_device(self._run, leaves, self._device):
            return None
        return PassGraphs(self._run, leaves, most_tokens=most_tokens, device=self._device, record=recorder())

    def _rounded_copies(self) -> list[Tensor]:
        """Return the body's copy of each master weight, in the same order."""
        return [copy for copy in self._body.parameters() if copy.requires_grad]

    def _leaves(self) -> Sequence[tuple[Tensor, Tensor]]:
        """Return the tensors that a pass has gradients for, each with its master: body parameters and the head."""
        leaves = list(zip(self._rounded_copies(), self._parameters.values(), strict=True))
        own = head(self._model)
        known = {id(copy) for copy, _ in leaves}
        heads = [part for part in (own.weight, own.bias) if part is not None and part.requires_grad]
        return leaves + [(part, part) for part in heads if id(part) not in known]

    def _log_probs(self, hidden: Tensor, targets: Tensor, temperature: float) -> tuple[Tensor, Tensor]:
        # The head is the master's: unrounded in FP32, otherwise rounded as the generator's copy is.
        master = head(self._model)
        return log_probs_and_entropy(
            hidden,
            master.weight,
            targets,
            temperature=temperature,
            bias=master.bias,
            fp32=self._fp32_head,
        )

    def _update(self, loss: Tensor) -> Tensor:
        """Clip and update, unless the loss or a gradient is not finite; return the gradient norm.

        One bad batch must not end a run. The optimiser's kernel reads `found_inf`, so the host does not wait.
        """
        norm = torch.nn.utils.get_total_norm([p.grad for p in self._parameters.values() if p.grad is not None])
        if self._settings.grad_clip:
            torch.nn.utils.clip_grads_with_norm_(self._parameters.values(), self._settings.grad_clip, norm)
        for group in self._optimizer.param_groups:
            group["lr"] = self.lr
        bad = ~(norm.isfinite() & loss.isfinite())
        self._optimizer.found_inf = bad.float()  # pyright: ignore[reportAttributeAccessIssue]
        self._optimizer.step()
        self._refresh_body()
        return norm

    def _outcome(self, norm: Tensor | None, loss: Tensor) -> dict[str, float]:
        """Return the metrics of the update; this waits for the device."""
        if norm is None:
            return {"optim/skipped": 0.0}
        norm_value, loss_value = torch.stack([norm.double(), loss]).tolist()
        skipped = not (math.isfinite(norm_value) and math.isfinite(loss_value))
        self._updates += not skipped
        return {"optim/grad_norm": norm_value, "loss/value": loss_value, "optim/skipped": float(skipped)}

    @torch.no_grad()
    def _refresh_body(self) -> None:
        copies = self._rounded_copies()
        masters: list[Tensor] = list(self._parameters.values())
        if any(copy is not master for copy, master in zip(copies, masters, strict=True)):
            torch._foreach_copy_(copies, masters)  # pyright: ignore[reportPrivateImportUsage]

    def _flops(self, prepared: Prepared) -> float:
        num_logits = int(prepared.facts["batch/trained_tokens"])
        sizes = self._shape, prepared.lengths, num_logits
        training = training_flops(*sizes, shared=prepared.shared, adapters=self._num_adapter_params)
        return training + (forward_flops(*sizes, shared=prepared.shared) if self._start is not None else 0.0)


class _Rows(torch.autograd.Function):
    """values[place] for distinct indices. Autograd cannot know that they are distinct, and would sort and add."""

    @staticmethod
    def forward(ctx, values: Tensor, place: Tensor) -> Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx.save_for_backward(place)
        ctx.num_rows = len(values)
        return values.index_select(0, place)

    @staticmethod
    @once_differentiable
    def backward(ctx, gradient: Tensor) -> tuple[Tensor, None]:  # pyright: ignore[reportIncompatibleMethodOverride]
        (place,) = ctx.saved_tensors
        total = gradient.new_zeros(ctx.num_rows, *gradient.shape[1:])
        return total.index_copy_(0, place, gradient), None


def compilation_s() -> float:
    """Return the seconds that torch has spent compiling in this process."""
    utils = sys.modules.get("torch._dynamo.utils")
    return 0.0 if utils is None else utils.calculate_time_spent()["total_wall_time"]
