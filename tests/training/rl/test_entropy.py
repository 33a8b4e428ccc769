"""Entropy controls against exact gradients and slow loops."""

from typing import Any

import pytest
import torch
from loss_inputs import some_tokens

from scalerl.training.rl.entropy import CONTROLS, PolicyTokens, bonus, clip_cov
from scalerl.training.rl.losses import LossInputs, cispo


def policy_tokens(number: int, **changes: Any) -> PolicyTokens:
    tokens = some_tokens(number, num_completions=60)
    fields: dict[str, Any] = {
        "policy": torch.where(tokens.trained, 0.25, 0.0).double(),
        "advantages": 2 * tokens.advantages,
        "generator_log_probs": tokens.generator_log_probs,
        "trained": tokens.trained,
    }
    return PolicyTokens(**fields | changes)


@pytest.mark.parametrize("off_policy", [False, True])
def test_bonus_is_the_gradient_of_the_entropy(off_policy):
    """Over every token of a vocabulary, each as often as the generator samples it; the ratio corrects the lag."""
    rng = torch.Generator().manual_seed(0)
    logits, other = torch.randn(2, 7, generator=rng, dtype=torch.float64).unbind()
    logits.requires_grad_()
    ours = logits.log_softmax(-1)
    generator = other.log_softmax(-1) if off_policy else ours.detach()
    zeros = torch.zeros(7, dtype=torch.float64)
    everywhere = torch.ones(7, dtype=torch.bool)
    # The log-prob in the bonus is the sampler's: for the policy's own entropy it must be the policy's.
    tokens = PolicyTokens(policy=zeros, advantages=zeros, generator_log_probs=ours.detach(), trained=everywhere)
    made = bonus(tokens, coefficient=0.3)
    inputs = LossInputs(
        log_probs=ours,
        generator_log_probs=generator,
        advantages=made.advantages,
        completion_of_token=torch.arange(7),
        trained=everywhere,
    )
    (gradient,) = torch.autograd.grad((generator.exp() * cispo(inputs, cap=1e9).loss).sum(), logits, retain_graph=True)
    (exact,) = torch.autograd.grad(0.3 * (ours.exp() * ours).sum(), logits)
    torch.testing.assert_close(gradient, exact, rtol=1e-9, atol=1e-12)


def test_bonus_adds_nothing_on_average_and_favours_the_unlikely():
    tokens = policy_tokens(1)
    added = bonus(tokens, coefficient=0.1).advantages - tokens.advantages
    assert added[tokens.trained].mean() == pytest.approx(0.0, abs=1e-12)
    assert not added[~tokens.trained].any()
    order = tokens.generator_log_probs[tokens.trained].argsort()
    assert (added[tokens.trained][order].diff() <= 0).all()


def slow_candidates(tokens: PolicyTokens, low: float, high: float) -> set[int]:
    places = [t for t in range(len(tokens.trained)) if tokens.trained[t]]
    logs, advantages = ([float(each[t]) for t in places] for each in (tokens.generator_log_probs, tokens.advantages))
    mean_log, mean_advantage = sum(logs) / len(places), sum(advantages) / len(places)
    pairs = zip(places, logs, advantages, strict=True)
    return {t for t, log, advantage in pairs if low < (log - mean_log) * (advantage - mean_advantage) < high}


@pytest.mark.parametrize("fraction, num", [(1e-9, 1), (0.02, None), (1.0, None)])
def test_clip_cov_leaves_out_a_few_of_its_candidates(fraction, num):
    tokens = policy_tokens(2)
    candidates = slow_candidates(tokens, 1.0, 5.0)
    assert len(candidates) > 10
    made = clip_cov(tokens, fraction=fraction)
    clipped = set(torch.nonzero(made.policy != tokens.policy).squeeze(1).tolist())
    total = int(tokens.trained.sum())
    assert clipped <= candidates
    assert len(clipped) == (num or min(int(fraction * total), len(candidates)))
    assert made.metrics["entropy/clipped_frac"] == len(clipped) / total
    assert not made.policy[sorted(clipped)].any()
    assert torch.equal(made.advantages, tokens.advantages)


def test_clip_cov_draws_by_its_seed():
    drawn = [clip_cov(policy_tokens(2, seed=seed), fraction=0.02).policy for seed in (0, 0, 1)]
    assert torch.equal(drawn[0], drawn[1])
    assert not torch.equal(drawn[0], drawn[2])


@pytest.mark.parametrize("name", CONTROLS)
def test_nothing_trained_is_left_alone(name):
    tokens = policy_tokens(3, trained=torch.zeros(len(policy_tokens(3).trained), dtype=torch.bool))
    made = CONTROLS[name](tokens)
    assert torch.equal(made.policy, tokens.policy)
    assert torch.equal(made.advantages, tokens.advantages)
