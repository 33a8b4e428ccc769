"""bf16 products through FP32 ones: the same numbers, and every product of a model on such a CPU goes that way."""

import copy

import pytest
import torch
from torch import nn

from scalerl.training.rl import bf16_products
from scalerl.training.rl.bf16_products import fp32_linear, takes_fp32, use_fp32_linears, use_fp32_linears_at_work


@pytest.fixture
def no_arithmetic(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bf16_products, "_CPU_HAS_ARITHMETIC", False)


@pytest.mark.parametrize("has_bias", [False, True])
def test_the_product_is_the_exact_one_rounded(has_bias: bool) -> None:
    random = torch.Generator().manual_seed(0)
    inputs, weight = (torch.randn(n, 96, generator=random).bfloat16() for n in (7, 5))
    bias = torch.randn(5, generator=random).bfloat16() if has_bias else None
    product = fp32_linear(inputs, weight, bias)
    assert product.dtype == torch.bfloat16
    exact = inputs.double() @ weight.double().T + (0 if bias is None else bias.double())
    # Half a unit of bf16's last place, and what FP32 sums of terms of size 1 lose.
    assert ((product.double() - exact).abs() <= exact.abs() * 2**-8 + 1e-5).all()


@pytest.mark.parametrize("has_arithmetic", [False, True])
def test_only_bf16_on_a_cpu_without_it_is_taken_that_way(monkeypatch: pytest.MonkeyPatch, has_arithmetic: bool) -> None:
    monkeypatch.setattr(bf16_products, "_CPU_HAS_ARITHMETIC", has_arithmetic)
    assert takes_fp32(torch.zeros(1, dtype=torch.bfloat16)) == (not has_arithmetic)
    assert not takes_fp32(torch.zeros(1))
    assert not takes_fp32(torch.zeros(1, dtype=torch.bfloat16, device="meta"))


@pytest.mark.usefixtures("no_arithmetic")
@pytest.mark.parametrize("use", [use_fp32_linears, use_fp32_linears_at_work])
def test_every_bf16_layer_multiplies_in_fp32(use, monkeypatch: pytest.MonkeyPatch) -> None:
    model = nn.Sequential(nn.Linear(16, 8), nn.Linear(8, 4, bias=False)).bfloat16()
    calls = []
    monkeypatch.setattr(bf16_products, "fp32_linear", lambda *of: calls.append(of) or fp32_linear(*of))
    use(model)
    inputs = torch.randn(3, 16).bfloat16()
    first, second = (layer.weight for layer in model)
    expected = fp32_linear(fp32_linear(inputs, first, model[0].bias), second)  # pyright: ignore[reportArgumentType]
    assert torch.equal(model(inputs), expected)
    assert len(calls) == 2
    model(inputs).float().sum().backward()
    assert all(parameter.grad is not None for parameter in model.parameters())
    with torch.no_grad():
        copied = copy.deepcopy(model)
        copied[1].weight.zero_()  # pyright: ignore[reportCallIssue]
    assert not copied(inputs).any(), "a copy multiplies by its own weights"
    calls.clear()
    # Layers of other dtypes keep their products.
    use(double := nn.Linear(16, 8).double())
    double(inputs.double())
    assert not calls
