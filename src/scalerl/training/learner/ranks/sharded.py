"""A policy whose weights are divided among ranks by FSDP2 (`fully_shard`), layer by layer.

FP32 shards: master weights, gradients and moments, 1 / num_ranks of each
current layer: gathered by all ranks and rounded to the body's dtype, then dropped
gradients: summed over ranks in FP32, of which each rank keeps its shard; sums instead of means, because token weights
           refer to the whole batch
head: gathered in FP32; body and chunked log-probs are one forward call, because FSDP's hooks are on forward
"""

import functools
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from scalerl.recipe.parts import LearnerSettings, LoraSettings
from scalerl.training.learner.batch import ForwardInputs, Scored
from scalerl.training.learner.body import layers_of, prepare_for_training
from scalerl.training.learner.packed_attention import Packing, attend_packed, check_packing, packed_hidden_states
from scalerl.training.learner.policy import DistinctRows, Policy, warm_up
from scalerl.training.learner.saved import SavedKind
from scalerl.training.learner.share import fewest_shared_tokens
from scalerl.training.learner.state import whole
from scalerl.training.models.folder import empty_model, fill
from scalerl.training.models.lora import NamedTensors, each_adapter, each_merged_weight, num_adapter_params, wrap
from scalerl.training.models.routers import RouterReplay
from scalerl.training.rl.bf16_products import use_fp32_linears_at_work
from scalerl.training.rl.logprobs import log_probs_and_entropy

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh
    from transformers import PreTrainedModel


def device_mesh(device: torch.device, num_ranks: int, shard_size: int) -> "DeviceMesh":
    """Return the mesh of all ranks: one dimension, or replicas of `shard_size` ranks that share one copy."""
    import torch.distributed as dist
    from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

    if shard_size == num_ranks:
        # init_device_mesh would always use NCCL on GPUs, but NCCL does not support ranks that share a GPU.
        assert dist.group.WORLD is not None
        return DeviceMesh.from_group(dist.group.WORLD, device.type, mesh_dim_names=("shard",))
    return init_device_mesh(device.type, (num_ranks // shard_size, shard_size), mesh_dim_names=("replicate", "shard"))


class ShardedPolicy(Policy):
    """A model of which this rank has a part of every weight. All ranks call the same methods together.

    Layers are gathered again in every pass, and every backward pass sums the gradients of all ranks.
    """

    equal_passes = True

    def __init__(
        self,
        folder: Path,
        mesh: "DeviceMesh",
        learner: LearnerSettings,
        *,
        device: torch.device,
        lora: LoraSettings,
        dtype: torch.dtype = torch.float32,
        master_dtype: torch.dtype = torch.float32,
        fp32_head: bool = True,
        compiled: bool | None = None,
        router_replay: bool = False,
        merges: bool = True,
    ) -> None:
        """`folder` has the model's weights; every rank reads them layer by layer.

        For `merges` see LocalPolicy.
        """
        self.device = device
        self.mesh = mesh
        self._merges = merges
        self._dtype = master_dtype if dtype == torch.float32 else dtype
        self._fp32_head = fp32_head or dtype == torch.float32
        self.model, weights = _load(folder, master_dtype, lora)
        self._rounds = self._dtype != master_dtype and not num_adapter_params(self.model)
        attend_packed(self.model)
        prepare_for_training(self.model, learner.gradient_checkpointing is True)
        compiled = device.type == "cuda" if compiled is None else compiled
        self.replay = RouterReplay(self.model, device, replays=router_replay)
        self._root = self._shard(weights, compiled=compiled)
        self.parameters: dict[str, Tensor] = {n: p for n, p in self.model.named_parameters() if p.requires_grad}
        self.holders = self.parameters
        self.copies = {}
        # This pass runs uncompiled: no training pass is that short.
        with torch.compiler.set_stance("force_eager"):
            tolerance = 1e-3 if self._dtype == master_dtype else 0.1
            like: Any = {"device": device, "tolerance": tolerance}
            can_share = check_packing(lambda ids, packing: self._root(ids, packing), self.model.config, **like)
        num_params = sum(parameter.numel() for parameter in self.model.parameters())
        fewest = fewest_shared_tokens(num_params, gpu=device.type == "cuda")
        self.share_from = fewest if can_share else None
        if compiled:
            warm_up(self, learner.micro_batch_tokens)
        self._divide_again()

    def run(self, inputs: ForwardInputs) -> Scored:
        """Return log-probs and entropies of all targets; `inputs` is on the host."""
        inputs = inputs.to(self.device)
        self.replay.use(inputs.experts)
        values = self._root(inputs.ids, inputs.packing, inputs.place, inputs.targets, inputs.temperature)
        if not torch.is_grad_enabled():
            self._divide_again()
        return values

    def weights(self) -> NamedTensors:
        """Yield all whole weights; those of the body are rounded as in the generator before they are gathered."""
        if not self._merges:
            yield from each_adapter(self.model, lambda parameter: whole(parameter.detach()))
            return
        head: Any = self.model.get_output_embeddings()
        kept = {id(parameter) for parameter in head.parameters()}

        def gathered(parameter: Tensor) -> Tensor:
            values = parameter.detach()
            if self._rounds and id(parameter) not in kept:
                values = values.to(self._dtype)
            return whole(values)

        yield from each_merged_weight(self.model, gathered)

    def _shard(self, weights: SavedKind | None, *, compiled: bool) -> nn.Module:
        """Load and divide the model module by module, so that only one module is whole at a time."""
        from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard

        model = self.model
        mesh = self.mesh
        rounded = self._dtype == torch.bfloat16
        wide = MixedPrecisionPolicy(cast_forward_inputs=False)
        body = wide
        if rounded:
            body = replace(wide, param_dtype=self._dtype, reduce_dtype=torch.float32)

        def divide(module: nn.Module, policy: Any, **options: Any) -> None:
            if weights is not None:
                fill(model, module, weights)
            fully_shard(module, mesh=mesh, mp_policy=policy, **options)

        head: Any = model.get_output_embeddings()
        embedding: Any = model.get_input_embeddings()
        is_tied = head.weight is embedding.weight
        if rounded and self.device.type == "cpu":
            use_fp32_linears_at_work(model)
        head.forward = functools.partial(_head_log_probs, head)
        for layer in layers_of(model):
            if compiled:
                # Do not use dynamic=True: in a sharded module, it would also make constants such as the head size
                # dynamic. Sizes that vary become dynamic during the warm-up.
                layer.forward = torch.compile(layer.forward)
            divide(layer, body)
        if isinstance(norm := getattr(model.base_model, "norm", None), nn.Module):
            divide(norm, body)
        if is_tied:
            # A tied weight has two uses: the root gathers it once, in FP32. Rounding the rows after the lookup is the
            # same as looking up rounded rows.
            embedding.register_forward_hook(lambda module, inputs, output: output.to(self._dtype))
        else:
            divide(embedding, body)
            # The backward pass follows at once.
            divide(head, wide, reshard_after_forward=False)
        root = _PackedModel(model, self._fp32_head)
        if weights is not None:
            fill(model, model, weights)
        fully_shard(root, mesh=mesh, mp_policy=wide)
        for module in root.modules():
            if isinstance(module, FSDPModule):
                module.set_gradient_divide_factor(1.0)
                # A factor of 1 would mean a scaled sum, which gloo does not support.
                module.set_force_sum_reduction_for_comms(True)
        return root

    def _divide_again(self) -> None:
        """Drop gathered weights that remain after a forward pass without a backward pass.

        FSDP keeps the root's weights for the backward pass. In the next pass and in `weights`, they would hide weights
        loaded from a checkpoint.
        """
        from torch.distributed.fsdp import FSDPModule

        for module in self._root.modules():
            if isinstance(module, FSDPModule):
                module.reshard()


class _PackedModel(nn.Module):
    """The root module: one call of `forward` is one pass, from tokens to log-probs and entropies."""

    def __init__(self, model: "PreTrainedModel", fp32_head: bool) -> None:
        super().__init__()
        self.model = model
        self._fp32_head = fp32_head

    def forward(
        self,
        ids: Tensor,
        packing: Packing,
        place: Tensor | None = None,
        targets: Tensor | None = None,
        temperature: float = 1.0,
    ) -> Any:
        """Return log-probs and entropies; without `place`, the hidden states."""
        hidden = packed_hidden_states(self.model, ids, packing)
        if place is None:
            return hidden
        head: Any = self.model.get_output_embeddings()
        return head(DistinctRows.apply(hidden, place), targets, temperature, self._fp32_head)


def _head_log_probs(head: Any, hidden: Tensor, targets: Tensor, temperature: float, fp32: bool) -> Scored:
    log_probs, entropy = log_probs_and_entropy(
        hidden, head.weight, targets, temperature=temperature, bias=head.bias, fp32=fp32
    )
    # FSDP adds hooks to the outputs, so these must not be views.
    return log_probs.clone(), entropy.clone()


def _load(folder: Path, dtype: torch.dtype, lora: LoraSettings) -> tuple["PreTrainedModel", SavedKind | None]:
    """Return the model of a folder without weights, and the weights to read; or, if necessary, a whole model and None.

    A whole model is necessary for adapters, which are initialised with real weights, and for families whose files use
    other names.
    """
    from transformers import AutoModelForCausalLM

    if lora.rank == 0:
        model = empty_model(folder, dtype)
        weights = SavedKind(list(folder.glob("model*.safetensors")))
        if all(name in weights for name, _ in model.named_parameters()):
            return model, weights
    loaded = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype, use_safetensors=True, attn_implementation="sdpa")
    return wrap(loaded, lora), None
