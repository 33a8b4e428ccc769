"""Weights in 4 bits: against slow references, and learner and engine against each other."""

import copy

import pytest
import torch
from batches import VERSION, random_batch
from contracts.requests import drain, mixed_requests
from contracts.sampling import check_log_probs
from learners import check_close, gradients_of, recipe_of
from small_runs import USUAL, small
from tiny_models import sampled_model, tiny_model

from scalerl.runfolder import store
from scalerl.training.models.blocks import nf4
from scalerl.training.models.lora import AdaptedLinear, each_adapter, merged_weights, wrap
from scalerl.training.models.nf4 import BLOCK, Nf4Linear, num_weights, quantise_layers
from scalerl.training.rollout.torch.engine import TorchEngine
from scalerl.training.run.learners import build_learner
from scalerl.training.run.run import TrainingRun

CPU = torch.device("cpu")
IDS = torch.arange(12)[None]
QLORA = ("model.lora.rank=4", "model.lora.alpha=8", "model.lora.bits=4", "rollout.engine=torch")


def quantised(model):
    quantise_layers(model, CPU)
    return model


def decoded_twin(model):
    """Return the model that a quantised copy of `model` computes, with plain linear layers."""
    twin, weights = copy.deepcopy(model), merged_weights(quantised(copy.deepcopy(model)))
    twin.load_state_dict(weights, strict=False)
    return twin


@pytest.mark.parametrize("width", [1, 64, 100, 192])
def test_weight_is_the_nearest_in_its_block(width):
    weight = torch.randn(3, width, generator=torch.Generator().manual_seed(width))
    layer, table = Nf4Linear(weight, None), nf4(CPU)
    decoded = layer.decoded(torch.float32)
    for row in range(3):
        for start in range(0, width, BLOCK):
            block = weight[row, start : start + BLOCK]
            entries = table * block.abs().max()
            nearest = entries[(entries[:, None] - block).abs().argmin(0)]
            torch.testing.assert_close(decoded[row, start : start + BLOCK], nearest)
    # Half a byte per weight, and 4 bytes per block.
    assert layer.codes.nbytes == 3 * -(-width // BLOCK) * BLOCK // 2


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_product_and_gradient_are_those_of_the_decoded_weight(dtype):
    generator = torch.Generator().manual_seed(0)
    bias = torch.nn.Parameter(torch.randn(5).to(dtype))
    layer = Nf4Linear(torch.randn(5, 70, generator=generator), bias)
    inputs = torch.randn(2, 3, 70, generator=generator).to(dtype).requires_grad_()
    plain = inputs.detach().clone().requires_grad_()
    weight = layer.decoded(dtype)
    ours, theirs = layer(inputs), torch.nn.functional.linear(plain.float(), weight.float()).to(dtype) + bias
    torch.testing.assert_close(ours, theirs)
    ours.square().sum().backward()
    theirs.square().sum().backward()
    torch.testing.assert_close(inputs.grad, plain.grad)
    assert torch.library.opcheck(torch.ops.scalerl.nf4_product.default, (inputs, layer.codes, layer.scale, 70))


def test_copies_share_the_codes():
    model = quantised(tiny_model())
    other = copy.deepcopy(model)
    layers = [module for module in model.modules() if isinstance(module, Nf4Linear)]
    copies = [module for module in other.modules() if isinstance(module, Nf4Linear)]
    assert len(layers) == len(copies) == 14
    assert all(one.codes is two.codes and one.scale is two.scale for one, two in zip(layers, copies, strict=True))
    assert num_weights(model) == num_weights(tiny_model())


@pytest.mark.parametrize(
    ("family", "overrides"),
    [
        ("smollm", ()),
        ("llama_with_biases", ("learner.gradient_checkpointing=true", "learner.micro_batch_tokens=24")),
        ("qwen3_moe", ()),
        ("smollm", ("model.dtype=bfloat16",)),
        ("llama_with_biases", ("model.dtype=bfloat16",)),
    ],
)
def test_gradients_are_those_over_the_decoded_weights(family, overrides):
    model, batch, results = tiny_model(family), random_batch(1), []
    for base in (quantised(copy.deepcopy(model)), decoded_twin(model)):
        torch.manual_seed(0)
        learner = build_learner(base, recipe_of(*QLORA, *overrides), version=VERSION)
        # Both matrices of an adapter have a gradient from its second step on.
        learner.step(batch)
        results.append(gradients_of(learner, random_batch(2, version=VERSION + 1)))
    (ours, row), (theirs, other) = results
    assert row["optim/grad_norm"] > 0
    assert row == pytest.approx(other, rel=1e-4 if "model.dtype=bfloat16" not in overrides else 0.02)
    check_close(ours, theirs, 1e-5 if "model.dtype=bfloat16" not in overrides else 0.02)


def adapted(model, bits=4, seed=0, targets=()):
    """A model with adapters that do something, over weights in 4 bits or as they are."""
    settings = recipe_of(*QLORA).model.lora.model_copy(update={"targets": targets})
    wrapped = wrap(quantised(model) if bits == 4 else model, settings)
    generator = torch.Generator().manual_seed(seed)
    for module in wrapped.modules():
        if isinstance(module, AdaptedLinear):
            for part in (module.lora_A, module.lora_B):
                part.weight.data.copy_(0.3 * torch.randn(part.weight.shape, generator=generator))
    return wrapped


@pytest.mark.parametrize("bits", [16, 4])
@pytest.mark.parametrize(
    ("family", "fused", "targets"),
    [("llama-biased", True, ()), ("qwen3", True, ("k_proj", "up_proj")), ("qwen3", False, ())],
)
def test_engine_samples_with_the_learners_log_probs(family, fused, targets, bits):
    model = adapted(sampled_model(family), bits, targets=targets)
    engine = TorchEngine(model, slots=5, max_length=64, stop_tokens=(3,), fused=fused)
    engine.submit(mixed_requests(12))
    check_log_probs(model, drain(engine))
    pushed = adapted(sampled_model(family), bits, seed=1, targets=targets)
    engine.push_weights(dict(each_adapter(pushed)), 1)
    engine.submit(mixed_requests(12))
    check_log_probs(pushed, drain(engine))


@pytest.mark.parametrize("bits", [16, 4])
def test_engine_holds_no_second_copy_of_frozen_weights(bits):
    model = adapted(sampled_model("llama"), bits)
    before = model(IDS).logits
    engine = TorchEngine(model, slots=2, max_length=64, stop_tokens=())
    for name, weight in engine.weights.items():
        shares = weight.data_ptr() == model.get_parameter(name).data_ptr()
        assert shares == (".lora_" not in name), name
    # The layout that the engine chooses for them changes no number.
    torch.testing.assert_close(model(IDS).logits, before)


def test_pushed_weights_are_the_learners_own():
    learner = build_learner(quantised(tiny_model()), recipe_of(*QLORA), version=VERSION)
    learner.step(random_batch(1))
    pushed = learner.weights()
    assert pushed.keys() == learner.policy.parameters.keys()
    # For vLLM they are merged, under the names of a plain model.
    merged = build_learner(quantised(tiny_model()), recipe_of(*QLORA[:3], "rollout.engine=vllm"), version=VERSION)
    assert merged.weights().keys() == dict(tiny_model().named_parameters()).keys()


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_gpu_decodes_as_a_cpu_does(dtype):
    layer = Nf4Linear(torch.randn(300, 448, generator=torch.Generator().manual_seed(0)), None)
    expected = layer.decoded(dtype)
    layer.to("cuda")
    assert torch.equal(layer.decoded(dtype).cpu(), expected)
    rows = torch.zeros(600, 448, dtype=dtype, device="cuda")
    layer.decoded(dtype, out=rows[300:])
    assert torch.equal(rows[300:].cpu(), expected)


@pytest.mark.gpu
def test_gpu_learns_and_samples_with_the_same_weights(tmp_path):
    lora = ("model.lora.rank=4", "model.lora.bits=4", "optimizer.lr=0.01", "optimizer.warmup_steps=0")
    run = TrainingRun(small("budget.steps=3", *lora, "pipeline.completions_per_group=8", *USUAL), tmp_path / "run")
    run.train()
    kls = [row["loss/kl"] for row in store.read_metrics(tmp_path / "run") if row["rollout/lag_max"] == 0]
    assert 0 < max(kls) < 2e-3
