"""The learner's body: the model's layers over rounded copies of its master weights, ready for packed rows.

A second copy rather than autocast: its residual stream and norms are then bf16 like the generator's, and what the two
disagree on is what the ratio has to correct.
"""

import copy
import functools
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from scalerl.learner.packed_attention import attend_packed, check_packing
from scalerl.rl.bf16_products import use_fp32_linears

if TYPE_CHECKING:
    from transformers import PreTrainedModel


def make_body(model: "PreTrainedModel", dtype: torch.dtype) -> "PreTrainedModel":
    """A copy of the model that takes packed rows, over the same parameters or over rounded ones.

    Gradients of rounded ones go to the masters and are summed there, in FP32.
    """
    # Parameters are given as already copied, so that the FP32 ones are never there twice; tied ones stay tied, and
    # buffers FP32.
    if dtype == torch.float32:
        body = copy.deepcopy(model, {id(p): p for p in model.parameters()})
    else:
        rounded: dict[int, Any] = {
            id(p): torch.nn.Parameter(p.detach().to(dtype), requires_grad=p.requires_grad) for p in model.parameters()
        }
        body = copy.deepcopy(model, dict(rounded))
        for master in (p for p in model.parameters() if p.requires_grad):
            rounded[id(master)].register_post_accumulate_grad_hook(functools.partial(_hand_over, master=master))
    use_fp32_linears(body)
    attend_packed(body)
    check_packing(body, tolerance=1e-3 if dtype == torch.float32 else 0.1)
    return body


def compile_layers(body: "PreTrainedModel") -> None:
    """Each layer by itself: they share what is compiled, so it takes seconds where a whole model takes minutes.

    The number of tokens is left open, so no later pass compiles again.
    """
    from transformers.modeling_layers import GradientCheckpointingLayer

    for module in body.modules():
        if isinstance(module, GradientCheckpointingLayer):
            module.compile(dynamic=True)


def _hand_over(shadow: Tensor, *, master: Tensor) -> None:
    assert shadow.grad is not None
    add_gradient(master, shadow.grad)
    shadow.grad = None


@torch.no_grad()
def add_gradient(master: Tensor, gradient: Tensor) -> None:
    """To what a master has already. The first one is taken as it is where the dtypes are equal, not copied."""
    if master.grad is None:
        master.grad = gradient.to(master.dtype)
    else:
        master.grad.add_(gradient)


def prepare_for_training(body: "PreTrainedModel", gradient_checkpointing: bool) -> None:
    """Evaluation mode, as the generator's: dropout would make log-probs differ from the sampled ones.

    transformers checkpoints only in training mode, so there dropout is turned off by hand.
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
