"""Frozen linear layers in 4 bits per weight, to train adapters on (QLoRA, arXiv 2305.14314).

    weight -> blocks of 64 neighbours in a row -> 16 codes of NF4 and a scale each (blocks.py), two codes in a byte

A layer decodes its weight whenever it is used, in forward and backward passes, so that only one weight exists in full
at a time. Copies of a layer share its codes, which never change.
"""

import copy
from typing import TYPE_CHECKING, Any, Self

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from scalerl.training.models.blocks import decode, from_blocks, in_blocks, nearest, nf4
from scalerl.training.rl.bf16_products import fp32_linear, takes_fp32

if TYPE_CHECKING:
    from transformers import PreTrainedModel

BLOCK = 64
"""Weights that share a scale."""


class Nf4Linear(nn.Module):
    """A frozen linear layer with its weight in 4 bits."""

    codes: Tensor
    """Two codes per byte: the first half of a block's codes in the low bits, the second half in the high bits."""
    scale: Tensor

    def __init__(self, weight: Tensor, bias: nn.Parameter | None) -> None:
        super().__init__()
        self.out_features, self.in_features = weight.shape
        codes, scale = nearest(in_blocks(weight.float(), BLOCK), nf4(weight.device))
        low, high = codes.chunk(2, dim=-1)
        self.register_buffer("codes", low | high << 4, persistent=False)
        self.register_buffer("scale", scale, persistent=False)
        self.bias = bias

    def forward(self, inputs: Tensor) -> Tensor:
        product = _product(inputs, self.codes, self.scale, self.in_features)
        return product if self.bias is None else product + self.bias

    def decoded(self, dtype: torch.dtype, out: Tensor | None = None) -> Tensor:
        """Return the weight in a dtype; in the memory of `out`, if given."""
        return _decoded(self.codes, self.scale, self.in_features, dtype, out)

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        memo |= {id(self.codes): self.codes, id(self.scale): self.scale}
        other = memo[id(self)] = type(self).__new__(type(self))
        other.__dict__ = copy.deepcopy(self.__dict__, memo)
        return other


def quantise_layers(model: "PreTrainedModel", device: torch.device) -> None:
    """Replace all linear layers except the head by layers in 4 bits on a device, one by one."""
    head = model.get_output_embeddings()
    for name, module in list(model.named_modules()):
        if isinstance(module, nn.Linear) and module is not head:
            model.set_submodule(name, Nf4Linear(module.weight.detach().to(device), module.bias))


def num_weights(model: nn.Module) -> int:
    """Return the number of weights, including those in 4 bits."""
    layers = [module for module in model.modules() if isinstance(module, Nf4Linear)]
    return sum(p.numel() for p in model.parameters()) + sum(each.in_features * each.out_features for each in layers)


def _decoded(codes: Tensor, scale: Tensor, width: int, dtype: torch.dtype, out: Tensor | None = None) -> Tensor:
    if out is None:
        out = torch.empty((len(codes), width), dtype=dtype, device=codes.device)
    if codes.is_cuda and width % BLOCK == 0:
        from scalerl.training.models.nf4_kernel import decode_into

        decode_into(out, codes, scale, nf4(codes.device))
        return out
    halves = torch.cat([codes & 15, codes >> 4], dim=-1)
    return out.copy_(from_blocks(decode(halves, scale, nf4(codes.device)), width))


# These are custom operations, so that a compiler cannot keep a decoded weight for the backward pass.
@torch.library.custom_op("scalerl::nf4_product", mutates_args=())
def _product(inputs: Tensor, codes: Tensor, scale: Tensor, width: int) -> Tensor:
    """Return x W^T."""
    weight = _decoded(codes, scale, width, inputs.dtype)
    return fp32_linear(inputs, weight) if takes_fp32(weight) else linear(inputs, weight)


@torch.library.custom_op("scalerl::nf4_product_back", mutates_args=())
def _product_back(gradient: Tensor, codes: Tensor, scale: Tensor, width: int) -> Tensor:
    """Return the gradient of x: g W."""
    weight = _decoded(codes, scale, width, gradient.dtype)
    return fp32_linear(gradient, weight.T) if takes_fp32(weight) else gradient @ weight


@_product.register_fake
def _(inputs: Tensor, codes: Tensor, scale: Tensor, width: int) -> Tensor:
    return inputs.new_empty((*inputs.shape[:-1], codes.shape[0]))


@_product_back.register_fake
def _(gradient: Tensor, codes: Tensor, scale: Tensor, width: int) -> Tensor:
    return gradient.new_empty((*gradient.shape[:-1], width))


def _keep_codes(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    _, codes, scale, ctx.width = inputs
    ctx.save_for_backward(codes, scale)


def _backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None, None]:
    return _product_back(gradient.contiguous(), *ctx.saved_tensors, ctx.width), None, None, None


_product.register_autograd(_backward, setup_context=_keep_codes)
