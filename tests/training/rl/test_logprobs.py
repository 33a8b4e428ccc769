import math
import shutil
import sys
from typing import Any

import forked
import pytest
import torch

from scalerl.training.rl import logprobs
from scalerl.training.rl.head_products import PlainProducts, split, split_weight
from scalerl.training.rl.logprobs import exact_matmul, head_logits, log_probs_and_entropy

# Said once on a CPU without bf16 instructions, where the product is right and slow.
pytestmark = pytest.mark.filterwarnings("ignore:mkldnn_matmul failed")

BACKENDS = (torch.backends.cuda.matmul, torch.backends.mkldnn.matmul)  # pyright: ignore[reportAttributeAccessIssue]


def full(hidden, head_weight, targets, temperature=1.0, bias=None):
    """The whole tokens x vocabulary matrix, by autograd."""
    dtype = torch.promote_types(torch.promote_types(hidden.dtype, head_weight.dtype), torch.float32)
    logits = hidden.to(dtype) @ head_weight.to(dtype).T
    logits = (logits if bias is None else logits + bias.to(dtype)) / temperature
    log_probs = torch.log_softmax(logits, dim=-1)
    return log_probs.gather(1, targets[:, None])[:, 0], -(log_probs.exp() * log_probs).sum(dim=-1)


def a_head(num_tokens=37, vocab=61, width=16, dtype=torch.float32, seed=0, device="cpu"):
    rng = torch.Generator().manual_seed(seed)
    hidden = torch.randn(num_tokens, width, generator=rng).to(device, dtype)
    weight = (torch.randn(vocab, width, generator=rng) / math.sqrt(width)).to(device, dtype)
    targets = torch.randint(0, vocab, (num_tokens,), generator=rng).to(device)
    return hidden.requires_grad_(), weight.requires_grad_(), targets


def gradients(function, inputs, use_entropy=True, **settings):
    hidden, weight, targets = inputs
    rng = torch.Generator().manual_seed(9)
    log_probs, entropy = function(hidden, weight, targets, **settings)
    mix = torch.randn(2, targets.numel(), generator=rng).to(log_probs)
    loss = (mix[0] * log_probs).sum() + ((mix[1] * entropy).sum() if use_entropy else 0)
    bias = settings.get("bias")
    return torch.autograd.grad(loss, [hidden, weight] + ([] if bias is None else [bias]))


@pytest.mark.parametrize("use_entropy", [True, False])
@pytest.mark.parametrize("temperature", [1.0, 0.6, 1.7])
@pytest.mark.parametrize("chunk", [1, 8, 37, 1000])
def test_chunked_equals_full_in_fp32(chunk, temperature, use_entropy):
    # In float64 no rounding hides a mistake in the gradient of the head without FP32.
    exact = a_head(dtype=torch.float64)
    settings = {"temperature": temperature, "use_entropy": use_entropy}
    ours = gradients(log_probs_and_entropy, exact, chunk=chunk, fp32=False, **settings)
    torch.testing.assert_close(ours, gradients(full, exact, **settings), rtol=1e-12, atol=1e-12)
    inputs = a_head()
    for ours, theirs in zip(
        log_probs_and_entropy(*inputs, temperature=temperature, chunk=chunk),
        full(*inputs, temperature=temperature),
        strict=True,
    ):
        assert ours.dtype == torch.float32
        torch.testing.assert_close(ours, theirs, rtol=1e-6, atol=1e-6)
    for ours, theirs in zip(
        gradients(log_probs_and_entropy, inputs, use_entropy, temperature=temperature, chunk=chunk),
        gradients(full, inputs, use_entropy, temperature=temperature),
        strict=True,
    ):
        torch.testing.assert_close(ours, theirs, rtol=1e-6, atol=2e-6)


@pytest.mark.parametrize("widest", ["hidden", "weight", "bias"])
def test_one_float64_input_makes_the_result_float64(widest):
    hidden, weight, targets = a_head()
    bias = torch.randn(61, generator=torch.Generator().manual_seed(1)).requires_grad_()
    inputs = {"hidden": hidden, "weight": weight, "bias": bias}
    inputs[widest] = inputs[widest].detach().double().requires_grad_()
    hidden, weight, bias = inputs.values()
    log_probs, entropy = log_probs_and_entropy(hidden, weight, targets, bias=bias, chunk=8)
    assert log_probs.dtype == entropy.dtype == head_logits(hidden, weight, bias=bias).dtype == torch.float64
    expected = full(hidden.double(), weight.double(), targets, bias=bias)
    torch.testing.assert_close((log_probs, entropy), expected, rtol=1e-12, atol=1e-12)
    given = gradients(log_probs_and_entropy, (hidden, weight, targets), bias=bias)
    assert [gradient.dtype for gradient in given] == [tensor.dtype for tensor in inputs.values()]


def test_gradcheck_of_both_outputs_with_bias():
    hidden, weight, targets = a_head(num_tokens=5, vocab=7, width=3, dtype=torch.float64)
    bias = torch.randn(7, dtype=torch.float64, generator=torch.Generator().manual_seed(1)).requires_grad_()

    def function(hidden, weight, bias):
        return log_probs_and_entropy(hidden, weight, targets, temperature=0.7, chunk=2, bias=bias)

    assert torch.autograd.gradcheck(function, (hidden, weight, bias))


def test_a_tied_head_gets_both_shares_of_the_gradient():
    embedding = torch.randn(19, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(2)).requires_grad_()
    tokens, targets = torch.arange(12) % 19, (torch.arange(12) * 7) % 19

    def gradient(function):
        log_probs, _ = function(torch.tanh(embedding[tokens]), embedding, targets)
        return torch.autograd.grad(log_probs.sum(), embedding)[0]

    torch.testing.assert_close(gradient(log_probs_and_entropy), gradient(full), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("autocast", [False, True])
def test_bf16_body_equals_its_fp32_cast(autocast):
    hidden, weight, targets = a_head(num_tokens=33, vocab=300, width=64, dtype=torch.bfloat16)
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=autocast):
        ours = log_probs_and_entropy(hidden, weight, targets, chunk=16)
        by_bf16 = gradients(log_probs_and_entropy, (hidden, weight, targets), chunk=16)
    cast = (hidden.detach().float().requires_grad_(), weight.detach().float().requires_grad_(), targets)
    for mine, theirs, reference in zip(ours, log_probs_and_entropy(*cast, chunk=16), full(*cast), strict=True):
        assert torch.equal(mine, theirs)
        torch.testing.assert_close(mine, reference, rtol=1e-6, atol=1e-6)
    for mine, theirs in zip(by_bf16, gradients(log_probs_and_entropy, cast, chunk=16), strict=True):
        # Summed in FP32 over all chunks, rounded to bf16 once.
        assert mine.dtype == torch.bfloat16
        assert torch.equal(mine, theirs.bfloat16())


def rounded(hidden, head_weight, targets, temperature=1.0, bias=None):
    """The arm without an FP32 head, by autograd: logits in the hidden states' dtype, then FP32."""
    dtype = hidden.dtype
    logits = torch.nn.functional.linear(hidden, head_weight.to(dtype), None if bias is None else bias.to(dtype))
    log_probs = torch.log_softmax(logits.float() / temperature, dim=-1)
    return log_probs.gather(1, targets[:, None])[:, 0], -(log_probs.exp() * log_probs).sum(dim=-1)


@pytest.mark.parametrize("weight_dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_without_fp32_head_only_the_logits_are_rounded(temperature, biased, weight_dtype):
    hidden, weight, targets = a_head(num_tokens=33, vocab=300, width=64, dtype=torch.bfloat16)
    inputs = hidden, weight.detach().to(weight_dtype).requires_grad_(), targets
    bias = torch.randn(300, generator=torch.Generator().manual_seed(1)).requires_grad_() if biased else None
    settings = {"temperature": temperature, "bias": bias}
    expected = rounded(*inputs, **settings)
    for chunk in (5, 33):
        ours = log_probs_and_entropy(*inputs, chunk=chunk, fp32=False, **settings)
        for mine, theirs in zip(ours, expected, strict=True):
            assert mine.dtype == torch.float32
            torch.testing.assert_close(mine, theirs, rtol=1e-6, atol=2e-6)
    # It is an arm of its own: an FP32 head would differ by a rounding of the logits.
    assert (expected[0] - log_probs_and_entropy(*inputs, **settings)[0]).abs().max() > 1e-3
    wanted, dtypes = gradients(rounded, inputs, **settings), (torch.bfloat16, weight_dtype, torch.float32)
    for chunk in (5, 33):
        ours = gradients(log_probs_and_entropy, inputs, chunk=chunk, fp32=False, **settings)
        for mine, theirs, dtype in zip(ours, wanted, dtypes[: len(ours)], strict=True):
            assert mine.dtype == dtype
            # Both round d/dz to bf16 (8 bits) and sum; a chunk's products are rounded once more before their FP32 sum.
            torch.testing.assert_close(mine, theirs, rtol=2**-7, atol=2**-7 * theirs.float().abs().max().item())


def test_master_and_bf16_copy_agree_only_without_fp32():
    hidden, weight, targets = a_head(dtype=torch.bfloat16)
    master = weight.detach().float() + 1e-4
    copy = master.bfloat16()
    for fp32 in (False, True):
        learner = log_probs_and_entropy(hidden, master, targets, temperature=0.7, fp32=fp32)[0]
        logits = head_logits(hidden, copy, temperature=0.7, fp32=fp32)
        assert (logits.dtype, logits.requires_grad) == (torch.float32, False)
        generator = torch.log_softmax(logits, dim=-1).gather(1, targets[:, None])[:, 0]
        difference = (learner - generator).abs().max().item()
        assert difference > 1e-4 if fp32 else difference < 2e-6
    # One rounding for both ends under an FP32 head: the copy's.
    learner = log_probs_and_entropy(hidden, master.bfloat16(), targets, temperature=0.7)[0]
    torch.testing.assert_close(learner, generator, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("chunk", [8, 1000])
def test_a_bias_of_minus_infinity_rules_a_token_out(chunk):
    hidden, weight, targets = a_head(dtype=torch.float64)
    bias = torch.zeros(61, dtype=torch.float64)
    bias[7] = -math.inf
    left = torch.arange(61) != 7
    targets = torch.where(targets == 7, 8, targets)
    renumbered = left.cumsum(0)[targets] - 1
    inputs = hidden, weight, targets
    ours = log_probs_and_entropy(*inputs, bias=bias, chunk=chunk)
    without = full(hidden, weight[left], renumbered)
    for mine, theirs in zip(ours, without, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-12, atol=1e-12)
    gradient = gradients(log_probs_and_entropy, inputs, bias=bias.requires_grad_(), chunk=chunk)
    expected = gradients(lambda h, w, _: full(h, w[left], renumbered), inputs)
    torch.testing.assert_close(gradient[:2], expected, rtol=1e-12, atol=1e-12)
    assert gradient[2].isfinite().all()
    assert gradient[2][7] == 0
    impossible = log_probs_and_entropy(hidden, weight, torch.full_like(targets, 7), bias=bias, chunk=chunk)
    assert (impossible[0] == -math.inf).all()
    assert impossible[1].isfinite().all()


def test_only_what_is_asked_for_gets_a_gradient():
    hidden, weight, targets = a_head()
    log_probs_and_entropy(hidden, weight.detach(), targets)[0].sum().backward()
    assert hidden.grad is not None
    log_probs_and_entropy(hidden.detach(), weight, targets)[1].sum().backward()
    _, entropy = full(hidden.detach(), weight, targets)
    torch.testing.assert_close(weight.grad, torch.autograd.grad(entropy.sum(), weight)[0], rtol=1e-6, atol=2e-6)
    with torch.no_grad():
        assert not log_probs_and_entropy(hidden, weight, targets)[0].requires_grad


def test_far_logits_do_not_overflow():
    hidden, weight, targets = a_head(dtype=torch.float64)
    log_probs, entropy = log_probs_and_entropy(1000 * hidden, weight, targets)
    expected = full(1000 * hidden, weight, targets)
    torch.testing.assert_close(log_probs, expected[0])
    assert entropy.isfinite().all()
    assert all(g.isfinite().all() for g in torch.autograd.grad((log_probs + entropy).sum(), [hidden, weight]))


def test_no_tokens_and_impossible_settings():
    _, gradient = gradients(log_probs_and_entropy, a_head(num_tokens=0))
    assert (gradient == 0).all()
    impossible: list[Any] = [{"temperature": 0.0}, {"temperature": -1.0}, {"chunk": 0}]
    for settings in impossible:
        with pytest.raises(ValueError, match="temperature must be > 0 and chunk >= 1"):
            log_probs_and_entropy(*a_head(), **settings)


def test_a_number_is_the_sum_of_its_two_parts():
    rng = torch.Generator().manual_seed(0)
    values = torch.randn(10_000, generator=rng) * 10.0 ** torch.randint(-30, 30, (10_000,), generator=rng)
    first, second = split(values)
    assert first.dtype == second.dtype == torch.bfloat16
    assert bool(((first.double() + second.double() - values).abs() <= 2.0**-16 * values.abs()).all())


@pytest.mark.parametrize("weight_dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("biased", [False, True])
def test_split_products_match_those_of_fp32(biased, weight_dtype, monkeypatch):
    """What a GPU does with bf16 hidden states, on a CPU: log-probs and gradients far closer than bf16 ones are."""
    hidden, weight, targets = a_head(num_tokens=40, vocab=300, width=64, seed=3)
    hidden = hidden.detach().bfloat16().requires_grad_()
    weight = weight.detach().to(weight_dtype).requires_grad_()
    bias = torch.randn(300, generator=torch.Generator().manual_seed(1)).requires_grad_() if biased else None
    settings = {"chunk": 16, "temperature": 0.8, "bias": bias}
    exact = log_probs_and_entropy(hidden, weight, targets, **settings)
    exact_gradients = gradients(log_probs_and_entropy, (hidden, weight, targets), **settings)
    monkeypatch.setattr(logprobs, "_on_tensor_cores", lambda hidden: True)
    actual = log_probs_and_entropy(hidden, weight, targets, **settings)
    for ours, theirs in zip(actual, exact, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-4)
    found_gradients = gradients(log_probs_and_entropy, (hidden, weight, targets), **settings)
    for ours, theirs in zip(found_gradients, exact_gradients, strict=True):
        error = (ours.double() - theirs.double()).norm() / theirs.double().norm()
        # Two numbers next to each other may be rounded to different bf16.
        assert error < (1e-4 if ours.dtype == torch.float32 else 1e-3)
    kept = head_logits(hidden, split_weight(weight.detach()), temperature=0.8, bias=bias)
    assert torch.equal(kept, head_logits(hidden, weight, temperature=0.8, bias=bias))


@pytest.mark.parametrize("with_entropy", [False, True])
@pytest.mark.parametrize("biased", [False, True])
def test_what_a_gpu_compiles_is_the_same_formula(biased, with_entropy):
    rng = torch.Generator().manual_seed(0)
    logits, targets = torch.randn(9, 31, generator=rng) * 4, torch.randint(0, 30, (9,), generator=rng)
    if biased:
        logits[:, 30] = -torch.inf
    expected = logprobs.statistics(logits.clone(), targets, 0.7, biased)
    actual = logprobs.fused_statistics(logits, targets, 0.7, biased)
    for ours, theirs in zip(actual, expected, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-5)
    _, entropy, log_total = expected
    grads = torch.randn(2, 9, generator=rng)
    products = PlainProducts(torch.zeros(31, 2), None, torch.float32)
    rest = (targets, entropy, log_total, grads[0], grads[1] if with_entropy else None, 0.7, biased)
    (theirs,) = logprobs.gradient_parts(products, logits.clone(), *rest)
    (ours,) = logprobs.fused_gradient_parts(products, logits, *rest)
    torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("setting", ["highest", "high", "medium"])
def test_matmul_precision_is_raised_and_restored(setting):
    before = [backend.fp32_precision for backend in BACKENDS]
    torch.set_float32_matmul_precision(setting)
    try:
        chosen = [backend.fp32_precision for backend in BACKENDS]
        with exact_matmul(torch.device("cpu")), exact_matmul(torch.device("cpu")):
            assert [backend.fp32_precision for backend in BACKENDS] == ["ieee", "ieee"]
        assert [backend.fp32_precision for backend in BACKENDS] == chosen
        with pytest.raises(RuntimeError, match="inside"), exact_matmul(torch.device("cpu")):
            raise RuntimeError("inside")
        hidden, weight, targets = a_head()
        with pytest.raises((IndexError, RuntimeError)):  # a target outside the vocabulary: in the middle of it all
            log_probs_and_entropy(hidden, weight, targets + 61)
        assert [backend.fp32_precision for backend in BACKENDS] == chosen
        assert torch.get_float32_matmul_precision() == setting
        low = log_probs_and_entropy(*a_head(num_tokens=40, vocab=256, width=256))[0]
    finally:
        torch.set_float32_matmul_precision("highest")
        for backend, precision in zip(BACKENDS, before, strict=True):
            backend.fp32_precision = precision
    assert torch.equal(low, log_probs_and_entropy(*a_head(num_tokens=40, vocab=256, width=256))[0])


needs_compiler = pytest.mark.skipif(shutil.which("g++") is None, reason="torch.compile on a CPU needs a C++ compiler")


COMPILED = """
import torch
from scalerl.training.rl.logprobs import head_logits, log_probs_and_entropy

def outputs(hidden, weight, targets):
    log_probs, entropy = log_probs_and_entropy(torch.tanh(hidden), weight, targets, chunk=8)
    return (log_probs * 2).sum() + 0.1 * entropy.sum(), head_logits(hidden * 2, weight, temperature=0.7) + 1

torch.set_float32_matmul_precision("high")
torch.set_default_device(device)
torch.manual_seed(0)
inputs = torch.randn(37, 64, requires_grad=True), torch.randn(61, 64, requires_grad=True), torch.arange(37)
(loss, logits), (compiled_loss, compiled_logits) = outputs(*inputs), torch.compile(outputs, backend=backend)(*inputs)
torch.testing.assert_close(compiled_loss, loss, rtol=1e-6, atol=1e-6)
torch.testing.assert_close(compiled_logits, logits, rtol=1e-5, atol=1e-5)
gradients = [torch.autograd.grad(each, inputs[:2]) for each in (compiled_loss, loss)]
torch.testing.assert_close(*gradients, rtol=1e-6, atol=1e-6)
assert torch.get_float32_matmul_precision() == "high"
"""


def run_unchecked(code):
    """Run it without the shape checks of the import hook: dynamo would trace them, and users do not have them."""
    sys.meta_path[:] = [finder for finder in sys.meta_path if not type(finder).__module__.startswith("jaxtyping")]
    for name in [name for name in sys.modules if name.startswith("scalerl.training.rl")]:
        del sys.modules[name]
    exec(code, {})


@pytest.mark.parametrize(
    "backend, device",
    [
        pytest.param("inductor", "cpu", marks=[pytest.mark.slow, needs_compiler]),
        pytest.param("inductor", "cuda", marks=pytest.mark.gpu),
    ],
)
def test_compiled_equals_eager(backend, device):
    process = forked.context().Process(target=run_unchecked, args=(f"{backend=}\n{device=}\n{COMPILED}",))
    process.start()
    process.join(240)
    assert process.exitcode == 0


@pytest.mark.gpu
@pytest.mark.parametrize("setting", ["highest", "high", "medium"])
def test_no_tf32_on_a_gpu(setting):
    """TF32 keeps 10 bits: at this width it is off by about 1e-3, FP32 by 1e-6."""
    inputs = a_head(num_tokens=256, vocab=2048, width=1024, device="cuda")
    exact = tuple(x.detach().double() if x.is_floating_point() else x for x in inputs)
    exact = (exact[0].requires_grad_(), exact[1].requires_grad_(), exact[2])
    reference, reference_gradients = full(*exact), gradients(full, exact)
    torch.set_float32_matmul_precision(setting)
    try:
        for ours, theirs in zip(log_probs_and_entropy(*inputs, chunk=100), reference, strict=True):
            torch.testing.assert_close(ours.double(), theirs, rtol=0, atol=2e-5)
        for ours, theirs in zip(gradients(log_probs_and_entropy, inputs, chunk=100), reference_gradients, strict=True):
            torch.testing.assert_close(ours.double(), theirs, rtol=1e-4, atol=2e-5)
        if setting == "high":  # and the test can tell: the plain product is TF32 here
            assert (full(*inputs)[0].double() - reference[0]).abs().max() > 1e-4
        assert torch.get_float32_matmul_precision() == setting
    finally:
        torch.set_float32_matmul_precision("highest")
