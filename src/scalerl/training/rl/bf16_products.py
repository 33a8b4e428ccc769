"""Products of bf16 matrices on CPUs without bf16 arithmetic, where torch's own products take 100 times as long.

The product of two bf16 numbers is exact in FP32. So FP32 products of the same numbers, with sums rounded to bf16 at the
end, give the same results as bf16 arithmetic with FP32 sums.
"""

import functools

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

_CPU_HAS_ARITHMETIC = bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())


def takes_fp32(values: Tensor) -> bool:
    """Return whether products with this tensor are faster when computed in FP32."""
    return values.dtype == torch.bfloat16 and values.device.type == "cpu" and not _CPU_HAS_ARITHMETIC


def fp32_linear(inputs: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Return x W^T + b, computed with FP32 products and sums, in the dtype of x."""
    return linear(inputs.float(), weight.float(), None if bias is None else bias.float()).to(inputs.dtype)


def use_fp32_linears(model: nn.Module) -> None:
    """Let linear layers with bf16 weights multiply in FP32 if that is faster; the weights are not changed."""
    for module in model.modules():
        if type(module) is nn.Linear and takes_fp32(module.weight):
            module.forward = functools.partial(_forward, module)  # pyright: ignore[reportAttributeAccessIssue]


def use_fp32_linears_at_work(model: nn.Module) -> None:
    """Do the same as use_fp32_linears for weights that are rounded only during use, with a decision at every call."""
    for module in model.modules():
        if type(module) is nn.Linear:
            module.forward = functools.partial(_forward_at_work, module)  # pyright: ignore[reportAttributeAccessIssue]


def _forward(module: nn.Linear, inputs: Tensor) -> Tensor:
    return fp32_linear(inputs, module.weight, module.bias)


def _forward_at_work(module: nn.Linear, inputs: Tensor) -> Tensor:
    product = fp32_linear if takes_fp32(module.weight) else linear
    return product(inputs, module.weight, module.bias)
