"""AdamW in every form: against torch's own, against a slow reference, and on the host against the device."""

import math

import pytest
import torch
from batches import VERSION, random_batch
from learners import make_learner

from scalerl.recipe.parts import OptimizerSettings
from scalerl.training.learner import optimizer as optimizers
from scalerl.training.learner.optimizer import AdamW
from scalerl.training.models.blocks import mean_shares, square_shares

CPU = torch.device("cpu")
GOOD, BAD = torch.tensor(0.0), torch.tensor(1.0)
SHAPES = {"embedding": (40, 16), "norm": (12,), "experts": (3, 4, 200), "bias": (7,)}


def settings(**changes):
    return OptimizerSettings(lr=1e-2, beta2=0.99, eps=1e-8, weight_decay=0.1, **changes)


def random_weights(seed=0):
    generator = torch.Generator().manual_seed(seed)
    return {name: torch.randn(shape, generator=generator) for name, shape in SHAPES.items()}


def test_fp32_is_torchs_own_to_the_bit():
    ours, theirs = random_weights(), [weight.requires_grad_() for weight in random_weights().values()]
    chosen = settings()
    optimizer = AdamW(ours, chosen, device=CPU)
    reference = torch.optim.AdamW(theirs, lr=chosen.lr, betas=(0.9, 0.99), eps=1e-8, weight_decay=0.1, fused=True)
    for step in range(5):
        gradients = random_weights(seed=step + 1)
        if step == 2:
            # A weight that no pass used keeps its count of updates, too.
            del gradients["norm"]
        for weight, name in zip(theirs, SHAPES, strict=True):
            weight.grad = gradients.get(name)
        reference.found_inf = BAD if step == 3 else GOOD  # pyright: ignore[reportAttributeAccessIssue]
        reference.step()
        optimizer.update(gradients, lr=chosen.lr, is_bad=BAD if step == 3 else GOOD, seed=step)
    for weight, name in zip(theirs, SHAPES, strict=True):
        assert torch.equal(ours[name], weight)
        for key, value in reference.state[weight].items():
            assert torch.equal(optimizer.state[name][key], value), (name, key)


@pytest.mark.parametrize("bits", [32, 8])
def test_host_gives_the_numbers_of_the_device(bits, monkeypatch):
    # Several portions, and weights of several parts; of widths that a CPU computes alike in parts and whole.
    monkeypatch.setattr(optimizers, "PORTION", 320)
    results = []
    for on_host in (False, True):
        weights = random_weights()
        copies = {name: weights[name].bfloat16() for name in ("embedding", "norm")}
        hosted = ("embedding", "bias") if on_host else ()
        chosen = settings(bits=bits, on_host=on_host)
        optimizer = AdamW(weights, chosen, device=CPU, hosted=hosted, copies=copies)
        for step in range(4):
            bad = BAD if step == 2 else GOOD
            optimizer.update(random_weights(seed=step + 1), lr=1e-2, is_bad=bad, seed=step)
        state = {f"{name}/{key}": value for name in SHAPES for key, value in optimizer.state[name].items()}
        for name, copy in copies.items():
            assert torch.equal(copy, weights[name].bfloat16())
        results.append(weights | state)
    (here, there) = results
    assert here.keys() == there.keys()
    for name, value in here.items():
        assert torch.equal(value, there[name]), name


@pytest.mark.gpu
@pytest.mark.parametrize("bits", [32, 8])
def test_gpu_streams_the_host_in_and_out(bits, monkeypatch):
    """Many portions and updates without a wait between them: every copy must find what the one before it left."""
    monkeypatch.setattr(optimizers, "PORTION", 2**18)
    gpu, results = torch.device("cuda"), []
    gradients = [torch.randn(4096, 1024, device=gpu) for _ in range(8)]
    for on_host in (False, True):
        start = torch.randn(4096, 1024, generator=torch.Generator().manual_seed(0))
        weight = start.pin_memory() if on_host else start.to(gpu)
        copies = {"weight": torch.zeros(4096, 1024, device=gpu, dtype=torch.bfloat16)}
        hosted = ("weight",) if on_host else ()
        chosen = settings(bits=bits, on_host=on_host)
        optimizer = AdamW({"weight": weight}, chosen, device=gpu, hosted=hosted, copies=copies)
        for step, gradient in enumerate(gradients):
            optimizer.update({"weight": gradient}, lr=1e-2, is_bad=GOOD.to(gpu), seed=step)
        optimizer.settle()
        torch.cuda.synchronize()
        results.append(
            [weight.cpu(), copies["weight"].cpu(), *(each.cpu() for each in optimizer.state["weight"].values())]
        )
    for here, there in zip(*results, strict=True):
        assert torch.equal(here, there)


def slow_moment(values, table, noise, size):
    """Round numbers one by one to one of their two neighbours in the table."""
    rounded = []
    for start in range(0, len(values), size):
        block = values[start : start + size]
        scale = max(map(abs, block))
        for value, chance in zip(block, noise[start : start + size], strict=True):
            share = max(value / scale, table[0])
            high = next(index for index, entry in enumerate(table) if entry >= share)
            high = max(high, 1)
            low = high - 1
            rises = chance < (share - table[low]) / (table[high] - table[low])
            rounded.append(table[high if rises else low] * scale)
    return rounded


def test_eight_bits_match_a_slow_reference():
    from scalerl.training.types import derive_seed

    chosen = settings(bits=8)
    weights = {"weight": torch.randn(256, generator=torch.Generator().manual_seed(0))}
    optimizer = AdamW(weights, chosen, device=CPU)
    slow, mean, square = weights["weight"].tolist(), [0.0] * 256, [0.0] * 256
    for step in range(3):
        gradient = torch.randn(256, generator=torch.Generator().manual_seed(step + 1)) ** 3
        optimizer.update({"weight": gradient}, lr=chosen.lr, is_bad=GOOD, seed=step)
        noise = torch.Generator().manual_seed(derive_seed("moments", step, 0))
        chances = [torch.empty(2, 128).uniform_(generator=noise).flatten().tolist() for _ in range(2)]
        for index, value in enumerate(gradient.tolist()):
            mean[index] = 0.9 * mean[index] + 0.1 * value
            square[index] = 0.99 * square[index] + 0.01 * value**2
            root = math.sqrt(square[index] / (1 - 0.99 ** (step + 1))) + 1e-8
            slow[index] *= 1 - chosen.lr * 0.1
            slow[index] -= chosen.lr * mean[index] / (1 - 0.9 ** (step + 1)) / root
        torch.testing.assert_close(weights["weight"], torch.tensor(slow), rtol=1e-4, atol=1e-5)
        mean = slow_moment(mean, mean_shares(CPU).tolist(), chances[0], 128)
        square = slow_moment(square, square_shares(CPU).tolist(), chances[1], 128)


def test_eight_bits_forget_as_fast_as_fp32():
    """A mean that loses 0.1 % per step would stand still if it were rounded to the nearest code."""
    weights = {"weight": torch.zeros(16, 128)}
    optimizer = AdamW(weights, OptimizerSettings(bits=8, beta2=0.999), device=CPU)
    ones, generator = torch.ones(16, 128), torch.Generator().manual_seed(0)
    # One number of each block stays large, so that the scale does not forget for the others.
    ones[:, 0] = 3.0
    optimizer.update({"weight": ones}, lr=0.0, is_bad=GOOD, seed=0)
    for step in range(1, 700):
        gradient = torch.zeros(16, 128)
        gradient[:, 0] = 3.0 + torch.rand(16, generator=generator)
        optimizer.update({"weight": gradient}, lr=0.0, is_bad=GOOD, seed=step)
    state = optimizer.state["weight"]
    squares = square_shares(CPU)[state["exp_avg_sq_codes"].int()] * state["exp_avg_sq_scale"][..., None]
    expected = 0.001 * 0.999**699
    assert squares.flatten(1)[:, 1:].mean().item() == pytest.approx(expected, rel=0.1)


def test_eight_bits_never_divide_by_a_lost_square():
    """A small gradient beside a large one keeps a square above zero: steps stay near the learning rate."""
    weights = {"weight": torch.zeros(1, 128)}
    optimizer = AdamW(weights, OptimizerSettings(bits=8, weight_decay=0.0), device=CPU)
    gradient = torch.full((1, 128), 1e-7)
    gradient[0, 0] = 1.0
    for step in range(30):
        before = weights["weight"].clone()
        optimizer.update({"weight": gradient if step < 10 else 0 * gradient}, lr=1.0, is_bad=GOOD, seed=step)
        assert (weights["weight"] - before).abs().max() < 3.0


def test_eight_bits_learn_as_fp32_does():
    generator = torch.Generator().manual_seed(0)
    inputs, target = torch.randn(512, 64, generator=generator), torch.randn(64, 64, generator=generator)
    losses = {}
    for bits in (32, 8):
        weights, noise = {"weight": torch.zeros(64, 64)}, torch.Generator().manual_seed(1)
        optimizer = AdamW(weights, settings(bits=bits).model_copy(update={"weight_decay": 0.0}), device=CPU)
        for step in range(600):
            rows = torch.randint(512, (32,), generator=noise)
            error = inputs[rows] @ (weights["weight"] - target)
            gradient = inputs[rows].T @ (error + 0.5 * torch.randn(error.shape, generator=noise)) / 32
            optimizer.update({"weight": gradient}, lr=0.03 * (1 - step / 600), is_bad=GOOD, seed=step)
        losses[bits] = float((inputs @ (weights["weight"] - target)).square().mean())
    assert losses[32] < 0.01
    assert losses[8] < 1.1 * losses[32]


FORMS = ("optimizer.bits=8", "optimizer.on_host=true")


@pytest.mark.parametrize("family", ["smollm", "llama_with_biases"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_learner_on_the_host_takes_the_same_steps(family, dtype):
    rows, weights = [], []
    for on_host in ("true", "false"):
        learner = make_learner(f"model.dtype={dtype}", f"optimizer.on_host={on_host}", family=family)
        rows.append([learner.step(random_batch(step, version=VERSION + step)) for step in range(3)])
        weights.append({name: weight.clone() for name, weight in learner.state_dict()["weights"].items()})
        body = dict(learner.policy.body.named_parameters())
        for name, weight in learner.weights().items():
            assert torch.equal(weight.to(body[name].dtype), body[name])
    assert rows[0] == rows[1]
    for name, weight in weights[0].items():
        assert torch.equal(weight, weights[1][name]), name


@pytest.mark.parametrize("forms", [FORMS[:1], FORMS[1:], FORMS], ids=["8 bits", "host", "both"])
def test_state_is_restored_exactly(forms):
    first = make_learner(*forms)
    first.step(random_batch(0, version=VERSION))
    saved = {kind: {name: t.clone() for name, t in tensors.items()} for kind, tensors in first.state_dict().items()}
    second = make_learner(*forms, seed=1)
    second.load_state_dict(saved)
    batch = random_batch(1, version=VERSION + 1)
    assert first.step(batch) == second.step(batch)
    ours, theirs = first.state_dict(), second.state_dict()
    for kind in ("weights", "optimizer"):
        assert ours[kind].keys() == theirs[kind].keys()
        for name, tensor in ours[kind].items():
            assert torch.equal(tensor, theirs[kind][name]), name
