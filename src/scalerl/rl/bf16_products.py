"""Products of bf16 matrices on a CPU that has no bf16 arithmetic, where torch's own take a hundred times as long.

The product of two bf16 numbers is exact in FP32. So FP32 products of the same numbers, with the sums rounded to bf16 at
the end, are what bf16 arithmetic with FP32 sums gives.
"""

import functools

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

_CPU_HAS_ARITHMETIC = bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())


def takes_fp32(values: Tensor) -> bool:
    """Whether a product with this factor is better taken in FP32."""
    return values.dtype == torch.bfloat16 and values.device.type == "cpu" and not _CPU_HAS_ARITHMETIC


def fp32_linear(inputs: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """x W^T + b with FP32 products and sums, in the dtype of x."""
    return linear(inputs.float(), weight.float(), None if bias is None else bias.float()).to(inputs.dtype)


def mend_linears(model: nn.Module) -> None:
    """Let the model's linear layers multiply so, where that is better; their weights stay as they are."""
    for module in model.modules():
        if type(module) is nn.Linear and takes_fp32(module.weight):
            module.forward = functools.partial(_forward, module)  # pyright: ignore[reportAttributeAccessIssue]


def _forward(module: nn.Linear, inputs: Tensor) -> Tensor:
    return fp32_linear(inputs, module.weight, module.bias)
