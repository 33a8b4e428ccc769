"""KL terms against their closed forms, and their gradients in expectation against exact divergences."""

import math

import pytest
import torch

from scalerl.training.rl.kl import ESTIMATORS, KlInputs, k3, reverse


def some_inputs(seed: int = 0, num: int = 9) -> KlInputs:
    rng = torch.Generator().manual_seed(seed)
    log_probs, generator, reference = (-3 * torch.rand(3, num, generator=rng, dtype=torch.float64)).unbind()
    return KlInputs(log_probs=log_probs.requires_grad_(), generator_log_probs=generator, reference_log_probs=reference)


def test_k3_by_hand():
    inputs = some_inputs()
    difference = inputs.reference_log_probs - inputs.log_probs
    terms = k3(inputs)
    torch.testing.assert_close(terms, difference.exp() - difference - 1)
    assert (terms > 0).all()
    (gradient,) = torch.autograd.grad(terms.sum(), inputs.log_probs)
    torch.testing.assert_close(gradient, 1 - difference.detach().exp())


@pytest.mark.parametrize("cap", [5.0, 0.7])
def test_reverse_gradient_by_hand(cap):
    inputs = some_inputs()
    (gradient,) = torch.autograd.grad(reverse(inputs, cap=cap).sum(), inputs.log_probs)
    for t in range(len(gradient)):
        ours, generator, reference = (
            getattr(inputs, f"{name}log_probs")[t].item() for name in ("", "generator_", "reference_")
        )
        expected = min(math.exp(ours - generator), cap) * (ours - reference)
        assert gradient[t].item() == pytest.approx(expected, abs=1e-12)


def exact(logits: torch.Tensor, reference: torch.Tensor, *, forward: bool) -> torch.Tensor:
    ours = logits.log_softmax(-1)
    left, right = (reference, ours) if forward else (ours, reference)
    (gradient,) = torch.autograd.grad((left.exp() * (left - right)).sum(), logits)
    return gradient


@pytest.mark.parametrize("name, forward, off_policy", [("reverse", False, True), ("k3", True, False)])
def test_mean_gradient_is_that_of_the_exact_divergence(name, forward, off_policy):
    """Over every token of a vocabulary, each as often as the generator would sample it."""
    rng = torch.Generator().manual_seed(1)
    logits, other, teacher = torch.randn(3, 6, generator=rng, dtype=torch.float64).unbind()
    logits.requires_grad_()
    ours = logits.log_softmax(-1)
    generator = other.log_softmax(-1) if off_policy else ours.detach()
    reference = teacher.log_softmax(-1)
    inputs = KlInputs(log_probs=ours, generator_log_probs=generator, reference_log_probs=reference)
    settings = {"cap": 1e9} if name == "reverse" else {}
    terms = ESTIMATORS[name](inputs, **settings)
    (gradient,) = torch.autograd.grad((generator.exp() * terms).sum(), logits)
    torch.testing.assert_close(gradient, exact(logits, reference, forward=forward), rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("name", ESTIMATORS)
def test_impossible_tokens_have_finite_gradients(name):
    log_probs = torch.tensor([-1.0, -80.0], requires_grad=True)
    reference = torch.tensor([-math.inf, -0.1])
    terms = ESTIMATORS[name](
        KlInputs(log_probs=log_probs, generator_log_probs=log_probs.detach(), reference_log_probs=reference)
    )
    (gradient,) = torch.autograd.grad(terms.sum(), log_probs)
    assert gradient.isfinite().all()
