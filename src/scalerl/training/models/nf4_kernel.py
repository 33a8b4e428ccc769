"""Decode 4-bit weights in one pass over memory. Imported only on a CUDA device; nf4.py does the same with torch."""
# Triton is installed only with CUDA builds of torch, and its functions are launched by subscript.
# pyright: reportMissingImports=false, reportIndexIssue=false

import triton
import triton.language as tl
from torch import Tensor

_BYTES = 1024
"""Bytes of codes decoded per program."""


def decode_into(out: Tensor, codes: Tensor, scale: Tensor, table: Tensor) -> None:
    """Write table[code] x scale for codes [..., blocks, half a block in bytes] into `out`, in its dtype."""
    assert out.is_contiguous(), "rows of a matrix follow each other"
    num, half = codes.numel(), codes.shape[-1]
    _decode[(triton.cdiv(num, _BYTES),)](codes, scale, table, out, num, HALF=half, BLOCK=_BYTES, num_warps=4)


@triton.jit
def _decode(codes, scale, table, out, num, HALF: tl.constexpr, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = at < num
    pair = tl.load(codes + at, mask=inside, other=0).to(tl.int32)
    block = at // HALF
    largest = tl.load(scale + block, mask=inside, other=0.0)
    place = out + block * (2 * HALF) + at % HALF
    dtype = out.dtype.element_ty
    tl.store(place, (tl.load(table + (pair & 15)) * largest).to(dtype), mask=inside)
    tl.store(place + HALF, (tl.load(table + (pair >> 4)) * largest).to(dtype), mask=inside)
