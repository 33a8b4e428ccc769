"""The products of a head: z = h W^T + b and its gradients g W and g^T h, at nearly FP32 precision.

A GPU multiplies FP32 matrices at a twelfth of its bf16 rate. If the hidden states h are bf16, every FP32 factor is
therefore split into two bf16 parts, x = x_1 + x_2 with an error of at most 2^-16 |x|, and multiplied on the tensor
cores with FP32 sums:

    z = h W_1 + h W_2            g W = g_1 W_1 + g_1 W_2 + g_2 W_1            g^T h = g_1^T h + g_2^T h

Seven bf16 products replace three FP32 ones. The results agree with a float64 reference to between 1e-6 and 2e-4
relative. One part alone would not suffice: its errors of 2^-9 are the ones an FP32 head is meant to avoid. FP16 has the
digits but not the range: gradients of unlikely tokens would become 0, and AdamW divides gradients by their own size.
TF32 is never used.
"""

import torch
from torch import Tensor
from torch.nn.functional import linear

from scalerl.training.rl.bf16_products import fp32_linear, takes_fp32

_UPPER_HALF = -0x10000
"""Mask of the bits that an FP32 number shares with a bf16 one."""
SPLIT_AT_ONCE = 2**24
"""Numbers of a weight that are split at a time: splitting the whole head of an 8B model would need another 8 GB."""


class PlainProducts:
    """Products in one dtype: FP32 or float64, or the dtype of the hidden states, which rounds the logits."""

    def __init__(self, weight: Tensor, bias: Tensor | None, dtype: torch.dtype) -> None:
        self._weight, self._bias, self._dtype = weight.to(dtype), None if bias is None else bias.to(dtype), dtype

    def logits(self, hidden: Tensor) -> Tensor:
        """Return the logits in FP32 or wider, in a new buffer that the caller may overwrite."""
        multiply = fp32_linear if takes_fp32(self._weight) else linear
        product = multiply(hidden.to(self._dtype), self._weight, self._bias)
        return product.to(torch.promote_types(product.dtype, torch.float32))

    def parts(self, gradient: Tensor) -> tuple[Tensor, ...]:
        """Return d/dz in the form for the two methods below."""
        return (gradient.to(self._dtype),)

    def hidden_gradient(self, parts: tuple[Tensor, ...]) -> Tensor:
        return self._product(parts[0], self._weight)

    def add_weight_gradient(self, total: Tensor, parts: tuple[Tensor, ...], hidden: Tensor) -> None:
        if total.dtype == self._dtype and not takes_fp32(total):
            total.addmm_(parts[0].T, hidden.to(self._dtype))
        else:
            total.add_(self._product(parts[0].T, hidden.to(self._dtype)))

    @staticmethod
    def _product(left: Tensor, right: Tensor) -> Tensor:
        return fp32_linear(left, right.T) if takes_fp32(left) else left @ right


class SplitProducts:
    """Products for bf16 hidden states: every FP32 factor is split into two bf16 parts."""

    def __init__(self, weight: Tensor, bias: Tensor | None, width: int) -> None:
        """`weight` may be split already (see split_weight); `width` is the size of the hidden states."""
        self._weight = split_weight(weight)
        self._first, self._second = self._weight[:, :width], self._weight[:, width:]
        self._bias = None if bias is None else bias.float()

    def logits(self, hidden: Tensor) -> Tensor:
        product = _wide_product(hidden.repeat(1, self._weight.shape[1] // hidden.shape[1]), self._weight.T)
        return product if self._bias is None else product.add_(self._bias)

    def parts(self, gradient: Tensor) -> tuple[Tensor, ...]:
        return split(gradient)

    def hidden_gradient(self, parts: tuple[Tensor, ...]) -> Tensor:
        first, second = parts
        total = _wide_product(first, self._first)
        _add_product(total, second, self._first)
        if self._second.numel():
            _add_product(total, first, self._second)
        return total

    def add_weight_gradient(self, total: Tensor, parts: tuple[Tensor, ...], hidden: Tensor) -> None:
        for part in parts:
            _add_product(total, part.T, hidden)


Products = PlainProducts | SplitProducts


def split(values: Tensor) -> tuple[Tensor, Tensor]:
    """Split an FP32 tensor into two bf16 tensors whose sum equals it to within 2^-16 relative.

    The first part is truncated, not rounded: a compiler that fuses the rounding and keeps the extra digits would make
    the second part 0.
    """
    first = (values.view(torch.int32) & _UPPER_HALF).view(torch.float32)
    return first.bfloat16(), (values - first).bfloat16()


def split_weight(weight: Tensor, into: Tensor | None = None) -> Tensor:
    """Split a weight [vocab, hidden] into bf16 parts [vocab, 2 hidden], in the memory of `into` if it is given.

    Without `into`, a bf16 weight is returned unchanged.
    """
    if into is None:
        if weight.dtype == torch.bfloat16:
            return weight
        into = torch.empty((len(weight), 2 * weight.shape[1]), dtype=torch.bfloat16, device=weight.device)
    width, num_rows = weight.shape[1], max(SPLIT_AT_ONCE // weight.shape[1], 1)
    for rows, target in zip(weight.split(num_rows), into.split(num_rows), strict=True):
        first, second = split(rows.to(device=into.device, dtype=torch.float32))
        target[:, :width], target[:, width:] = first, second
    return into


def _wide_product(left: Tensor, right: Tensor) -> Tensor:
    """Return the FP32 product of two bf16 matrices."""
    if left.is_cuda:
        return torch.mm(left, right, out_dtype=torch.float32)
    return left.float() @ right.float()


def _add_product(total: Tensor, left: Tensor, right: Tensor) -> None:
    """Add the FP32 product of two bf16 matrices to `total`, in the kernel of the product."""
    if left.is_cuda:
        torch.addmm(total, left, right, out_dtype=torch.float32, out=total)
    else:
        total.addmm_(left.float(), right.float())
