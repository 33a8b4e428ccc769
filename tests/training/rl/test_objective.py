"""The sum of the three parts, against each part written out, and bit by bit against a weighted loss alone."""

import dataclasses

import pytest
import torch
from loss_inputs import some_tokens

from scalerl.training.rl.algorithm import TokenWeights
from scalerl.training.rl.kl import ESTIMATORS, KlInputs, k3
from scalerl.training.rl.losses import LOSSES
from scalerl.training.rl.objective import Objective

TRAINING = [name for name in LOSSES if name != "none"]


def weighted(seed: int, num: int) -> tuple[torch.Tensor, ...]:
    rng = torch.Generator().manual_seed(seed)
    return tuple(torch.rand(4, num, generator=rng).unbind())


def fp32_tokens(seed: int):
    """Tokens as the learner gives them: all trained, in FP32, with gradient."""
    tokens = some_tokens(seed)
    changed = {name: getattr(tokens, name).float() for name in ("log_probs", "generator_log_probs", "advantages")}
    changed["log_probs"].requires_grad_()
    return dataclasses.replace(tokens, **changed, trained=torch.ones_like(tokens.trained))


def gradient(total: torch.Tensor, log_probs: torch.Tensor) -> torch.Tensor:
    return torch.autograd.grad(total, log_probs)[0]


@pytest.mark.parametrize("coefficient", [0.0, 0.3])
@pytest.mark.parametrize("name", TRAINING)
def test_gradient_is_bitwise_that_of_the_weighted_loss(name, coefficient):
    """As it was computed before there were parts: weight x (loss + coefficient x k3)."""
    tokens = fp32_tokens(1)
    policy, *_, reference = weighted(2, len(tokens.log_probs))
    terms = LOSSES[name](tokens).loss
    inputs = KlInputs(
        log_probs=tokens.log_probs, generator_log_probs=tokens.generator_log_probs, reference_log_probs=-reference
    )
    terms = terms + coefficient * k3(inputs) if coefficient else terms
    expected = gradient((policy * terms).sum(), tokens.log_probs)

    kl = coefficient * policy if coefficient else None
    objective = Objective(loss=LOSSES[name], kl=k3 if coefficient else None)
    weights = TokenWeights(policy=policy, advantages=tokens.advantages, kl=kl)
    value = objective(tokens, weights, -reference)
    assert torch.equal(gradient(value.total, tokens.log_probs), expected)


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_parts_add_up(estimator):
    tokens = fp32_tokens(3)
    policy, imitation, kl, reference = weighted(4, len(tokens.log_probs))
    weights = TokenWeights(policy=policy, advantages=tokens.advantages, imitation=imitation, kl=kl)
    objective = Objective(loss=LOSSES["cispo"], kl=ESTIMATORS[estimator])
    value = objective(tokens, weights, -reference)
    terms = KlInputs(
        log_probs=tokens.log_probs, generator_log_probs=tokens.generator_log_probs, reference_log_probs=-reference
    )
    parts = (
        (policy * LOSSES["cispo"](tokens).loss).sum(),
        -(imitation * tokens.log_probs).sum(),
        (kl * ESTIMATORS[estimator](terms)).sum(),
    )
    torch.testing.assert_close(value.total, sum(parts))
    expected = sum(gradient(part, tokens.log_probs) for part in parts)
    torch.testing.assert_close(gradient(value.total, tokens.log_probs), expected)
    assert objective.columns == ("loss/corrected_frac", "loss/reference_kl")
    torch.testing.assert_close(value.columns[1], k3(terms).detach())


def test_imitation_alone_is_the_negative_log_likelihood():
    tokens = fp32_tokens(5)
    _, imitation, *_ = weighted(6, len(tokens.log_probs))
    nothing = torch.zeros_like(imitation)
    weights = TokenWeights(policy=nothing, advantages=nothing, imitation=imitation)
    value = Objective(loss=LOSSES["none"])(tokens, weights)
    assert torch.equal(gradient(value.total, tokens.log_probs), -imitation)
    assert [float(column.sum()) for column in value.columns] == [0.0]
