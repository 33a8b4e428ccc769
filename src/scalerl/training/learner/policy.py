"""Compute log-probs and gradients of packed rows, with the whole model in this process.

    inputs -> body (body.py) -> rows that predict a target -> head (training/rl/logprobs.py) -> log-probs, entropies

On a GPU, layers are compiled, and small passes run as CUDA graphs (cuda_graphs.py). learner/ranks/sharded.py has a
policy with the same methods whose weights are divided among ranks.
"""

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from scalerl.recipe.parts import LearnerSettings
from scalerl.training.learner.batch import ForwardInputs, Scored
from scalerl.training.learner.body import check_body, compile_layers, head_parameters, make_body, prepare_for_training
from scalerl.training.learner.cuda_graphs import LEAST_TOKENS, MOST_WORK, Leaves, PassGraphs, reads_device, recorder
from scalerl.training.learner.packed_attention import has_kernel, pack, packed_hidden_states
from scalerl.training.learner.share import fewest_shared_tokens
from scalerl.training.learner.team import Team
from scalerl.training.models.load import head
from scalerl.training.models.lora import NamedTensors, each_adapter, each_merged_weight
from scalerl.training.models.nf4 import num_weights
from scalerl.training.models.routers import RouterReplay
from scalerl.training.models.shape import head_sizes
from scalerl.training.rl.logprobs import log_probs_and_entropy

if TYPE_CHECKING:
    from transformers import PreTrainedModel

WARM_UP_LENGTHS = (499, 61)
"""Sequence lengths of the warm-up passes: two that are not round, so that compiled code is valid for any length."""


class Policy(ABC):
    """A model in training, as seen by a learner."""

    model: "PreTrainedModel"
    parameters: dict[str, Tensor]
    """Trained weights by name, whole or this rank's part of each, on the device or in host memory."""
    holders: dict[str, Tensor]
    """The tensor on the device whose `grad` collects the gradient, by name: the weight itself if it is there."""
    copies: dict[str, Tensor]
    """Rounded copies on the device by name, which are updated with their weight."""
    hosted: frozenset[str] = frozenset()
    """Names of the weights in host memory."""
    device: torch.device
    replay: RouterReplay
    share_from: int | None
    """Number of tokens in a pass above which completions share their prompt; None if they cannot."""
    equal_passes = False
    """Whether all ranks must run the same number of passes."""

    @abstractmethod
    def run(self, inputs: ForwardInputs) -> Scored:
        """Return the log-probs and entropies of a pass; `inputs` is on the host."""

    @abstractmethod
    def weights(self) -> NamedTensors:
        """Yield whole weights for an engine, one by one: all weights with adapters merged in, tied ones once; or only
        the adapters. All ranks iterate together."""

    def collect_gradients(self, team: Team) -> None:  # noqa: B027
        """Finish the gradients of a step after its last pass: sum them over all ranks."""

    def gradients(self) -> dict[str, Tensor]:
        """Return the gradients of a step by name; weights without a gradient are left out."""
        return {name: holder.grad for name, holder in self.holders.items() if holder.grad is not None}

    def clear_gradients(self) -> None:
        """Drop all gradients."""
        for holder in self.holders.values():
            holder.grad = None

    def refresh(self) -> None:  # noqa: B027
        """Update everything that depends on the weights, after they were loaded."""


class LocalPolicy(Policy):
    """A policy with all weights in this process: FP32 masters, and rounded copies for a bf16 body."""

    def __init__(
        self,
        model: "PreTrainedModel",
        learner: LearnerSettings = LearnerSettings(),  # noqa: B008 -- frozen
        *,
        dtype: torch.dtype = torch.float32,
        fp32_head: bool = True,
        compiled: bool | None = None,
        router_replay: bool = False,
        on_host: bool = False,
        merges: bool = True,
    ) -> None:
        """By default, layers are `compiled` on a GPU: once, here, for packed rows of any length.

        With `on_host`, the model except its head moves to host memory. With `merges`, adapters are merged into the
        weights for an engine; otherwise the engine gets only the adapters.
        """
        self.model = model
        self.device: torch.device = model.device
        self.parameters: dict[str, Tensor] = {name: p for name, p in model.named_parameters() if p.requires_grad}
        if wrong := {p.dtype for p in self.parameters.values()} - {torch.float32, torch.float64}:
            raise ValueError(f"master weights must be float32, and this model's are {', '.join(map(str, wrong))}")
        self._num_params = num_weights(model)
        self._merges = merges
        if on_host:
            self.hosted = self._keep_on_host()
        self.holders = {name: self._holder(name) for name in self.parameters}
        holders = {id(weight): self.holders[name] for name, weight in self.parameters.items()}
        self.body = make_body(model, dtype, device=self.device, holders=holders)
        trained = zip(self.parameters.items(), self._copies(), strict=True)
        self.copies = {name: copy for (name, master), copy in trained if copy is not master}
        can_share = check_body(self.body)
        self.replay = RouterReplay(self.body, self.device, replays=router_replay)
        # With an FP32 body, both settings mean the same head.
        self.fp32_head = fp32_head or dtype == torch.float32
        # training/run/learners.py has replaced "auto".
        self.gradient_checkpointing = learner.gradient_checkpointing is True
        prepare_for_training(self.body, self.gradient_checkpointing)
        self.graphs: PassGraphs | None = None
        if compiled is None:
            compiled = self.device.type == "cuda"
        if compiled:
            compile_layers(self.body)
            warm_up(self, learner.micro_batch_tokens)
            if not self.gradient_checkpointing and not router_replay:
                self.graphs = self._pass_graphs()
        fewest = fewest_shared_tokens(self._num_params, gpu=self.device.type == "cuda")
        # A pass with shared prompts has no graph.
        most_recorded = 0 if self.graphs is None else self.graphs.most_tokens
        self.share_from = max(fewest, most_recorded) if can_share else None

    def run(self, inputs: ForwardInputs) -> Scored:
        """Return the log-probs and entropies of a pass, with a CUDA graph if there is one and a gradient is needed."""
        if self.graphs is None or not torch.is_grad_enabled():
            return self.compute(inputs)
        return self.graphs(inputs)

    def compute(self, inputs: ForwardInputs) -> Scored:
        """Return the log-probs and entropies of a pass without a graph."""
        inputs = inputs.to(self.device)
        self.replay.use(inputs.experts)
        hidden = DistinctRows.apply(packed_hidden_states(self.body, inputs.ids, inputs.packing), inputs.place)
        return self._from_hidden(hidden, inputs)

    def _from_hidden(self, hidden: Any, inputs: ForwardInputs) -> Scored:
        # The head is the master: unrounded in FP32, otherwise rounded like the generator's copy.
        own = head(self.model)
        options: Any = {"temperature": inputs.temperature, "bias": own.bias, "fp32": self.fp32_head}
        return log_probs_and_entropy(hidden, own.weight, inputs.targets, **options)

    def collect_gradients(self, team: Team) -> None:
        """Add the gradients summed by graphs, then the gradients of the other ranks."""
        if self.graphs is not None:
            self.graphs.add_to_masters()
        team.add_gradients(list(self.holders.values()))

    @torch.no_grad()
    def refresh(self) -> None:
        """Round the master weights into the body again."""
        if self.copies:
            masters = [self.parameters[name] for name in self.copies]
            torch._foreach_copy_(list(self.copies.values()), masters)  # pyright: ignore[reportPrivateImportUsage]

    def weights(self) -> NamedTensors:
        """Yield all weights without copying: FP32 masters, or rounded copies of hosted ones.

        Weights with merged adapters are copies in the body's dtype.
        """
        if not self._merges:
            yield from each_adapter(self.model)
            return
        here = {id(self.parameters[name]): self.copies[name] for name in self.hosted}
        yield from each_merged_weight(self.model, lambda p: here.get(id(p), p).detach(), dtype=self.body.dtype)

    def leaves(self) -> Leaves:
        """Return the tensors for which a pass has gradients, body parameters and the head, each with its holder."""
        leaves = list(zip(self._copies(), self.holders.values(), strict=True))
        known = {id(copy) for copy, _ in leaves}
        heads = [part for part in head_parameters(self.model) if part.requires_grad]
        return leaves + [(part, part) for part in heads if id(part) not in known]

    def _pass_graphs(self) -> PassGraphs | None:
        """Return the CUDA graphs of passes, or None if passes are too large or depend on more than their shape."""
        most_tokens = MOST_WORK // self._num_params
        _, head_dim = head_sizes(self.model.config)
        if most_tokens < LEAST_TOKENS or not has_kernel(self.device, self.body.dtype, head_dim):
            return None
        leaves = self.leaves()
        if reads_device(self.compute, leaves, self.device):
            return None
        return PassGraphs(self.compute, leaves, most_tokens=most_tokens, device=self.device, record=recorder())

    def _copies(self) -> list[Tensor]:
        """Return the body's copy of each master weight, or the master itself, in the same order."""
        return [copy for copy in self.body.parameters() if copy.requires_grad]

    def _keep_on_host(self) -> frozenset[str]:
        """Move the head to the device and all other weights to pinned host memory; return the names of those."""
        heads = {id(part) for part in head_parameters(self.model)}
        for parameter in self.model.parameters():
            if id(parameter) in heads:
                parameter.data = parameter.data.to(self.device)
            elif self.device.type == "cuda":
                parameter.data = parameter.data.cpu().pin_memory()
        return frozenset(name for name, weight in self.parameters.items() if id(weight) not in heads)

    def _holder(self, name: str) -> Tensor:
        weight = self.parameters[name]
        if name not in self.hosted:
            return weight
        # It has this shape but no memory: only its gradient is used.
        return torch.zeros((), dtype=weight.dtype, device=self.device).expand(weight.shape).requires_grad_()


def warm_up(policy: Policy, micro_batch_tokens: int) -> None:
    """Run passes and discard their gradients, so that everything is compiled before the first step.

    There are full and small passes, with and without shared prompts, because these are compiled separately. The
    compiler specialises on the first size and makes it dynamic when it sees a second one.
    """
    for length in WARM_UP_LENGTHS:
        length = min(length, policy.model.config.max_position_embeddings - 1)
        for num in (max(micro_batch_tokens // length, 3), 3):
            shared = np.array([0, *[length // 2] * (num - 1)])
            for packing in (pack([length] * num), pack(length - shared, np.zeros_like(shared), shared)):
                log_probs, _ = policy.run(ForwardInputs.blank(packing))
                log_probs.sum().backward()
    policy.clear_gradients()


class DistinctRows(torch.autograd.Function):
    """values[place] for distinct indices. Autograd does not know that they are distinct, and would sort and add."""

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
