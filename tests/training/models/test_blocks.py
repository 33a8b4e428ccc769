"""Numbers in 4 and 8 bits against tables and slow references."""

import pytest
import torch

from scalerl.training.models.blocks import (
    decode,
    from_blocks,
    in_blocks,
    mean_shares,
    nearest,
    nf4,
    square_shares,
    unbiased,
)

CPU = torch.device("cpu")
TABLES = {"nf4": nf4, "mean": mean_shares, "square": square_shares}


def test_nf4_is_the_published_table():
    # QLoRA, arXiv 2305.14314, appendix E.
    published = [-1.0, -0.6961928, -0.52507305, -0.39491749, -0.28444138, -0.18477343, -0.09105004, 0.0]
    published += [0.0795803, 0.1609302, 0.2461123, 0.33791524, 0.44070983, 0.562617, 0.72295684, 1.0]
    torch.testing.assert_close(nf4(CPU), torch.tensor(published), rtol=0, atol=3e-5)


@pytest.mark.parametrize("name", TABLES)
def test_tables_rise_to_one(name):
    table = TABLES[name](CPU)
    assert (table.diff() > 0).all()
    assert table[-1] == 1.0
    assert (0.0 in table) == (name != "square")


@pytest.mark.parametrize("length", [1, 5, 8, 13])
def test_blocks_keep_order_and_length(length):
    values = torch.randn(3, length)
    blocks = in_blocks(values, 4)
    assert blocks.shape == (3, -(-length // 4), 4)
    assert torch.equal(from_blocks(blocks, length), values)


def test_nearest_is_the_closest_entry():
    blocks, table = torch.randn(7, 16, generator=torch.Generator().manual_seed(0)), nf4(CPU)
    codes, scale = nearest(blocks, table)
    for row in range(7):
        assert scale[row] == blocks[row].abs().max()
        for column in range(16):
            errors = (table * scale[row] - blocks[row, column]).abs()
            assert errors[int(codes[row, column])] <= errors.min() + 1e-7


@pytest.mark.parametrize("name", ["mean", "square"])
def test_unbiased_takes_a_neighbour_with_the_right_mean(name):
    table, generator = TABLES[name](CPU), torch.Generator().manual_seed(0)
    values = torch.tensor([1.0, 0.37, 3e-4, -0.02 if name == "mean" else 1e-7])
    blocks = values.expand(20_000, 4)
    codes, scale = unbiased(blocks, table, torch.rand(blocks.shape, generator=generator))
    decoded = decode(codes, scale, table)
    torch.testing.assert_close(decoded.mean(0), values, rtol=3e-3, atol=0)
    for column, value in enumerate(values.tolist()):
        assert len(decoded[:, column].unique()) <= 2
        assert (decoded[:, column] / value - 1).abs().max() < 0.12


@pytest.mark.parametrize("name", TABLES)
def test_zeros_stay_zeros(name):
    table, blocks = TABLES[name](CPU), torch.zeros(2, 4)
    codes, scale = nearest(blocks, table) if name == "nf4" else unbiased(blocks, table, torch.full((2, 4), 0.5))
    assert (decode(codes, scale, table) == 0).all()
