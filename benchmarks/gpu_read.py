"""A kernel that only reads: the measure of benchmarks/gpu_limits.py where Triton is installed."""
# Triton is installed only with CUDA builds of torch, and its functions are launched by subscript.
# pyright: reportMissingImports=false, reportIndexIssue=false

import torch
import triton
import triton.language as tl

BLOCK, TURNS = 4096, 16


@triton.jit
def _read(source, target, BLOCK: tl.constexpr, TURNS: tl.constexpr):
    program = tl.program_id(0)
    first = program.to(tl.int64) * BLOCK * TURNS
    total = tl.zeros([BLOCK], dtype=tl.float32)
    for turn in range(TURNS):
        total += tl.load(source + first + turn * BLOCK + tl.arange(0, BLOCK)).to(tl.float32)
    # One number per program, so that no load can be left out.
    tl.store(target + program, tl.sum(total))


def read_by_kernel(source: torch.Tensor) -> torch.Tensor:
    """Read a flat tensor of a multiple of BLOCK x TURNS values once; return sums of its parts."""
    num = source.numel() // (BLOCK * TURNS)
    target = torch.empty(num, device=source.device)
    _read[(num,)](source, target, BLOCK=BLOCK, TURNS=TURNS, num_warps=8)
    return target
