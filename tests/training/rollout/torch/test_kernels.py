"""Every kernel against plain torch. They need a GPU, or Triton's interpreter: TRITON_INTERPRET=1 pytest -m gpu."""

import os
from types import SimpleNamespace

import pytest
import torch
from torch.nn.functional import rms_norm, silu

from scalerl.training.rollout.sampling import sample

pytestmark = pytest.mark.gpu
INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
DEVICE = "cpu" if INTERPRETED else "cuda"
DTYPES = [torch.float32] if INTERPRETED else [torch.float32, torch.bfloat16]
"""The interpreter cuts bf16 off where a GPU rounds."""


@pytest.fixture(scope="module")
def kernels():
    from scalerl.training.rollout.torch import kernels

    return kernels


def randn(*shape, dtype=torch.float32):
    return torch.randn(*shape, device=DEVICE).to(dtype)


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(0)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("width", [32, 96, 576])
def test_add_norm_adds_in_place_and_normalises(kernels, width, dtype):
    hidden, change, weight = randn(5, width, dtype=dtype), randn(5, width, dtype=dtype), randn(width, dtype=dtype)
    total = hidden + change
    for given, expected in ((None, hidden.clone()), (change, total)):
        normed = kernels.add_norm(hidden, given, weight, 1e-6)
        assert torch.equal(hidden, expected)
        reference = rms_norm(expected.double(), (width,), weight.double(), 1e-6)
        torch.testing.assert_close(
            normed.double(), reference, rtol=1e-2 if dtype == torch.bfloat16 else 1e-5, atol=1e-5
        )


@pytest.mark.parametrize("width", [48, 1500])
def test_gated_is_silu_times_up(kernels, width):
    gate_up = randn(3, 2 * width)
    gate, up = gate_up.chunk(2, dim=-1)
    torch.testing.assert_close(kernels.gated(gate_up), silu(gate) * up)


def attention_reference(joined, cosine, sine, position, keys, values, scale, norms):
    """Row by row in float64, over the same cache, which it fills as the kernel must."""
    num_rows, (_, num_kv_heads, _, head_dim) = len(joined), keys.shape
    heads = joined.double().view(num_rows, -1, head_dim)
    num_heads = heads.shape[1] - 2 * num_kv_heads
    query, key, value = heads.split((num_heads, num_kv_heads, num_kv_heads), dim=1)
    if norms is not None:
        query, key = (
            rms_norm(x, (head_dim,), n.weight.double(), 1e-6) for x, n in zip((query, key), norms, strict=True)
        )
    results = []
    for row, place in enumerate(position.tolist()):
        turn = lambda x: x * cosine[place].double() + x.roll(head_dim // 2, dims=-1) * sine[place].double()  # noqa: E731, B023
        keys[row, :, place], values[row, :, place] = turn(key[row]).to(keys.dtype), value[row].to(values.dtype)
        seen_keys, seen_values = (
            x[row, :, : place + 1].double().repeat_interleave(num_heads // num_kv_heads, dim=0) for x in (keys, values)
        )
        shares = torch.softmax((seen_keys @ turn(query[row])[:, :, None])[:, :, 0] * scale, dim=-1)
        results.append((shares[:, None] @ seen_values).reshape(-1))
    return torch.stack(results)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("heads", "kv_heads", "head_dim", "max_length", "normed"),
    [(9, 3, 64, 200, False), (6, 6, 16, 96, False), (12, 2, 128, 150, False), (4, 2, 32, 1100, True)],
)
def test_attention_reads_own_rows_and_writes_new_position(
    kernels, heads, kv_heads, head_dim, max_length, normed, dtype
):
    rows = 5
    joined = randn(rows, (heads + 2 * kv_heads) * head_dim, dtype=dtype)
    cosine, sine = randn(max_length, head_dim, dtype=dtype), randn(max_length, head_dim, dtype=dtype)
    # Rows of every kind: nothing yet, an exact block, the last position of the cache.
    position = torch.tensor([0, 1, 64, max_length // 2, max_length - 1], device=DEVICE)
    keys, values = (randn(rows + 2, kv_heads, max_length, head_dim, dtype=dtype) for _ in range(2))
    for row, place in enumerate(position.tolist()):
        for stored in (keys, values):
            stored[row, :, place:] = float("nan")  # What is not yet written must not be read.
    weights = [randn(head_dim, dtype=dtype) for _ in range(2)]
    norms = tuple(SimpleNamespace(weight=weight, variance_epsilon=1e-6) for weight in weights) if normed else None
    expected_keys, expected_values = keys.clone(), values.clone()
    expected = attention_reference(joined, cosine, sine, position, expected_keys, expected_values, 0.2, norms)
    result = kernels.decode_attention(joined, cosine, sine, position, keys, values, scale=0.2, norms=norms)
    error = (result.double() - expected).norm() / expected.norm()
    assert error < (2e-2 if dtype == torch.bfloat16 else 1e-5)
    for stored, reference in ((keys, expected_keys), (values, expected_values)):
        torch.testing.assert_close(stored, reference, equal_nan=True, rtol=2e-2, atol=1e-2)


def step_buffers(rows, chunk=3):
    zeros = lambda *shape, dtype=torch.int64: torch.zeros(shape, dtype=dtype, device=DEVICE)  # noqa: E731
    return {
        "step": zeros(1) + 1,
        "noise": torch.rand(chunk, rows, device=DEVICE) * (1 - 2.0**-24),
        "temperature": zeros(rows, dtype=torch.float32) + 1,
        "greedy": zeros(rows, dtype=torch.bool),
        "forced": zeros(chunk, rows) - 1,
        "tokens": zeros(chunk, rows) - 7,
        "log_probs": zeros(chunk, rows, dtype=torch.float32) - 7,
        "token": zeros(rows),
        "position": zeros(rows),
    }


@pytest.mark.parametrize("vocabulary", [64, 1000, 9000])
def test_a_step_samples_what_the_plain_sampler_does(kernels, vocabulary):
    rows = 24
    logits, buffers = 3 * randn(rows, vocabulary), step_buffers(rows)
    logits[:, ::3] = float("-inf")
    logits[3, : vocabulary // 2] = float("-inf")
    buffers["temperature"] = torch.rand(rows, device=DEVICE) + 0.5
    buffers["greedy"][::5] = True
    buffers["temperature"][::5] = 1.0
    buffers["noise"][1, 1], buffers["noise"][1, 2] = 0.0, 1 - 2.0**-24
    buffers["position"][:2] = torch.tensor([8, 9])
    kernels.sample_step(logits, **buffers, last_position=9)
    chosen = (buffers["noise"][1].double(), buffers["temperature"].double())
    expected, _ = sample(logits.double(), *chosen, greedy=buffers["greedy"])
    tokens = buffers["tokens"][1]
    # In another order of summing a number may fall on the other side of a token's edge: seldom, and by one token.
    assert (tokens == expected).float().mean() >= 0.9
    assert torch.equal(buffers["token"], tokens)
    assert (buffers["tokens"][[0, 2]] == -7).all()
    assert (buffers["log_probs"][[0, 2]] == -7).all()
    assert buffers["log_probs"][1].isfinite().all()
    scaled = torch.log_softmax(logits.double() / chosen[1][:, None], dim=-1)
    torch.testing.assert_close(
        buffers["log_probs"][1].double(), scaled.gather(1, tokens[:, None])[:, 0], atol=1e-5, rtol=1e-5
    )
    assert torch.equal(tokens[::5], logits[::5].argmax(-1))
    assert buffers["position"].tolist() == [9, 9] + [1] * (rows - 2)


@pytest.mark.filterwarnings("ignore:invalid value")  # numpy's remark under the interpreter
def test_forced_log_probs_are_zero_and_non_finite_ones_show(kernels):
    logits, buffers = randn(4, 100), step_buffers(4)
    buffers["forced"][1, 0] = 41
    logits[1, 7], logits[2, 8] = float("nan"), float("inf")
    kernels.sample_step(logits, **buffers, last_position=9)
    assert buffers["token"][0] == 41
    assert buffers["log_probs"][1, 0] == 0
    assert buffers["log_probs"][1].isfinite().tolist() == [True, False, False, True]
    assert ((buffers["token"] >= 0) & (buffers["token"] < 100)).all()
