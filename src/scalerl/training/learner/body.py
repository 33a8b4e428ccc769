"""The learner's body: the model's layers with rounded copies of the master weights, prepared for packed rows.

Rounded copies are used instead of autocast, so that the residual stream and the norms are bf16 as in the generator, and
log-probs of learner and generator differ little.
"""

import copy
import functools
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from scalerl.training.learner.packed_attention import attend_packed, check_packing, packed_hidden_states
from scalerl.training.models.load import head
from scalerl.training.rl.bf16_products import use_fp32_linears

if TYPE_CHECKING:
    from transformers import PreTrainedModel


def make_body(
    model: "PreTrainedModel", dtype: torch.dtype, *, device: torch.device, holders: Mapping[int, Tensor]
) -> "PreTrainedModel":
    """Return a copy of the model for packed rows, with the same parameters or rounded copies of them.

    (check_body tests whether the model supports packed rows.) Gradients of rounded copies are added in FP32 to the
    gradients of the `holders` of their master weights, by id; a weight that is not in `holders` holds its own gradient.
    The head is always the model's, so an untied head is not copied.
    """
    # Pass the parameters to deepcopy as already copied, so that FP32 parameters never exist twice. Tied parameters
    # stay tied, and buffers stay FP32.
    is_embedded = {id(p) for p in model.get_input_embeddings().parameters()}
    kept = {id(p) for p in head_parameters(model)} - is_embedded
    copied: dict[int, Any] = {}
    for master in model.parameters():
        holder = holders.get(id(master), master)
        # Do not round a float64 model to an FP32 body.
        narrow = master.dtype if dtype == torch.float32 and master.dtype.itemsize > 4 else dtype
        if id(master) in kept or (holder is master and narrow == master.dtype):
            copied[id(master)] = master
            continue
        rounded = torch.nn.Parameter(
            master.detach().to(device=device, dtype=narrow, copy=True), requires_grad=master.requires_grad
        )
        if master.requires_grad:
            rounded.register_post_accumulate_grad_hook(functools.partial(_move_gradient, holder=holder))
        copied[id(master)] = rounded
    body = copy.deepcopy(model, dict(copied)).to(device)  # pyright: ignore[reportArgumentType]
    use_fp32_linears(body)
    attend_packed(body)
    return body


def head_parameters(model: "PreTrainedModel") -> list[Tensor]:
    """Return the parameters of the head: its weight, which may be the embedding, and its bias, if any."""
    own = head(model)
    return [own.weight] if own.bias is None else [own.weight, own.bias]


def check_body(body: "PreTrainedModel") -> bool:
    """Raise PackingError if the body mixes packed sequences; return whether sequences may share their beginnings."""
    return check_packing(
        functools.partial(packed_hidden_states, body),
        body.config,
        device=body.device,
        tolerance=0.1 if body.dtype == torch.bfloat16 else 1e-3,
    )


def layers_of(model: "PreTrainedModel") -> "list[torch.nn.Module]":
    """Return the layers of a model."""
    from transformers.modeling_layers import GradientCheckpointingLayer

    return [module for module in model.modules() if isinstance(module, GradientCheckpointingLayer)]


def compile_layers(body: "PreTrainedModel") -> None:
    """Compile each layer separately: layers share the compiled code, so this takes seconds instead of minutes.

    The number of tokens is dynamic, so no later pass needs another compilation.
    """
    for layer in layers_of(body):
        layer.compile(dynamic=True)


def _move_gradient(rounded: Tensor, *, holder: Tensor) -> None:
    assert rounded.grad is not None
    add_gradient(holder, rounded.grad)
    rounded.grad = None


@torch.no_grad()
def add_gradient(holder: Tensor, gradient: Tensor) -> None:
    """Add to the gradient of a holder. The first gradient is used without a copy if the dtypes are equal."""
    if holder.grad is None:
        holder.grad = gradient.to(holder.dtype)
    else:
        holder.grad.add_(gradient)


def prepare_for_training(body: "PreTrainedModel", gradient_checkpointing: bool) -> None:
    """Put the body into evaluation mode, as in the generator: dropout would change the log-probs.

    transformers checkpoints gradients only in training mode, so in that case dropout is turned off here instead.
    """
    if not gradient_checkpointing:
        body.eval()
        return
    body.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    body.train()
    for module in body.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
        if hasattr(module, "attention_dropout"):
            module.attention_dropout = 0.0  # pyright: ignore[reportArgumentType]
