"""Numbers in 4 or 8 bits: the numbers of a block share a scale, and each is an entry of a table times the scale.

    code = an index into a table of shares in [-1, 1],   value = table[code] x scale,   scale = the block's largest |x|

NF4 (arXiv 2305.14314) uses the quantiles of a normal distribution, because the weights of a model are nearly normal.
The tables for moments are logarithmic: AdamW divides one moment by the root of the other, number by number, so the
relative error of small numbers matters, too.
"""

import functools

import torch
from torch import Tensor
from torch.nn.functional import pad

SMALLEST = 2.0**-16
"""Smallest share of a mean gradient; for a mean squared gradient, it is the square of this."""


def in_blocks(values: Tensor, size: int) -> Tensor:
    """Return [..., length] as [..., blocks, size], with zeros at the end of each row's last block."""
    return pad(values, (0, -values.shape[-1] % size)).unflatten(-1, (-1, size))


def from_blocks(blocks: Tensor, length: int) -> Tensor:
    """Undo in_blocks; `length` is the length of its last dimension."""
    return blocks.flatten(-2)[..., :length]


def decode(codes: Tensor, scale: Tensor, table: Tensor) -> Tensor:
    """Return the values of blocks [..., blocks, size] with a scale each, [..., blocks]."""
    return table[codes.int()].mul_(scale[..., None])


def nearest(blocks: Tensor, table: Tensor) -> tuple[Tensor, Tensor]:
    """Return the code of the nearest value for each number, and the scale of each block."""
    shares, scale = _shares(blocks)
    middles = (table[1:] + table[:-1]) / 2
    return torch.bucketize(shares, middles, out_int32=True).to(torch.uint8), scale


def unbiased(blocks: Tensor, table: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
    """Return one of the two neighbouring codes for each number, such that the mean over `noise` is the number.

    `noise` is uniform in [0, 1). With the nearest code, a mean that changes by 0.1 % per step would not change at all,
    because codes are further apart. Numbers below the smallest share of a table get that share.
    """
    shares, scale = _shares(blocks)
    shares.clamp_(min=float(table[0]))
    above = torch.bucketize(shares, table, out_int32=True).clamp_(1, len(table) - 1)
    low = table[above - 1]
    rises = noise * (table[above] - low) < shares - low
    return (above - 1 + rises).to(torch.uint8), scale


def _shares(blocks: Tensor) -> tuple[Tensor, Tensor]:
    scale = blocks.abs().amax(-1)
    return blocks / scale.clamp(min=torch.finfo(scale.dtype).tiny)[..., None], scale


@functools.cache
def nf4(device: torch.device) -> Tensor:
    """Return NF4's 16 shares: quantiles of a normal distribution, 8 above zero and 7 below it."""
    edge = (1 - 1 / 32 + 1 - 1 / 30) / 2
    positive, negative = (torch.special.ndtri(torch.linspace(0.5, edge, num, dtype=torch.float64)) for num in (9, 8))
    shares = torch.cat([-negative[1:].flip(0), positive]) / positive[-1]
    return shares.float().to(device)


@functools.cache
def mean_shares(device: torch.device) -> Tensor:
    """Return 255 shares of a mean gradient: both signs, and zero."""
    positive = SMALLEST ** torch.linspace(1, 0, 127, dtype=torch.float64)
    return torch.cat([-positive.flip(0), positive.new_zeros(1), positive]).float().to(device)


@functools.cache
def square_shares(device: torch.device) -> Tensor:
    """Return 256 shares of a mean squared gradient. None of them is zero, because AdamW divides by them."""
    return (SMALLEST ** torch.linspace(2, 0, 256, dtype=torch.float64)).float().to(device)
